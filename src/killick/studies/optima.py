"""Optima that protocols found, as a reader sees them: maps, profiles, radii, and who is wider."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from killick.report.figures import (
    COLOURS,
    Figure,
    Panel,
    describe_bands,
    drawing,
    finish,
    legend_height,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
    put_line,
    sample_line,
)
from killick.report.intervals import Interval, no_interval, t_interval
from killick.report.tables import TextTable
from killick.studies.drawing import NONE, mean_and_spread, tell_difference
from killick.studies.results import Results
from killick.studies.width import ACCURACY, RADII, Grid, arrange, levels_around, middle_of, profile

NAME = "study-landscape"
_SIDE = 262  # px of a map
_STRONGEST = 0.92  # opacity of the highest accuracy


@dataclass(frozen=True)
class Optimum:
    """The optima that a protocol found, one for each seed.

    Attributes:
        protocol: How they were trained.
        planes: Accuracies `(y, x)` by seed, mean over draws of directions.
        radii: By name and seed, likewise.
        cut: The names of those that are lower bounds.
    """

    protocol: str
    planes: Mapping[int, Grid]
    radii: Mapping[str, Mapping[int, float]]
    cut: frozenset[str]

    @property
    def plane(self) -> Grid:
        """Mean over seeds."""
        return np.asarray(np.stack(list(self.planes.values())).mean(0))

    @property
    def centres(self) -> list[float]:
        """Accuracy with the weights as they were trained, by seed."""
        return [middle_of(grid) for grid in self.planes.values()]

    @property
    def centre(self) -> float:
        """Their mean."""
        return statistics.fmean(self.centres)

    def tell_radius(self, name: str) -> str:
        """A radius, mean and spread over seeds."""
        from killick.studies.drawing import mean_and_spread

        text = mean_and_spread(self.radii[name].values(), 1, 2)
        return f"at least {text}" if name in self.cut else text


def collect_optima(results: Results, batchnorm: str) -> list[Optimum]:
    """What was measured of each protocol with BatchNorm's statistics kept or settled."""
    found = []
    for protocol in results.levels("protocol"):
        records = results.records(protocol=protocol, batchnorm=batchnorm)
        seeds = sorted({record["seed"] for record in records})
        draws = sorted({record["draw"] for record in records})
        if not seeds:
            continue
        planes = {
            seed: np.mean([arrange(records, seed=seed, draw=draw) for draw in draws], axis=0)
            for seed in seeds
        }
        widths = [record for record in records if record["metric"] in RADII]
        radii = {
            name: {
                seed: statistics.fmean(
                    r["value"] for r in widths if (r["metric"], r["seed"]) == (name, seed)
                )
                for seed in seeds
            }
            for name in RADII
        }
        cut = frozenset(record["metric"] for record in widths if record["cut"])
        found.append(Optimum(protocol, planes, radii, cut))
    return found


def spread_over_draws(results: Results, batchnorm: str) -> float | None:
    """How much a radius of one network differs between draws; None with one draw."""
    found: dict[tuple[str, int], list[float]] = {}
    for record in results.records(metric=RADII[0], batchnorm=batchnorm):
        found.setdefault((record["arm"], record["seed"]), []).append(record["value"])
    spreads = [statistics.stdev(radii) for radii in found.values() if len(radii) > 1]
    return statistics.fmean(spreads) if spreads else None


def compare_radii(one: Optimum, base: Optimum, name: str) -> Interval | None:
    """How much wider an optimum is than another, over the seeds that both have."""
    both = [seed for seed in one.radii[name] if seed in base.radii[name]]
    differences = [one.radii[name][seed] - base.radii[name][seed] for seed in both]
    if not differences:
        return None
    if len(differences) < 2 or statistics.stdev(differences) < 1e-9:
        return no_interval(differences[0], "one seed, or seeds that agree to the digit")
    return t_interval(differences)


def judge_width(one: Optimum, base: Optimum, name: str) -> str:
    """In a word whether an optimum is wider than another, or that it is not clear.

    It is clear if the interval of the difference leaves out 0, the difference is larger than the
    spread over seeds of either, and the narrower region was seen whole.
    """
    found = compare_radii(one, base, name)
    if found is None or not found.significant:
        return "no clear difference"
    spreads = [statistics.stdev(each.radii[name].values()) for each in (one, base)]
    narrower = base if found.value > 0 else one
    if abs(found.value) <= max(spreads) or name in narrower.cut:
        return "no clear difference"
    return "wider" if found.value > 0 else "narrower"


def tabulate_optima(optima: Mapping[str, Sequence[Optimum]], base: str, says: str) -> TextTable:
    """Centre and radii of each protocol, and by how much they differ from those of `base`."""
    heads = ("within 10 points", "within 90 %", "half way to chance")
    rows = []
    for batchnorm, found in optima.items():
        standard = next((each for each in found if each.protocol == base), None)
        for each in found:
            cells = [each.protocol, batchnorm, mean_and_spread(each.centres)]
            cells += [each.tell_radius(name) for name in RADII]
            if standard is None or each is standard:
                cells.append(NONE)
            else:
                difference = tell_difference(compare_radii(each, standard, RADII[0]), 1, 2)
                cells.append(f"{difference}, {judge_width(each, standard, RADII[0])}")
            rows.append(tuple(cells))
    columns = ("arm", "BatchNorm", "centre, %", *(f"radius {head}" for head in heads))
    title = "Width of the optimum"
    columns += (f"within 10 points, less that of {base}",)
    return TextTable(f"{NAME}-table", title, columns, tuple(rows), says)


def draw_optima(results: Results, optima: Sequence[Optimum], batchnorm: str, span: float) -> Figure:
    """A map for each protocol, all in the same colours, and accuracy against the distance."""
    low = min(float(each.plane.min()) for each in optima)
    high = max(float(each.plane.max()) for each in optima)
    step = 0.1 if high - low > 0.5 else 0.05
    bands = [n * step for n in range(math.floor(low / step) + 1, math.floor(high / step) + 1)]
    with drawing():
        panels = [_draw_map(each, batchnorm, span, bands, 1 / results.classes) for each in optima]
        panels.append(_draw_profiles(results, optima, batchnorm, span))
    records = [
        (each.protocol, batchnorm, *xy, float(value))
        for each in optima
        for xy, value in zip(_places(each.plane, span), each.plane.flat, strict=True)
    ]
    says = (
        f"Accuracy over the plane, BatchNorm's statistics {batchnorm}, mean over seeds. All maps"
        f" have one scale of colours, up to the highest accuracy of any, {100 * high:.1f} %."
    )
    columns = ("protocol", "batchnorm", "x", "y", ACCURACY)
    return Figure(f"{NAME}-{batchnorm}", says, tuple(panels), columns, tuple(records))


def _places(grid: Grid, span: float) -> list[tuple[float, float]]:
    ticks = np.linspace(-span, span, len(grid)).tolist()
    return [(x, y) for y in ticks for x in ticks]


def _draw_map(
    optimum: Optimum, batchnorm: str, span: float, bands: Sequence[float], chance: float
) -> Panel:
    """Bands of accuracy, the higher the stronger; around the centre the regions measured."""
    grid, ink = optimum.plane, COLOURS["ink"][0]
    canvas = new_canvas(44 + _SIDE + 90)
    heading = f"{optimum.protocol}, BatchNorm {batchnorm}"
    put_heading(canvas, heading, "solid: 10 points below the centre; dashed: half way")
    axes = put_axes(canvas, left=62, top=44, width=_SIDE, height=_SIDE)
    ticks = np.linspace(-span, span, len(grid))
    # Layers lie on top of each other: bands side by side would show seams.
    for level, layer in zip(bands, _layers(len(bands)), strict=True):
        if grid.max() > level:
            colour = COLOURS["gain"][0]
            axes.contourf(ticks, ticks, grid, levels=[level, 2], colors=[colour], alpha=layer)
    ten, _, half = levels_around(optimum.centre, chance)
    for level, dashes in ((ten, "-"), (half, "--")):
        if grid.min() < level < grid.max():
            axes.contour(
                ticks,
                ticks,
                grid,
                levels=[level],
                colors=[ink],
                linestyles=[dashes],
                linewidths=1.4,
            )
    axes.plot([0], [0], marker="+", color=ink, markersize=8)
    axes.set(xlabel="first direction, in lengths of the weights", ylabel="second direction")
    axes.grid(visible=False)
    _put_scale(canvas, bands)
    radii = ", ".join(f"{key.replace('_', ' ')} {optimum.tell_radius(key)}" for key in RADII)
    words = f"Accuracy {100 * optimum.centre:.1f} % in the centre; {radii}."
    title = f"Accuracy around the weights: {heading}"
    return finish(canvas, f"{NAME}-{batchnorm}-{optimum.protocol}", title, words)


def _layers(count: int) -> list[float]:
    """Opacities of layers that, one on top of the other, grow evenly to the strongest."""
    reached = [_STRONGEST * number / count for number in range(count + 1)] if count else []
    return [1 - (1 - after) / (1 - before) for before, after in itertools.pairwise(reached)]


def _put_scale(canvas: Any, bands: Sequence[float]) -> None:
    """The colours of the bands, and where each begins."""
    axes = put_axes(canvas, left=62, top=44 + _SIDE + 48, width=_SIDE, height=34)
    axes.set(xlim=(-1, max(1, len(bands))), ylim=(34, 0))
    axes.axis("off")
    colour, muted = COLOURS["gain"][0], COLOURS["muted"][0]
    for number, level in enumerate(bands):
        strength = _STRONGEST * (number + 1) / len(bands)
        axes.axvspan(number, number + 0.96, 0.6, 1, facecolor=colour, alpha=strength, linewidth=0)
        axes.text(number, 28, f"{100 * level:.0f}", ha="center", color=muted)
    axes.text(-1, 12, "%", color=muted)


def _draw_profiles(
    results: Results, optima: Sequence[Optimum], batchnorm: str, span: float
) -> Panel:
    """Mean accuracy on circles around the centre."""
    titles = [each.protocol for each in optima]
    canvas = new_canvas(44 + 190 + 44 + legend_height(titles))
    bands = describe_bands(results.seeds, len(optima))
    below = f"top-1, %, mean on circles{bands}"
    heading = f"Against the distance, BatchNorm {batchnorm}"
    put_heading(canvas, heading, below)
    axes = put_axes(canvas, left=44, top=44, width=282, height=190)
    words = []
    for each in optima:
        found = [profile(grid, span) for grid in each.planes.values()]
        lines = 100 * np.stack([means for _, means in found])
        radii = found[0][0]
        put_line(axes, radii, lines, results.style(each.protocol), of=len(optima), every=2)
        ends = ", ".join(
            f"{radii[at]:.2g}: {lines.mean(0)[at]:.1f}" for at in (0, len(radii) // 2, -1)
        )
        words.append(f"{each.protocol} {ends}")
    axes.set_xlabel("distance, in lengths of the weights")
    put_legend(canvas, [(title, sample_line(results.style(title))) for title in titles])
    title = f"Accuracy against the distance from the weights, BatchNorm {batchnorm}"
    told = f"{below}. {'; '.join(words)}."
    return finish(canvas, f"{NAME}-{batchnorm}-profile", title, told)
