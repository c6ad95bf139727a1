"""Procedural ice on a window: textures for frost without photographs.

Each of the five is a pane of fern-like crystals of two sizes under haze, with the mean and standard
deviation in red, green and blue of one of the five photographs that the originals use, so that a
severity changes an image about as much.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

_SIZE = 512  # pixels
_SEED = 20
_REACH = 2  # how many cells away from a pixel its crystal can have begun


@dataclass(frozen=True)
class Pane:
    """What a texture looks like."""

    mean: tuple[float, float, float]  # of red, green and blue
    std: tuple[float, float, float]
    ferns: tuple[int, int]  # about how long large and small crystals are, in pixels
    haze: float  # strength of the clouds over them, in multiples of the crystals' contrast
    roughness: float  # the power that the spectrum of the haze falls with; less is rougher


PANES = (
    Pane((78, 149, 166), (27, 17, 16), (128, 32), 1.3, 1.7),
    Pane((201, 205, 214), (21, 22, 23), (64, 32), 0.7, 1.6),
    Pane((199, 207, 213), (21, 22, 23), (64, 16), 0.6, 1.5),
    Pane((138, 153, 165), (28, 28, 30), (32, 16), 0.7, 1.1),
    Pane((112, 123, 135), (44, 43, 42), (128, 64), 0.6, 1.8),
)


@lru_cache(maxsize=1)
def make_ice() -> tuple[Tensor, ...]:
    """The five textures, uint8 `(3, 512, 512)` on the CPU: always the same, not to be changed."""
    generator = torch.Generator().manual_seed(_SEED)
    return tuple(_freeze(pane, generator) for pane in PANES)


def _freeze(pane: Pane, generator: torch.Generator) -> Tensor:
    """One texture."""
    large, small = (standardize(grow_ferns(width, generator)) for width in pane.ferns)
    ice = torch.maximum(large, small - 0.3)
    ice = standardize(ice + pane.haze * make_haze(pane.roughness, generator))
    mean, std = torch.tensor(pane.mean), torch.tensor(pane.std)
    return (mean[:, None, None] + std[:, None, None] * ice).round_().clamp_(0, 255).to(torch.uint8)


def standardize(values: Tensor) -> Tensor:
    """The values with mean 0 and standard deviation 1."""
    return (values - values.mean()) / values.std()


def make_haze(roughness: float, generator: torch.Generator) -> Tensor:
    """Clouds of all sizes `(512, 512)`, standardized: noise whose power falls with frequency."""
    down = torch.fft.fftfreq(_SIZE)[:, None]
    across = torch.fft.rfftfreq(_SIZE)
    frequency = torch.hypot(down, across).clamp_min_(1 / _SIZE)
    spectrum = torch.fft.rfft2(torch.randn(_SIZE, _SIZE, generator=generator))
    return standardize(torch.fft.irfft2(spectrum * frequency ** (-roughness / 2)))


def grow_ferns(width: int, generator: torch.Generator) -> Tensor:
    """Brightness `(512, 512)` of crystals like fern leaves, with a spine and barbs on both sides.

    In every cell of a grid one crystal begins, in a random direction. Each pixel belongs to the
    nearest, nearness being measured in ellipses along it; near two of them lies a dark gap.
    """
    cells = _SIZE // width + 2 * _REACH
    corners = (torch.arange(cells) - _REACH) * float(width)
    y = corners[:, None] + width * torch.rand(cells, cells, generator=generator)
    x = corners + width * torch.rand(cells, cells, generator=generator)
    angle = 2 * math.pi * torch.rand(cells, cells, generator=generator)
    vigour, phase = torch.rand(2, cells, cells, generator=generator)
    crystals = torch.stack((y, x, angle.cos(), angle.sin(), vigour, phase))

    # Places are pushed about a little, so that nothing grows quite straight.
    places = torch.arange(float(_SIZE))
    rows = places[:, None] + 0.06 * width * make_haze(3.2, generator)
    columns = places + 0.06 * width * make_haze(3.2, generator)
    owner, margin = _assign(crystals, rows, columns)
    crystals = crystals.flatten(1)[:, owner]
    along, aside = _measure(crystals, rows, columns)
    aside = aside.abs()

    barbs = (along - 0.6 * aside) / (3 + width / 18) + 0.25 * make_haze(2.5, generator)
    turns = 2 * math.pi * (barbs + 50 * crystals[5])
    teeth = (turns.sin() + 0.6 * (2.13 * turns).sin()) * make_haze(1.5, generator).sigmoid()
    blade = (0.5 + 0.5 * crystals[4]) * (-2 * aside / width).exp()
    spine = 0.5 * (-((aside / 1.3) ** 2)).exp()
    return (blade * (1 + 0.55 * teeth) + spine) * (1 - (-12 * margin / width).exp())


def _assign(crystals: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The number of each pixel's nearest crystal, and how much farther away the next one is."""
    cells = crystals.shape[1]
    inside = cells - 2 * _REACH
    width = _SIZE // inside
    tiled = (inside, width, inside, width)  # all pixels of a cell have the same candidates
    rows, columns = rows.view(tiled), columns.view(tiled)
    numbers = torch.arange(cells * cells).view(cells, cells)
    nearest = torch.full(tiled, math.inf)
    second, owner = nearest.clone(), torch.zeros(tiled, dtype=torch.long)
    for down in range(2 * _REACH + 1):
        for right in range(2 * _REACH + 1):
            there = slice(down, down + inside), slice(right, right + inside)
            crystal = crystals[:, *there][:, :, None, :, None]
            along, aside = _measure(crystal, rows, columns)
            along = along.sub_(0.6 * width).div_(1.7).square_()
            far = along.add_(aside.mul_(1.6).square_()).sqrt_().mul_(1.2 - 0.5 * crystal[4])
            closer = far < nearest
            second = torch.minimum(second, torch.maximum(nearest, far))
            nearest = torch.minimum(nearest, far)
            owner = torch.where(closer, numbers[there][:, None, :, None], owner)
    return owner.view(_SIZE, _SIZE), (second - nearest).view(_SIZE, _SIZE)


def _measure(crystal: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """How far each pixel lies along a crystal and to its side, from where the crystal begins."""
    down, right = rows - crystal[0], columns - crystal[1]
    return right * crystal[2] + down * crystal[3], down * crystal[2] - right * crystal[3]
