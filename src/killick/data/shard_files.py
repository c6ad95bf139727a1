"""The files of a WebDataset pattern, on this disk or fetched to it once."""

import glob
import os
import re
import shutil
from collections.abc import Iterator
from http.client import HTTPException
from itertools import product
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from killick.data.sources import LoadOptions
from killick.errors import DataError, OptionError, one_line
from killick.runtime.atomic_files import atomic_file, locked

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 100_000
_TIMEOUT = 30  # seconds without a byte


def find_shards(pattern: str, options: LoadOptions | None = None) -> list[str]:
    """The files of a pattern, in order; those of an address are fetched if `options` allow it.

    Example:
        >>> find_shards("s3://bucket/{0..1}.tar")
        Traceback (most recent call last):
        ...
        killick.errors.OptionError: wds: reads files and http addresses, found \
's3://bucket/{0..1}.tar'. Download the shards first.
    """
    scheme = re.match(r"(?!file:)(\w+):", pattern)
    if scheme and scheme[1] not in ("http", "https"):
        raise OptionError(
            f"wds: reads files and http addresses, found {pattern!r}. Download the shards first."
        )
    if scheme:
        return _fetch(list(_expand(pattern)), options or LoadOptions())
    pattern = os.path.expanduser(pattern.removeprefix("file:"))
    found = [
        path
        for name in _expand(pattern)
        for path in (sorted(glob.glob(name)) if "*" in name else [name])
    ]
    if not found:
        raise DataError(f"no shards at {pattern}. Check the pattern.")
    for path in found:
        if not os.path.isfile(path):
            raise DataError(
                f"no shard {path}, one of {len(found)} of {pattern}. Check the pattern."
            )
    return [os.path.abspath(path) for path in found]


def _expand(pattern: str) -> Iterator[str]:
    """The names of a pattern with ranges."""
    ranges = []
    for low, high in _RANGE.findall(pattern):
        numbers = range(int(low), int(high) + 1)
        if not 0 < len(numbers) <= _MOST_SHARDS:
            raise OptionError(f"a range must ascend, as {{000..010}}, found {{{low}..{high}}}.")
        ranges.append([str(number).zfill(len(low)) for number in numbers])
    plain = _RANGE.split(pattern)[::3]  # between the ranges; the groups are left out
    for chosen in product(*ranges):
        yield "".join(map("".join, zip(plain, (*chosen, ""), strict=True)))


def _fetch(addresses: list[str], options: LoadOptions) -> list[str]:
    """The copies of shards below the data folder; a missing one is downloaded."""
    paths = [_place(address, options) for address in addresses]
    missing = [pair for pair in zip(addresses, paths, strict=True) if not pair[1].is_file()]
    if missing and not options.download:
        raise DataError(
            f"{len(missing)} of {len(paths)} shards are not in {missing[0][1].parent} yet, such as"
            f" {missing[0][0]}. Add --download (in training --data.download)."
        )
    for address, path in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):  # another process may fetch it now
            if not path.is_file():
                _download(address, path)
    return [str(path) for path in paths]


def _place(address: str, options: LoadOptions) -> Path:
    """Where the copy of a shard lies."""
    parts = urlsplit(address)
    names = [name for name in parts.path.split("/") if name not in ("", ".", "..")]
    if "*" in address or not names:
        raise OptionError(
            f"an address names each shard, as https://host/train-{{000..146}}.tar, found {address!r}."
        )
    return options.folder.joinpath("wds", parts.netloc.rpartition("@")[2], *names)


def _download(address: str, path: Path) -> None:
    try:
        with urlopen(address, timeout=_TIMEOUT) as answer, atomic_file(path) as file:
            shutil.copyfileobj(answer, file, 2**20)
            expected = answer.headers.get("Content-Length")
            if expected is not None and file.tell() != int(expected):
                raise OSError(f"it ended after {file.tell():,} of {int(expected):,} bytes")
    except (OSError, HTTPException, ValueError) as problem:
        if isinstance(problem, HTTPError):
            problem.close()  # it is the server's answer
        raise DataError(
            f"cannot fetch {address} to {path.parent}: {one_line(problem)}. Check the address, the"
            " connection and the room on the disk, then run it again: whole shards are kept."
        ) from problem
