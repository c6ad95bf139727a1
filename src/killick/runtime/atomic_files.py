"""Writing files so that a reader finds the old one or the new one, never half of it.

What is being written lies beside its place as `.NAME.XXXXXXXX.part`, locked by its writer, with a
random number. What a killed process left behind has no lock: the next write of the same thing
removes it.
"""

import contextlib
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from killick.errors import CheckpointError, StorageError

_NO_LINKS = os.O_NOFOLLOW  # an untrusted folder may hold links to other files


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which then takes the place of `path`; an error leaves `path` alone."""
    _remove_abandoned(path)
    part, descriptor = _claim_part(path, _make_file)
    with open(descriptor, "wb") as file:
        try:
            yield file
            file.flush()
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write all of `content` to `path`, or leave what was there before."""
    if isinstance(content, str):  # half characters, as file names may hold, become escapes
        content = content.encode("utf-8", "backslashreplace")
    try:
        with atomic_file(path) as file:
            file.write(content)
    except OSError as problem:
        raise CheckpointError(f"cannot write {path}: {problem.strerror}.") from problem


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which then takes the place of `folder`; or nothing changes.

    What was at `folder` is removed only when all is written. A link stays one.
    """
    folder = Path(os.path.realpath(folder))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part, descriptor = _claim_part(folder, _make_folder)
        new, old = part / "new", part / "old"
        try:
            new.mkdir()
            yield new
            if folder.exists():
                os.rename(folder, old)
            try:
                os.rename(new, folder)
            except OSError:
                if old.exists():
                    os.rename(old, folder)
                raise
        finally:
            if folder.exists() or not old.exists():  # else the only copy of what was there before
                shutil.rmtree(part, ignore_errors=True)
            os.close(descriptor)
        _remove_abandoned(folder)
    except OSError as problem:
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is"
            " unchanged. Free some space, or choose another folder."
        ) from problem


def _make_file(part: Path) -> int:
    return os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _make_folder(part: Path) -> int:
    part.mkdir()
    return os.open(part, os.O_RDONLY)


def _claim_part(path: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """A new file or folder beside `path`, with a descriptor that locks it."""
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        descriptor = make(part)
        _lock(descriptor, wait=True)
        if part.exists():  # else it was taken for abandoned, just before it was locked
            return part, descriptor
        os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Remove what killed writes of `path` left; what a living process writes stays."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.????????.part"):
        with contextlib.suppress(OSError):
            access = os.O_RDONLY if part.is_dir() else os.O_RDWR
            descriptor = os.open(part, access | _NO_LINKS | os.O_NONBLOCK)
            try:
                if _lock(descriptor, wait=False):
                    shutil.rmtree(part) if part.is_dir() else part.unlink()
            finally:
                os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file or folder; False where the file system has no locks.

    Raises:
        BlockingIOError: If another process holds the lock, unless `wait`.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder, and those around it, if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CheckpointError(f"cannot make {folder}: {problem.strerror}.") from None


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
def locked(folder: Path, name: str = ".lock", *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock `name` on `folder`, at most as long as this process lives.

    Where another process holds it, wait; where the file system has no locks, go on without and
    yield False. With `wait=False`, both are refused. An empty `name` locks the folder itself.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | _NO_LINKS if name else os.O_RDONLY
        descriptor = os.open(folder / name, flags, 0o666)
    except OSError as problem:
        raise CheckpointError(f"cannot write into {folder}: {problem.strerror}.") from problem
    try:
        try:
            holds = _lock(descriptor, wait=wait)
        except BlockingIOError:
            holds, why = False, "another process uses it"
        else:
            why = "its file system has no locks"
        if not holds and not wait:
            raise CheckpointError(
                f"cannot train in {folder}: {why}. Choose another folder: --output."
            )
        _HELD.add(descriptor)
        yield holds
    finally:
        _HELD.discard(descriptor)
        os.close(descriptor)


_HELD: set[int] = set()  # descriptors of `locked`


def _leave_locks_to_parent() -> None:
    """In a worker process: it must not keep a lock after the process that took it has died."""
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_leave_locks_to_parent)
