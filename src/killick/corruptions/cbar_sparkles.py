"""C-bar corruptions drawn over an image: sparkles, a white surround with rays, and gray lines.

Definitions are by Mintun et al. (2021), as in `cbar_warps`; places are drawn along each axis by its
own length.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from killick.corruptions.corruption import GUARD, Generator, corruption, to_bytes, to_floats

_SPARKLES = 5
_FEWEST_RAYS, _MOST_RAYS = 50, 199
_SPREAD = 0.25  # of the rays' lengths, as a share of the radius
_GRAY = 128.0


class Bursts(NamedTuple):
    """What is drawn for `k` bursts of rays in each of `n` images."""

    centers: Tensor  # row and column in pixels, (n, k, 2)
    rays: Tensor  # how many, (n, k)
    spread: Tensor  # a standard normal number for each ray there may be, (n, k, 199)


class Lines(NamedTuple):
    """What is drawn for `k` lines in each of `n` images, all uniform."""

    angle: Tensor  # the common direction in radians, (n, 1)
    variation: Tensor  # how far directions differ, as a share of a turn, from 0.1 to 1, (n, 1)
    places: Tensor  # shares of height, width and variation, (n, k, 3)


@corruption(cifar=(0.7, 3.5, 5.6, 6.3, 7), imagenet=(1, 2, 3, 5, 6))
def sparkles(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """Images with five white sparkles each, larger with the severity s.

    A sparkle has its center uniformly in the image, 50 to 199 rays at even angles, and for each
    ray a length of `max(1, r + r g / 4)`, where `r = (s / 10) 0.1 side` and g is standard normal.
    Between two rays the length l is interpolated linearly in the angle. With f the place between
    them (0 to 1) and d the distance from the center, a pixel goes from its value v towards white by
    the share `(1 - (f - 1/2)^2) l^2 / (d^2 + 0.0001)`, at most 1. One sparkle follows another.
    """
    return _add_sparkles(images, severity, _draw_bursts(images, _SPARKLES, 0.0, 1.0, generator))


@corruption(cifar=(1, 1.5, 2.5, 4.5, 5), imagenet=(1, 2, 4, 9, 10))
def inverse_sparkles(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """Images left as they are inside one large sparkle and white around it, more so with s.

    The sparkle is as in `sparkles`, with its center uniformly in the middle half of each axis,
    `r = side / 4` and lengths of `r + r g / 4` without a lower limit. The distance of a pixel to
    white is multiplied by the share `(1 - (f - 1/2)^2) (l^2 / (d^2 + 0.0001))^e`, at most 1, with
    `e = (s / 10) 65 / 50`.
    """
    return _surround(images, severity, _draw_bursts(images, 1, 0.25, 0.75, generator))


@corruption(cifar=(0.5, 1, 1.5, 2, 2.5))
def lines(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """Images crossed by `int((s / 10) side)` anti-aliased lines of gray 128.

    A line goes `side` pixels to both sides of a uniformly random point, in a direction uniformly
    within half of `2 pi variation` of the image's own; that direction is uniform in 0 to 2 pi, the
    variation in 0.1 to 1. Its ends are truncated to whole pixels. It covers the pixels between its
    ends, in rows and in columns, that are nearer to it than 1, each by 1 minus the distance: what
    scikit-image's `line_aa` draws, in closed form. Values are truncated after each line.
    """
    count = int(severity / 10 * min(images.shape[2:]))
    return _cross_out(images, _draw_lines(images, count, generator))


def _draw_bursts(images: Tensor, k: int, low: float, high: float, generator: Generator) -> Bursts:
    """Random bursts with their centers between two shares of height and width."""
    n, device = len(images), images.device
    centers = torch.rand(n, k, 2, device=device, generator=generator).mul_(high - low).add_(low)
    for axis, length in enumerate(images.shape[2:]):
        centers[..., axis].mul_(length)
    rays = torch.randint(_FEWEST_RAYS, _MOST_RAYS + 1, (n, k), device=device, generator=generator)
    spread = torch.randn(n, k, _MOST_RAYS, device=device, generator=generator)
    return Bursts(centers, rays, spread)


def _add_sparkles(images: Tensor, severity: float, bursts: Bursts) -> Tensor:
    """The sparkles of the given draw, one over the other."""
    radius = severity / 10 * 0.1 * min(images.shape[2:])
    lengths = (radius + _SPREAD * radius * bursts.spread).clamp_min_(1)
    # Each sparkle multiplies the distance to white, so their shares can be multiplied first.
    left = torch.ones((), device=images.device)
    for number in range(bursts.rays.shape[1]):
        left = left * (1 - _shine(images, bursts, lengths, number, 1.0))
    return _towards_white(images, left)


def _surround(images: Tensor, severity: float, bursts: Bursts) -> Tensor:
    """White around the sparkle of the given draw."""
    radius = 0.25 * min(images.shape[2:])
    lengths = radius + _SPREAD * radius * bursts.spread
    return _towards_white(images, _shine(images, bursts, lengths, 0, severity / 10 * 65 / 50))


def _towards_white(images: Tensor, left: Tensor) -> Tensor:
    """Images with `left` of the distance to white, `(n, h, w)`."""
    return to_bytes(to_floats(images).sub_(255).mul_(left[:, None]).add_(255))


def _shine(images: Tensor, bursts: Bursts, lengths: Tensor, number: int, exponent: float) -> Tensor:
    """How strongly one burst of each image reaches each pixel, from 0 to 1, `(n, h, w)`."""
    n, _, height, width = images.shape
    center, rays = bursts.centers[:, number], bursts.rays[:, number, None]
    down = torch.arange(height, device=images.device) - center[:, :1]
    across = torch.arange(width, device=images.device) - center[:, 1:]
    # The angle in rays, from the one that points up.
    place = torch.atan2(across[:, None, :], down[:, :, None]).flatten(1)
    place.add_(math.pi).mul_(rays / (2 * math.pi))
    around = _close(lengths[:, number], rays)
    ray = place.long()
    between = place.frac_()
    length = torch.lerp(around.gather(1, ray), around[:, 1:].gather(1, ray), between)
    distance = (down.square() + 1e-4)[:, :, None] + across.square()[:, None, :]
    glow = length.square_().div_(distance.flatten(1))
    if exponent != 1:
        glow.pow_(exponent)
    between.sub_(0.5).square_()
    return glow.addcmul_(glow, between, value=-1).clamp_max_(1).view(n, height, width)


def _close(lengths: Tensor, rays: Tensor) -> Tensor:
    """Lengths `(n, 201)` in which the first ray follows the last, however many there are."""
    ray = torch.arange(_MOST_RAYS + 2, device=lengths.device)
    # An angle rounded up to a whole turn may ask for the second as well, with a weight near 0.
    return lengths.gather(1, torch.where(ray < rays, ray, (ray - rays).clamp_max(1)))


def _draw_lines(images: Tensor, count: int, generator: Generator) -> Lines:
    """Random lines."""
    n, device = len(images), images.device
    angle = torch.rand(n, 1, device=device, generator=generator).mul_(2 * math.pi)
    variation = torch.rand(n, 1, device=device, generator=generator).mul_(0.9).add_(0.1)
    return Lines(angle, variation, torch.rand(n, count, 3, device=device, generator=generator))


def _ends(height: int, width: int, drawn: Lines) -> tuple[Tensor, Tensor]:
    """Rows and columns of both ends of each line, whole numbers, `(n, k, 2)` each."""
    row, column, turn = drawn.places.unbind(2)
    angle = drawn.angle + 2 * math.pi * drawn.variation * (turn - 0.5)
    down, across = angle.cos() * min(height, width), angle.sin() * min(height, width)
    row, column = row * height, column * width
    rows = torch.stack((row - down, row + down), 2)
    columns = torch.stack((column - across, column + across), 2)
    return rows.trunc_(), columns.trunc_()


def _cross_out(images: Tensor, drawn: Lines) -> Tensor:
    """The lines of the given draw, one over the other."""
    height, width = images.shape[2:]
    rows, columns = _ends(height, width, drawn)
    fall, run = rows[..., 1:] - rows[..., :1], columns[..., 1:] - columns[..., :1]
    length = torch.hypot(fall, run).clamp_min_(1)
    # The distance of a pixel from a line is the difference of its row's part and its column's.
    down = _part(height, rows, run / length, beyond=1e9)
    across = _part(width, columns, fall / length, beyond=-1e9)
    gray = torch.full((), _GRAY, device=images.device)
    levels = to_floats(images)
    for number in range(drawn.places.shape[1]):
        distance = (down[:, number, :, None] - across[:, number, None, :]).abs_()
        cover = distance.neg_().add_(1).clamp_min_(0)[:, None]
        levels = torch.lerp(levels, gray, cover).add_(GUARD).floor_()
    return to_bytes(levels)


def _part(size: int, ends: Tensor, slope: Tensor, beyond: float) -> Tensor:
    """Steps from the first end times `slope` along one axis, `beyond` where the line is not."""
    along = torch.arange(size, device=ends.device, dtype=torch.float32)
    outside = (along < ends.amin(2, keepdim=True)) | (along > ends.amax(2, keepdim=True))
    return ((along - ends[..., :1]) * slope).masked_fill_(outside, beyond)
