"""Patterns of C-bar: a plane wave, wavy rings, plasma, gray squares.

Definitions are by Mintun et al. (2021), as in `cbar_warps`. `x` counts columns and `y` rows, from 0.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats

_GRAY = 128
_MOST_STEPS = 6  # of plasma


def _uniform(low: float, high: float, images: Tensor, generator: Generator) -> Tensor:
    """A number in [low, high) for each image, `(n, 1, 1)`."""
    share = torch.rand(len(images), 1, 1, device=images.device, generator=generator)
    return share.mul_(high - low).add_(low)


@lru_cache(maxsize=16)
def _coordinates(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Columns `(1, 1, width)` and rows `(1, height, 1)` as floats."""
    columns = torch.arange(width, dtype=torch.float32, device=device)
    rows = torch.arange(height, dtype=torch.float32, device=device)
    return columns[None, None, :], rows[None, :, None]


class _PlaneWave(NamedTuple):
    across: Tensor  # radians per column
    down: Tensor  # radians per row
    phase: Tensor


@corruption(imagenet=(1, 1.5, 2, 4.5, 5))
def single_frequency_greyscale(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """The images plus one gray plane wave of random direction, `severity * 196 / 10` levels high.

    The wave is `sin(x * across + y * down + phase)`. One of the two frequencies, either with equal
    chance, is uniform between -pi and pi, the other uniform between minus and plus that; the phase
    is uniform.
    """
    return _apply_plane_wave(images, severity, _draw_plane_wave(images, generator))


def _draw_plane_wave(images: Tensor, generator: Generator) -> _PlaneWave:
    larger = _uniform(-math.pi, math.pi, images, generator)
    smaller = larger * _uniform(-1, 1, images, generator)
    swapped = _uniform(0, 1, images, generator) < 0.5
    phase = _uniform(0, 2 * math.pi, images, generator)
    across, down = torch.where(swapped, smaller, larger), torch.where(swapped, larger, smaller)
    return _PlaneWave(across, down, phase)


def _apply_plane_wave(images: Tensor, severity: float, draw: _PlaneWave) -> Tensor:
    x, y = _coordinates(images.shape[2], images.shape[3], images.device)
    wave = (x * draw.across + draw.phase + y * draw.down).sin_().mul_(severity * 196 / 10)
    return to_bytes(to_floats(images).add_(wave[:, None]))


class _Rings(NamedTuple):
    column: Tensor  # of the center
    row: Tensor
    frequency: Tensor  # bumps around the center
    amplitude: Tensor  # of the bumps, in pixels
    breadth: Tensor  # of a ring, in pixels


@corruption(imagenet=(3, 5, 8, 9, 10))
def cocentric_sine_waves(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """The images plus a gray sawtooth of wavy rings, `severity * 128 / 10` levels from low to high.

    At distance `r` and angle `a` from the center the sawtooth is the fractional part of
    `(r + amplitude * sin(frequency * a)) / breadth`, minus a half. The center is uniform over the
    image, the frequency uniform to 10 (seldom whole: the rings break where the angle jumps),
    amplitude and breadth uniform to a tenth of the side. All channels get the same, as in the
    published generator.
    """
    return _apply_rings(images, severity, _draw_rings(images, generator))


def _draw_rings(images: Tensor, generator: Generator) -> _Rings:
    height, width = images.shape[2:]
    tenth = min(height, width) / 10
    ends = (width, height, 10, tenth, tenth)
    return _Rings(*(_uniform(0, end, images, generator) for end in ends))


def _apply_rings(images: Tensor, severity: float, draw: _Rings) -> Tensor:
    x, y = _coordinates(images.shape[2], images.shape[3], images.device)
    right, below = x - draw.column, y - draw.row
    radius = (right.square() + below.square()).sqrt_()
    angle = torch.atan2(*torch.broadcast_tensors(right, below))
    bump = angle.mul_(draw.frequency).sin_().mul_(draw.amplitude)
    turns = radius.add_(bump).div_(draw.breadth.clamp_min(1e-6))  # one draw in 2 ** 24 is zero
    saw = turns.sub_(turns.floor()).sub_(0.5).mul_(severity * 128 / 10)
    return to_bytes(to_floats(images).add_(saw[:, None]))


class _Plasma(NamedTuple):
    time: Tensor
    steps: Tensor
    sharpness: Tensor
    scale: Tensor  # pixels for each unit of the pattern


@corruption(imagenet=(4.75, 7, 8.5, 9.25, 10))
def plasma_noise(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """The images, faded, plus colored plasma of `severity * 64 / 10` levels.

    What is left of the image is `1 - severity * 64 / 10 / 255`. Coordinates in units of `scale`
    are pushed by sines of each other, 4, 5 or 6 times with equal chance, at frequencies growing by
    1.93 and with pushes shrinking by `2.25 - sharpness`; red, green and blue are sines of where x,
    their mean and y end up. Uniform: time to 6 pi, sharpness from 0.5 to 1, scale from 0.075 to 0.2
    of the side. (The original has a further term, of which the factor starts at zero and stays.)
    """
    return _apply_plasma(images, severity, _draw_plasma(images, generator))


def _draw_plasma(images: Tensor, generator: Generator) -> _Plasma:
    n, side, device = len(images), min(images.shape[2:]), images.device
    return _Plasma(
        time=_uniform(0, 6 * math.pi, images, generator),
        steps=torch.randint(4, _MOST_STEPS + 1, (n, 1, 1), device=device, generator=generator),
        sharpness=_uniform(0.5, 1, images, generator),
        scale=_uniform(0.075 * side, 0.2 * side, images, generator),
    )


def _apply_plasma(images: Tensor, severity: float, draw: _Plasma) -> Tensor:
    columns, rows = _coordinates(images.shape[2], images.shape[3], images.device)
    x, y = columns / draw.scale, rows / draw.scale
    for step in range(_MOST_STEPS):
        # Images that have had all their steps are pushed no further. In the first step x is still
        # one row and y one column.
        push = (step < draw.steps) / (2.25 - draw.sharpness) ** step
        phase = draw.time / 1.15**step
        by_row = (y * 1.93**step).add_(phase).cos_().mul_(push)
        by_column = (x * 1.93**step).add_(phase).sin_().mul_(push)
        x = x.sub(by_column, alpha=0.3) + by_row
        y = y.add(by_row, alpha=0.3) + by_column
    red, blue = (x - draw.time).sin_(), (y + draw.time).sin_()
    green = x.add_(y).add_(draw.time.sin()).mul_(0.5).sin_()
    strength = severity * 64 / 10
    levels = to_floats(images).mul_(1 - strength / 255)
    return to_bytes(levels.add_(torch.stack((red, green, blue), 1), alpha=strength))


class _Board(NamedTuple):
    angle: Tensor
    square: Tensor  # side of a square, in pixels
    chance: Tensor  # uniform, for each square, the first pixel's in the middle


@corruption(cifar=(1, 2, 3, 4, 5), imagenet=(2, 3, 4, 5, 6))
def checkerboard_cutout(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """The images with part of one color of a turned checkerboard gray, `severity / 10` of it.

    The board is turned about the first pixel by a uniform angle; its squares are from 0.1 to 0.25
    of the side, uniform, and at least one pixel. Each square of the one color becomes gray (128)
    with that chance, independently.
    """
    return _apply_board(images, severity, _draw_board(images, generator))


def _reach(height: int, width: int) -> int:
    """The most squares that lie between the first pixel and any other, along either axis."""
    return math.ceil(math.hypot(height, width) / max(0.1 * min(height, width), 1))


def _draw_board(images: Tensor, generator: Generator) -> _Board:
    side, reach = min(images.shape[2:]), _reach(*images.shape[2:])
    angle = _uniform(0, 2 * math.pi, images, generator)
    square = _uniform(0.1 * side, 0.25 * side, images, generator).clamp_min_(1)
    shape = len(images), 2 * reach, 2 * reach
    chance = torch.rand(shape, device=images.device, generator=generator)
    # The original rounds towards zero, so that the two squares that meet at the first pixel share
    # a number; no others of their color that are in one image do.
    chance[:, reach - 1, reach - 1] = chance[:, reach, reach]
    return _Board(angle, square, chance)


def _apply_board(images: Tensor, severity: float, draw: _Board) -> Tensor:
    height, width = images.shape[2:]
    reach = _reach(height, width)
    x, y = _coordinates(height, width, images.device)
    cos, sin = draw.angle.cos() / draw.square, draw.angle.sin() / draw.square
    # Counted from the furthest square, so that truncation rounds down.
    first = (y * cos + reach + x * sin).long()
    second = (reach - y * sin + x * cos).long()
    cut = (draw.chance < severity / 10).logical_and_(_dark_squares(reach, images.device))
    here = cut.flatten(1).gather(1, first.mul_(2 * reach).add_(second).flatten(1))
    return images.masked_fill(here.view(-1, 1, height, width), _GRAY)


@lru_cache(maxsize=16)
def _dark_squares(reach: int, device: torch.device) -> Tensor:
    """Whether each square of a board of `2 * reach` each way has the color of the middle one."""
    place = torch.arange(-reach, reach, device=device)
    return (place[:, None] - place) % 2 == 0
