"""Checkpoints: all that is needed to resume, written so that a kill at any moment loses nothing.

What is random needs no state: it depends on the seed and the step alone. The new file is written
beside the old one, forced to disk, and takes its place in one step; the old one is kept.
"""

import os
import shutil
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.errors import CheckpointError, FileError, one_line, show
from killick.runtime.atomic_files import atomic_file
from killick.runtime.plain_files import open_plain
from killick.storage.json_checks import (
    Check,
    are_numbers,
    find_bad,
    is_dictionary,
    is_text,
    is_whole,
    optional,
)
from killick.storage.weights import CHECKPOINT_FORMAT as FORMAT
from killick.storage.weights import load_plain, refuse_bomb
from killick.training.training_input import BATCHED, RESIDENT, SINGLE

VERSION = 2
LAST, BEFORE = "checkpoint.pt", "checkpoint-before.pt"
_CHECKS: dict[str, Check] = {
    "step": partial(is_whole, least=0, most=2**62),
    "recipe": is_dictionary,
    "start": optional(is_text),
    "way": lambda value: value in (RESIDENT, BATCHED, SINGLE),
    "network": optional(
        lambda value: (
            isinstance(value, tuple)
            and len(value) == 2
            and is_text(value[0])
            and is_dictionary(value[1])
        )
    ),
    "unread": lambda value: (
        isinstance(value, tuple)
        and len(value) == 2
        and are_numbers(value[0])
        and is_whole(value[1], 0, 2**62)
    ),
    "model": lambda value: (
        is_dictionary(value) and all(isinstance(each, Tensor) for each in value.values())
    ),
    **dict.fromkeys(("optimizer", "protocol", "components"), is_dictionary),
}


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
    if not path.exists():
        raise CheckpointError(f"no {path.name}")
    try:
        open_plain(path).close()
        refuse_bomb(path)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{damaged[:100]!r} has changed")
        state: dict[str, Any] = load_plain(path)
        kind, version = str(state["format"]), state["version"]
    except FileError as problem:
        raise CheckpointError(f"{path.name}: {problem.reason}.") from None
    except Exception as problem:  # whatever a damaged file makes its readers raise
        raise CheckpointError(f"{path.name} is damaged: {one_line(problem)}.") from None
    if kind != FORMAT or type(version) is not int:
        raise CheckpointError(f"{path.name} is not a checkpoint of Killick.")
    if version != VERSION:
        raise CheckpointError(
            f"{path.name} has version {show(version)}, expected {VERSION}. Use the version of Killick that"
            " wrote it."
        )
    if bad := find_bad(state, _CHECKS):
        raise CheckpointError(f"{path.name} is damaged: {bad[0]} is {show(state.get(bad[0]))}.")
    return state
