"""C-bar's caustic refraction: images seen through water with light playing on it.

The definition is by Mintun et al. (2021), as in `cbar_warps`.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from killick.corruptions.cbar_warps import places_of, sample
from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats
from killick.corruptions.filters import mirrored_gaussian

_TURN = 6.28318530718  # as the authors write 2 pi
_FAR = -250.0  # where their pattern begins
_NEAR = _FAR + 40 * 2 * math.pi  # the same angle, with more digits left to float32
_STRENGTH = 0.005
_STEEPEST_FLAT = 0.999  # upward part of a normal from which on nothing is refracted


@corruption(imagenet=(2.35, 3.2, 4.9, 6.6, 9.15))
def caustic_refraction(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """Images refracted and lit by a surface of caustics, which is drawn for each image.

    The surface is N, a pattern of iterated sines (below) smoothed by a Gaussian of sigma 1. With
    its differences between the next and the previous row and column (N is 0 outside), the normal is
    `(rows, columns, 1)`, normalized. A vertical ray enters by Snell's law with index 4; its
    horizontal part times `(s / 10) 0.5 side`, rounded to 0.001, is how far from a pixel its value
    is taken (bilinear, black outside). Where the normal's upward part is at least 0.999, that is 0.
    Then `(s / 10) 2` times the difference of rows minus that of columns is added, in units of 255
    gray levels.

    The pattern: `p = (y / z, x / z) mod 1` times 2 pi minus 250, with z uniform in 0.75 to 1.25
    sides; from i = p, five times with `t = T (1 - 3.5 / k)`, T uniform in 0.5 to 2 and k = 1 ... 5:
    `i = p + (cos(t - i_0) + sin(t + i_1), sin(t - i_1) + cos(t + i_0))`, and 1 over the length of
    `0.005 (p_0 / sin(i_0 + t), p_1 / cos(i_1 + t))` is added to c, which begins at 1. This makes
    `|1.17 - (c / 5)^1.4|^8`, at most 1.
    """
    height, width = images.shape[2:]
    times, sizes = _draw_surfaces(images, generator)
    return _refract(images, severity, _surface(height, width, times, sizes))


def _draw_surfaces(images: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Times from 0.5 to 2, and periods from 0.75 to 1.25 sides in pixels, `(n, 1, 1)` each."""
    n, device = len(images), images.device
    times = torch.rand(n, 1, 1, device=device, generator=generator).mul_(1.5).add_(0.5)
    sizes = torch.rand(n, 1, 1, device=device, generator=generator).mul_(0.5).add_(0.75)
    return times, sizes.mul_(min(images.shape[2:]))


def _surface(height: int, width: int, times: Tensor, sizes: Tensor) -> Tensor:
    """The smoothed surface of the given draw, `(n, h, w)`."""
    row = torch.arange(height, device=times.device, dtype=torch.float32)[:, None]
    column = torch.arange(width, device=times.device, dtype=torch.float32)
    turn_y, turn_x = (row / sizes).frac_().mul_(_TURN), (column / sizes).frac_().mul_(_TURN)
    weight_y, weight_x = (_STRENGTH * (turn_y + _FAR), _STRENGTH * (turn_x + _FAR))
    y, x = turn_y.add_(_NEAR), turn_x.add_(_NEAR)
    i, j = y, x
    total = torch.ones((), device=times.device)
    for number in range(1, 6):
        t = times * (1 - 3.5 / number)
        i, j = (t - i).cos_() + (t + j).sin_() + y, (t - j).sin_() + (t + i).cos_() + x
        down = (weight_y / (i + t).sin_()).square_()
        across = (weight_x / (j + t).cos_()).square_()
        total = total + down.add_(across).rsqrt_()
    pattern = total.div_(5).pow_(1.4).neg_().add_(1.17)
    pattern = pattern.square_().square_().square_().clamp_max_(1)
    smooth_y, smooth_x = (mirrored_gaussian(side, 1.0, 4, times.device) for side in (height, width))
    return smooth_y @ pattern @ smooth_x.T


def _refract(images: Tensor, severity: float, surface: Tensor) -> Tensor:
    """The images under the given surface."""
    height, width = images.shape[2:]
    around = pad(surface, (1, 1, 1, 1))
    down = around[:, 2:, 1:-1] - around[:, :-2, 1:-1]
    across = around[:, 1:-1, 2:] - around[:, 1:-1, :-2]
    upward = torch.addcmul(down.square() + 1, across, across).rsqrt_()
    # Snell's law for a vertical ray, with all angles expressed by the normal's upward part.
    bend = (upward.square() + 15).sqrt_().sub_(upward).mul_(upward).div_(4)
    bend.masked_fill_(upward >= _STEEPEST_FLAT, 0).mul_(1000 * severity / 10 * 0.5)
    bend.mul_(min(height, width))
    shift_y, shift_x = (bend * down).round_(), (bend * across).round_()
    shift = torch.stack((shift_x.mul_(0.002 / width), shift_y.mul_(0.002 / height)), -1)
    levels = sample(to_floats(images), shift.add_(_pixels(height, width, images.device)))
    light = down.sub_(across).mul_(255 * severity / 10 * 2)
    return to_bytes(levels.add_(light[:, None]))


@lru_cache(maxsize=16)
def _pixels(height: int, width: int, device: torch.device) -> Tensor:
    """Each pixel's own place."""
    row = torch.arange(height, dtype=torch.float64)[:, None].expand(-1, width)
    column = torch.arange(width, dtype=torch.float64).expand(height, -1)
    return places_of(row, column, height, width).float().to(device)
