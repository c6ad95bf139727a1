"""Shears, translations and rotations of a batch, each image by its own matrix."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import grid_sample


def shear_x(magnitude: Tensor, height: int, width: int) -> Tensor:
    """Matrices that shear along rows; like torchvision's policies, the top left corner stays."""
    return _matrices(magnitude, b=magnitude, c=magnitude * (height / 2))


def shear_y(magnitude: Tensor, height: int, width: int) -> Tensor:
    """Matrices that shear along columns."""
    return _matrices(magnitude, d=magnitude, f=magnitude * (width / 2))


def translate_x(magnitude: Tensor, height: int, width: int) -> Tensor:
    """Matrices that move images right by whole pixels."""
    return _matrices(magnitude, c=-magnitude.trunc())


def translate_y(magnitude: Tensor, height: int, width: int) -> Tensor:
    """Matrices that move images down by whole pixels."""
    return _matrices(magnitude, f=-magnitude.trunc())


def rotate(magnitude: Tensor, height: int, width: int) -> Tensor:
    """Matrices that rotate about the center, counter-clockwise, by degrees."""
    angle = torch.deg2rad(magnitude)
    cos, sin = angle.cos(), angle.sin()
    return _matrices(magnitude, a=cos, b=-sin, d=sin, e=cos)


def _matrices(like: Tensor, **entries: Tensor) -> Tensor:
    """Matrices `[[a, b, c], [d, e, f]]`; entries not given are those of the identity."""
    usual = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 1.0, "f": 0.0}
    rows = [entries.get(name, torch.full_like(like, value)) for name, value in usual.items()]
    return torch.stack(rows, 1).view(-1, 2, 3)


def warp(
    pixels: Tensor, matrices: Tensor, interpolation: str, fill: Sequence[float] | None
) -> Tensor:
    """Images `(n, height, width, 3)`, uint8, where each pixel is taken from its place in the input.

    Matrices `(n, 2, 3)` map a pixel of the result to that place, in pixels from the center.
    `interpolation` is "nearest" or "bilinear"; `fill` is the color outside, by default black.
    """
    _, height, width, channels = pixels.shape
    sides = [torch.arange(side, device=pixels.device) - (side - 1) / 2 for side in (height, width)]
    y, x = sides[0][:, None], sides[1][None, :]
    places = []
    for row, side in ((0, width), (1, height)):
        a, b, c = (matrices[:, row] / (0.5 * side)).unbind(1)
        places.append(x * a[:, None, None] + y * b[:, None, None] + c[:, None, None])
    floats = pixels.permute(0, 3, 1, 2).float()
    if fill is not None:  # a channel that says how much of a pixel is inside
        floats = torch.cat((floats, torch.ones_like(floats[:, :1])), 1)
    grid = torch.stack(places, -1)
    found = grid_sample(floats, grid, mode=interpolation, align_corners=False)
    if fill is not None:
        found, inside = found[:, :channels], found[:, channels:]
        color = torch.full_like(found[:1, :, :1, :1], 0.0)
        for channel, value in enumerate(fill):
            color[:, channel] = value
        if interpolation == "nearest":
            found = torch.where(inside < 0.5, color, found)
        else:
            found = (found - color) * inside + color
    return found.round().to(torch.uint8).permute(0, 2, 3, 1)
