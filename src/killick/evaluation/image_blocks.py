"""A set in blocks of 250: on the device, those of this process, as a network is shown them."""

import hashlib
import os
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.data.preprocessing import PlainView
from killick.runtime.processes import Processes

# What is random about a block is drawn for it alone, so neither the batch size nor the number of
# processes changes a pixel.
BLOCK = 250


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
        keep: Whether they will be asked for again: then they stay on the device, if there is room.
    """

    def __init__(
        self,
        images: ImageSet,
        view: PlainView,
        size: int,
        processes: Processes,
        workers: int | None = None,
        *,
        keep: bool = False,
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
        self._keep = keep and len(self._images) * 3 * size * size <= _room(processes.device)
        self._kept: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """Of this process's pictures, in the order of `numbers`."""
        return self._images.labels

    def __iter__(self) -> Iterator[Block]:
        """The blocks, in order."""
        device = self._processes.device
        labels = self._images.labels.to(
            device
        )  # at once: a copy for each block would be waited for
        parts = labels.split([len(place) for place in self._blocks]) if self._blocks else ()
        for place, images, part in zip(self._blocks, self._read(), parts, strict=True):
            yield Block(int(place[0]) // BLOCK, images.to(device), part)

    def _read(self) -> Iterator[Tensor]:
        if not self._blocks:
            return
        if self._kept is None and self._keep:
            device, size = self._processes.device, self._size
            kept = torch.empty(len(self._images), 3, size, size, dtype=torch.uint8, device=device)
            parts = kept.split([len(place) for place in self._blocks])
            for part, images in zip(parts, self._read_all(), strict=True):
                part.copy_(images)
            self._kept = kept
        if self._kept is not None:
            yield from self._kept.split([len(place) for place in self._blocks])
        else:
            yield from self._read_all()

    def _read_all(self) -> Iterator[Tensor]:
        source = self._images.source
        shown_whole = isinstance(source, Tensor) and self._view.whole
        if shown_whole and source.shape[-2:] == (self._size, self._size):  # type: ignore[union-attr]
            for rows in self._images.rows.split(BLOCK):
                yield source[rows]
            return
        yield from read_all(self._images, self._view, self._workers, BLOCK)


def block_generator(
    seed: int, what: str, severity: int, block: int, device: torch.device
) -> torch.Generator:
    """For all that is random about a block: whatever the batch size, order and processes are."""
    name = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8])
    return torch.Generator(device).manual_seed(key(seed, name, severity, block) % 2**63)


def _room(device: torch.device) -> float:
    """How many bytes a set may take on a device: a part of what is free."""
    if device.type == "cuda":
        return 0.4 * torch.cuda.mem_get_info(device)[0]
    names = os.sysconf_names if hasattr(os, "sysconf") else {}
    if "SC_AVPHYS_PAGES" in names:
        return 0.4 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 2 * 2**30


def _cores() -> int:
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, (found or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
