"""Paths of images: files, folders, patterns and lists of paths, in the order given.

What is named twice is found twice, so that records have the order of the paths. A path that does
not exist gives a problem in its place, and the rest goes on.
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
_KNOWN = f"({' '.join(EXTENSIONS)})"


@dataclass(frozen=True)
class ImagePath:
    """An image to be read, or why there is none.

    Attributes:
        path: Of the image; or the path or pattern without one.
        problem: Why there is none.
    """

    path: str
    problem: str | None = None


def find_images(
    given: Iterable[str | os.PathLike[str]], listed: Iterable[str] | None = None
) -> Iterator[ImagePath]:
    """The images that paths stand for, one by one.

    Args:
        given: Files, whatever their extension; folders, for all images below them; patterns with
            `*`, `?`, `[...]` or `**`, for the files that match.
        listed: What `-` stands for among them: paths of files and folders, taken literally.
    """
    for each in given:
        words = os.fspath(each)
        if words == LIST and listed is not None:
            for path in listed:
                yield from _expand(path, may_match=False)
        else:
            yield from _expand(os.path.expanduser(words), may_match=True)


def require_images(found: Iterable[ImagePath]) -> Iterator[ImagePath]:
    """The same, if there is an image among them; else the first problem is raised."""
    problems: list[ImagePath] = []
    coming = iter(found)
    for each in coming:
        problems.append(each)
        if each.problem is None:
            yield from problems
            yield from coming
            return
    raise DataError(problems[0].problem or "" if problems else "no paths of images were given.")


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
    r"""The path on one printable line, whatever bytes and control characters it has.

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
            raise DataError("the list of paths has NUL characters. For find -print0, add -0.")
        if whole:
            yield os.fsdecode(whole)


def _expand(path: str, *, may_match: bool) -> Iterator[ImagePath]:
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError) as problem:
        if may_match and glob.has_magic(path) and not os.path.lexists(path):
            yield from _match(path)
        else:
            reason = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
            yield ImagePath(path, f"cannot read {show_path(path)}: {reason}. Check the path.")
        return
    if not stat.S_ISDIR(kind):
        yield ImagePath(path)
        return
    try:
        names = list_images(Path(path))
    except DataError as problem:
        yield ImagePath(path, show_path(str(problem)))
        return
    for name in names:
        yield ImagePath(os.path.join(path, name))
    if not names:
        yield ImagePath(path, f"no images in {show_path(path)} {_KNOWN}.")


def _match(pattern: str) -> Iterator[ImagePath]:
    """The files that match; images alone, unless the pattern itself names the extension."""
    extension = os.path.splitext(pattern)[1]
    any_kind = bool(extension) and not glob.has_magic(extension)
    there = [path for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]
    fitting = [path for path in there if any_kind or path.lower().endswith(EXTENSIONS)]
    for path in fitting:
        yield ImagePath(path)
    if not fitting:
        known = "" if any_kind else f" {_KNOWN}"
        yield ImagePath(pattern, f"no images match {show_path(pattern)}{known}.")
