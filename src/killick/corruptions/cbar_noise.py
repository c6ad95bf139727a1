"""Noise of C-bar: blue noise that blots out pixels, brownish noise, Perlin noise.

Definitions are by Mintun et al. (2021), as in `cbar_warps`.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats

_HASHES = 256  # entries in the table that gives each lattice point its gradient
_OCTAVES = (1, 2, 4, 8, 16)
_CELLS = 7  # lattice cells along a side in the first octave: 32 px each at 224


@corruption(cifar=(0.7, 1.4, 2.1, 3.5, 4.2), imagenet=(0.8, 1.6, 2.4, 4, 5.6))
def blue_noise_sample(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """The images with pixels black wherever blue noise of unit variance is at most a threshold.

    The threshold is `severity * 3 / 10 - 2.5`. The amplitude of each frequency is its distance from
    zero frequency, in cycles per image; one field of noise serves all three channels. See
    `_make_noise` for the phases.
    """
    phases = _draw_phases(images, 1, generator)
    return _apply_blue_noise(images, severity, phases)


def _apply_blue_noise(images: Tensor, severity: float, phases: Tensor) -> Tensor:
    height, width = images.shape[2:]
    plane = _frequencies(height, width, images.device)
    noise = _make_noise(phases, plane, plane.distance)
    kept = noise > _deviation(noise) * (severity * 3 / 10 - 2.5)
    return images * kept[:, None]


@corruption(cifar=(2.5, 4, 5.5, 6.5, 7), imagenet=(1, 2, 3, 4, 5))
def brownish_noise(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """The images plus low-frequency noise with a standard deviation of `severity * 64 / 10` levels.

    The amplitude of a frequency at distance `r` from zero frequency, in cycles per image, is
    `1 / (r ** 2 + 1)`; each channel has noise of its own. Zero frequency is kept, so that an image
    also becomes lighter or darker, but is left out of the standard deviation. See `_make_noise` for
    the phases.
    """
    phases = _draw_phases(images, 3, generator)
    return _apply_brownish_noise(images, severity, phases)


def _apply_brownish_noise(images: Tensor, severity: float, phases: Tensor) -> Tensor:
    height, width = images.shape[2:]
    plane = _frequencies(height, width, images.device)
    noise = _make_noise(phases, plane, 1 / (plane.distance.square() + 1))
    noise = noise * (severity * 64 / 10 / _deviation(noise))
    return to_bytes(noise.view(images.shape).add_(images))


class _Frequencies(NamedTuple):
    """What is fixed about the spectrum of a size of image, frequencies in the order of the FFT."""

    source: Tensor  # which of the drawn phases each frequency has, flat
    distance: Tensor  # from zero frequency, (height, width)


def _draw_phases(images: Tensor, fields: int, generator: Generator) -> Tensor:
    """Uniform phases for the independent half of the spectra, `(n * fields, count)`.

    Those of the left half, row by row, then, at odd widths, those of the upper half of the middle
    column. Where that has a middle of its own, its phase is zero.
    """
    height, width = images.shape[2:]
    n, device = len(images) * fields, images.device
    count = height * (width // 2) + (width % 2) * ((height + 1) // 2)
    phases = torch.rand(n, count, device=device, generator=generator).mul_(2 * math.pi)
    if height % 2 and width % 2:
        phases[:, -1] = 0
    return phases


@lru_cache(maxsize=16)
def _frequencies(height: int, width: int, device: torch.device) -> _Frequencies:
    """Where each frequency takes its phase from, and how far from zero frequency it is.

    In the authors' plane, with zero frequency near the middle, the right half has the phases of the
    left half turned by 180 degrees. Their plane's middle is at half the side even where this is no
    whole number. Cycles are counted per shorter side in both directions.
    """
    half, side = width // 2, min(height, width)
    left = torch.arange(height * half).view(height, half)
    middle = torch.arange(height)
    middle = height * half + torch.minimum(middle, height - 1 - middle)
    parts = [left, middle[:, None], left.flip(0, 1)] if width % 2 else [left, left.flip(0, 1)]
    source = torch.cat(parts, 1)
    down = (torch.arange(height, dtype=torch.float64) - height / 2) * (side / height)
    across = (torch.arange(width, dtype=torch.float64) - width / 2) * (side / width)
    distance = torch.hypot(down[:, None], across[None, :])
    source, distance = (x.roll((height // 2, half), (0, 1)) for x in (source, distance))
    return _Frequencies(source.flatten().to(device), distance.float().to(device))


def _make_noise(phases: Tensor, plane: _Frequencies, power: Tensor) -> Tensor:
    """The real part of the inverse transform of a spectrum with random phases.

    Turning the plane of an even side by 180 degrees takes frequency `k` to `-1 - k`, not to `-k`,
    so that the spectrum is not that of a real image and the imaginary part, dropped, is not zero.
    """
    waves = torch.complex(phases.cos(), phases.sin()).index_select(1, plane.source)
    noise: Tensor = torch.fft.ifft2(waves.unflatten(1, power.shape).mul_(power)).real
    return noise


def _deviation(noise: Tensor) -> Tensor:
    """The standard deviation of each field, `(n, 1, 1)`; not zero, even for a single pixel."""
    variance = noise.square().mean((1, 2), keepdim=True) - noise.mean((1, 2), keepdim=True).square()
    return variance.clamp_min(1e-24).sqrt()


@corruption(imagenet=(4.6, 5.2, 5.8, 7.6, 8.8))
def perlin_noise(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """The images blended with bright, cloudy noise, whose weight is `severity * 0.5 / 10`.

    The noise is `0.5 + 0.5 * turbulence`, at most 1, times 255, the same in each channel, where
    turbulence is the sum over f = 1, 2, 4, 8, 16 of `abs(1.5 * gradient noise) / f` with cells of
    `side / 7 / f` pixels. All octaves share one table of 256 gradients, whose directions crowd
    towards the diagonals (they come from a square), and one shuffled table of hashes. As in the
    original, the shuffle swaps each entry with any other, which is not quite uniform.

    A gradient of zero length, which one image in a thousand has, is NaN in the original and
    blackens the pixels around; here it stays zero.
    """
    return _apply_perlin_noise(images, severity, _draw_lattice(images, generator))


class _Lattice(NamedTuple):
    gradients: Tensor  # (n, 256, 2), along the height and along the width
    hashes: Tensor  # (n, 256), a permutation each


def _draw_lattice(images: Tensor, generator: Generator) -> _Lattice:
    """Gradients, as grid points of a square brought to length 1, and hashes."""
    n, device = len(images), images.device
    ends = torch.randint(-256, 256, (n, _HASHES, 2), device=device, generator=generator)
    gradients = torch.nn.functional.normalize(ends.float(), dim=2)
    partners = torch.randint(_HASHES, (_HASHES, n), device=device, generator=generator)
    return _Lattice(gradients, _shuffle(partners))


def _shuffle(partners: Tensor) -> Tensor:
    """0 ... 255 after entry 255, then 254, and so on to 0 was swapped with its partner."""
    count, n = partners.shape
    own = torch.arange(count, device=partners.device)[:, None].expand(count, n)
    places = torch.stack((own, partners), 1)
    hashes = own.contiguous()
    swaps = zip(places.unbind(), places.flip(1).unbind(), strict=True)
    for place, other in reversed(list(swaps)):
        hashes.scatter_(0, place, hashes.gather(0, other))
    return hashes.t()


def _apply_perlin_noise(images: Tensor, severity: float, draw: _Lattice) -> Tensor:
    height, width = images.shape[2:]
    weight = severity * 0.5 / 10
    noise = _turbulence(draw, height, width).mul_(0.5).add_(0.5).clamp_max_(1)
    levels = to_floats(images).mul_(1 - weight)
    return to_bytes(levels.add_(noise.mul_(255 * weight)[:, None]))


def _turbulence(draw: _Lattice, height: int, width: int) -> Tensor:
    """The sum of the octaves: `(n, height, width)`.

    The value at a pixel is linear in the gradients at the corners of its cell, with weights that
    are a function of its row times one of its column: two matrix products for each component.
    """
    device, side = draw.hashes.device, min(height, width)
    total = torch.zeros(len(draw.hashes), height, width, device=device)
    rows, columns = (_octave_weights(length, side, device) for length in (height, width))
    corners = _look_up(draw, rows[-1].value.shape[1], columns[-1].value.shape[1])
    for frequency, down, across in zip(_OCTAVES, rows, columns, strict=True):
        inside = corners[:, :, : down.value.shape[1], : across.value.shape[1]]
        halves = (down.slope @ inside[:, 0], down.value @ inside[:, 1])
        wave = torch.cat(halves, 2) @ torch.cat((across.value, across.slope), 1).t()
        total.add_(wave.abs_(), alpha=1.5 / frequency)
    return total


def _look_up(draw: _Lattice, rows: int, columns: int) -> Tensor:
    """The gradient at each point of the lattice: `(n, 2, rows, columns)`."""
    down = torch.arange(rows, device=draw.hashes.device) % _HASHES
    across = torch.arange(columns, device=draw.hashes.device)
    place = (draw.hashes[:, down, None] + across) % _HASHES
    which = draw.hashes.gather(1, place.flatten(1))
    pairs = draw.gradients.gather(1, which[:, :, None].expand(-1, -1, 2))
    return pairs.view(-1, rows, columns, 2).permute(0, 3, 1, 2).contiguous()


class _Weights(NamedTuple):
    """What each lattice line gives to each pixel of a side, `(pixels, lines)`, in one octave."""

    value: Tensor
    slope: Tensor


@lru_cache(maxsize=16)
def _octave_weights(length: int, side: int, device: torch.device) -> tuple[_Weights, ...]:
    """For each octave the weights along one side, of gradients across it and along it."""
    octaves = []
    for frequency in _OCTAVES:
        place = torch.arange(length, dtype=torch.float64) * _CELLS * frequency / side
        cell = place.long()
        part = (place - cell)[:, None]
        upper = part.square() * (3 - 2 * part)
        lines = torch.arange(int(cell[-1]) + 2)
        near, far = lines == cell[:, None], lines == cell[:, None] + 1
        value = near * (1 - upper) + far * upper
        slope = near * (1 - upper) * part + far * upper * (part - 1)
        octaves.append(_Weights(value.float().to(device), slope.float().to(device)))
    return tuple(octaves)
