"""Ten fine, faint textures, 32 px: a generated data set that is sensitive to corruptions.

The class is a pattern with a period of a few pixels and little contrast, over a colored background,
under lines, dots and noise. Contrast and period were chosen by looking at a standard network alone:
it loses as many points under corruption as on CIFAR-10, 15 to 20.
"""

import math
from functools import partial

import torch
from torch import Tensor

from killick.data.drawn_images import (
    SIZE,
    Kind,
    Parts,
    draw_background,
    draw_kinds,
    draw_over,
    draw_parts,
    load_drawn,
    make_grid,
)
from killick.data.fractals import between
from killick.data.image_set import Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions

TRAIN_COUNT, TEST_COUNT, SEED = 4000, 2000, 0
VERSION = 1  # one more whenever `make_textures` draws other images
CONTRAST = (0.07, 0.3)  # between the darkest and the brightest part of a pattern, from 0 to 1
PERIOD = (3.0, 5.0)  # of a pattern, pixels


def make_textures(
    train: int,
    test: int,
    seed: int,
    contrast: tuple[float, float] = CONTRAST,
    period: tuple[float, float] = PERIOD,
) -> Parts:
    """Training images, uint8 `(n, 3, 32, 32)`, their labels, test images and their labels.

    Contrast and period of each image are drawn from these ranges.

    Example:
        >>> images, labels, _, _ = make_textures(20, 10, seed=0)
        >>> tuple(images.shape), labels.bincount().tolist()
        ((20, 3, 32, 32), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """
    draw = partial(_draw_images, contrast=contrast, period=period)
    return draw_parts(draw, len(CLASS_NAMES), train, test, seed)


def _draw_images(
    labels: Tensor,
    generator: torch.Generator,
    contrast: tuple[float, float],
    period: tuple[float, float],
) -> Tensor:
    """An image for each label, uint8."""
    n = len(labels)
    image = between((n, 3, 1, 1), 0.15, 0.75, generator) + draw_background(n, generator)
    color = between((n, 3, 1, 1), 0.4, 1, generator)
    strength = between((n, 1, 1, 1), *contrast, generator) / 2
    sign = (torch.rand(n, 1, 1, 1, generator=generator) < 0.5) * 2 - 1
    image = image + sign * strength * color * _draw_patterns(labels, period, generator)
    return draw_over(image, generator)


def _draw_patterns(
    labels: Tensor, period: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """The pattern of each label, a little turned, around 0: `(n, 1, 32, 32)`."""
    n = len(labels)
    x, y = make_grid()
    turn = between((n, 1, 1), -0.2, 0.2, generator)
    scale = math.pi * SIZE / between((n, 1, 1), *period, generator)
    phase_u, phase_v = (between((n, 1, 1), 0, 2 * math.pi, generator) for _ in range(2))
    u = (x * turn.cos() + y * turn.sin()) * scale + phase_u
    v = (y * turn.cos() - x * turn.sin()) * scale + phase_v
    return draw_kinds(labels, _PATTERNS, u, v)[:, None]


# Patterns of two phases: across the image and upwards, a period being 2 pi.


def _diagonal(u: Tensor, v: Tensor) -> Tensor:
    return ((u + v) * math.sqrt(0.5)).sin()


def _bricks(u: Tensor, v: Tensor) -> Tensor:
    """Rows of bricks, every second one shifted by half a brick; dark joints."""
    shift = (v / (2 * math.pi)).floor().remainder(2) * (math.pi / 2)
    return 2 * torch.minimum((u / 2 + shift).sin().abs(), (v / 2).sin().abs()) - 1


_PATTERNS: dict[str, Kind] = {
    "rows": lambda u, v: v.sin(),
    "columns": lambda u, v: u.sin(),
    "rising": lambda u, v: _diagonal(u, -v),
    "falling": _diagonal,
    "checks": lambda u, v: u.sin() * v.sin(),
    "diamonds": lambda u, v: _diagonal(u, v) * _diagonal(u, -v),
    "dots": lambda u, v: 2 * u.sin().clamp_min(0) * v.sin().clamp_min(0) - 0.4,
    "grid": lambda u, v: torch.maximum(u.sin(), v.sin()),
    "zigzag": lambda u, v: (v + 1.5 * (u / 2).sin().asin()).sin(),
    "bricks": _bricks,
}
CLASS_NAMES: tuple[str, ...] = tuple(_PATTERNS)


def load_textures(argument: str, options: LoadOptions) -> Sets:
    """The textures: drawn the first time, read from the cache later."""
    counts = (TRAIN_COUNT, TEST_COUNT)
    return load_drawn("textures", VERSION, counts, CLASS_NAMES, partial(make_textures, seed=SEED))


_HELP = "ten fine textures, 32 px, drawn by Killick, hurt by corruption as CIFAR-10 is; no download"
DATA_SOURCES.register("textures", DataSource("textures", load_textures, _HELP))
