"""The folder of a run: opening it, and what is written into it at the end."""

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from killick import __version__
from killick.data.preprocessing import PlainView
from killick.errors import CheckpointError, KillickError
from killick.nets import remembered
from killick.nets.custom import read_source
from killick.results.rows import COLUMNS, Row, make_row, write_rows
from killick.runtime.atomic_files import locked, make_folder, write_atomic
from killick.storage.loading import read_config
from killick.storage.saving import save
from killick.storage.weights import digest_weights
from killick.training.checkpoint import LAST
from killick.training.initial_weights import model_folder, warn_of_seen
from killick.training.recipe import Recipe, named_classes
from killick.training.recipe_files import to_yaml
from killick.training.run_state import TrainingRun
from killick.training.validation import ValidationScore

_PASSES = 2  # of a sample in training: forward and backward
_LIBRARIES = ("torch", "torchvision", "timm", "numpy")


def check_free(folder: Path) -> None:
    """Refuse a folder that holds a run already."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"cannot train into {folder}: it is a file.")
    if (folder / LAST).exists() or (folder / "model" / "config.json").exists():
        raise CheckpointError(
            f"cannot train into {folder}: it holds a run. Resume it (killick train --resume"
            f" {shlex.quote(str(folder))}), or choose another folder (--output)."
        )


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a run folder, made if it is missing, for this process alone."""
    make_folder(folder)
    with locked(folder, ".training", wait=False):
        yield


def open_folder(folder: Path, recipe: Recipe, device: torch.device) -> None:
    """Begin a run folder with the recipe and the environment."""
    check_free(folder)  # again: another process may have trained there meanwhile
    write_atomic(folder / "recipe.yaml", to_yaml(recipe))
    write_atomic(folder / "environment.json", json.dumps(_environment(device), indent=2) + "\n")
    source = read_source(recipe.network.name.partition(":")[0])
    if source is not None and not (folder / "network.py").exists():
        write_atomic(folder / "network.py", source)  # as it was when the run began


def save_results(run: TrainingRun, folder: Path, score: ValidationScore | None) -> list[Row]:
    """Write the model and the rows of its test score."""
    facts = training_facts(run)
    rows = [] if score is None else _make_rows(run, facts, score, folder.name)
    if run.processes.first:
        save(
            run.inference_model,
            folder / "model",
            class_names=run.data.class_names,
            provenance={
                "recipe": asdict(run.recipe),
                "facts": facts,
                "steps": run.done,
                "trained_on": run.data.fingerprint,
                "rows": rows,
                "validation_seen": run.start is not None
                and warn_of_seen(run.recipe, run.start) is not None,
            },
        )
        if rows:
            write_rows(folder, rows)
    return rows


def _make_rows(
    run: TrainingRun, facts: dict[str, Any], score: ValidationScore, name: str
) -> list[Row]:
    data = run.recipe.data
    common = {
        "model": name,
        **facts,
        "suite": "clean",
        "set": data.name,
        "view": PlainView.of(data).described,
        "evaluation_seed": 0,
        "access": "" if run.data.test is None else run.data.test.access,
        "inference": "single",
        "k": 1 if run.protocol.anchored else "",
        "precision": "float32",
        "inference_cost": 1.0,
        "count": score.count,
        "weights": digest_weights(run.inference_model),
    }
    values = {"top1": score.accuracy, "nll": score.loss}
    return [make_row(**common, metric=metric, value=value) for metric, value in values.items()]


def training_facts(run: TrainingRun) -> dict[str, Any]:
    """How a model was trained, in the columns that every row about it has.

    The column `components` is JSON: the settings of each component, and facts of the protocol that
    have no column of their own.
    """
    recipe, facts = run.recipe, run.protocol.facts()
    made = remembered(run.model.net)  # started from a folder, it is not the recipe's
    further = {each.name: each.facts() for each in run.components} | named_classes(recipe)
    further |= {name: "given" for name in run.given}
    if others := {name: value for name, value in facts.items() if name not in COLUMNS}:
        further[run.protocol.name] = others
    return {
        "network": recipe.network.name if made is None else made.name,
        "data": recipe.data.name,
        "protocol": recipe.protocol.name,
        **{name: value for name, value in facts.items() if name in COLUMNS},
        "components": json.dumps(further) if further else "",
        "reference_policy": getattr(run.inference_model, "reference_policy", None) or "",
        "start": str(run.start or recipe.network.pretrained or ""),
        "epochs": recipe.epochs,
        "seed": recipe.seed,
        "training_cost": _count_cost(run),
    }


def _count_cost(run: TrainingRun) -> float:
    """Passes for a sample, with those of the trained network that it started from, if known."""
    own: float = math.prod(each.cost() for each in run.components)
    own += sum(each.extra_passes() for each in run.components) / _PASSES
    if run.start is None:
        return own
    try:
        before = read_config(model_folder(run.start)).get("provenance") or {}
        samples = int(before["steps"] * before["recipe"]["batch"])
        spent = float(before["facts"]["training_cost"]) * samples
        return own + spent / (run.done * run.recipe.batch)
    except (KillickError, LookupError, TypeError, ValueError):  # weights from elsewhere
        return own


def _environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine and command, so that a run can be understood later."""
    started = Path(sys.argv[0]).name
    return {
        "versions": {"killick": __version__, **{name: version(name) for name in _LIBRARIES}},
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": ["killick" if started == "__main__.py" else started, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
