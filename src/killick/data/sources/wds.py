"""WebDataset shards: tar files with an image and its label side by side, `0001.jpg` and `0001.cls`.

The shards are indexed once, by the headers of their members; then an image is read by its place, so
everything holds that holds for folders. Nothing but images, `.cls` and `.json` is opened.
"""

import json
import tarfile
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from killick.data.decoding import EXTENSIONS, decode, printable
from killick.data.image_set import ImageSet, Sets
from killick.data.shard_files import find_shards
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions, split_options
from killick.errors import DataError, one_line

_LARGEST_LABEL = 2**16  # bytes of a .cls or .json member


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


_HELP = "WebDataset shards, as wds:train-{000..010}.tar; wds:PATTERN#test=PATTERN with a test set"
DATA_SOURCES.register("wds", DataSource("wds", load_shards, _HELP, "URL_OR_PATTERN"))
