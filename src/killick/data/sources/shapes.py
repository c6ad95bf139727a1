"""Ten kinds of shapes on textured backgrounds, 32 px: a generated data set.

Position, size, rotation, aspect and colors vary, lines and dots lie in the way, and there is a
little noise. How hard it is was chosen with a standard network alone: a small one, trained for
seconds, names about nine images in ten.

`small-shapes` are the same shapes, half as large and plainer: a standard network names as many of
them, and loses 15 to 20 points under corruption, as on CIFAR-10. Size and contrast were chosen by
looking at the standard network alone.
"""

import math
from functools import partial

import torch
from torch import Tensor

from killick.data.drawn_images import (
    Kind,
    Parts,
    draw_background,
    draw_kinds,
    draw_over,
    draw_parts,
    load_drawn,
    make_grid,
    smooth_noise,
    soften,
)
from killick.data.fractals import between
from killick.data.image_set import Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions

TRAIN_COUNT, TEST_COUNT, SEED = 8000, 2000, 0
VERSION = 1  # one more whenever `make_shapes` draws other images
Range = tuple[float, float]
RADIUS, SMALL_RADIUS = (0.5, 0.8), (0.22, 0.35)  # of half the image
CONTRAST, SMALL_CONTRAST = (0.07, 0.8), (0.3, 0.9)  # from faint to plain


def make_shapes(
    train: int, test: int, seed: int, radius: Range = RADIUS, contrast: Range = CONTRAST
) -> Parts:
    """Training images, uint8 `(n, 3, 32, 32)`, their labels, test images and their labels.

    Each part is balanced over the classes to within one, and in random order. Both are drawn in
    the same way from streams of their own: the test images are the same for any `train`.

    Example:
        >>> images, labels, _, _ = make_shapes(20, 10, seed=0)
        >>> tuple(images.shape), labels.bincount().tolist()
        ((20, 3, 32, 32), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """
    draw = partial(_draw_images, radius=radius, contrast=contrast)
    return draw_parts(draw, len(CLASS_NAMES), train, test, seed)


def _draw_images(
    labels: Tensor, generator: torch.Generator, radius: Range, contrast: Range
) -> Tensor:
    """An image for each label, uint8."""
    n = len(labels)
    dark = between((n, 3, 1, 1), 0.05, 0.35, generator)
    lift = between((n, 3, 1, 1), 0.3, 1, generator)  # its direction is the shape's own color
    bright = dark + lift * between((n, 1, 1, 1), *contrast, generator)
    image = dark + draw_background(n, generator)
    shade = 0.05 * smooth_noise(n, 1, 3, generator)  # no shape is of one even color
    image = torch.lerp(image, bright + shade, _draw_shapes(labels, radius, generator))
    return draw_over(image, generator)


def _draw_shapes(labels: Tensor, sizes: Range, generator: torch.Generator) -> Tensor:
    """How much of each pixel the shape covers, `(n, 1, 32, 32)`."""
    n = len(labels)
    radius = between((n, 1, 1), *sizes, generator)
    room = 0.95 - radius  # for the middle, so that hardly a corner is cut off
    x0, y0 = (between((n, 1, 1), -1, 1, generator) * room for _ in range(2))
    angle = between((n, 1, 1), -0.3, 0.3, generator)
    stretch = between((n, 1, 1), -0.15, 0.15, generator).exp()
    x, y = make_grid()
    x, y = (x - x0) / radius, (y - y0) / radius
    x, y = (x * angle.cos() + y * angle.sin()) * stretch, y * angle.cos() - x * angle.sin()
    return soften(draw_kinds(labels, _SHAPES, x, y) * radius)[:, None]


# Signed distances from the edge of shapes of about unit radius, good near the edge.


def _box(x: Tensor, y: Tensor, width: float, height: float) -> Tensor:
    return torch.maximum(x.abs() - width, y.abs() - height)


def _star(x: Tensor, y: Tensor, corners: int, inner: float) -> Tensor:
    """A star with its corners at radius 1 and its notches at `inner`."""
    # The plane folded onto half a corner's sector: the corner lies on the first axis.
    sector = 2 * math.pi / corners
    angle = torch.atan2(x, y)  # from the top
    angle = (angle - sector * (angle / sector).round()).abs()
    radius = x.hypot(y)
    u, v = radius * angle.cos(), radius * angle.sin()
    notch_u, notch_v = inner * math.cos(math.pi / corners), inner * math.sin(math.pi / corners)
    along_u, along_v = notch_u - 1, notch_v
    return ((u - 1) * along_v - v * along_u) / math.hypot(along_u, along_v)


def _heart(x: Tensor, y: Tensor) -> Tensor:
    """A square on its corner, and a disc over each of its upper sides."""
    side = 0.55
    u, v = (x + y) * math.sqrt(0.5), (y - x) * math.sqrt(0.5)
    discs = torch.minimum((u - side).hypot(v), u.hypot(v - side)) - side
    return torch.minimum(_box(u, v, side, side), discs)


def _arrow(x: Tensor, y: Tensor) -> Tensor:
    """A shaft, and a head that points upwards."""
    shaft = _box(x, y + 0.45, 0.2, 0.5)
    head = torch.maximum((x.abs() + 0.8 * (y - 1)) / math.hypot(1, 0.8), -y)
    return torch.minimum(shaft, head)


_SHAPES: dict[str, Kind] = {
    "disc": lambda x, y: x.hypot(y) - 0.85,
    "ring": lambda x, y: (x.hypot(y) - 0.68).abs() - 0.2,
    "square": lambda x, y: _box(x, y, 0.75, 0.75),
    "triangle": lambda x, y: _star(x, y, 3, math.cos(math.pi / 3)),
    "pentagon": lambda x, y: _star(x, y, 5, math.cos(math.pi / 5)),
    "star": lambda x, y: _star(x, y, 5, 0.42),
    "cross": lambda x, y: torch.minimum(_box(x, y, 0.95, 0.28), _box(x, y, 0.28, 0.95)),
    "crescent": lambda x, y: torch.maximum(x.hypot(y) - 0.95, 0.75 - (x - 0.45).hypot(y)),
    "heart": _heart,
    "arrow": _arrow,
}
CLASS_NAMES: tuple[str, ...] = tuple(_SHAPES)


def _register(name: str, about: str, radius: Range = RADIUS, contrast: Range = CONTRAST) -> None:
    def load(argument: str, options: LoadOptions) -> Sets:
        make = partial(make_shapes, seed=SEED, radius=radius, contrast=contrast)
        return load_drawn(name, VERSION, (TRAIN_COUNT, TEST_COUNT), CLASS_NAMES, make)

    DATA_SOURCES.register(name, DataSource(name, load, about))


_register("shapes", "ten shapes, 32 px, drawn by Killick; no download")
_register(
    "small-shapes",
    "the same shapes, half as large; corruption hurts as on CIFAR-10; no download",
    radius=SMALL_RADIUS,
    contrast=SMALL_CONTRAST,
)
