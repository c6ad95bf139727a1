"""A comparison as `killick compare` leaves it, made up: three arms, two seeds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from report_runs import ANCHORED, LABEL, STANDARD, make_run

from killick.results.predictions import (
    encode,
    prediction_files,
    read_predictions,
    write_predictions,
)
from killick.results.run_folder import Run, find_runs

NAMES = ("disc", "ring", "square", "star", "cross")
ARMS = {"standard": STANDARD, "anchored": ANCHORED, "masked-label": LABEL}
SKILLS = {"standard": 1.0, "anchored": 1.1, "masked-label": 1.5}
CORRUPTIONS = ("gaussian_noise", "fog", "contrast")


def make_grid(
    folder: Path, arms: dict[str, dict] = ARMS, seeds: tuple[int, ...] = (0, 1), **options
):
    """Run folders of all arms and seeds in `folder`."""
    for arm, facts in arms.items():
        for seed in seeds:
            name = f"arm{list(arms).index(arm)}-seed{seed}-abcdef"
            job = {
                "arm": arm,
                "seed": seed,
                "finished": True,
                "seconds": {"train": 12.25, "evaluate": 20.5},
                "command": ["killick", "compare", "--title", "a b"],
            }
            recipe = {"protocol": {"name": facts["protocol"], "target": facts.get("target")}}
            recipe |= {"epochs": 5, "seed": seed, "about": "Made up."}
            given = {"n": 60, "limit": 60, "corruptions": CORRUPTIONS, "severities": (1, 3, 5)}
            given |= {"skill": SKILLS.get(arm, 1.2), "job": job, "recipe": recipe}
            make_run(folder, name, facts, seed=seed, **{**given, **options})
            _add_images_and_spread(folder / name)
            _add_training(folder / name, seed)
    return folder


def grid_runs(folder: Path) -> list[Run]:
    return find_runs([folder])


def _add_images_and_spread(folder: Path) -> None:
    for path in prediction_files(folder):
        answers = read_predictions(path)
        marginal = answers.marginal
        if marginal:
            chance = np.random.default_rng(answers.count + len(path.name))
            doubt = 1 - marginal["confidence"] + 0.1 * chance.random(answers.count)
            marginal = {**marginal, "spread": doubt.astype(np.float32)}
        kept = [number for number in (3, 7, 13, 17, 31, 45) if number < answers.count]
        kept = kept[-4:] if "correct" in answers.single else []
        thumbnails = {number: encode(_image(number)) for number in kept}
        write_predictions(
            folder, replace(answers, marginal=marginal, thumbnails=thumbnails, class_names=NAMES)
        )


def _image(number: int) -> np.ndarray:
    chance = np.random.default_rng(number)
    return chance.integers(0, 256, (3, 8, 8), dtype=np.uint8)


def _add_training(folder: Path, seed: int) -> None:
    lines = []
    for step in range(1, 11):
        loss = 2.0 / step + 0.01 * seed
        lines.append({"kind": "train", "step": 10 * step, "epoch": step / 2, "loss": loss})
        if step % 2 == 0:
            accuracy = 0.5 + 0.04 * step + 0.02 * seed
            lines.append(
                {"kind": "validation", "step": 10 * step, "epoch": step // 2, "accuracy": accuracy}
            )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    about = {
        "versions": {"killick": "0.1.0", "torch": "2.9.9"},
        "python": "3.11.1",
        "system": "Somewhere",
        "device": "cpu",
        "cores": 2,
        "threads": 1,
        "command": ["killick", "train", "--seed", str(seed)],
        "started": "2026-01-01T00:00:00+00:00",
    }
    (folder / "environment.json").write_text(json.dumps(about))
    assert yaml.safe_load((folder / "recipe.yaml").read_text())
