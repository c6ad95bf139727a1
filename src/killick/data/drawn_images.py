"""Generated image sets: the parts of a scene, and the cache.

All images are 32 px, drawn in chunks from a generator.
"""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from killick.data.fractals import between
from killick.data.image_set import ImageSet, Sets
from killick.runtime.atomic_files import atomic_file

SIZE = 32
Parts = tuple[Tensor, Tensor, Tensor, Tensor]  # training images and labels, test images and labels
Kind = Callable[[Tensor, Tensor], Tensor]  # what a class draws at coordinates of pixels
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")  # in the cache
_CHUNK = 1000  # images drawn at once: larger ones fall out of the processor's cache
logger = logging.getLogger("killick")


def draw_parts(
    draw: Callable[[Tensor, torch.Generator], Tensor],
    classes: int,
    train: int,
    test: int,
    seed: int,
) -> Parts:
    """Training and test images, uint8 `(n, 3, 32, 32)`, and their labels.

    Each part is balanced over the classes to within one, and in random order. Both are drawn in
    the same way from streams of their own: the test images are the same for any `train`.
    """
    parts = []
    for count, own in ((train, 2 * seed), (test, 2 * seed + 1)):
        generator = torch.Generator().manual_seed(own)
        labels = torch.randperm(count, generator=generator) % classes
        images = [draw(chunk, generator) for chunk in labels.split(_CHUNK)]
        parts += [torch.cat(images), labels]
    return parts[0], parts[1], parts[2], parts[3]


def load_drawn(
    name: str,
    version: int,
    counts: tuple[int, int],
    class_names: Sequence[str],
    make: Callable[[int, int], Parts],
) -> Sets:
    """A set by what draws `counts` images to train and test on; read from the cache if it is there."""
    file = cache_folder() / f"{name}-v{version}-{counts[0]}-{counts[1]}.npz"
    try:
        # Opened here: numpy leaves the files of broken archives open.
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            x, y, test_x, test_y = (torch.from_numpy(arrays[key]) for key in _ARRAYS)
    except Exception:  # it is not there, or damaged, and can be made again
        parts = x, y, test_x, test_y = make(*counts)
        arrays = {key: part.numpy() for key, part in zip(_ARRAYS, parts, strict=True)}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(file) as cache:
                np.savez(cache, allow_pickle=False, **arrays)
        except OSError as error:
            logger.info("%s is not kept: %s. KILLICK_CACHE names another folder.", file, error)
    train = ImageSet.of(name, x, y, class_names)
    return Sets(train, ImageSet.of(name, test_x, test_y, class_names))


def cache_folder() -> Path:
    """`$KILLICK_CACHE`, else `$XDG_CACHE_HOME/killick`, else `~/.cache/killick`."""
    common = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("KILLICK_CACHE") or f"{common}/killick").expanduser()


def draw_background(n: int, generator: torch.Generator) -> Tensor:
    """A slope from one side to the other, colored clouds, and faint stripes; around 0."""
    x, y = make_grid()
    angle, other, phase = (between((n, 1, 1), 0, 2 * math.pi, generator) for _ in range(3))
    slope = x * angle.cos() + y * angle.sin()
    waves = between((n, 1, 1), 4, 14, generator) * (x * other.cos() + y * other.sin())
    stripes = between((n, 1, 1), 0, 0.06, generator) * (waves + phase).sin()
    tint = between((n, 3, 1, 1), -0.1, 0.1, generator)
    return tint * slope[:, None] + 0.08 * smooth_noise(n, 3, 5, generator) + stripes[:, None]


def draw_kinds(labels: Tensor, kinds: Mapping[str, Kind], x: Tensor, y: Tensor) -> Tensor:
    """What the kind of each label draws at its own coordinates, `(n, 32, 32)`."""
    drawn = torch.empty(len(labels), SIZE, SIZE)
    for label, kind in enumerate(kinds.values()):
        rows = (labels == label).nonzero().squeeze(1)
        drawn[rows] = kind(x[rows], y[rows])
    return drawn


def draw_over(image: Tensor, generator: torch.Generator) -> Tensor:
    """The images under a line, a dot and a little noise, as uint8."""
    n = len(image)
    image = _paint(image, _draw_lines(n, generator), generator)
    image = _paint(image, _draw_dots(n, generator), generator)
    noise = torch.randn(image.shape, generator=generator)
    image += noise * between((n, 1, 1, 1), 0, 0.04, generator)
    return image.mul_(255).round_().clamp_(0, 255).byte()


def _draw_lines(n: int, generator: torch.Generator) -> Tensor:
    """How much of each pixel a thin line covers, `(n, 1, 32, 32)`."""
    x, y = make_grid()
    angle = between((n, 1, 1), 0, 2 * math.pi, generator)
    offset = between((n, 1, 1), -0.8, 0.8, generator)
    width = between((n, 1, 1), 0.02, 0.06, generator)
    return soften((x * angle.cos() + y * angle.sin() - offset).abs() - width)[:, None]


def _draw_dots(n: int, generator: torch.Generator) -> Tensor:
    """How much of each pixel a small dot covers, `(n, 1, 32, 32)`."""
    x, y = make_grid()
    x0, y0 = (between((n, 1, 1), -1, 1, generator) for _ in range(2))
    radius = between((n, 1, 1), 0.1, 0.2, generator)
    return soften((x - x0).hypot(y - y0) - radius)[:, None]


def _paint(image: Tensor, coverage: Tensor, generator: torch.Generator) -> Tensor:
    """The images with something of any color over about half of them."""
    n = len(image)
    wanted = torch.rand(n, 1, 1, 1, generator=generator) < 0.5
    color = torch.rand(n, 3, 1, 1, generator=generator)
    return torch.lerp(image, color, coverage * wanted)


def smooth_noise(n: int, channels: int, cells: int, generator: torch.Generator) -> Tensor:
    """Clouds between -1 and 1: random numbers on a coarse grid, with smooth ways between them."""
    coarse = torch.rand(n, channels, cells, cells, generator=generator).mul_(2).sub_(1)
    return functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear", align_corners=True)


def make_grid() -> tuple[Tensor, Tensor]:
    """Of each pixel its middle, from -1 to 1 over the image; `y` grows upwards."""
    ticks = (torch.arange(SIZE) + 0.5) * (2 / SIZE) - 1
    return ticks[None, :], -ticks[:, None]


def soften(distance: Tensor) -> Tensor:
    """The part of a pixel inside, by its middle's distance from the edge (negative inside)."""
    return (0.5 - distance * (SIZE / 2)).clamp_(0, 1)
