"""Digital corruptions: contrast, brightness, saturation, blocks and JPEG.

The operations are those of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019). Nothing here
is random; the functions take a generator because every corruption does, and leave it alone.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats
from killick.corruptions.jpeg import recode

# Pillow's own fixed point: 8 bits for the gray level, 2 to spare, 22 for the weight.
_BITS = 22
_UNIT = 1 << _BITS


@corruption(
    cifar=(0.75, 0.5, 0.4, 0.3, 0.15),
    tiny=(0.4, 0.3, 0.2, 0.1, 0.05),
    imagenet=(0.4, 0.3, 0.2, 0.1, 0.05),
)
def contrast(images: Tensor, factor: float, *, generator: Generator) -> Tensor:
    """The images with every channel drawn towards its own mean over the image.

    `factor` is what is left of the distance to the mean.
    """
    levels = to_floats(images)
    mean = levels.mean((2, 3), keepdim=True)
    return to_bytes(levels.mul_(factor).add_(mean.mul_(1 - factor)))


@corruption(
    cifar=(0.05, 0.1, 0.15, 0.2, 0.3),
    tiny=(0.1, 0.2, 0.3, 0.4, 0.5),
    imagenet=(0.1, 0.2, 0.3, 0.4, 0.5),
)
def brightness(images: Tensor, added: float, *, generator: Generator) -> Tensor:
    """The images with the value of HSV raised, hue and saturation kept.

    The value is the largest of the three channels, and to change it scales all three; black, which
    has no hue, becomes gray. The original goes to HSV and back, to the same effect. `added` is a
    share of full scale.
    """
    value = to_floats(_highest(images))
    raised = (value + 255 * added).clamp_(0, 255)
    of_black = (1 - value).clamp_(min=0).mul_(raised)  # for value 0; none for 1, 2, 3 ...
    return to_bytes(torch.addcmul(of_black, to_floats(images), raised.div_(value.clamp_(min=1))))


@corruption(
    cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    tiny=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
    imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
)
def saturate(images: Tensor, factor: float, offset: float, *, generator: Generator) -> Tensor:
    """The images with the saturation of HSV times `factor` plus `offset`, hue and value kept.

    The value is the largest of the three channels, and the saturation says how far the smallest
    lies below it, as a share of it: to change it stretches the distances of all three to the
    largest. Grays have the hue of red in HSV, so that an offset turns them red, as in the original.
    """
    value = to_floats(_highest(images))
    spread = value - _lowest(images)
    wanted = torch.minimum(spread * factor + value * offset, value)
    stretch = wanted / spread.clamp(min=1)
    levels = torch.addcmul(value, to_floats(images).sub_(value), stretch)
    if offset > 0:
        levels[:, 1:] -= wanted.mul_((1 - spread).clamp_(min=0))  # where spread is 0
    return to_bytes(levels)


@corruption(
    cifar=(0.95, 0.9, 0.85, 0.75, 0.65),
    tiny=(0.9, 0.8, 0.7, 0.6, 0.5),
    imagenet=(0.6, 0.5, 0.4, 0.3, 0.25),
)
def pixelate(images: Tensor, scale: float, *, generator: Generator) -> Tensor:
    """The images made smaller by the means of boxes, and large again by repetition.

    Equal to Pillow's BOX filter, down and up, which rounds the means along x, then those along y.
    (Since version 13 it begins with y in images twice as tall as wide: a gray level there.) The
    sides of the small image are `scale` times the original ones, cut to whole pixels, at least 1.
    """
    height, width = images.shape[2:]
    low, narrow = max(1, int(height * scale)), max(1, int(width * scale))
    # Whole rows are copied far faster than single columns are: turned, columns are rows.
    small = _turn(_resize(_turn(_resize(_turn(images), narrow)), low))
    return _resize(_turn(_resize(small, width)), height)


@corruption(cifar=(80, 65, 58, 50, 40), tiny=(65, 58, 50, 40, 25), imagenet=(25, 18, 15, 10, 7))
def jpeg_compression(images: Tensor, quality: float, *, generator: Generator) -> Tensor:
    """The images after they were written and read as JPEG, with the pixels that Pillow gives.

    `quality` is libjpeg's, 1 to 100; colors have half the resolution, Pillow's default.
    """
    return recode(images, int(quality))


def _highest(images: Tensor) -> Tensor:
    """The largest channel of each pixel, `(n, 1, height, width)`."""
    red, green, blue = images.split(1, 1)
    return torch.maximum(red, green).maximum(blue)


def _lowest(images: Tensor) -> Tensor:
    """The smallest channel of each pixel, `(n, 1, height, width)`."""
    red, green, blue = images.split(1, 1)
    return torch.minimum(red, green).minimum(blue)


def _turn(images: Tensor) -> Tensor:
    """The images with height and width exchanged."""
    return images.transpose(2, 3).contiguous()


def _resize(images: Tensor, rows: int) -> Tensor:
    """The images with another number of rows, each the mean of a box of old ones."""
    boxes = _boxes(images.shape[2], rows, images.device)
    members = (images.index_select(2, place) for place in boxes.places)
    if len(boxes.places) == 1:
        return next(members)
    total = next(members).to(torch.int32)
    for member, counts in zip(members, boxes.counts[1:], strict=True):
        total += member if counts is None else member.mul_(counts)
    return total.mul_(boxes.weight).add_(_UNIT // 2).bitwise_right_shift_(_BITS).to(torch.uint8)


class _Boxes(NamedTuple):
    """Which old rows belong to each new one."""

    places: list[Tensor]  # the first of each box, the second of each box ..., each (new,)
    counts: list[Tensor | None]  # whether there is one, 0 or 1, (new, 1); None: in all boxes
    weight: Tensor  # one over their number, in units of 1 / _UNIT, (new, 1)


@lru_cache(maxsize=64)
def _boxes(old: int, new: int, device: torch.device) -> _Boxes:
    """The boxes of `new` rows over `old` ones.

    A row belongs to the box that its middle lies in (the far end included). Boxes are no narrower
    than one row.
    """
    scale = old / new
    width = max(scale, 1.0)
    row = torch.arange(old, dtype=torch.float64)
    middle = (torch.arange(new, dtype=torch.float64)[:, None] + 0.5) * scale
    # Pillow asks twice; where a row lies on the end of a box, rounding lets either say no.
    near = (row >= (middle - width / 2 + 0.5).floor()) & (row < (middle + width / 2 + 0.5).floor())
    distance = (row - middle + 0.5) * (1 / width)
    inside = near & (distance > -0.5) & (distance <= 0.5)
    size, first = inside.sum(1), inside.int().argmax(1)
    places: list[Tensor] = []
    counts: list[Tensor | None] = []
    for i in range(int(size.max())):
        places.append((first + i).clamp_(max=old - 1).to(device))
        there = (size > i).to(torch.uint8)[:, None]
        counts.append(None if there.all() else there.to(device))
    weight = (_UNIT / size[:, None] + 0.5).to(torch.int32)
    return _Boxes(places, counts, weight.to(device))
