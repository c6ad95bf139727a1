"""Batches of images: of a training run, from the device or from workers; or a whole set in order."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from killick.data.image_set import ImageSet
from killick.data.keyed_random import Stream, key, root, sample_keys
from killick.data.preprocessing import PlainView
from killick.data.sample_loader import SampleLoader, View, checked, collate, read_in_order
from killick.data.transforms import Shift, gather

if TYPE_CHECKING:  # torchvision takes seconds to import
    from killick.data.augment.policies import BatchPolicy
    from killick.data.augment.resized_crops import ResizedCrop


class Batch(NamedTuple):
    """Samples of one forward pass."""

    images: Tensor  # uint8 (n, 3, height, width)
    labels: Tensor  # class numbers (n,)
    keys: Tensor  # from which everything random about each sample is drawn
    numbers: Tensor  # of the images in the training set; -1 in a stream
    mixed: Tensor | None = None  # whose labels are mixed with another one's (n,); None: nobody's

    # `_replace` returns an empty tuple in functions compiled by torch 2.11.
    def with_images(self, images: Tensor) -> "Batch":
        """The same samples as other images."""
        return Batch(images, self.labels, self.keys, self.numbers, self.mixed)

    def with_mixed(self, images: Tensor, labels: Tensor, mixed: Tensor) -> "Batch":
        """The same samples, some of them mixed; labels are probabilities."""
        return Batch(images, labels, self.keys, self.numbers, mixed)

    def first(self, count: int) -> "Batch":
        """The first samples."""
        mixed = None if self.mixed is None else self.mixed[:count]
        images, labels, keys, numbers = (part[:count] for part in self[:4])
        return Batch(images, labels, keys, numbers, mixed)


@dataclass(frozen=True)
class Cut:
    """How the batch of a step is cut into parts: by process, and by pass when accumulating."""

    batch: int  # samples of a step, over all processes and passes
    rank: int = 0
    processes: int = 1
    passes: int = 1  # forward passes of a process in one step

    @property
    def size(self) -> int:
        """Samples of one pass."""
        return self.batch // (self.processes * self.passes)

    def start(self, number: int) -> int:
        """Where pass `number` begins within the batch of the step."""
        return (number * self.processes + self.rank) * self.size


def epoch_order(samples: int, seed: int, epoch: int, repeats: int = 1) -> Tensor:
    """The order of an epoch: a random permutation that depends on (seed, epoch) alone.

    With `repeats` each sample comes so many times close together, each time augmented anew, and the
    epoch stays as long: only a part of the set is in it (Hoffer et al. 2020). Two take turns,
    a b a b a b: neighbors are what mixup mixes, and are never the same. Of a number in the order,
    `number % samples` is the sample, `number // samples` the repetition.
    """
    generator = torch.Generator().manual_seed(key(seed, epoch, Stream.ORDER) % 2**63)
    order = torch.randperm(samples, generator=generator)
    if repeats == 1 or samples == 1:
        return order
    pairs = order[: 2 * -(-samples // (2 * repeats))].view(-1, 2)
    turns = torch.arange(samples) // 2 % repeats
    return pairs.repeat(1, repeats).view(-1)[:samples] + samples * turns


class Batches:
    """Training samples, step by step.

    `begin` goes to a step, `load` does the host's part of it, and `batch` gives the samples by
    operations on the device alone, so that it can be compiled and captured in a CUDA graph.
    """

    def __init__(self, samples: int, cut: Cut, seed: int, repeats: int) -> None:
        self.samples, self.cut = samples, cut
        self._seed, self._repeats = seed, repeats

    def _order(self, epoch: int) -> Tensor:
        return epoch_order(self.samples, self._seed, epoch, self._repeats)

    def begin(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        raise NotImplementedError

    def load(self) -> None:
        """Do the host's part of the next step."""

    def batch(self, number: int) -> Batch:
        """The samples of a pass, without waiting for the device."""
        raise NotImplementedError

    def advance(self) -> None:
        """Go on to the next step, on the device."""

    def close(self) -> None:
        """End what reads ahead."""


class Resident(Batches):
    """All images on the device as uint8 `(n, height, width, 3)`; batches are augmented there."""

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        shift: Shift,
        cut: Cut,
        *,
        seed: int,
        repeats: int = 1,
        resized: "ResizedCrop | None" = None,
        policy: "BatchPolicy | None" = None,
    ) -> None:
        super().__init__(len(pixels), cut, seed, repeats)
        self.pixels, self.labels, self.shift = pixels, labels, shift
        self.resized, self.policy = resized, policy
        self._root = root(seed, pixels.device)
        zero = torch.zeros((), dtype=torch.long, device=pixels.device)
        self._drawn = zero.repeat(self.samples)
        self._cursor, self._epoch = zero.clone(), zero.clone()

    def begin(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        self._drawn.copy_(self._order(epoch))
        self._epoch.fill_(epoch)
        self._cursor.fill_(step * self.cut.batch)

    def batch(self, number: int) -> Batch:
        """The samples of a pass, augmented."""
        place = torch.arange(self.cut.size, device=self.pixels.device) + self.cut.start(number)
        drawn = self._drawn.index_select(0, self._cursor + place)
        keys = sample_keys(self._root, self._epoch, drawn)
        numbers = drawn % self.samples
        top, left, *flips = self.shift.draw(keys)
        if self.resized is None:
            images = gather(self.pixels, numbers, top, left, *flips)
        else:
            images = self.resized(self.pixels.index_select(0, numbers), keys, *flips)
        if self.policy is not None:
            images = self.policy(images, keys)
        return Batch(images, self.labels.index_select(0, numbers), keys, numbers)

    def advance(self) -> None:
        """Go on to the next step."""
        self._cursor.add_(self.cut.batch)


class ReadAhead(Batches):
    """Samples made before their step, in the order of epochs, and copied to where the step reads them.

    `until` is the epoch at which nothing more is made.
    """

    def __init__(
        self,
        samples: int,
        size: int,
        cut: Cut,
        *,
        seed: int,
        device: torch.device,
        repeats: int = 1,
        until: int | None = None,
    ) -> None:
        super().__init__(samples, cut, seed, repeats)
        self._until = math.inf if until is None else until
        self._buffers = make_buffers(cut, size, device)
        self._ready: Iterator[Batch] = iter(())
        self._begun = self._next = (-1, 0)  # epoch and step

    def begin(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch; the one that comes next is being made."""
        if (epoch, step) != self._next:
            self._end()
            self._begun = self._next = (epoch, step)
            self._ready = self._make()

    def load(self) -> None:
        """Copy the next samples to where the step reads them."""
        for buffers in self._buffers:  # nothing is mixed yet
            for buffer, values in zip(buffers[:4], next(self._ready)[:4], strict=True):
                buffer.copy_(values, non_blocking=True)
        epoch, step = self._next
        ends = step + 1 == self.samples // self.cut.batch
        self._next = (epoch + 1, 0) if ends else (epoch, step + 1)

    def batch(self, number: int) -> Batch:
        """The samples of a pass."""
        return self._buffers[number]

    def close(self) -> None:
        """End what makes samples."""
        self._end()

    def _make(self) -> Iterator[Batch]:
        """Samples from `_begun` on, pass by pass."""
        raise NotImplementedError

    def _end(self) -> None:
        ready, self._ready, self._next = self._ready, iter(()), (-1, 0)
        if hasattr(ready, "close"):
            ready.close()

    def _passes(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The numbers and keys of the samples of each pass, from `_begun` on."""
        epoch, first = self._begun
        while epoch < self._until:
            order = self._order(epoch)
            for step in range(first, self.samples // self.cut.batch):
                for number in range(self.cut.passes):
                    start = step * self.cut.batch + self.cut.start(number)
                    drawn = order[start : start + self.cut.size]
                    yield drawn % self.samples, sample_keys(self._seed, epoch, drawn)
            epoch, first = epoch + 1, 0

    def _places(self) -> Iterator[list[tuple[int, int]]]:
        for numbers, keys in self._passes():
            yield list(zip(numbers.tolist(), keys.tolist(), strict=True))


class Streamed(ReadAhead):
    """Images that are read, and made samples of `size` by `view`, in worker processes."""

    def __init__(
        self,
        images: ImageSet,
        view: View,
        size: int,
        cut: Cut,
        *,
        device: torch.device,
        workers: int,
        **options: Any,
    ) -> None:
        super().__init__(len(images), size, cut, device=device, **options)
        self._loader = SampleLoader(
            images, view, self._places, collate, workers=workers, pinned=device.type == "cuda"
        )

    def _make(self) -> Iterator[Batch]:
        return map(checked, self._loader.begin())

    def close(self) -> None:
        """End the workers."""
        super().close()
        self._loader.close()


def make_buffers(cut: Cut, size: int, device: torch.device) -> list[Batch]:
    """Where the samples of each pass are copied to, and a captured step reads them."""
    shape, layout = (cut.size, 3, size, size), torch.channels_last
    return [
        Batch(
            torch.zeros(shape, dtype=torch.uint8, device=device).to(memory_format=layout),
            *(torch.full((cut.size,), -1, device=device) for _ in range(3)),
        )
        for _ in range(cut.passes)
    ]


def read_all(images: ImageSet, view: View, workers: int = 0, batch: int = 256) -> Iterator[Tensor]:
    """All images of a set in batches, in order, as `view` shows them."""
    source = images.source
    if isinstance(source, Tensor) and isinstance(view, PlainView) and view.keeps(source):
        yield from (source[rows] for rows in images.rows.split(batch))
    else:
        for values in read_in_order(images, view, workers, batch, collate):
            yield checked(values)[0]
