"""Writing files so that a reader finds the old one or the new one, never half of it.

What is being written lies beside its place as `.NAME.0.part`, locked by its writer; a second writer
takes `.NAME.1.part`, and so on. What a killed process left behind has no lock: the next write of the
same thing takes it over or removes it.
"""

import contextlib
import fcntl
import itertools
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
    part, descriptor = _claim_part(path, _open_file)
    with open(descriptor, "wb") as file:
        try:
            os.ftruncate(descriptor, 0)
            yield file
            file.flush()
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    _remove_abandoned(path, _open_file)


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
        part, descriptor = _claim_part(folder, _open_folder)
        new, old = part / "new", part / "old"
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            yield new
            if folder.exists():
                shutil.rmtree(old, ignore_errors=True)
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
        _remove_abandoned(folder, _open_folder)
    except OSError as problem:
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is"
            " unchanged. Free some space, or choose another folder."
        ) from problem


def _open_file(part: Path) -> int:
    descriptor = _open_no_link(part, os.O_RDWR | os.O_CREAT)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise BlockingIOError(f"{part} is a second name of another file")
    return descriptor


def _open_folder(part: Path) -> int:
    part.mkdir(exist_ok=True)
    return _open_no_link(part, os.O_RDONLY)


def _open_no_link(part: Path, flags: int) -> int:
    try:
        return os.open(part, flags | _NO_LINKS, 0o666)
    except OSError as problem:
        if part.is_symlink():
            raise BlockingIOError(f"{part} is a link") from problem
        raise


def _claim_part(path: Path, open_part: Callable[[Path], int]) -> tuple[Path, int]:
    """A file or folder beside `path`, new or abandoned, with a descriptor that locks it."""
    number = 0
    while True:
        part = _part_of(path, number)
        try:
            descriptor = _claim(part, open_part)
        except BlockingIOError:
            number += 1
            continue
        if descriptor is not None:
            return part, descriptor
        _remove(part)  # there are no locks here, and so no writer with such a name
        part = _part_of(path, secrets.token_hex(4))
        return part, open_part(part)


def _claim(part: Path, open_part: Callable[[Path], int]) -> int | None:
    """A descriptor that locks `part`; None where there are no locks."""
    while True:
        descriptor = open_part(part)
        try:
            if not _lock(descriptor, wait=False):
                os.close(descriptor)
                return None
            # Its writer may have moved or removed it since it was opened.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(part)):
                    return descriptor
            os.close(descriptor)
        except BaseException:
            os.close(descriptor)
            raise


def _remove_abandoned(path: Path, open_part: Callable[[Path], int]) -> None:
    """Remove what several killed writes of `path` left; what a living process writes stays."""
    for number in itertools.count():
        part = _part_of(path, number)
        if os.path.lexists(part):
            with contextlib.suppress(OSError):
                descriptor = _claim(part, open_part)
                if descriptor is not None:
                    _remove(part)
                    os.close(descriptor)
        elif number > 0:
            return


def _part_of(path: Path, mark: int | str) -> Path:
    return path.with_name(f".{path.name}.{mark}.part")


def _remove(part: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(part) if part.is_dir() else part.unlink()


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
