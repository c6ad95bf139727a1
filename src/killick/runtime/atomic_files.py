"""Writing files so that a reader finds the old one or the new one, never half of it."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from killick.errors import CheckpointError, StorageError


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which then takes the place of `path`; an error leaves `path` alone."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write all of `content` to `path`, or leave what was there before."""
    try:
        with atomic_file(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as problem:
        raise CheckpointError(f"cannot write {path}: {problem.strerror}.") from problem


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which then takes the place of `folder`; or nothing changes.

    What was at `folder` is removed only when all is written. A link stays one.
    """
    folder = Path(os.path.realpath(folder))
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
    except OSError as problem:
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is"
            " unchanged. Free some space, or choose another folder."
        ) from problem
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if folder.exists():  # else what was there before is kept, under the other name
            shutil.rmtree(before, ignore_errors=True)


def check_replaceable(folder: Path, ours: Iterable[str]) -> None:
    """Refuse to replace a folder that holds other files than `ours`, or anything but a folder."""
    if not folder.exists():
        return
    names = os.listdir(folder) if folder.is_dir() else ["a file"]
    if others := sorted(set(names) - set(ours)):
        raise StorageError(
            f"cannot write {folder}: expected a new folder, or one that the same command wrote,"
            f" found {others[0]}. Choose another folder."
        )


@contextlib.contextmanager
def locked(folder: Path, name: str = ".lock", *, wait: bool = True) -> Iterator[None]:
    """Hold the lock `name` on `folder`, at most as long as this process lives.

    Where another process holds it, wait; where the file system has no locks, go on without. With
    `wait=False`, both are refused.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        file = open(folder / name, "w")  # noqa: SIM115, it is closed below
    except OSError as problem:
        raise CheckpointError(f"cannot write into {folder}: {problem.strerror}.") from problem
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as problem:
            if not wait:
                busy = isinstance(problem, BlockingIOError)
                why = "another process uses it" if busy else f"no lock ({problem.strerror})"
                raise CheckpointError(
                    f"cannot train in {folder}: {why}. Choose another folder: --output."
                ) from None
        yield
