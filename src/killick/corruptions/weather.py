"""Snow, fog and spatter: weather between the camera and the image."""

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import threshold as cut_below

from killick.corruptions import edges
from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats
from killick.corruptions.filters import gaussian_matrix
from killick.corruptions.motion import smear

_GRAY = (0.299, 0.587, 0.114)
_WATER = (175.0, 238.0, 238.0)  # pale turquoise
_MUD = (63.0, 42.0, 20.0)
_WEAK_EDGE, _STRONG_EDGE, _FARTHEST = 50, 150, 20
_COARSE = 16  # pixels
_BLOCK = 56


@corruption(
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    tiny=((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    chunk=2,
)
def fog(images: Tensor, amount: float, decay: float, *, generator: Generator) -> Tensor:
    """The images under clouds, each under its own: a fractal landscape by diamond and square.

    The landscape has the next power of two as its size (32 for CIFAR, 256 for ImageNet, as in the
    originals); its upper left part is used. A black image stays black. Besides other random numbers
    the originals have float64. `amount` is in multiples of full scale; the roughness falls by
    `decay` from one scale to the next finer one.
    """
    n, _, height, width = images.shape
    size = 1 << (max(height, width) - 1).bit_length()
    noise = torch.empty(size * size - 1, n, device=images.device)
    land = _raise_land(noise.uniform_(-1, 1, generator=generator), decay)
    return _lay_fog(images, land, amount)


def _raise_land(noise: Tensor, decay: float) -> Tensor:
    """Heights `(n, size, size)` from displacements `(size ** 2 - 1, n)`, coarse ones first."""
    side = min(math.isqrt(len(noise) + 1), _COARSE)
    known = side * side - 1
    # All is linear in the noise: what the coarse levels make of it is known as a matrix.
    heights = _coarse_land(side, decay, noise.device) @ noise[:known]
    heights = _refine_all(heights.view(side, side, -1), noise[known:], decay)
    return heights.permute(2, 0, 1).contiguous()


@lru_cache(maxsize=32)
def _coarse_land(size: int, decay: float, device: torch.device) -> Tensor:
    """The matrix `(size ** 2, size ** 2 - 1)` that makes a landscape of the noise."""
    unit = torch.eye(size * size - 1, dtype=torch.float64)
    heights = _refine_all(unit.new_zeros(1, 1, len(unit)), unit, decay)
    return heights.view(size * size, -1).float().to(device)


def _refine_all(heights: Tensor, noise: Tensor, decay: float) -> Tensor:
    """Heights on the grid that is reached when all of the noise is used."""
    while len(noise):
        side = len(heights)
        level = side.bit_length() - 1
        heights = _refine(heights, noise[: 3 * side * side], decay ** (-2 * level))
        noise = noise[3 * side * side :]
    return heights


def _refine(heights: Tensor, noise: Tensor, reach: float) -> Tensor:
    """Heights on a grid twice as fine; the grid continues on the other side of each edge.

    The middle of each square is the mean of its corners, displaced; after that the middle of each
    side is the mean of its ends and of the two middles beside it, displaced. `reach`, the greatest
    displacement, is the *square* of the wobble of that level: a slip of the original, kept. (There
    the first wobble is 100, here 1, which only scales the heights.)
    """
    side, _, n = heights.shape
    in_middle, in_row, in_column = noise.view(3, side, side, n)
    pairs = heights + heights.roll(-1, 0)
    middle = (pairs + pairs.roll(-1, 1)).mul_(0.25).add_(in_middle, alpha=reach)
    row = (middle + middle.roll(1, 0)).add_(heights).add_(heights.roll(-1, 1))
    column = (middle + middle.roll(1, 1)).add_(pairs)
    finer = heights.new_empty(side, 2, side, 2, n)
    finer[:, 0, :, 0] = heights
    finer[:, 0, :, 1] = row.mul_(0.25).add_(in_row, alpha=reach)
    finer[:, 1, :, 0] = column.mul_(0.25).add_(in_column, alpha=reach)
    finer[:, 1, :, 1] = middle
    return finer.view(2 * side, 2 * side, n)


def _lay_fog(images: Tensor, land: Tensor, amount: float) -> Tensor:
    """The images with the fog added, then darkened so that white is as bright as before.

    The heights of the whole land, of which the images see a part, count from 0 to 1.
    """
    height, width = images.shape[2:]
    low, high = land.amin((1, 2)), land.amax((1, 2))
    brightest = images.amax((1, 2, 3)).float()
    share = brightest / (brightest + 255 * amount)
    gain = 255 * amount * share / (high - low).clamp_(min=1e-30)
    clouds = (land[:, :height, :width] - low[:, None, None]).mul_(gain[:, None, None])
    levels = to_floats(images).mul_(share[:, None, None, None])
    return to_bytes(levels.add_(clouds[:, None]))


@corruption(
    cifar=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    tiny=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    imagenet=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    chunk=0.5,
)
def snow(
    images: Tensor,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    mix: float,
    *,
    generator: Generator,
) -> Tensor:
    """The images in driving snow, each in its own, and whitened.

    The flakes are truncated to 8 bits before they are smeared and rounded to them after, as in the
    original, which sends them through ImageMagick. That has 16 bits in between, this has float32.
    The original draws noise for the whole image, but zooms into the middle of it and uses no more.

    Constants:
        mean: Of the noise that flakes are made of, full scale being 1.
        std: Of that noise.
        zoom: Size of the flakes, in pixels.
        threshold: Noise below it is no flake.
        radius: Half the length of the streaks, in pixels.
        sigma: How the streaks fade, in pixels.
        mix: Share of the image; the rest is whitened.
    """
    n, _, height, width = images.shape
    # What the zoom leaves outside is not drawn.
    cropped = math.ceil(height / zoom), math.ceil(width / zoom)
    noise = torch.randn(n, *cropped, device=images.device, generator=generator)
    angles = torch.empty(n, device=images.device).uniform_(-135, -45, generator=generator)
    flakes = _enlarge(noise, height, width, zoom).mul_(255 * std).add_(255 * mean)
    flakes = cut_below(flakes, 255 * threshold, 0).clamp_(0, 255).floor_()
    return _let_snow(images, smear(flakes[:, None], angles, radius, sigma).round_(), mix)


def _enlarge(layers: Tensor, height: int, width: int, zoom: float) -> Tensor:
    """The layers zoomed linearly, the middle `height` times `width` of that."""
    down = _zooming(layers.shape[1], height, zoom, layers.device)
    across = _zooming(layers.shape[2], width, zoom, layers.device)
    return down @ (layers @ across.T)


def _let_snow(images: Tensor, streaks: Tensor, mix: float) -> Tensor:
    """The images, whitened, with the streaks and the same streaks turned upside down."""
    levels = to_floats(images)
    gray = levels[:, 0] * _GRAY[0]
    gray.add_(levels[:, 1], alpha=_GRAY[1]).add_(levels[:, 2], alpha=_GRAY[2])
    white = torch.maximum(levels, gray.mul_(1.5).add_(127.5)[:, None])
    levels.mul_(mix).add_(white, alpha=1 - mix)
    return to_bytes(levels.add_(streaks + streaks.flip(2, 3)))


@corruption(
    cifar=(
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    tiny=(
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
    imagenet=(
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    chunk=4,
)
def spatter(
    images: Tensor,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: float,
    *,
    generator: Generator,
) -> Tensor:
    """The images behind a lens with drops of water or splashes of mud on it, each its own.

    OpenCV's part in the original is done without it, to the same result. An image on which no drop
    falls stays as it is; the original divides by zero there. The smoothing is done in float32.

    Constants:
        mean: Of the noise that drops are made of, full scale being 1.
        std: Of that noise.
        sigma: By which it is smoothed, in pixels.
        threshold: Smoothed noise below it is no drop.
        strength: Of the water; of the mud, the sigma by which its rims are smoothed, in pixels.
        mud: 1 for mud, 0 for water.
    """
    n, _, height, width = images.shape
    noise = torch.randn(n, height, width, device=images.device, generator=generator)
    liquid = _smooth(noise, sigma).mul_(std).add_(mean)
    if mud:
        return _throw_mud(images, (liquid > threshold).float(), strength)
    return _splash_water(images, cut_below(liquid, threshold, 0), strength)


def _throw_mud(images: Tensor, covered: Tensor, sigma: float) -> Tensor:
    """The images with brown where, after smoothing, at least 0.8 is covered."""
    mud = cut_below(_smooth(covered, sigma), 0.8, 0)[:, None]
    return to_bytes(to_floats(images).lerp_(_color(_MUD, images.device), mud))


def _splash_water(images: Tensor, liquid: Tensor, strength: float) -> Tensor:
    """The images with drops that are bright where they are thick, and lit from one side."""
    n, height, width = liquid.shape
    # Truncated to 8 bits, where more than full scale starts again at 0, as in the original.
    drops = liquid.mul_(255).to(torch.int16).bitwise_and_(255)
    drops = drops.view(n, -1).t().contiguous().view(height, width, n)
    water = _light(drops).mul_(drops).view(-1, n).t().contiguous()
    water.mul_(strength / water.amax(1, keepdim=True).clamp_(min=1))
    color = _color(_WATER, images.device)
    return to_bytes(to_floats(images).addcmul_(water.view(n, 1, height, width), color))


def _light(drops: Tensor) -> Tensor:
    """How bright each pixel of the drops is, whole numbers from 0 to 255: float32 `(h, w, n)`.

    The distance to the nearest edge is taken for a height, and lit from the lower right.
    """
    crests = edges.find_edges(drops, _WEAK_EDGE, _STRONG_EDGE)
    heights = _blur(edges.measure_distances(crests, _FARTHEST).float()).div_(edges.UNIT)
    heights = edges.equalize(heights.add_(1e-4).long(), _FARTHEST)  # whole numbers stay whole
    framed = edges.frame(edges.frame(heights, 0, mirrored=True), 1, mirrored=True)
    lit = edges.differ(edges.add_neighbors(framed, 1), 0)
    lit.add_(edges.differ(edges.add_neighbors(framed, 0), 1))
    return _blur(lit.add_(heights).clamp_(0, 255).float()).round_()


def _blur(values: Tensor) -> Tensor:
    """The mean of each value and its eight neighbors, mirrored at the edges."""
    values = edges.add_neighbors(edges.frame(values, 0, mirrored=True), 0)
    return edges.add_neighbors(edges.frame(values, 1, mirrored=True), 1).div_(9)


@lru_cache(maxsize=16)
def _color(levels: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(levels, device=device).view(1, 3, 1, 1)


def _smooth(layers: Tensor, sigma: float) -> Tensor:
    """The layers `(n, h, w)` after a Gaussian filter that ends at four sigmas and repeats the edge.

    The matrices are multiplied in blocks, without most of their zeros.
    """
    height, width = layers.shape[1:]
    reach = int(4 * sigma + 0.5)
    across = gaussian_matrix(width, sigma, layers.device)
    down = gaussian_matrix(height, sigma, layers.device)
    parts = []
    for start in range(0, width, _BLOCK):
        near = slice(max(start - reach, 0), start + _BLOCK + reach)
        parts.append(layers[:, :, near] @ across[start : start + _BLOCK, near].T)
    layers, parts = torch.cat(parts, 2), []
    for start in range(0, height, _BLOCK):
        near = slice(max(start - reach, 0), start + _BLOCK + reach)
        parts.append(down[start : start + _BLOCK, near] @ layers[:, near])
    return torch.cat(parts, 1)


@lru_cache(maxsize=32)
def _zooming(cropped: int, size: int, zoom: float, device: torch.device) -> Tensor:
    """Linear interpolation of `cropped` values to the middle `size` of `cropped * zoom`."""
    enlarged = round(cropped * zoom)
    first = (enlarged - size) // 2
    places = torch.arange(first, first + size, dtype=torch.float64)
    places *= (cropped - 1) / max(enlarged - 1, 1)
    distance = (places[:, None] - torch.arange(cropped)).abs()
    return (1 - distance).clamp_(min=0).float().to(device)
