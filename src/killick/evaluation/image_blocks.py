"""The images of a set in blocks of 250, on the device: those of this process, read once if they fit."""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.data.preprocessing import PlainView
from killick.runtime.devices import free_memory, precise_device
from killick.runtime.processes import Processes, usual_workers

# Random numbers are drawn for each block alone, so neither the batch size nor the number of
# processes changes a pixel.
BLOCK = 250


class Block(NamedTuple):
    """Consecutive images of a set, uint8 `(n, 3, height, width)`, on the device."""

    number: int
    images: Tensor
    labels: Tensor


class ImageBlocks:
    """The blocks of a set that are this process's.

    With `keep` they are decoded once: they stay on the device, or in the host's memory, if they fit.

    `numbers` are the numbers of its images in the set.
    """

    def __init__(
        self,
        images: ImageSet,
        view: PlainView,
        processes: Processes,
        workers: int | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.count = len(images)
        self._device, self._view = processes.device, view
        blocks = range(processes.rank, -(-self.count // BLOCK), processes.count)
        places = [torch.arange(n * BLOCK, min((n + 1) * BLOCK, self.count)) for n in blocks]
        self._blocks, self._sizes = list(blocks), [len(place) for place in places]
        self.numbers = torch.cat([torch.arange(0), *places])
        self._images = images.part(self.numbers)
        self._workers = 0 if images.in_memory else usual_workers() if workers is None else workers
        size = len(self._images) * 3 * view.size**2
        place = find_room(self._device, size, processes.count) if keep else None
        self._place, self._kept = place, list[Tensor]()

    def __iter__(self) -> Iterator[Block]:
        """The blocks, in order."""
        if not self._blocks:
            return
        # At once: a copy for each block would be waited for.
        labels = self._images.labels.to(self._device).split(self._sizes)
        for number, images, part in zip(self._blocks, self._read(), labels, strict=True):
            yield Block(number, images.to(self._device), part)

    def _read(self) -> Iterator[Tensor]:
        if self._kept:
            yield from self._kept
            return
        kept = []
        for images in read_all(self._images, self._view, self._workers, BLOCK):
            if self._place is not None:
                images = images.to(self._place, copy=True)  # it may be memory of a worker
                kept.append(images)
            yield images
        self._kept = kept  # all of them


def block_generator(
    seed: int, what: str, severity: int, block: int, device: torch.device
) -> torch.Generator:
    """For all that is random about a block, whatever the batch size, order and processes are."""
    name = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8])
    return torch.Generator(device).manual_seed(key(seed, name, severity, block) % 2**63)


def find_room(device: torch.device, size: int, processes: int) -> torch.device | None:
    """Where `size` bytes can be kept: on the device, else in the host's memory, else nowhere.

    The host's memory is that of all processes.
    """
    for place in dict.fromkeys((precise_device(device), torch.device("cpu"))):
        sharing = processes if place.type == "cpu" else 1
        if sharing * size <= 0.4 * free_memory(place):
            return place
    return None
