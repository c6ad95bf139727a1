"""Paths of images: files, folders, patterns and lists of paths, in the order given.

What is named twice is found twice, so that records have the order of the paths. A path that does
not exist gives a problem in its place; the others are read.
"""

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from killick.data.decoding import EXTENSIONS, printable
from killick.data.sources.imagefolder import list_images
from killick.errors import DataError

LIST = "-"  # stands for the list of paths
_CHUNK = 65536
_KNOWN = f"({' '.join(EXTENSIONS)})"


@dataclass(frozen=True)
class InputImage:
    """An image to be labeled: its pixels once it is read, or the problem in their place."""

    path: str
    pixels: Tensor | None = None
    problem: str | None = None


def find_images(
    given: Iterable[str | os.PathLike[str]], listed: Iterable[str] | None = None
) -> Iterator[InputImage]:
    """The images that files, folders and patterns stand for, one by one.

    `listed` is what `-` stands for among them: paths of files and folders, taken literally.
    """
    for each in given:
        path = os.path.expanduser(os.fspath(each))
        if path == LIST and listed is not None:
            for line in listed:
                yield from _expand(line)
        elif glob.has_magic(path) and not os.path.lexists(path):
            yield from _match(path)
        else:
            yield from _expand(path)


def require_images(found: Iterable[InputImage]) -> Iterator[InputImage]:
    """The same, if there is an image among them; else the first problem is raised."""
    problems: list[InputImage] = []
    coming = iter(found)
    for each in coming:
        problems.append(each)
        if each.problem is None:
            yield from problems
            yield from coming
            return
    raise DataError(problems[0].problem or "" if problems else "no paths of images were given.")


def read_list(descriptor: int, *, null: bool = False) -> Iterator[str]:
    """Paths from an open file, each as soon as it is there; with `null`, they end with NUL.

    By its descriptor, 0 for the standard input: a thread that waits in its buffered object would
    stop Python from ending.
    """
    separator, rest = (b"\0" if null else b"\n"), b""
    while chunk := os.read(descriptor, _CHUNK):
        *whole, rest = (rest + chunk).split(separator)
        yield from _paths(whole, null)
    yield from _paths([rest], null)


def _paths(parts: Iterable[bytes], null: bool) -> Iterator[str]:
    for part in parts:
        whole = part if null else part.removesuffix(b"\r")
        if b"\0" in whole:
            raise DataError("the list of paths has NUL characters. For find -print0, add -0.")
        if whole:
            yield os.fsdecode(whole)


def _expand(path: str) -> Iterator[InputImage]:
    """A file, or the images of a folder."""
    if os.path.isdir(path):
        try:
            names = list_images(Path(path))
        except DataError as problem:
            yield InputImage(path, problem=printable(str(problem)))
            return
        for name in names:
            yield InputImage(os.path.join(path, name))
        if not names:
            yield InputImage(path, problem=f"no images in {printable(path)} {_KNOWN}.")
    elif os.path.exists(path):
        yield InputImage(path)
    else:
        yield InputImage(path, problem=f"cannot read {printable(path)}: no such file.")


def _match(pattern: str) -> Iterator[InputImage]:
    """The files that match, whatever their extension."""
    found = [path for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]
    for path in found:
        yield InputImage(path)
    if not found:
        yield InputImage(pattern, problem=f"no images match {printable(pattern)}.")
