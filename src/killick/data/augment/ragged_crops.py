"""Images of several sizes brought to one on the device: random crops or center crops."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from killick.data.augment.resized_crops import Boxes, draw_boxes, find_taps, resize_crops
from killick.data.ragged_images import RaggedImages
from killick.data.transforms import Shift

PIXELS = 2**26  # of images and matrices that are multiplied at a time, to bound the memory


@dataclass(frozen=True)
class RaggedCrop:
    """Makes images of one size.

    With `resized` a random part of each image is brought to `size`, and flipped by `flips`; else the
    shorter side is, and the middle taken, or with `squash` both sides.
    """

    size: int
    interpolation: str  # one of `resized_crops.FILTERS`
    resized: bool
    flips: Shift
    squash: bool = False

    def __call__(self, images: RaggedImages, numbers: Tensor, keys: Tensor) -> Tensor:
        """Those images, `(n, 3, size, size)` uint8 on the device; numbers and keys are on the host."""
        heights, widths = images.shapes(numbers)
        zero, middle = torch.zeros_like(heights), None
        still = torch.zeros_like(keys, dtype=torch.bool)
        flips = (still, still)
        if self.resized:
            boxes = draw_boxes(keys, heights, widths)
            _, _, *drawn = self.flips.draw(keys)
            flips = (drawn[0], drawn[1])
        else:
            boxes = Boxes(zero, zero, heights, widths)
            middle = self._middle(heights, widths)
        resize = self._resize_by_kernel if has_kernel(images.device) else self._resize_by_products
        return resize(images, numbers, boxes, flips, middle)

    def _resize_by_kernel(
        self,
        images: RaggedImages,
        numbers: Tensor,
        boxes: Boxes,
        flips: tuple[Tensor, Tensor],
        middle: Boxes | None,
    ) -> Tensor:
        """All at once, on a GPU."""
        from killick.data.augment import crop_kernel

        zero = torch.zeros_like(numbers)
        top, left, *targets = (zero, zero, zero + self.size, zero + self.size)
        if middle is not None:
            top, left, *targets = middle
        facts = torch.stack(
            (
                *images.locate(numbers, boxes),
                *(boxes.height, flips[1], top, targets[0]),  # of rows
                *(boxes.width, flips[0], left, targets[1]),  # of columns
            )
        ).to(images.device, non_blocking=True)
        corners, areas, widths = facts[:3]
        length, flip, skipped, target = torch.cat((facts[3:7], facts[7:]), 1)
        longest = int(torch.maximum(boxes.height, boxes.width).max())
        taps = find_taps(
            length, longest, self.size, self.interpolation, flip.bool(), skipped, target
        )
        return crop_kernel.resize(images.contents, corners, areas, widths, taps, self.size)

    def _resize_by_products(
        self,
        images: RaggedImages,
        numbers: Tensor,
        boxes: Boxes,
        flips: tuple[Tensor, Tensor],
        middle: Boxes | None,
    ) -> Tensor:
        """Part by part, on any device."""
        found, parts = [], list(_split(boxes, self.size))
        for part in parts:
            chosen = Boxes(*(side[part] for side in boxes))
            there = torch.stack(
                (chosen.height, chosen.width, *(flip[part] for flip in flips))
                + (() if middle is None else tuple(side[part] for side in middle))
            ).to(images.device, non_blocking=True)
            height, width, flip, flip_vertically, *targets = there
            corner = torch.zeros_like(height)
            found.append(
                resize_crops(
                    images.cut(numbers[part], chosen),
                    Boxes(corner, corner, height, width),
                    self.size,
                    self.interpolation,
                    flip.bool(),
                    flip_vertically.bool(),
                    Boxes(*targets) if targets else None,
                )
            )
        if len(found) == 1:
            return found[0]
        order = torch.cat(parts).argsort().to(images.device, non_blocking=True)
        return torch.cat(found)[order]

    def _middle(self, heights: Tensor, widths: Tensor) -> Boxes:
        """The size an image is brought to, and where its middle begins; as torchvision rounds them."""
        if self.squash:
            tall = wide = torch.full_like(heights, self.size)
        else:
            shorter = torch.minimum(heights, widths)
            tall, wide = (self.size * side // shorter for side in (heights, widths))
        top, left = (((side - self.size) / 2).round().long() for side in (tall, wide))
        return Boxes(top, left, tall, wide)


def _split(boxes: Boxes, size: int) -> Iterator[Tensor]:
    """The places of boxes that are resized together: all, or those of similar width."""
    waiting = [torch.arange(len(boxes.width))]
    while waiting:
        part = waiting.pop()
        tall, wide = (size + int(side[part].max()) for side in (boxes.height, boxes.width))
        if len(part) == 1 or len(part) * tall * wide <= PIXELS:
            yield part
        else:
            order = part[boxes.width[part].argsort(stable=True)]
            waiting += order.chunk(2)


@cache
def has_kernel(device: torch.device) -> bool:
    """Whether this device resizes crops by the kernel, which a C compiler and triton are needed for."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    from killick.data.augment import crop_kernel

    try:
        crop_kernel.try_out(device)
    except Exception:  # whatever a compiler that is missing or too old makes triton raise
        return False
    return True
