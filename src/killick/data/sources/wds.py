"""WebDataset shards: tar files with an image and its label side by side, `0001.jpg` and `0001.cls`.

The shards are indexed once, by the headers of their members; then an image is read by its place, so
everything holds that holds for folders. Nothing but images, `.cls` and `.json` is opened.
"""

import glob
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from http.client import HTTPException
from itertools import product
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import torch
from torch import Tensor

from killick.data.decoding import EXTENSIONS, decode, printable
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions, split_options
from killick.errors import DataError, OptionError, one_line
from killick.runtime.atomic_files import atomic_file, locked

_LARGEST_LABEL = 2**16  # bytes of a .cls or .json member
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 100_000
_TIMEOUT = 30  # seconds without a byte


class ShardReader:
    """Images in uncompressed tar files, by file, offset and size."""

    def __init__(self, name: str, shards: list[str], places: Tensor) -> None:
        self.name, self.shards = name, shards
        self.places = places  # (n, 3): number of the shard, offset, size

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Tensor:
        return decode(self.encoded(number), f"image {number} of {self.name}")

    def encoded(self, number: int) -> bytes:
        """The bytes of one image."""
        shard, offset, size = self.places[number].tolist()
        try:
            with open(self.shards[shard], "rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as problem:
            raise DataError(f"cannot read {self.shards[shard]}: {problem.strerror}.") from problem


def load_shards(argument: str, options: LoadOptions | None = None) -> Sets:
    """The images of shards; with `PATTERN#test=PATTERN` also a test set.

    A pattern has ranges, `shard-{000..010}.tar`, and `*`; or it is an address, whose shards are
    fetched once. Labels are numbers in `.cls`, or `label` in `.json`.
    """
    place, found = split_options(argument, ("test",))
    parts = [_index(find_shards(pattern, options)) for pattern in (place, *found.values())]
    highest = max(int(labels.max()) for _, _, labels in parts)
    names = tuple(str(number) for number in range(highest + 1))
    sets = [
        ImageSet.of(f"wds:{place}", ShardReader(f"wds:{place}", shards, places), labels, names)
        for shards, places, labels in parts
    ]
    return Sets(sets[0], sets[1] if len(sets) > 1 else None)


def _index(shards: list[str]) -> tuple[list[str], Tensor, Tensor]:
    """The place of each image, and its label."""
    places, labels = list[tuple[int, int, int]](), list[int]()
    for number, shard in enumerate(shards):
        for key, place, label in _read_samples(shard):
            if label is None or label < 0:
                raise DataError(
                    f"{printable(key)} in {shard} has no label: a number in '.cls', or 'label' in"
                    " '.json'."
                )
            places.append((number, *place))
            labels.append(label)
    if not places:
        raise DataError(f"no images in {shards[0]} (known are {' '.join(EXTENSIONS)}).")
    return shards, torch.from_numpy(np.array(places)), torch.tensor(labels)


def _read_samples(shard: str) -> Iterator[tuple[str, tuple[int, int], int | None]]:
    """Key, place (offset and size) and label of each sample; its members share a key."""
    key, place, label = "", None, None
    try:
        with tarfile.open(shard, "r:") as archive:  # ":" without compression, so places are bytes
            for member in archive:
                if not member.isreg():
                    continue
                folder, _, file = member.name.rpartition("/")
                stem, _, ending = file.partition(".")
                now = f"{folder}/{stem}"
                if now != key:
                    if place is not None:
                        yield key, place, label
                    key, place, label = now, None, None
                if f".{ending.lower()}" in EXTENSIONS:
                    place = member.offset_data, member.size
                elif ending in ("cls", "json") and member.size <= _LARGEST_LABEL:
                    opened = archive.extractfile(member)
                    assert opened is not None
                    label = _read_label(opened.read(), ending, label)
                archive.members.clear()  # type: ignore[attr-defined]
        if place is not None:
            yield key, place, label
    except (OSError, tarfile.TarError) as problem:
        raise DataError(
            f"cannot read the shard {shard}: {one_line(problem)}. It must be an uncompressed tar"
            " file."
        ) from problem


def _read_label(text: bytes, ending: str, label: int | None) -> int | None:
    try:
        if ending == "cls":
            return int(text)
        found = json.loads(text)
        value = found.get("label") if isinstance(found, dict) else None
        return value if type(value) is int else label
    except (ValueError, RecursionError):
        return label


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


_HELP = "WebDataset shards, as wds:train-{000..010}.tar; wds:PATTERN#test=PATTERN with a test set"
DATA_SOURCES.register("wds", DataSource("wds", load_shards, _HELP, "URL_OR_PATTERN"))
