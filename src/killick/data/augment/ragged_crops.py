"""Images of several sizes brought to one on the device: random parts of them, or their middle."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from killick.data.augment.resized_crops import Boxes, draw_boxes, resize_crops
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
        flips = (torch.zeros_like(keys, dtype=torch.bool),) * 2
        if self.resized:
            boxes = draw_boxes(keys, heights, widths)
            flips = self.flips.draw(keys)[2:]
        else:
            boxes = Boxes(zero, zero, heights, widths)
            middle = self._middle(heights, widths)
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
