"""Points in [0, 1], smoothed by a reflected Gaussian, by way of their cosine series.

A Gaussian that is reflected at 0 and 1 multiplies the k-th cosine coefficient of what it smooths by
`exp(-(pi sigma k)^2 / 2)`. So points are put on a grid and transformed once, and each bandwidth
then takes one short inverse transform, whatever the number of points.

A point is shared out to the four nodes around it by the weights of cubic interpolation, which keep
its mass, mean, variance and skewness. Beyond the ends the grid is mirrored, as the kernel is.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

# Weights of the nodes at -1, 0, 1 and 2 for a point at u in [0, 1]: rows, in powers of u.
_CUBIC = (
    (0.0, -1 / 3, 1 / 2, -1 / 6),
    (1.0, -1 / 2, -1.0, 1 / 2),
    (0.0, 1.0, 1 / 2, -1 / 2),
    (0.0, -1 / 6, 0.0, 1 / 6),
)
POWERS = len(_CUBIC)
# Steps of the grid in a bandwidth: the error is below 1e-6 for a series, 1e-5 for an integral.
_STEPS = 16


def steps_for(bandwidth: float, least: int) -> int:
    """The steps of a grid on [0, 1] that resolves a bandwidth, a power of two."""
    return max(least, 1 << math.ceil(math.log2(_STEPS / bandwidth)))


def locate(points: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """The cell of each point, and how far into it the point is, from 0 to 1."""
    place = points * cells
    cell = place.long().clamp_max_(cells - 1)
    return cell, place.sub_(cell)


def sum_powers(blocks: Iterable[tuple[Tensor, Tensor]], cells: int) -> Tensor:
    """The sums, in each cell, of weights times powers 0 to 3 of the place inside it, `(4, cells)`.

    `blocks` are points and their weights, float64, some at a time; the weights are changed.
    """
    sums: list[Tensor] = []
    for points, weights in blocks:
        cell, inside = locate(points, cells)
        sums = sums or list(weights.new_zeros(POWERS, cells))
        for power, total in enumerate(sums):
            if power:
                weights.mul_(inside)
            total.scatter_add_(0, cell, weights)
    return torch.stack(sums)


def to_series(powers: Tensor) -> Tensor:
    """Cosine coefficients 0 to `cells` from sums of powers, `(..., 4, cells)`.

    The k-th is the sum of `weight * cos(pi k point)` over the points.
    """
    cells = powers.shape[-1]
    nodes = powers.new_zeros(*powers.shape[:-2], cells + 3)  # one more beyond either end
    for node, weights in enumerate(_CUBIC):
        for power, weight in enumerate(weights):
            nodes[..., node : node + cells] += weight * powers[..., power, :]
    # What lies beyond an end is reflected. The transform sees each node twice, the ends once.
    nodes[..., 2] += nodes[..., 0]
    nodes[..., cells] += nodes[..., cells + 2]
    nodes[..., 1] *= 2
    nodes[..., cells + 1] *= 2
    inner = nodes[..., 1 : cells + 2]
    series: Tensor = torch.fft.hfft(inner, n=2 * cells)[..., : cells + 1] / 2
    return series


def smooth(series: Tensor, bandwidth: Tensor, steps: int) -> Tensor:
    """The smoothed points at 0, 1 / steps, ... 1; a point of weight 1 has the integral 1.

    `steps` are at least those of `steps_for` the smallest bandwidth.
    """
    damped = _damp(series[..., : steps + 1], bandwidth)
    values: Tensor = torch.fft.hfft(damped, n=2 * steps)[..., : steps + 1]
    return values


def smooth_at(series: Tensor, bandwidth: float, places: Tensor) -> Tensor:
    """The smoothed points at any places, for one series."""
    seen = series[: math.ceil(3 / bandwidth) + 2]  # of the rest less than 1e-19 is left
    damped = _damp(seen, seen.new_tensor(bandwidth))
    number = torch.arange(1, len(seen), device=seen.device, dtype=seen.dtype)
    return damped[0] + 2 * (places[:, None] * math.pi * number).cos() @ damped[1:]


def integrate_absolute(values: Tensor) -> Tensor:
    """The integral over [0, 1] of |f|, from values at both ends and evenly between.

    f has slope 0 at the ends, so that the trapezium rule is very nearly exact but for the kinks of
    |f| where f changes sign. In a step from a to b across 0 that adds
    `(|a| + |b|) / 6 - |a| |b| / (|a| + |b|)` (Euler-Maclaurin, with f straight inside the step).
    """
    size = values.abs()
    left, right = size[..., :-1], size[..., 1:]
    both = left + right
    positive = values >= 0
    crosses = positive[..., :-1] != positive[..., 1:]
    kinks = both / 6 - left * right / both.clamp_min(1e-300)
    return (both / 2 + kinks * crosses).sum(-1) / (values.shape[-1] - 1)


def _damp(series: Tensor, bandwidth: Tensor) -> Tensor:
    """The coefficients after smoothing."""
    number = torch.arange(series.shape[-1], device=series.device, dtype=series.dtype)
    return series * torch.exp(-0.5 * (math.pi * bandwidth[..., None] * number).square())
