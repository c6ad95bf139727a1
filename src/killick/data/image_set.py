"""Images with labels, in memory or read one by one."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from killick.errors import DataError

_LOOKED_AT = 16


class Reader(Protocol):
    """Images that are read one by one; sent to worker processes as it is.

    A reader of encoded images also has `encoded(number)`, the bytes of an image, and if they are files
    `path(number)`; one whose images are augmented `sample(number, key)`,
    which draws all that is random from the key.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Tensor: ...  # uint8 (3, height, width), of any size


@dataclass(frozen=True)
class ImageSet:
    """Images, and the class of each."""

    name: str  # in results
    source: Tensor | Reader  # all images as one tensor, uint8 (n, 3, height, width), or a reader
    labels: Tensor  # class numbers (n,), one for each of `rows`
    class_names: tuple[str, ...]
    rows: Tensor  # which images of `source` belong to the set, in order
    side: int | None = None  # of square images that were preprocessed before they were given
    access: str = "indexed"  # or "stream": the images came in an order of their own

    @classmethod
    def of(
        cls, name: str, source: Tensor | Reader, labels: Tensor, class_names: Sequence[str]
    ) -> "ImageSet":
        """A set of all images of `source`, checked."""
        if isinstance(source, Tensor) and (
            source.dtype != torch.uint8 or source.ndim != 4 or source.shape[1] != 3
        ):
            raise DataError(
                f"the images of {name} must be uint8 (n, 3, height, width), found {source.dtype}"
                f" {tuple(source.shape)}. For images in 0 to 1: (images * 255).round().byte()."
            )
        if len(source) == 0 or labels.shape != (len(source),):
            raise DataError(
                f"{name} must have images and a label for each, found {len(source)} images and"
                f" labels of shape {tuple(labels.shape)}."
            )
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < 0 or highest >= len(class_names):
            raise DataError(
                f"the labels of {name} must be 0 to {len(class_names) - 1}, one for each class"
                f" name, found {lowest} to {highest}."
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

    @property
    def augmented(self) -> bool:
        """Whether an image may be another one each time it is read for training."""
        return hasattr(self.source, "sample")

    def read(self, number: int, key: int = 0) -> Tensor:
        """One image, uint8 `(3, height, width)`; `key` decides what its data set draws, if it does."""
        row = int(self.rows[number])
        sample: Callable[[int, int], Tensor] | None = getattr(self.source, "sample", None)
        return self.source[row] if sample is None else sample(row, key)

    def paths(self) -> list[str] | None:
        """The file of each image; None where they are not in files of their own."""
        path = getattr(self.source, "path", None)
        return [path(row) for row in self.rows.tolist()] if callable(path) else None

    def part(self, numbers: Tensor, name: str | None = None) -> "ImageSet":
        """The set of those numbers, in their order; the images are not copied."""
        rows, labels = self.rows[numbers], self.labels[numbers]
        return replace(self, name=name or self.name, rows=rows, labels=labels)

    def images(self) -> Tensor:
        """All images as one tensor; they must be of one size."""
        if isinstance(self.source, Tensor):
            whole = torch.equal(self.rows, torch.arange(len(self.source)))
            return self.source if whole else self.source[self.rows]
        read = [self.read(number) for number in range(len(self))]
        sizes = {tuple(image.shape[1:]) for image in read}
        if len(sizes) > 1:
            raise DataError(f"the images of {self.name} have {len(sizes)} sizes, not one.")
        return torch.stack(read)


def digest(images: ImageSet) -> str:
    """A hash of a set: its labels, classes and images.

    Of files it takes names, sizes and times of change; of other readers a few images.
    """
    found = hashlib.sha256(images.labels.numpy().tobytes())
    found.update("\n".join(images.class_names).encode())
    paths, encoded = images.paths(), getattr(images.source, "encoded", None)
    if isinstance(images.source, Tensor):
        for rows in images.rows.split(1024):
            part = images.source[rows].cpu().contiguous()
            found.update(f"{tuple(part.shape)}".encode())
            found.update(part.numpy().data)
    elif paths is not None:
        for path in paths:
            state = os.stat(path)
            found.update(f"{path} {state.st_size} {state.st_mtime_ns}".encode())
    elif encoded is not None:
        for row in images.rows.tolist():
            found.update(encoded(row))
    else:
        places = torch.linspace(0, len(images) - 1, min(_LOOKED_AT, len(images))).long()
        for place in places.tolist():
            found.update(images.read(place).contiguous().numpy().data)
    return found.hexdigest()[:12]


def overlap(held: ImageSet, test: ImageSet) -> bool:
    """Whether some image is in both sets: of one source, of the same files, or all of them."""
    if held.source is test.source:
        return bool(torch.isin(held.rows, test.rows).any())
    paths, others = held.paths(), test.paths()
    if paths is not None and others is not None:
        return not set(paths).isdisjoint(others)
    return len(held) == len(test) and digest(held) == digest(test)


@dataclass(frozen=True)
class Sets:
    """A training set and a test set; either may be missing."""

    train: ImageSet | None
    test: ImageSet | None
    whole: ImageSet | None = None  # both, if they were cut from a set without a split of its own
    validation: ImageSet | None = None  # else it is cut from the training set

    def __post_init__(self) -> None:
        if self.train and self.test and self.train.class_names != self.test.class_names:
            odd = sorted({*self.train.class_names} ^ {*self.test.class_names})[:3]
            raise DataError(
                f"training and test set of {self.train.name} differ in their classes, such as"
                f" {', '.join(map(repr, odd))}."
            )
