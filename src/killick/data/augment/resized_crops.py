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
        boxes = draw_boxes(keys, *pixels.shape[1:3])
        return resize_crops(pixels, boxes, self.size, self.interpolation, flip, flip_vertically)


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
    pixels: Tensor,
    boxes: Boxes,
    size: int,
    interpolation: str,
    flip: Tensor,
    flip_vertically: Tensor,
) -> Tensor:
    """Parts of images `(n, height, width, 3)`, uint8, as `(n, 3, size, size)` in channels_last layout.

    Images of several sizes may be padded at the right and bottom; what is outside a box is not used.
    `interpolation` is "bilinear" or "bicubic".
    """
    count, height, width, channels = pixels.shape
    columns = _weights(boxes.left, boxes.width, width, size, interpolation, flip)
    rows = _weights(boxes.top, boxes.height, height, size, interpolation, flip_vertically)
    with torch.autocast(pixels.device.type, enabled=False):
        by_column = pixels.transpose(1, 2).reshape(count, width, height * channels).float()
        narrow = _round(columns @ by_column).view(count, size, height, channels)
        by_row = narrow.transpose(1, 2).reshape(count, height, size * channels)
        found = _round(rows @ by_row).view(count, size, size, channels)
    return found.to(torch.uint8).permute(0, 3, 1, 2)


def _weights(
    start: Tensor, length: Tensor, side: int, size: int, interpolation: str, flip: Tensor
) -> Tensor:
    """Matrices `(n, size, side)` that resize the part from `start` on, of `length`, to `size`."""
    start, length = start[:, None, None], length[:, None, None]
    precise = torch.float32 if start.device.type == "mps" else torch.float64  # as torchvision's
    scale = length.to(precise) / size
    stretch = scale.clamp_min(1)
    reach = stretch * (1 if interpolation == "bilinear" else 2)
    center = (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    place = torch.arange(side, device=start.device) - start
    first = (center - reach + 0.5).long().clamp_min(0)
    last = torch.minimum((center + reach + 0.5).long(), length)
    distance = ((place - center + 0.5) / stretch).abs()
    if interpolation == "bilinear":
        weights = (1 - distance).clamp_min(0)
    else:  # cubic, as in Pillow (a = -0.5)
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    weights = torch.where((place >= first) & (place < last), weights, 0.0)
    weights = weights / weights.sum(-1, keepdim=True)
    largest = weights.amax((1, 2), keepdim=True)
    unit = torch.where(largest > 1 - UNIT / 2, 2 * UNIT, UNIT)  # torchvision's weights have 16 bits
    weights = (weights.abs() / unit + 0.5).floor() * unit * weights.sign()
    return torch.where(flip[:, None, None], weights.flip(1), weights).float()


def _round(values: Tensor) -> Tensor:
    """Whole numbers from 0 to 255, as floats; halves are rounded up."""
    return (values + 0.5).floor().clamp(0, 255)
