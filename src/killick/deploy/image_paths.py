"""Which pictures are meant: files, folders, patterns and lists of paths, in the order given.

What is named twice is found twice, so that answers stand in the order of the questions. Whatever
is not there becomes a problem in its place, and the rest goes on.
"""

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from killick.data.decoding import EXTENSIONS
from killick.data.sources.imagefolder import list_images
from killick.errors import DataError

LIST = "-"  # stands for the list of paths
_CHUNK = 65536
_KNOWN = f"(known are {' '.join(EXTENSIONS)})"


@dataclass(frozen=True)
class Found:
    """A picture to be read, or something that was asked for and is not there.

    Attributes:
        path: Of the picture; or the words that were to name some.
        problem: Why there is none.
    """

    path: str
    problem: str | None = None


def find_pictures(
    given: Iterable[str | os.PathLike[str]], listed: Iterable[str] | None = None
) -> Iterator[Found]:
    """The pictures that are meant, one by one, as they are asked for.

    Args:
        given: Files, which are tried whatever their extension; folders, for all pictures below
            them; patterns with `*`, `?`, `[...]` or `**`, for the files that match.
        listed: What `-` stands for among them: paths of files and folders, taken literally.
    """
    for each in given:
        words = os.fspath(each)
        if words == LIST and listed is not None:
            for path in listed:
                yield from _look(path, may_match=False)
        else:
            yield from _look(os.path.expanduser(words), may_match=True)


def check_some(found: Iterable[Found]) -> Iterator[Found]:
    """The same, if there is a picture among them; else the first problem is raised."""
    problems: list[Found] = []
    coming = iter(found)
    for each in coming:
        problems.append(each)
        if each.problem is None:
            yield from problems
            yield from coming
            return
    raise DataError(
        problems[0].problem or "" if problems else "expected pictures to label, found no paths."
    )


def read_list(descriptor: int, *, null: bool = False) -> Iterator[str]:
    """Paths from an open file, each as soon as it is there.

    Args:
        descriptor: Of the file: 0 for the standard input. Its buffered object is left alone, as a
            thread that waits in it would stop Python from ending.
        null: They end with NUL, as `find -print0` writes them, not with a line break.
    """
    separator, rest = (b"\0" if null else b"\n"), b""
    while chunk := os.read(descriptor, _CHUNK):
        *whole, rest = (rest + chunk).split(separator)
        yield from _paths(whole, null)
    yield from _paths([rest], null)


def show_path(path: str) -> str:
    r"""The path for people: one line, whatever bytes and control characters it has.

    Example:
        >>> show_path("a/b.png"), show_path("a\nb\udcff")
        ('a/b.png', 'a\\nb\\udcff')
    """
    if path.isprintable():
        return path
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)


def _paths(parts: Iterable[bytes], null: bool) -> Iterator[str]:
    for part in parts:
        whole = part if null else part.removesuffix(b"\r")
        if b"\0" in whole:
            raise DataError(
                "expected a list with one path a line, found NUL characters in it. For what"
                " find -print0 writes, say -0."
            )
        if whole:
            yield os.fsdecode(whole)


def _look(path: str, *, may_match: bool) -> Iterator[Found]:
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError) as problem:
        if may_match and glob.has_magic(path) and not os.path.lexists(path):
            yield from _match(path)
        else:
            yield Found(path, _complain(path, problem))
        return
    if not stat.S_ISDIR(kind):
        yield Found(path)
        return
    try:
        names = list_images(Path(path))
    except DataError as problem:
        yield Found(path, show_path(str(problem)))
        return
    for name in names:
        yield Found(os.path.join(path, name))
    if not names:
        yield Found(path, f"expected pictures in {show_path(path)}, found none {_KNOWN}.")


def _match(pattern: str) -> Iterator[Found]:
    """The files that match; pictures alone, unless the pattern itself says which extension."""
    extension = os.path.splitext(pattern)[1]
    any_kind = bool(extension) and not glob.has_magic(extension)
    there = [path for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]
    fitting = [path for path in there if any_kind or path.lower().endswith(EXTENSIONS)]
    for path in fitting:
        yield Found(path)
    if not fitting:
        which = "" if any_kind else f" {_KNOWN}"
        told = f"expected pictures that match {show_path(pattern)}, found none{which}."
        yield Found(pattern, told)


def _complain(path: str, problem: Exception) -> str:
    reason = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
    return f"cannot read {show_path(path)}: {reason}. Check the path."
