"""How wide an optimum is, measured from accuracies on a grid around it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

ACCURACY = "top1"
# How far accuracy may fall inside the optimum, and what the radius of that region is called.
RADII = ("radius_10_points", "radius_90_percent", "radius_half")
_ANGLES = 72

Grid = NDArray[np.float64]


@dataclass(frozen=True)
class Width:
    """How far a region reaches.

    Attributes:
        radius: Of the disc that is as large.
        cut: Whether it reaches the edge of the plane: then it is larger than could be seen.
    """

    radius: float
    cut: bool


def arrange(records: Iterable[Mapping[str, Any]], **known: Any) -> Grid:
    """Accuracies as `(y, x)`, both ascending, from the records of one plane."""
    wanted = {"metric": ACCURACY, **known}.items()
    found = {(r["y"], r["x"]): r["value"] for r in records if all(r.get(k) == v for k, v in wanted)}
    side = math.isqrt(len(found))
    return np.array([found[place] for place in sorted(found)]).reshape(side, side)


def measure_widths(grid: Grid, span: float, chance: float) -> dict[str, Width]:
    """The widths of the optimum in the centre, for each of `RADII`.

    Args:
        grid: Accuracies, `(y, x)`.
        span: Half a side of the plane.
        chance: What guessing gives.
    """
    levels = levels_around(middle_of(grid), chance)
    return {
        name: measure_width(grid, span, level) for name, level in zip(RADII, levels, strict=True)
    }


def levels_around(centre: float, chance: float) -> tuple[float, float, float]:
    """The accuracy at the edge of each region of `RADII`.

    The last two are between chance, which is 0 %, and the centre, 100 %: arms of different accuracy
    are then asked the same.
    """
    above = centre - chance
    return centre - 0.1, chance + 0.9 * above, chance + 0.5 * above


def middle_of(grid: Grid) -> float:
    """Accuracy with the weights as they are."""
    return float(grid[len(grid) // 2, len(grid) // 2])


def measure_width(grid: Grid, span: float, level: float) -> Width:
    """The region around the centre in which accuracy is at least `level`.

    Between the points accuracy is interpolated: each square of the grid is cut into four triangles
    that meet in its middle, and over a triangle accuracy is linear, so that the area is exact.

    Args:
        grid: Accuracies, `(y, x)`.
        span: Half a side of the plane.
        level: Below that of the centre.
    """
    middle = (grid[:-1, :-1] + grid[:-1, 1:] + grid[1:, :-1] + grid[1:, 1:]) / 4
    inside = _connected(grid >= level, middle >= level)
    side = len(grid) - 1
    step = 2 * span / side
    corners, middles = inside[::2, ::2], inside[1::2, 1::2]
    area = 0.0
    around = [(0, 0), (0, 1), (1, 1), (1, 0), (0, 0)]
    for (i, j), (k, m) in zip(around, around[1:], strict=False):
        first, second = np.s_[i : i + side, j : j + side], np.s_[k : k + side, m : m + side]
        part = _share_above(np.stack([grid[first], grid[second], middle]), level)
        area += float(part[corners[first] | corners[second] | middles].sum()) * step**2 / 4
    edge = np.concatenate([inside[0], inside[-1], inside[:, 0], inside[:, -1]])
    return Width(math.sqrt(area / math.pi), bool(edge.any()))


def _connected(corners: NDArray[np.bool_], middles: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which corners (even places) and middles (odd ones) hang together with the centre.

    Where accuracy over a triangle is linear, what is above a level in it holds a corner of it: so
    two corners hang together if they are above and ends of one side. A side of the grid stands for
    itself between its ends, at an even and an odd place.
    """
    places = np.zeros([2 * n - 1 for n in corners.shape], dtype=bool)
    places[::2, ::2], places[1::2, 1::2] = corners, middles
    places[::2, 1::2] = corners[:, :-1] & corners[:, 1:]
    places[1::2, ::2] = corners[:-1] & corners[1:]
    found, _ = ndimage.label(places, structure=np.ones((3, 3)))
    own = found[len(found) // 2, len(found) // 2]
    return np.asarray((found == own) & (found > 0))


def _share_above(values: Grid, level: float) -> Grid:
    """Of triangles with these values at their corners, `(3, …)`: what share is above a level."""
    low, mid, high = np.sort(values, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = (level - low) ** 2 / ((mid - low) * (high - low))
        above = (high - level) ** 2 / ((high - mid) * (high - low))
    return np.select([level <= low, level > high, level <= mid], [1.0, 0.0, 1 - below], above)


def profile(grid: Grid, span: float) -> tuple[Grid, Grid]:
    """Distances from the centre, and the mean accuracy on the circle at each."""
    half = len(grid) // 2
    radii = np.linspace(0, half, len(grid))
    angles = np.arange(_ANGLES) * 2 * math.pi / _ANGLES
    places = half + np.stack([np.outer(radii, np.sin(angles)), np.outer(radii, np.cos(angles))])
    found = ndimage.map_coordinates(grid, places, order=1, mode="nearest")
    return radii * span / half, found.mean(1)
