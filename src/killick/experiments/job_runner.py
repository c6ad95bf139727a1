"""One cell from beginning to end: what is there already is used, what is missing is done."""

import importlib
import json
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from killick.errors import KillickError
from killick.evaluation.evaluator import evaluate
from killick.experiments.jobs import Job, Phase
from killick.results.measurements import Measured
from killick.results.run_folder import JOB, read_job
from killick.runtime.atomic_files import locked, write_atomic
from killick.runtime.processes import choose_device
from killick.runtime.progress import Display
from killick.training.checkpoint import BEFORE, LAST
from killick.training.loop import train

PROGRESS = "progress.json"
PROBLEM = "problem.txt"
_SECONDS_BETWEEN_NOTES = 0.5

Result = dict[str, Any]


def run_job(
    cell: Job,
    *,
    threads: int | None = None,
    device: str = "auto",
    command: list[str] | None = None,
) -> Result:
    """Train and evaluate a cell; what went wrong is returned, not raised.

    Args:
        cell: What to do.
        threads: Of torch, on a CPU.
        device: As for `train`.
        command: That a reader of the report can repeat.

    Returns:
        `status`: "finished", "failed" or "interrupted"; with `problem`, a line, if it failed.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    began = time.monotonic()
    try:
        cell.folder.mkdir(parents=True, exist_ok=True)
        with locked(cell.folder, ".running"):  # another process at the same cell is waited for
            if cell.finished:
                return {"status": "finished", "seconds": 0.0}
            return _run(cell, device, command, began)
    except KeyboardInterrupt:
        return {"status": "interrupted"}
    except KillickError as problem:
        return _failed(cell, str(problem))
    except OSError as problem:
        return _failed(cell, f"{problem.filename or cell.folder}: {problem.strerror or problem}.")
    except Exception as problem:  # a bug, or no memory: the other cells go on all the same
        text = str(problem).strip().splitlines()
        line = f"{type(problem).__name__}: {text[0] if text else ''}"
        return _failed(cell, line, traceback.format_exc())


def _run(cell: Job, device: str, command: list[str] | None, began: float) -> Result:
    (cell.folder / PROBLEM).unlink(missing_ok=True)
    before = read_job(cell.folder)
    seconds = {"train": 0.0, "evaluate": 0.0, **before.get("seconds", {})}
    stages = len(cell.phases) + 1 + (cell.measure is not None)
    # One that is finished and asked more now stays finished, whatever happens to what is asked.
    if not before.get("finished"):
        _note_cell(cell, command, seconds, finished=False)
    for number, phase in enumerate(cell.phases):
        since = time.monotonic()
        stage = "training" if len(cell.phases) == 1 else f"training {number + 1}/{len(cell.phases)}"
        finished = _train(cell, phase, _Notes(cell.folder, stage, number, stages), device)
        seconds["train"] += time.monotonic() - since
        if not before.get("finished"):
            _note_cell(cell, command, seconds, finished=False)
        if not finished:
            return {"status": "interrupted"}
    since = time.monotonic()
    notes = _Notes(cell.folder, "evaluating", len(cell.phases), stages)
    evaluate(
        str(cell.folder),
        **cell.evaluation,
        name=cell.folder.name,
        device=device,
        folder=cell.folder,
        show=notes.begin,
    )
    seconds["evaluate"] += time.monotonic() - since
    if cell.measure is not None:
        since = time.monotonic()
        _measure(cell, _Notes(cell.folder, "measuring", len(cell.phases) + 1, stages), device)
        seconds["measure"] = seconds.get("measure", 0.0) + time.monotonic() - since
    _note_cell(cell, command, seconds, finished=True)
    (cell.folder / PROGRESS).unlink(missing_ok=True)
    return {"status": "finished", "seconds": round(time.monotonic() - began, 1)}


def rename_job(cell: Job) -> None:
    """Have the folder of a finished cell say which arm it is now."""
    there = read_job(cell.folder)
    if there.get("arm") != cell.arm:
        write_atomic(cell.folder / JOB, json.dumps({**there, "arm": cell.arm}, indent=2) + "\n")


def _measure(cell: Job, notes: "_Notes", device: str) -> None:
    """Call the function that measures a cell: `(folder, options, kept, *, device, show)`."""
    assert cell.measure is not None
    module, _, name = cell.measure.partition(":")
    measure = getattr(importlib.import_module(module), name)
    kept = Measured(cell.folder, cell.measuring)
    measure(cell.folder, cell.options, kept, device=choose_device(device), show=notes.begin)


def _train(cell: Job, phase: Phase, notes: "_Notes", device: str) -> bool:
    """The run of a phase: used as it is, resumed, or begun; False if it was interrupted."""
    folder = phase.folder
    if (folder / "model" / "config.json").exists():
        return True
    if folder != cell.folder and cell.folder not in folder.parents:  # several cells share it
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, ".running"):
            return _train_alone(phase, notes, device)
    return _train_alone(phase, notes, device)


def _train_alone(phase: Phase, notes: "_Notes", device: str) -> bool:
    folder = phase.folder
    if (folder / "model" / "config.json").exists():
        return True
    if (folder / LAST).exists() or (folder / BEFORE).exists():
        return train(None, folder, resume=True, device=device, show=notes.begin).finished
    start, show = phase.start, notes.begin
    return train(phase.recipe, folder, start=start, device=device, show=show).finished


def _note_cell(
    cell: Job, command: list[str] | None, seconds: dict[str, float], *, finished: bool
) -> None:
    values = {
        "arm": cell.arm,
        "seed": cell.seed,
        "finished": finished,
        "asked": cell.asked,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "command": command or [],
    }
    write_atomic(cell.folder / JOB, json.dumps(values, indent=2) + "\n")


def _failed(cell: Job, problem: str, trace: str | None = None) -> Result:
    """A line for the report, and in the folder all that is known."""
    result = {"status": "failed", "problem": problem}
    with suppress(OSError, KillickError):  # the disk may be what failed
        (cell.folder / PROGRESS).unlink(missing_ok=True)
        write_atomic(cell.folder / PROBLEM, (trace or problem) + "\n")
    return result


class _Notes:
    """Writes into `progress.json` how a cell does, for whoever watches, on whatever machine.

    Args:
        folder: Of the cell.
        stage: In a word.
        number: Of the stage.
        stages: In all.
    """

    def __init__(self, folder: Path, stage: str, number: int, stages: int) -> None:
        self._path = folder / PROGRESS
        self._about = {"stage": stage, "number": number, "stages": stages, "process": os.getpid()}
        self._steps, self._text, self._wrote = 1, "", 0.0

    @contextmanager
    def begin(self, title: str, steps: int, done: int, what: str) -> Iterator[Display]:
        """The display of `train` and `evaluate`."""
        self._steps = max(1, steps)
        self._write(done, force=True)
        yield self

    def message(self, text: str) -> None:
        """Nothing: such lines are in the folder's own files."""

    def advance(self, step: int) -> None:
        """Where it is."""
        self._write(step)

    def update(self, step: int, text: str, *, line: bool = False) -> None:
        """Where it is, and how it does."""
        self._text = text
        self._write(step)

    def _write(self, step: int, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._wrote < _SECONDS_BETWEEN_NOTES:
            return
        self._wrote = now
        values = {**self._about, "done": step, "total": self._steps, "text": self._text}
        with suppress(KillickError):  # a full disk is told by what matters
            write_atomic(self._path, json.dumps(values))
