"""Writing files so that a reader finds the old one or the new one, never half of it."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from killick.errors import CheckpointError


def write_whole(path: Path, text: str) -> None:
    """All of `text` at `path`, or what was there before."""
    write_bytes_whole(path, text.encode())


def write_bytes_whole(path: Path, content: bytes) -> None:
    """All of `content` at `path`, or what was there before."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as problem:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise CheckpointError(f"cannot write {path}: {problem.strerror}.") from problem


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which then takes the place of `folder`; or nothing changes.

    What was at `folder` is gone only when all is written. An `OSError` is the caller's to explain.

    Args:
        folder: Not a link. Its parent is made if it is not there.
    """
    mark = secrets.token_hex(4)
    beside, before = (folder.with_name(f".{folder.name}.{mark}.{end}") for end in ("part", "old"))
    try:
        beside.mkdir(parents=True)
        yield beside
        if folder.exists():
            os.rename(folder, before)
        try:
            os.rename(beside, folder)
        except OSError:
            if before.exists():
                os.rename(before, folder)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if folder.exists():  # else what was there before is kept, under the other name
            shutil.rmtree(before, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Nobody else who asks for it writes into `folder` meanwhile; where there are no locks, try.

    Args:
        folder: That is there.
        name: Of the lock: work of different kinds does not wait for each other.
    """
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    try:
        file = open(folder / name, "w")  # noqa: SIM115, it is closed below
    except OSError as problem:
        raise CheckpointError(f"cannot write into {folder}: {problem.strerror}.") from problem
    with file:
        with contextlib.suppress(OSError):  # some shared file systems have none
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
