"""`killick check`: read every image of a set once; find broken ones, duplicates and leaks."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from killick.data.batches import begin_worker, start_workers
from killick.data.image_set import ImageSet
from killick.errors import DataError

BATCH = 64


class Broken(NamedTuple):
    """An image that cannot be read: where it is, and why."""

    where: str
    problem: str


@dataclass(frozen=True)
class Checked:
    """What was found in a set."""

    images: ImageSet
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # images by height and width
    broken: list[Broken] = field(default_factory=list)
    digests: dict[int, bytes] = field(default_factory=dict)  # of the pixels, by number

    @property
    def by_class(self) -> Counter[str]:
        """How many images each class has."""
        counts = torch.bincount(self.images.labels, minlength=self.images.classes).tolist()
        return Counter(dict(zip(self.images.class_names, counts, strict=True)))

    def contradictions(self) -> list[tuple[str, str]]:
        """Pairs of images with the same pixels and different labels."""
        first: dict[bytes, int] = {}
        found = []
        for number, digest in self.digests.items():
            before = first.setdefault(digest, number)
            if self.images.labels[before] != self.images.labels[number]:
                found.append((describe(self.images, before), describe(self.images, number)))
        return found

    def shared(self, other: "Checked") -> list[tuple[str, str, bool]]:
        """Images that are in both sets: where here, where there, and whether the labels agree.

        Of several copies there, one with the same label is named.
        """
        there: dict[bytes, dict[int, int]] = {}
        for number, digest in other.digests.items():
            there.setdefault(digest, {}).setdefault(int(other.images.labels[number]), number)
        found = []
        for number, digest in self.digests.items():
            copies, label = there.get(digest, {}), int(self.images.labels[number])
            if copies:
                copy = copies.get(label, min(copies.values()))
                same = label in copies
                found.append((describe(self.images, number), describe(other.images, copy), same))
        return found


def check_set(
    images: ImageSet, *, workers: int = 0, tick: Callable[[int], None] | None = None
) -> Checked:
    """Read all images of a set; `tick` gets the number read so far after every batch."""
    checked = Checked(images)
    for number, look in enumerate(_look_at(images, 0 if images.in_memory else workers)):
        if isinstance(look, str):
            checked.broken.append(Broken(describe(images, number), look))
        else:
            checked.sizes[look.size] += 1
            checked.digests[number] = look.digest
        if tick is not None and (number % BATCH == 0 or number + 1 == len(images)):
            tick(number + 1)
    return checked


def describe(images: ImageSet, number: int) -> str:
    """Where an image is: its file, or its place in what it was read from."""
    row = int(images.rows[number])
    path = getattr(images.source, "path", None)
    return str(path(row)) if callable(path) else f"{images.name}[{row}]"


class _Look(NamedTuple):
    size: tuple[int, int]
    digest: bytes


class _Looks(Dataset[_Look | str]):
    """Size and digest of each image; or why it cannot be read."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> _Look | str:
        try:
            image = self._images.read(number)
        except DataError as problem:
            return str(problem)
        height, width = image.shape[-2:]
        digest = hashlib.sha256(f"{height} {width} ".encode())
        digest.update(image.contiguous().numpy().data)
        return _Look((height, width), digest.digest()[:16])


def _look_at(images: ImageSet, workers: int) -> Iterator[_Look | str]:
    loader = DataLoader(
        _Looks(images),
        batch_size=BATCH,
        num_workers=workers,
        worker_init_fn=begin_worker,
        generator=torch.Generator(),
        collate_fn=list,
    )
    for looks in start_workers(loader):
        yield from looks
