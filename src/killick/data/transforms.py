"""Crops, flips, erasing and GridMask for a whole batch at once, on its device.

Random numbers come from the samples' keys (see `keyed_random`), so nothing depends on the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from killick.data.keyed_random import Stream, uniform, whole

_STREAMS = (Stream.TOP, Stream.LEFT, Stream.FLIP, Stream.FLIP_VERTICALLY)
_REFERENCE_STREAMS = (
    *(Stream.REFERENCE_TOP, Stream.REFERENCE_LEFT),
    *(Stream.REFERENCE_FLIP, Stream.REFERENCE_FLIP_VERTICALLY),
)


@dataclass(frozen=True)
class Shift:
    """Random crops of a padded image, and flips, as CIFAR is trained with."""

    padding: int = 0  # black pixels on each side before the crop
    flip: bool = False  # left and right are exchanged in half of the images
    flip_vertically: bool = False
    reference: bool = False  # other random numbers, for references augmented beside the images

    def draw(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Top and left of each crop, and whether it is flipped, and vertically."""
        streams = _REFERENCE_STREAMS if self.reference else _STREAMS
        sides = 2 * self.padding + 1
        top = whole(keys, streams[0], sides) - self.padding
        left = whole(keys, streams[1], sides) - self.padding
        flip = (uniform(keys, streams[2]) < 0.5) & self.flip
        vertically = (uniform(keys, streams[3]) < 0.5) & self.flip_vertically
        return top, left, flip, vertically


def gather(
    pixels: Tensor,
    numbers: Tensor,
    top: Tensor,
    left: Tensor,
    flip: Tensor,
    flip_vertically: Tensor,
) -> Tensor:
    """Images `numbers` of `pixels` `(n, height, width, channels)`, cropped and flipped in one copy.

    `top` and `left` are the first row and column of each crop; outside the image it is black. The
    result is `(n, channels, height, width)` in the channels_last layout.
    """
    _, height, width, channels = pixels.shape
    y, inside_y = _places(height, top, flip_vertically)
    x, inside_x = _places(width, left, flip)
    place = (numbers[:, None, None] * height + y[:, :, None]) * width + x[:, None, :]
    taken = pixels.view(-1, channels).index_select(0, place.view(-1))
    inside = inside_y[:, :, None] & inside_x[:, None, :]
    taken = taken.view(*place.shape, channels) * inside[..., None]
    return taken.permute(0, 3, 1, 2)


def _places(side: int, start: Tensor, flip: Tensor) -> tuple[Tensor, Tensor]:
    """For each pixel of a row where it comes from, and whether that is inside the image."""
    along = torch.arange(side, device=start.device)
    place = start[:, None] + torch.where(flip[:, None], side - 1 - along, along)
    return place.clamp(0, side - 1), (place >= 0) & (place < side)


def erase(
    images: Tensor, keys: Tensor, probability: float, fill: Sequence[float] | Tensor
) -> Tensor:
    """Images `(n, channels, height, width)` with a rectangle erased (Zhong et al. 2020).

    As torchvision's RandomErasing: an area of 2 to 33 % and an aspect ratio of 0.3 to 3.3, drawn
    again up to ten times until it fits, else nothing is erased. `fill` is the color, 0 to 255 for
    each channel; the mean color becomes zero when normalized.
    """
    height, width = images.shape[2:]
    draws = uniform(keys, Stream.ERASE_SHAPE, 20)  # ten tries of area and ratio
    area = height * width * (0.02 + 0.31 * draws[:, :10])
    low, high = torch.tensor([0.3, 3.3]).log().tolist()
    ratio = (low + (high - low) * draws[:, 10:]).exp()
    tall, wide = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
    fits = (tall < height) & (wide < width)
    first = fits.int().argmax(1, keepdim=True)  # the first that fits, or 0 if none does
    tall, wide = tall.gather(1, first), wide.gather(1, first)
    place = uniform(keys, Stream.ERASE_PLACE, 2)
    top = (place[:, :1] * (height - tall + 1)).long()
    left = (place[:, 1:] * (width - wide + 1)).long()
    erased = fits.any(1) & (uniform(keys, Stream.ERASE) < probability)
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    in_rows = (rows >= top) & (rows < top + tall)
    in_columns = (columns >= left) & (columns < left + wide)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :] & erased[:, None, None, None]
    color = torch.as_tensor(fill, device=images.device).round().to(images.dtype)
    return torch.where(inside, color.view(1, -1, 1, 1), images)


def make_grid_masks(
    draws: Tensor, height: int, width: int, *, periods: tuple[float, float], visible: float
) -> Tensor:
    """Where GridMask deletes pixels, `(n, height, width)`: squares on a grid, turned and shifted.

    Args:
        draws: `(n, 4)` in [0, 1): period, offsets down and across, angle.
        height: Of the images.
        width: Of the images.
        periods: The shortest and the longest, in pixels; whole pixels are drawn.
        visible: Share of a period's edge that stays.
    """
    low, high = (round(each) for each in periods)
    period = (low + draws[:, 0] * (high - low + 1)).floor().clamp_max(high)[:, None, None]
    deleted = ((1 - visible) * period).round()
    angle = (2 * math.pi * draws[:, 3])[:, None, None]
    rows = torch.arange(height, device=draws.device)[:, None] - (height - 1) / 2
    columns = torch.arange(width, device=draws.device)[None, :] - (width - 1) / 2
    down = rows * angle.cos() - columns * angle.sin()
    across = rows * angle.sin() + columns * angle.cos()
    inside = torch.ones((), dtype=torch.bool, device=draws.device)
    for along, offset in ((down, draws[:, 1]), (across, draws[:, 2])):
        place = torch.remainder(along + offset[:, None, None] * period, period)
        inside = inside & (place < deleted)
    return inside


def resize(images: Tensor, side: int) -> Tensor:
    """Floats `(n, channels, height, width)` as squares of `side`, smoothed where they shrink."""
    return interpolate(images, (side, side), mode="bilinear", align_corners=False, antialias=True)
