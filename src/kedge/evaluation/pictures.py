"""A set in blocks of 250: on the device, those of this process, as a network is shown them."""

import hashlib
import os
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kedge.data.batches import View, read_all
from kedge.data.chance import key
from kedge.data.images import ImageSet
from kedge.training.distributed import Processes

# What is random about a block is drawn for it alone, so neither the batch size nor the number of
# processes changes a pixel.
BLOCK = 250
RESIDENT_BYTES = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}


class Block(NamedTuple):
    """Consecutive pictures of a set.

    Attributes:
        number: Of the block in the set.
        images: uint8 `(n, 3, height, width)` on the device.
        labels: On the device.
    """

    number: int
    images: Tensor
    labels: Tensor


class Pictures:
    """The blocks of a set that are this process's: kept on the device if there is room.

    Args:
        images: The set.
        view: What is shown of a picture.
        size: Of what is shown.
        processes: This one and the others.
        workers: Processes that read files; by default one for each core.
    """

    def __init__(
        self,
        images: ImageSet,
        view: View,
        size: int,
        processes: Processes,
        workers: int | None = None,
    ) -> None:
        self.name, self.count = images.name, len(images)
        self._processes, self._view, self._size = processes, view, size
        blocks = range(processes.rank, -(-self.count // BLOCK), processes.count)
        self._blocks = [
            torch.arange(number * BLOCK, min((number + 1) * BLOCK, self.count)) for number in blocks
        ]
        self.numbers = torch.cat([torch.arange(0), *self._blocks])
        self._images = images.part(self.numbers)
        self._workers = 0 if images.in_memory else workers if workers is not None else _cores()
        room = RESIDENT_BYTES.get(processes.device.type, RESIDENT_BYTES["cpu"])
        self._keep = len(self._images) * 3 * size * size <= room
        self._kept: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """Of this process's pictures, in the order of `numbers`."""
        return self._images.labels

    def __iter__(self) -> Iterator[Block]:
        """The blocks, in order."""
        device, done = self._processes.device, 0
        for place, images in zip(self._blocks, self._read(), strict=True):
            labels = self._images.labels[done : done + len(place)].to(device)
            done += len(place)
            yield Block(int(place[0]) // BLOCK, images.to(device), labels)

    def _read(self) -> Iterator[Tensor]:
        if not self._blocks:
            return
        if self._kept is None and self._keep:
            source = self._images.source
            as_is = isinstance(source, Tensor) and source.shape[-2:] == (self._size, self._size)
            read = self._images.images() if as_is else torch.cat(list(self._read_all()))
            self._kept = read.to(self._processes.device)
        if self._kept is not None:
            yield from self._kept.split([len(place) for place in self._blocks])
        else:
            yield from self._read_all()

    def _read_all(self) -> Iterator[Tensor]:
        return read_all(self._images, self._view, self._workers, BLOCK)


def block_generator(
    seed: int, what: str, severity: int, block: int, device: torch.device
) -> torch.Generator:
    """For all that is random about a block: whatever the batch size, order and processes are."""
    name = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8])
    return torch.Generator(device).manual_seed(key(seed, name, severity, block) % 2**63)


def _cores() -> int:
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, (found or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
