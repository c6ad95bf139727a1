"""Writing files so that a reader finds the old one or the new one, never half of it."""

import os
from pathlib import Path

from kedge.errors import CheckpointError


def write_whole(path: Path, text: str) -> None:
    """All of `text` at `path`, or what was there before."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8", newline="")
        os.replace(beside, path)
    except OSError as problem:
        raise CheckpointError(f"cannot write {path}: {problem.strerror}.") from problem
