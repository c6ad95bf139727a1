"""An image set: images with labels, in memory or read one by one."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from killick.errors import DataError

_LOOKED_AT = 16


class Reader(Protocol):
    """Images that are read one by one; sent to worker processes as it is."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, number: int) -> Tensor:
        """One image, uint8 `(3, height, width)`, of its own size."""
        ...


@dataclass(frozen=True)
class ImageSet:
    """Images, and to which class each belongs.

    Attributes:
        name: What results call it.
        source: All images as one tensor, uint8 `(n, 3, height, width)`, or a `Reader`.
        labels: Class numbers `(n,)`, one for each of `rows`.
        class_names: In the order of the numbers.
        rows: Which images of `source` belong to the set, and in which order.
    """

    name: str
    source: Tensor | Reader
    labels: Tensor
    class_names: tuple[str, ...]
    rows: Tensor

    @classmethod
    def of(
        cls, name: str, source: Tensor | Reader, labels: Tensor, class_names: Sequence[str]
    ) -> "ImageSet":
        """A set of all images of `source`, checked."""
        if isinstance(source, Tensor) and (
            source.dtype != torch.uint8 or source.ndim != 4 or source.shape[1] != 3
        ):
            raise DataError(
                f"expected the images of {name} as uint8 (n, 3, height, width), found"
                f" {source.dtype} {tuple(source.shape)}."
            )
        if len(source) == 0 or labels.shape != (len(source),):
            raise DataError(
                f"expected {name} to have images and a label for each, found {len(source)}"
                f" images and labels of shape {tuple(labels.shape)}."
            )
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < 0 or highest >= len(class_names):
            raise DataError(
                f"expected the labels of {name} between 0 and {len(class_names) - 1}, one for each"
                f" class name, found {lowest} to {highest}."
            )
        rows = torch.arange(len(source))
        return cls(name, source, labels.long().cpu(), tuple(class_names), rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.class_names)

    @property
    def in_memory(self) -> bool:
        """Whether all images are one tensor."""
        return isinstance(self.source, Tensor)

    def read(self, number: int) -> Tensor:
        """One image, uint8 `(3, height, width)`."""
        return self.source[int(self.rows[number])]

    def part(self, numbers: Tensor, name: str | None = None) -> "ImageSet":
        """The set of those numbers, in their order; the images are not copied."""
        rows, labels = self.rows[numbers], self.labels[numbers]
        return replace(self, name=name or self.name, rows=rows, labels=labels)

    def with_labels(self, labels: Tensor) -> "ImageSet":
        """The same images under other labels."""
        return replace(self, labels=labels)

    def images(self) -> Tensor:
        """All images as one tensor, where they are in memory."""
        if not isinstance(self.source, Tensor):
            raise DataError(f"expected {self.name} in memory, but it is read from files.")
        whole = len(self.rows) == len(self.source) and bool(
            (self.rows == torch.arange(len(self.rows))).all()
        )
        return self.source if whole else self.source[self.rows]


def digest(images: ImageSet) -> str:
    """Twelve letters that stand for a set: its labels, its classes and its images.

    Of files it takes names, sizes and times of change; of other readers a few images.
    """
    found = hashlib.sha256(images.labels.numpy().tobytes())
    found.update("\n".join(images.class_names).encode())
    if isinstance(images.source, Tensor):
        for rows in images.rows.split(1024):
            part = images.source[rows].cpu().contiguous()
            found.update(f"{tuple(part.shape)}".encode())
            found.update(part.numpy().data)
        return found.hexdigest()[:12]
    path = getattr(images.source, "path", None)
    if callable(path):
        for row in images.rows.tolist():
            state = os.stat(path(row))
            found.update(f"{path(row)} {state.st_size} {state.st_mtime_ns}".encode())
        return found.hexdigest()[:12]
    for place in torch.linspace(0, len(images) - 1, min(_LOOKED_AT, len(images))).long().tolist():
        found.update(images.read(place).contiguous().numpy().data)
    return found.hexdigest()[:12]


def overlap(held: ImageSet, test: ImageSet) -> bool:
    """Whether some image is in both sets: of one source, of the same files, or all of them."""
    if held.source is test.source:
        return bool(torch.isin(held.rows, test.rows).any())
    path, other = (getattr(images.source, "path", None) for images in (held, test))
    if callable(path) and callable(other):
        return bool(set(map(path, held.rows.tolist())) & set(map(other, test.rows.tolist())))
    return len(held) == len(test) and digest(held) == digest(test)


@dataclass(frozen=True)
class Sets:
    """A training set and a test set; either may be missing.

    Attributes:
        train: The training set.
        test: The test set.
        whole: Both together, if they were cut from one set without a split of its own.
    """

    train: ImageSet | None
    test: ImageSet | None
    whole: ImageSet | None = None

    def __post_init__(self) -> None:
        if self.train and self.test and self.train.class_names != self.test.class_names:
            ours, theirs = set(self.train.class_names), set(self.test.class_names)
            odd = sorted(ours ^ theirs)[:3]
            raise DataError(
                f"expected the same classes for training and testing on {self.train.name}, found"
                f" {len(ours)} and {len(theirs)}"
                + (f"; only in one of them: {', '.join(map(repr, odd))}." if odd else ".")
            )
