"""Maps of the accuracy over a plane through the weights."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from killick.report.figures import (
    COLORS,
    Figure,
    Panel,
    drawing,
    finish,
    new_canvas,
    put_axes,
    put_heading,
)
from killick.studies.landscape.plane import ACCURACY, Grid, middle_of

_SIDE = 262  # px of a map
_STRONGEST = 0.92  # opacity of the highest accuracy


def draw_maps(name: str, grids: Mapping[str, Grid], span: float) -> Figure:
    """A map for each protocol, all with the same colors."""
    low = min(float(grid.min()) for grid in grids.values())
    high = max(float(grid.max()) for grid in grids.values())
    step = 0.1 if high - low > 0.5 else 0.05
    bands = [n * step for n in range(math.floor(low / step) + 1, math.floor(high / step) + 1)]
    with drawing():
        panels = [
            _draw_map(f"{name}-{protocol}", protocol, grid, span, bands)
            for protocol, grid in grids.items()
        ]
    records = []
    for protocol, grid in grids.items():
        ticks = np.linspace(-span, span, len(grid)).tolist()
        records += [
            (protocol, x, y, float(value))
            for y, line in zip(ticks, grid, strict=True)
            for x, value in zip(ticks, line, strict=True)
        ]
    note = "Mean over seeds; one color scale for all maps."
    return Figure(name, note, tuple(panels), ("protocol", "x", "y", ACCURACY), tuple(records))


def _draw_map(name: str, title: str, grid: Grid, span: float, bands: Sequence[float]) -> Panel:
    """Bands of accuracy, and the contour 10 points below the center."""
    canvas = new_canvas(44 + _SIDE + 44)
    put_heading(canvas, title, "accuracy, %; thick line: 10 points below the center")
    axes = put_axes(canvas, left=62, top=44, width=_SIDE, height=_SIDE)
    ticks = np.linspace(-span, span, len(grid))
    ink, color = COLORS["ink"][0], COLORS["gain"][0]
    # Layers lie on top of each other: bands side by side would show seams.
    opacity = 1 - (1 - _STRONGEST) ** (1 / max(1, len(bands)))
    for level in bands:
        if grid.min() < level < grid.max():
            axes.contourf(ticks, ticks, grid, levels=[level, 2], colors=[color], alpha=opacity)
            line = axes.contour(ticks, ticks, grid, levels=[level], colors=[ink], linewidths=0.3)
            axes.clabel(line, fmt=lambda value: f"{100 * value:.0f}")
    if grid.min() < middle_of(grid) - 0.1:
        levels = [middle_of(grid) - 0.1]
        axes.contour(ticks, ticks, grid, levels=levels, colors=[ink], linewidths=1.6)
    axes.plot([0], [0], marker="+", color=ink, markersize=8)
    axes.set(xlabel="first direction, in norms of the weights", ylabel="second direction")
    axes.grid(visible=False)
    return finish(canvas, name, f"Accuracy around the weights: {title}", "A map with contours.")
