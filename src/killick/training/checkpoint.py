"""Checkpoints: all that is needed to resume, written so that a kill at any moment loses nothing.

What is random needs no state: it depends on the seed and the step alone. The new file is written
beside the old one, forced to disk, and takes its place in one step; the old one is kept.
"""

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

from killick.errors import CheckpointError, show
from killick.runtime.atomic_files import atomic_file
from killick.storage.weights import CHECKPOINT_FORMAT as FORMAT
from killick.storage.weights import load_plain, refuse_bomb

VERSION = 1
LAST, BEFORE = "checkpoint.pt", "checkpoint-before.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write `state` as the last checkpoint of a run, and keep the previous one."""
    last, before = folder / LAST, folder / BEFORE
    aside = folder / f".{BEFORE}.part"
    try:
        with atomic_file(last) as file:
            torch.save({"format": FORMAT, "version": VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
            if last.exists():  # a second name for it, so that there is a last one at every moment
                aside.unlink(missing_ok=True)
                _link(last, aside)
                os.replace(aside, before)
    except (OSError, RuntimeError) as problem:  # torch's writer raises RuntimeError on a full disk
        aside.unlink(missing_ok=True)
        raise CheckpointError(
            f"cannot write a checkpoint to {folder}: {_reason(problem)}. Older checkpoints are"
            " unchanged."
        ) from problem


def _reason(problem: BaseException | None) -> str:
    """The system's error, which torch's writer hides behind one of its own."""
    first = problem
    while problem is not None and not isinstance(problem, OSError):
        problem = problem.__context__
    return str(problem or first)[:200]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # some file systems have no links
        shutil.copyfile(source, target)


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], str | None]:
    """The last intact checkpoint, and a note if a later one was damaged."""
    problems: list[str] = []
    for name in (LAST, BEFORE):
        try:
            state = read_checkpoint(folder / name)
        except CheckpointError as problem:
            problems.append(str(problem).rstrip("."))
            continue
        note = f"{problems[0]}; using {name}, step {state['step']}." if problems else None
        return state, note
    raise CheckpointError(f"cannot resume {folder}: {' and '.join(problems)}.")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint, verified; nothing in it can run code."""
    if not path.is_file():
        raise CheckpointError(f"no {path.name}")
    try:
        refuse_bomb(path)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{damaged[:100]!r} has changed")
        state: dict[str, Any] = load_plain(path)
        kind, version, step = str(state["format"]), state["version"], state["step"]
    except Exception as problem:  # whatever a damaged file makes its readers raise
        reason = " ".join(str(problem).split())[:150].rstrip(".")
        raise CheckpointError(f"{path.name} is damaged: {reason}.") from None
    if kind != FORMAT or type(version) is not int or type(step) is not int:
        raise CheckpointError(f"{path.name} is not a checkpoint of Killick.")
    if version != VERSION:
        raise CheckpointError(
            f"{path.name} has version {show(version)}, expected {VERSION}. Use the version of Killick that"
            " wrote it."
        )
    return state
