"""The smooth calibration error as two versions of relplot have it, to compare with their numbers.

Both put points on a coarse grid, two nodes each, and mirror the grid at its end nodes *without
counting these twice*: a confidence of exactly 0 or 1 weighs half of what the reflected kernel would
give it. Both also cut the kernel off half a unit from its centre. What is lost is

- lost in 1.0, which averages over the nodes of a grid of 200, 800, 3,200 ... nodes: a model whose
  confidences are all 1 scores far too low. The grid is even, so its kernel sits half a node off;
- divided out again in 1.0.3 by the density, smoothed in the same way: the weight that the ends lack
  goes to the others. It averages over 200 places or more, between nodes of a grid of 1,001 or more.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _error_1_0(points: Tensor, residuals: Tensor) -> Callable[[Tensor], Tensor]:
    """The error at a bandwidth by version 1.0, whose grid becomes finer and never coarser."""
    nodes = 200
    masses = _two_nodes(points, residuals, nodes)

    def error(bandwidth: Tensor) -> Tensor:
        nonlocal nodes, masses
        needed = round(20 / float(bandwidth))
        if needed > nodes:
            while needed > nodes:
                nodes *= 4
            masses = _two_nodes(points, residuals, nodes)
        total = _mirrored_smooth(masses, float(bandwidth)).abs().mean() / len(points)
        return total[None]

    return error


def _error_1_0_3(points: Tensor, residuals: Tensor) -> Callable[[Tensor], Tensor]:
    """The error at a bandwidth by version 1.0.3."""

    def error(bandwidth: Tensor) -> Tensor:
        sigma = float(bandwidth)
        nodes = max(2000, round(20 / sigma)) // 2 + 1
        places = max(200, round(10 / sigma))
        places_on_grid = torch.linspace(0, nodes - 1, places, dtype=torch.float64)
        left = places_on_grid.long().clamp_max(nodes - 2)
        share = (places_on_grid - left).to(points.device)
        left = left.to(points.device)
        sums = []
        for weights in (residuals, torch.ones_like(residuals)):
            values = _mirrored_smooth(_two_nodes(points, weights, nodes), sigma)
            sums.append(torch.lerp(values[left], values[left + 1], share))
        return (sums[0].abs().sum() / (sums[1] + 1e-4).sum())[None]

    return error


ERRORS = {"relplot-1.0": _error_1_0, "relplot-1.0.3": _error_1_0_3}


def _two_nodes(points: Tensor, weights: Tensor, nodes: int) -> Tensor:
    """Weights on evenly spaced nodes from 0 to 1, each point shared by the two around it."""
    place = points * (nodes - 1)
    left = place.long().clamp_max(nodes - 2)
    share = place - left
    masses = torch.bincount(left, weights * (1 - share), minlength=nodes)
    return masses + torch.bincount(left + 1, weights * share, minlength=nodes)


def _mirrored_smooth(masses: Tensor, sigma: float) -> Tensor:
    """The masses under a cut Gaussian, on the circle that a grid and its mirror image make."""
    nodes = len(masses)
    around = torch.cat([masses, masses[1:-1].flip(0)])  # the ends once: the slip of the original
    steps = torch.arange(nodes, device=masses.device) - nodes // 2
    distance = (steps + (0.5 if nodes % 2 == 0 else 0.0)).double() / (nodes - 1)
    height = torch.exp(-0.5 * (distance / sigma).square()) / (sigma * math.sqrt(2 * math.pi))
    kernel = torch.zeros_like(around).index_add_(0, steps % len(around), height)
    spectrum = torch.fft.rfft(around) * torch.fft.rfft(kernel)
    values: Tensor = torch.fft.irfft(spectrum, n=len(around))[:nodes]
    return values
