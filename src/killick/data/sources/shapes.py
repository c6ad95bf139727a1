"""Ten kinds of shapes on textured backgrounds, 32 px: a data set that is made, not fetched.

Position, size, rotation, aspect and colors vary, lines and dots lie in the way, and there is a
little noise. How hard it is was chosen with a standard network alone: a small one, trained for
seconds, names about nine images in ten.
"""

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from killick.data.fractals import between
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.runtime.atomic_files import atomic_file

SIZE = 32
TRAIN_COUNT, TEST_COUNT, SEED = 8000, 2000, 0
VERSION = 1  # one more whenever `make_shapes` draws other images
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")  # in the cache
logger = logging.getLogger("killick")
_CHUNK = 1000  # images drawn at once: larger ones fall out of the processor's cache


def make_shapes(train: int, test: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images, uint8 `(n, 3, 32, 32)`, their labels, test images and their labels.

    Each part is balanced over the classes to within one, and in random order. Both are drawn in
    the same way from streams of their own: the test images are the same for any `train`.

    Example:
        >>> images, labels, _, _ = make_shapes(20, 10, seed=0)
        >>> tuple(images.shape), labels.bincount().tolist()
        ((20, 3, 32, 32), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """
    return *_make_part(train, 2 * seed), *_make_part(test, 2 * seed + 1)


def _make_part(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randperm(count, generator=generator) % len(CLASS_NAMES)
    images = [_draw_images(chunk, generator) for chunk in labels.split(_CHUNK)]
    return torch.cat(images), labels


def _draw_images(labels: Tensor, generator: torch.Generator) -> Tensor:
    """An image for each label, uint8."""
    n = len(labels)
    dark = between((n, 3, 1, 1), 0.05, 0.35, generator)
    lift = between((n, 3, 1, 1), 0.3, 1, generator)  # its direction is the shape's own color
    bright = dark + lift * between((n, 1, 1, 1), 0.07, 0.8, generator)  # from faint to plain
    image = dark + _draw_texture(n, generator)
    shade = 0.05 * _smooth_noise(n, 1, 3, generator)  # no shape is of one even color
    image = torch.lerp(image, bright + shade, _draw_shapes(labels, generator))
    image = _paint(image, _draw_lines(n, generator), generator)
    image = _paint(image, _draw_dots(n, generator), generator)
    noise = torch.randn(image.shape, generator=generator)
    image += noise * between((n, 1, 1, 1), 0, 0.04, generator)
    return image.mul_(255).round_().clamp_(0, 255).byte()


def _draw_texture(n: int, generator: torch.Generator) -> Tensor:
    """A slope from one side to the other, colored clouds, and faint stripes; around 0."""
    x, y = _grid()
    angle, other, phase = (between((n, 1, 1), 0, 2 * math.pi, generator) for _ in range(3))
    slope = x * angle.cos() + y * angle.sin()
    waves = between((n, 1, 1), 4, 14, generator) * (x * other.cos() + y * other.sin())
    stripes = between((n, 1, 1), 0, 0.06, generator) * (waves + phase).sin()
    tint = between((n, 3, 1, 1), -0.1, 0.1, generator)
    return tint * slope[:, None] + 0.08 * _smooth_noise(n, 3, 5, generator) + stripes[:, None]


def _draw_shapes(labels: Tensor, generator: torch.Generator) -> Tensor:
    """How much of each pixel the shape covers, `(n, 1, 32, 32)`."""
    n = len(labels)
    radius = between((n, 1, 1), 0.5, 0.8, generator)  # of half the image
    room = 0.95 - radius  # for the middle, so that hardly a corner is cut off
    x0, y0 = (between((n, 1, 1), -1, 1, generator) * room for _ in range(2))
    angle = between((n, 1, 1), -0.3, 0.3, generator)
    stretch = between((n, 1, 1), -0.15, 0.15, generator).exp()
    x, y = _grid()
    x, y = (x - x0) / radius, (y - y0) / radius
    x, y = (x * angle.cos() + y * angle.sin()) * stretch, y * angle.cos() - x * angle.sin()
    distance = torch.empty(n, SIZE, SIZE)
    for label, measure in enumerate(_SHAPES.values()):
        rows = (labels == label).nonzero().squeeze(1)
        distance[rows] = measure(x[rows], y[rows])
    return _soften(distance * radius)[:, None]


def _draw_lines(n: int, generator: torch.Generator) -> Tensor:
    """How much of each pixel a thin line covers, `(n, 1, 32, 32)`."""
    x, y = _grid()
    angle = between((n, 1, 1), 0, 2 * math.pi, generator)
    offset = between((n, 1, 1), -0.8, 0.8, generator)
    width = between((n, 1, 1), 0.02, 0.06, generator)
    return _soften((x * angle.cos() + y * angle.sin() - offset).abs() - width)[:, None]


def _draw_dots(n: int, generator: torch.Generator) -> Tensor:
    """How much of each pixel a small dot covers, `(n, 1, 32, 32)`."""
    x, y = _grid()
    x0, y0 = (between((n, 1, 1), -1, 1, generator) for _ in range(2))
    radius = between((n, 1, 1), 0.1, 0.2, generator)
    return _soften((x - x0).hypot(y - y0) - radius)[:, None]


def _paint(image: Tensor, coverage: Tensor, generator: torch.Generator) -> Tensor:
    """The images with something of any color over about half of them."""
    n = len(image)
    wanted = torch.rand(n, 1, 1, 1, generator=generator) < 0.5
    color = torch.rand(n, 3, 1, 1, generator=generator)
    return torch.lerp(image, color, coverage * wanted)


def _smooth_noise(n: int, channels: int, cells: int, generator: torch.Generator) -> Tensor:
    """Clouds between -1 and 1: random numbers on a coarse grid, with smooth ways between them."""
    coarse = torch.rand(n, channels, cells, cells, generator=generator).mul_(2).sub_(1)
    return functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear", align_corners=True)


def _grid() -> tuple[Tensor, Tensor]:
    """Of each pixel its middle, from -1 to 1 over the image; `y` grows upwards."""
    ticks = (torch.arange(SIZE) + 0.5) * (2 / SIZE) - 1
    return ticks[None, :], -ticks[:, None]


def _soften(distance: Tensor) -> Tensor:
    """The part of a pixel inside, by its middle's distance from the edge (negative inside)."""
    return (0.5 - distance * (SIZE / 2)).clamp_(0, 1)


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


_SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
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


def load_shapes(argument: str, options: LoadOptions) -> Sets:
    """The shapes: drawn the first time, read from the cache later."""
    file = cache_folder() / f"shapes-v{VERSION}-{TRAIN_COUNT}-{TEST_COUNT}.npz"
    try:
        # Opened here: numpy leaves the files of broken archives open.
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            x, y, test_x, test_y = (torch.from_numpy(arrays[key]) for key in _ARRAYS)
    except Exception:  # it is not there, or damaged, and can be made again
        parts = x, y, test_x, test_y = make_shapes(TRAIN_COUNT, TEST_COUNT, SEED)
        arrays = {key: part.numpy() for key, part in zip(_ARRAYS, parts, strict=True)}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(file) as cache:
                np.savez(cache, allow_pickle=False, **arrays)
        except OSError as error:
            logger.info("%s is not kept: %s. KILLICK_CACHE names another folder.", file, error)
    train = ImageSet.of("shapes", x, y, CLASS_NAMES)
    return Sets(train, ImageSet.of("shapes", test_x, test_y, CLASS_NAMES))


def cache_folder() -> Path:
    """`$KILLICK_CACHE`, else `$XDG_CACHE_HOME/killick`, else `~/.cache/killick`."""
    common = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("KILLICK_CACHE") or f"{common}/killick").expanduser()


_HELP = "ten shapes, 32 px, drawn by Killick; no download"
DATA_SOURCES.register("shapes", DataSource("shapes", load_shapes, _HELP))
