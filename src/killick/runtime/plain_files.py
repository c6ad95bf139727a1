"""Reading untrusted files: plain files alone, with memory bounded by the size of the file.

A damaged or hostile file can claim any size. It may ask for `FLOOR` bytes and `RATIO` times its own
size; `KILLICK_LOAD_LIMIT=BYTES` allows more.
"""

import os
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO

from killick.errors import FileError, OptionError

VARIABLE = "KILLICK_LOAD_LIMIT"
FLOOR = 2**28
RATIO = 20
LARGEST_TEXT = 2**28  # bytes of a file of rows, settings or the like


def open_plain(path: Path) -> BinaryIO:
    """A file to read from; a device, a pipe or a folder is refused without waiting for it."""
    try:
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115, it is returned
    except (OSError, ValueError) as problem:  # a name with a null byte is a ValueError
        raise FileError(path, getattr(problem, "strerror", None) or str(problem)) from problem
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise FileError(path, "it is not a plain file")
    return file


def read_plain(path: Path, most: int | None = None) -> bytes:
    """All bytes of a plain file of at most `most` bytes."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise FileError(path, f"its {size} bytes exceed the limit of {most}")
        try:
            return file.read(size + 1)  # never more, should it grow meanwhile
        except OSError as problem:
            raise FileError(path, problem.strerror or str(problem)) from problem


def read_text(path: Path) -> str:
    """The text of a plain file in UTF-8.

    Raises:
        UnicodeDecodeError: A `ValueError`, if it is not UTF-8.
    """
    return read_plain(path, LARGEST_TEXT).decode("utf-8")


def allowed_memory(size: int) -> int:
    """How many bytes of memory a file of `size` bytes may ask for."""
    given = os.environ.get(VARIABLE, "0")
    if not given.isdecimal():
        raise OptionError(f"expected {VARIABLE} to be a number of bytes, found {given!r}.")
    return max(FLOOR + RATIO * size, int(given))


def check_memory(path: Path, size: int, wanted: int) -> None:
    """Refuse a file of `size` bytes that asks for too much memory."""
    if wanted > allowed_memory(size):
        raise FileError(
            path,
            f"its {size} bytes would take {wanted} in memory. If you trust it: {VARIABLE}={wanted}",
        )


def check_archive(path: Path, file: BinaryIO) -> None:
    """Refuse a zip archive, such as .npz, that unpacks to too much; a damaged one is a BadZipFile."""
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        check_memory(path, size, sum(member.file_size for member in archive.infolist()))
    file.seek(0)


def _open_without_waiting(path: str, flags: int) -> int:
    """A file descriptor; a pipe is opened without waiting for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)
