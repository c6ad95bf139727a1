"""Streams: loaders and iterables that yield `(image, label)` in an order of their own.

For evaluation a stream is read once, into a temporary file. In training every epoch is a pass over
it, so a run can be resumed at the end of an epoch, not within.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from killick.core.image_model import Normalize
from killick.data.batches import Batch, Batches, Cut, make_buffers
from killick.data.dataset_reader import find_side, name_classes
from killick.data.given_samples import PixelConverter, seeded, split_sample, to_label, to_labels
from killick.data.image_set import ImageSet
from killick.data.keyed_random import sample_keys
from killick.data.sample_loader import View
from killick.data.worker_processes import iterate
from killick.errors import DataError

HEAD = 512  # the first images of a stream, from which references are taken in training
_LOOKED_AT = 16  # images that decide whether floats are normalized


@dataclass(frozen=True)
class SampleStream:
    """A loader or iterable; the first images of a pass decide whether floats are normalized."""

    name: str
    given: Iterable[Any]
    normalize: Normalize | None = None
    labeled: bool = True

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches: uint8 images `(n, 3, height, width)` and labels `(n,)`."""
        items, first = iterate(self.given, self.name), list[Any]()
        for item in items:
            first.append(item)
            if _count([split_sample(each)[0] for each in first]) >= _LOOKED_AT:
                break
        looked_at = [split_sample(item)[0] for item in first]
        convert = PixelConverter.like(self.name, looked_at, self.normalize)
        for images, labels in map(split_sample, chain(first, items)):
            pixels = convert(images)
            single = pixels.ndim == 3
            pixels = pixels[None] if single else pixels
            if not self.labeled:
                yield pixels, torch.zeros(len(pixels), dtype=torch.long)
            elif single:
                yield pixels, torch.tensor([to_label(labels, self.name)])
            else:
                yield pixels, to_labels(labels, len(pixels), self.name)

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, its sampler or its data set, whichever shuffles by the epoch."""
        given: Any = self.given
        for each in (given, getattr(given, "sampler", given), getattr(given, "dataset", given)):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    @property
    def length(self) -> int | None:
        """How many images a pass has, if the loader or data set knows."""
        given: Any = self.given
        try:
            if not isinstance(given, DataLoader):
                return len(given)
            if isinstance(given.dataset, IterableDataset):
                return len(given.dataset)  # type: ignore[arg-type]
            size = given.batch_size or getattr(given.batch_sampler, "batch_size", None)
            seen = len(given.sampler if given.batch_size else given.dataset)  # type: ignore[arg-type]
            return min(seen, len(given) * size) if size else seen
        except TypeError:
            return None

    @property
    def class_names(self) -> Sequence[str] | None:
        """Of a loader's data set, if it has any."""
        found = getattr(getattr(self.given, "dataset", self.given), "classes", None)
        return found if isinstance(found, list | tuple) else None


def _count(images: Sequence[Any]) -> int:
    """How many images there are in some items, which may be batches."""
    return sum(len(x) if isinstance(x, Tensor) and x.ndim == 4 else 1 for x in images)


@dataclass(frozen=True, kw_only=True)
class StreamSet(ImageSet):
    """The first images of a stream, and the stream itself, to train on."""

    stream: SampleStream

    @property
    def named(self) -> bool:
        """Whether the stream says which classes it has."""
        return self.stream.class_names is not None


def read_stream(stream: SampleStream, class_names: Sequence[str] | None = None) -> ImageSet:
    """All images of a stream, kept in a temporary file."""
    labels, shape = list[Tensor](), None
    with tempfile.TemporaryFile() as file, seeded(0):
        for images, part in stream:
            shape = _check_size(stream.name, shape, images)
            try:
                file.write(images.numpy().tobytes())
                file.flush()
            except OSError as problem:
                raise DataError(
                    f"cannot keep the images of {stream.name} in {tempfile.gettempdir()}:"
                    f" {problem.strerror}. Name a folder with more room: TMPDIR=FOLDER."
                ) from problem
            labels.append(part)
        if shape is None:
            raise DataError(f"{stream.name} is empty.")
        size = (sum(map(len, labels)), *shape)
        pixels = torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=size))
    return _make_set(stream, pixels, torch.cat(labels), class_names)


def read_head(stream: SampleStream, class_names: Sequence[str] | None = None) -> StreamSet:
    """The first images of a stream, to train on it."""
    if iter(stream.given) is stream.given:
        raise DataError(
            f"{stream.name} can be gone through once only. To train, give a DataLoader, or an object"
            " whose __iter__ begins anew."
        )
    pixels, labels = list[Tensor](), list[Tensor]()
    with seeded(0):
        for images, part in stream:
            pixels.extend(images)
            labels.append(part)
            if len(pixels) >= HEAD:
                break
    if not pixels:
        raise DataError(f"{stream.name} is empty.")
    pixels = pixels[:HEAD]
    same = len({image.shape for image in pixels}) == 1
    source = torch.stack(pixels) if same else pixels
    head = _make_set(stream, source, torch.cat(labels)[:HEAD], class_names)
    return StreamSet(**vars(head), stream=stream)


def _make_set(
    stream: SampleStream,
    pixels: Tensor | list[Tensor],
    labels: Tensor,
    class_names: Sequence[str] | None,
) -> ImageSet:
    names: tuple[str, ...] = ("unknown",)
    if stream.labeled:
        names = name_classes(labels, class_names, stream.class_names)
    found = ImageSet.of(stream.name, pixels, labels, names)
    side = find_side([pixels], [pixels]) if isinstance(pixels, Tensor) else None
    return replace(found, side=side, access="stream")


def _check_size(name: str, shape: torch.Size | None, images: Tensor) -> torch.Size:
    """The shape of all images of a stream."""
    if shape is not None and images.shape[1:] != shape:
        raise DataError(
            f"the images of {name} must be of one size, found {tuple(shape[1:])} and"
            f" {tuple(images.shape[2:])}. Resize them in its transform."
        )
    return images.shape[1:]


class StreamBatches(Batches):
    """Batches of a training run from a stream: an epoch is a pass over it.

    If a pass ends before `samples` are read, another one begins; what it has beyond is left out.
    Images are made samples by `view`; None leaves them as they are.
    """

    def __init__(
        self,
        images: StreamSet,
        view: View | None,
        size: int,
        samples: int,
        cut: Cut,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(samples, cut, seed, 1)
        self._stream, self._classes, self._view = images.stream, images.classes, view
        self._buffers = make_buffers(cut, size, device)
        self._shape = torch.Size((3, size, size))
        self._epoch = self._step = 0
        self._iterator: Iterator[tuple[Tensor, Tensor]] = iter(())

    def begin(self, epoch: int, step: int) -> None:
        """Begin an epoch; a stream cannot be entered within one."""
        assert step == 0
        self._epoch, self._step = epoch, 0
        self._stream.set_epoch(epoch)
        self._iterator = iter(self._stream)
        self._waiting = list[tuple[Tensor, int]]()

    def load(self) -> None:
        """Read the samples of the next step."""
        with seeded(self._seed, self._epoch, self._step):
            images, labels = self._read()
        if int(labels.min()) < 0 or int(labels.max()) >= self._classes:
            raise DataError(
                f"the labels of {self._stream.name} must be 0 to {self._classes - 1}, found"
                f" {int(labels.min())} to {int(labels.max())}."
            )
        for number, buffers in enumerate(self._buffers):
            start = self.cut.start(number)
            place = torch.arange(start, start + self.cut.size)
            keys = sample_keys(self._seed, self._epoch, self._step * self.cut.batch + place)
            chosen = images[start : start + self.cut.size]
            if self._view is None:
                for image in chosen:
                    _check_size(self._stream.name, self._shape, image[None])
            else:
                pairs = zip(chosen, keys.tolist(), strict=True)
                chosen = [self._view(image, key) for image, key in pairs]
            parts = (torch.stack(chosen), labels[place], keys)
            for buffer, values in zip(buffers[:3], parts, strict=True):  # they have no numbers
                buffer.copy_(values)
        self._step += 1

    def _read(self) -> tuple[list[Tensor], Tensor]:
        """The next images and labels of a step's batch."""
        again, count = False, self.cut.batch
        while len(self._waiting) < count:
            part = next(self._iterator, None)
            if part is None and again:
                raise DataError(f"{self._stream.name} ended, and begun anew yields nothing.")
            again = part is None
            if part is None:
                self._iterator = iter(self._stream)
            else:
                self._waiting.extend(zip(part[0], part[1].tolist(), strict=True))
        images, labels = zip(*self._waiting[:count], strict=True)
        del self._waiting[:count]
        return list(images), torch.tensor(labels)

    def batch(self, number: int) -> Batch:
        """The samples of a pass."""
        return self._buffers[number]

    def close(self) -> None:
        """End the workers of a loader: they would hold on to the lock of the run folder."""
        self._iterator = iter(())
