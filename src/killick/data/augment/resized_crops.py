"""Random parts of images, brought to one size with antialiasing, for a whole batch at once.

Boxes have the distribution of torchvision's RandomResizedCrop. Resizing is a product with two
matrices for each image. As in torchvision's CPU code for uint8, their entries are whole multiples of
a small power of two and rows are rounded before columns, so sums are exact in float32: an image is
the same in every batch and on every device that multiplies in float32.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from killick.data.keyed_random import Stream, uniform

SCALE = (0.08, 1.0)  # of the area
RATIO = (3 / 4, 4 / 3)  # of width to height
TRIES = 10
UNIT = 2.0**-15  # of weights: sums of 255 times all of them are less than 2^24 units
FILTERS = ("bilinear", "bicubic")


@dataclass(frozen=True)
class ResizedCrop:
    """Random parts of images, brought to a size."""

    size: int
    interpolation: str  # one of FILTERS

    def __call__(
        self, pixels: Tensor, keys: Tensor, flip: Tensor, flip_vertically: Tensor
    ) -> Tensor:
        """Samples of images `(n, height, width, 3)`; see `resize_crops`."""
        boxes, images = draw_boxes(keys, *pixels.shape[1:3]), pixels.permute(0, 3, 1, 2)
        return resize_crops(images, boxes, self.size, self.interpolation, flip, flip_vertically)


class Boxes(NamedTuple):
    """Parts of images, in whole pixels, `(n,)`."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def draw_boxes(keys: Tensor, heights: Tensor | int, widths: Tensor | int) -> Boxes:
    """A random part of each image: the first of ten tries that fits, else the middle of it."""
    tall, wide = (torch.zeros_like(keys) + side for side in (heights, widths))
    draws = uniform(keys, Stream.CROP_SHAPE, 2 * TRIES)
    area = (tall * wide)[:, None] * (SCALE[0] + (SCALE[1] - SCALE[0]) * draws[:, :TRIES])
    low, high = (math.log(ratio) for ratio in RATIO)
    ratio = (low + (high - low) * draws[:, TRIES:]).exp()
    width, height = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
    fits = (width > 0) & (width <= wide[:, None]) & (height > 0) & (height <= tall[:, None])
    first = fits.int().argmax(1, keepdim=True)
    fitting = fits.any(1)
    middle_height = torch.minimum(tall, (wide / RATIO[0]).round().long())
    middle_width = torch.minimum(wide, (tall * RATIO[1]).round().long())
    height = torch.where(fitting, height.gather(1, first)[:, 0], middle_height)
    width = torch.where(fitting, width.gather(1, first)[:, 0], middle_width)
    place = uniform(keys, Stream.CROP_PLACE, 2)
    top = torch.where(fitting, (place[:, 0] * (tall - height + 1)).long(), (tall - height) // 2)
    left = torch.where(fitting, (place[:, 1] * (wide - width + 1)).long(), (wide - width) // 2)
    return Boxes(top, left, height, width)


def resize_crops(
    images: Tensor,
    boxes: Boxes,
    size: int,
    interpolation: str,
    flip: Tensor,
    flip_vertically: Tensor,
    middle: Boxes | None = None,
) -> Tensor:
    """Parts of images `(n, 3, height, width)`, uint8, as `(n, 3, size, size)` in channels_last layout.

    Images of several sizes may be padded at the right and bottom; what is outside a box is not used.
    `interpolation` is "bilinear" or "bicubic". With `middle` a box is brought to its height and
    width, at least `size`, and `size` pixels from its top and left on are taken.
    """
    count, channels, height, width = images.shape
    if middle is None:
        zero = torch.zeros_like(boxes.top)
        middle = Boxes(zero, zero, zero + size, zero + size)
    columns = _weights(
        *(boxes.left, boxes.width, width, size, interpolation), flip, middle.left, middle.width
    )
    rows = _weights(
        *(boxes.top, boxes.height, height, size, interpolation),
        *(flip_vertically, middle.top, middle.height),
    )
    with torch.autocast(images.device.type, enabled=False):
        by_row = images.reshape(count, channels * height, width).float()
        narrow = _round(by_row @ columns.mT).view(count, channels, height, size)
        by_column = narrow.transpose(1, 2).reshape(count, height, channels * size)
        found = _round(rows @ by_column).view(count, size, channels, size).transpose(1, 2)
    return found.to(torch.uint8, memory_format=torch.channels_last)


def _weights(
    start: Tensor,
    length: Tensor,
    side: int,
    size: int,
    interpolation: str,
    flip: Tensor,
    skipped: Tensor,
    target: Tensor,
) -> Tensor:
    """Matrices `(n, size, side)` that resize the part from `start` on, of `length`, to `target`."""
    first, weights, _ = find_taps(length, side, size, interpolation, flip, skipped, target)
    matrices = torch.zeros(len(start), size, side, device=start.device)
    place = start[:, None, None] + first[..., None]
    place = place + torch.arange(weights.shape[2], device=start.device)
    return matrices.scatter_add_(2, place.clamp_max(side - 1), weights)


def find_taps(
    length: Tensor,
    side: int,
    size: int,
    interpolation: str,
    flip: Tensor,
    skipped: Tensor,
    target: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What each pixel of a side of the result is made of.

    Parts of `length`, at most `side`, are resized to `target`; `skipped` pixels of the result are
    left out, and `size` are taken.

    Returns:
        The first pixel that each is made of, `(n, size)`; the weights of this and the next ones,
        `(n, size, most)`; and how many of these may be other than 0, `(n,)`.
    """
    length, flip, skipped, target = (
        each[:, None, None] for each in (length, flip, skipped, target)
    )
    precise = torch.float32 if length.device.type == "mps" else torch.float64  # as torchvision's
    radius = 1 if interpolation == "bilinear" else 2
    scale = length.to(precise) / target
    stretch = scale.clamp_min(1)
    reach = stretch * radius
    along = torch.arange(size + 1, device=length.device)[:, None]
    wanted = torch.where(flip, size - 1 - along, along) + skipped
    # Beside those that are taken, the first of all: weights at an edge are the largest.
    center = (torch.where(along < size, wanted, 0) + 0.5) * scale
    first = (center - reach + 0.5).long().clamp_min(0)
    last = torch.minimum((center + reach + 0.5).long(), length)
    most = int(2 * radius * max(1, side / size)) + 2  # pixels that one of the result is made of
    place = first + torch.arange(most, device=length.device)
    distance = ((place - center + 0.5) / stretch).abs()
    if interpolation == "bilinear":
        weights = (1 - distance).clamp_min(0)
    else:  # cubic, as in Pillow (a = -0.5)
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    weights = torch.where(place < last, weights, 0.0)
    weights = weights / weights.sum(-1, keepdim=True)
    largest = weights.amax((1, 2), keepdim=True)
    unit = torch.where(largest > 1 - UNIT / 2, 2 * UNIT, UNIT)  # torchvision's weights have 16 bits
    weights = (weights.abs() / unit + 0.5).floor() * unit * weights.sign()
    return first[:, :size, 0], weights[:, :size].float(), (last - first)[:, :size].amax((1, 2))


def _round(values: Tensor) -> Tensor:
    """Whole numbers from 0 to 255, as floats; halves are rounded up."""
    return (values + 0.5).floor().clamp(0, 255)
