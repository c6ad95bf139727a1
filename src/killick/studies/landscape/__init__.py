"""Fig. 4: does masking find wider optima? Accuracy over a plane through the weights."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError, check_option
from killick.settings import setting
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, protocol_arms

if TYPE_CHECKING:
    from killick.report.figures import Figure, Panel
    from killick.report.tables import TextTable
    from killick.studies.findings import Findings, Results
    from killick.studies.landscape.plane import Grid

# The paper has maps without numbers: CIFAR-100-C, ResNet-18, about 51 x 51 points.
PAPER = "The paper calls the optimum of masked training “wider and flatter” and gives no width."
NAME = "study-landscape"
_BASE = "standard"
_SIDE = 262  # px of a map
_STRONGEST = 0.92  # opacity of the highest accuracy


@dataclass(frozen=True)
class Options:
    """The plane, and the images at each of its points."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms whose weights are varied")
    points: int = setting(51, "of a side of the plane; odd", least=3)
    span: float = setting(1.0, "half a side, in norms of the weights", above=0)
    directions: int = setting(0, "seed of the directions, the same for all arms", least=0)
    draws: int = setting(1, "pairs of directions, a plane each; radii are averaged", least=1)
    batchnorm: list[str] = setting(
        ["kept", "settled"], "statistics kept as trained, or re-estimated at every point"
    )
    statistics: int = setting(1000, "training images that they are re-estimated on", least=2)
    corruptions: list[str] | None = setting(None, "of the test images; none: the 19 common ones")
    severities: list[int] = setting([1, 2, 3, 4, 5], "of each corruption")
    images: int | None = setting(
        9500, "corrupted, divided among the corruptions; none: all of each", least=1
    )


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """The protocols themselves; their weights are varied after training."""
    if options.points % 2 == 0:
        raise OptionError(f"--points must be odd, found {options.points}.")
    for how in options.batchnorm:
        check_option("batchnorm", how, ("kept", "settled"))
    return protocol_arms(options.protocols)


@dataclass(frozen=True)
class Optimum:
    """The optima of a protocol, one for each seed.

    Attributes:
        protocol: How they were trained.
        planes: Accuracies `(y, x)` by seed, mean over draws of directions.
        radii: By name and seed, likewise.
        cut: The names of those that are lower bounds.
    """

    protocol: str
    planes: "Mapping[int, Grid]"
    radii: Mapping[str, Mapping[int, float]]
    cut: frozenset[str]

    @property
    def plane(self) -> "Grid":
        """Mean over seeds."""
        return sum(self.planes.values()) / len(self.planes)  # type: ignore[return-value]

    @property
    def centers(self) -> list[float]:
        """Accuracy of the trained weights, by seed."""
        return [float(grid[len(grid) // 2, len(grid) // 2]) for grid in self.planes.values()]

    def format_radius(self, name: str) -> str:
        """A radius, mean and spread over seeds."""
        from killick.studies.findings import format_mean

        text = format_mean(self.radii[name].values(), 1, 2)
        return f"at least {text}" if name in self.cut else text


def collect_optima(results: "Results", batchnorm: str) -> list[Optimum]:
    """The optima of each protocol with BatchNorm statistics kept or settled."""
    import numpy as np

    from killick.studies.landscape.plane import RADII, arrange

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


def compare_widths(one: Optimum, base: Optimum, name: str) -> str:
    """Whether an optimum is wider or narrower than another, or the difference is not significant.

    It is significant if its interval excludes 0, it exceeds the spread over seeds of both, and the
    narrower region is not cut by the edge.
    """
    from killick.studies.findings import paired_difference

    gap = paired_difference(one.radii[name], base.radii[name])
    if gap is None or not gap.significant:
        return "not significant"
    spreads = [statistics.stdev(each.radii[name].values()) for each in (one, base)]
    narrower = base if gap.value > 0 else one
    if abs(gap.value) <= max(spreads) or name in narrower.cut:
        return "not significant"
    return "wider" if gap.value > 0 else "narrower"


def find(results: "Results") -> "Findings":
    """A map and radii for each arm, with BatchNorm kept and settled."""
    from killick.studies.findings import Findings
    from killick.studies.landscape.plane import RADII

    options = results.plan.options
    optima = {how: collect_optima(results, how) for how in options.batchnorm}
    figures = [draw_optima(results, found, how, options.span) for how, found in optima.items()]
    parts = []
    for how, found in optima.items():
        base = next((each for each in found if each.protocol == _BASE), None)
        words = [
            f"{each.protocol} {each.format_radius(RADII[0])}"
            + (f" ({compare_widths(each, base, RADII[0])})" if base and each is not base else "")
            for each in found
        ]
        parts.append(f"BatchNorm {how}: {', '.join(words)}")
    headline = f"Radius within 10 points of the center; {'; '.join(parts)}."
    notes = [PAPER]
    chance = 1 / results.classes
    optimum = [each for found in optima.values() for each in found]
    low = {each.protocol for each in optimum if statistics.fmean(each.centers) < 2 * chance}
    if low:
        notes.append(
            f"Near chance in the center, where radii mean little: {', '.join(sorted(low))}."
        )
    table = tabulate_optima(results, optima)
    return Findings(headline, tuple(figures), (table,), notes=tuple(notes))


def tabulate_optima(results: "Results", optima: Mapping[str, Sequence[Optimum]]) -> "TextTable":
    """Accuracy in the center and radii of each protocol, and differences to the base."""
    from killick.report.tables import TextTable
    from killick.studies.findings import NONE, format_difference, format_mean, paired_difference
    from killick.studies.landscape.plane import RADII

    rows = []
    for batchnorm, found in optima.items():
        base = next((each for each in found if each.protocol == _BASE), None)
        for each in found:
            row = [each.protocol, batchnorm, format_mean(each.centers)]
            row += [each.format_radius(name) for name in RADII]
            if base is None or each is base:
                row += [NONE, NONE]
            else:
                gap = paired_difference(each.radii[RADII[0]], base.radii[RADII[0]])
                row += [format_difference(gap, 1, 2), compare_widths(each, base, RADII[0])]
            row.append(_spread_over_draws(results, each.protocol, batchnorm))
            rows.append(tuple(row))
    return TextTable(
        f"{NAME}-table",
        "Width of the optimum",
        (
            *("arm", "BatchNorm", "center, %", "radius within 10 points", "radius within 90 %"),
            *("radius half way to chance", f"within 10 points − {_BASE}", "verdict"),
            "± over directions",
        ),
        tuple(rows),
        "Radius of a disc with the area of the region, in norms of the weights. Mean ± standard"
        " deviation over seeds; differences with 95 % intervals. Directions are random, each filter"
        " with the norm of the weights' filter. Kept BatchNorm statistics do not fit the moved"
        " weights, which costs accuracy.",
    )


def _spread_over_draws(results: "Results", protocol: str, batchnorm: str) -> str:
    from killick.studies.findings import NONE
    from killick.studies.landscape.plane import RADII

    found: dict[int, list[float]] = {}
    for record in results.records(metric=RADII[0], protocol=protocol, batchnorm=batchnorm):
        found.setdefault(record["seed"], []).append(record["value"])
    spreads = [statistics.stdev(radii) for radii in found.values() if len(radii) > 1]
    return f"{statistics.fmean(spreads):.2f}" if spreads else NONE


def draw_optima(
    results: "Results", optima: Sequence[Optimum], batchnorm: str, span: float
) -> "Figure":
    """A map for each protocol, all with the same colors, and accuracy against the distance."""
    import numpy as np

    from killick.report.figures import Figure, drawing
    from killick.studies.landscape.plane import ACCURACY

    low = min(float(each.plane.min()) for each in optima)
    high = max(float(each.plane.max()) for each in optima)
    step = 0.1 if high - low > 0.5 else 0.05
    bands = [n * step for n in range(math.floor(low / step) + 1, math.floor(high / step) + 1)]
    with drawing():
        panels = [_draw_map(each, batchnorm, span, bands, 1 / results.classes) for each in optima]
        panels.append(_draw_profiles(results, optima, batchnorm, span))
    records = []
    for each in optima:
        ticks = np.linspace(-span, span, len(each.plane)).tolist()
        places = [(x, y) for y in ticks for x in ticks]
        values = zip(places, each.plane.flat, strict=True)
        records += [(each.protocol, batchnorm, *xy, float(value)) for xy, value in values]
    columns = ("protocol", "batchnorm", "x", "y", ACCURACY)
    note = f"BatchNorm statistics {batchnorm}; mean over seeds; one color scale for all maps."
    return Figure(f"{NAME}-{batchnorm}", note, tuple(panels), columns, tuple(records))


def _draw_map(
    optimum: Optimum, batchnorm: str, span: float, bands: Sequence[float], chance: float
) -> "Panel":
    """Bands of accuracy, and the contours of two of the regions."""
    import numpy as np

    from killick.report.figures import COLORS, finish, new_canvas, put_axes, put_heading
    from killick.studies.landscape.plane import RADII, levels_around

    grid, ink = optimum.plane, COLORS["ink"][0]
    canvas = new_canvas(44 + _SIDE + 90)
    heading = f"{optimum.protocol}, BatchNorm {batchnorm}"
    put_heading(canvas, heading, "solid: 10 points below the center; dashed: half way")
    axes = put_axes(canvas, left=62, top=44, width=_SIDE, height=_SIDE)
    ticks = np.linspace(-span, span, len(grid))
    # Layers lie on top of each other: bands side by side would show seams.
    color = COLORS["gain"][0]
    for level, layer in zip(bands, _layers(len(bands)), strict=True):
        if grid.max() > level:
            axes.contourf(ticks, ticks, grid, levels=[level, 2], colors=[color], alpha=layer)
    center = statistics.fmean(optimum.centers)
    ten, _, half = levels_around(center, chance)
    for level, dashes in ((ten, "-"), (half, "--")):
        if grid.min() < level < grid.max():
            style: dict[str, Any] = {"linestyles": [dashes], "linewidths": 1.4}
            axes.contour(ticks, ticks, grid, levels=[level], colors=[ink], **style)
    axes.plot([0], [0], marker="+", color=ink, markersize=8)
    axes.set(xlabel="first direction, in norms of the weights", ylabel="second direction")
    axes.grid(visible=False)
    _put_scale(canvas, bands)
    radii = ", ".join(f"{key.replace('_', ' ')} {optimum.format_radius(key)}" for key in RADII)
    words = f"Accuracy {100 * center:.1f} % in the center; {radii}."
    title = f"Accuracy around the weights: {heading}"
    return finish(canvas, f"{NAME}-{batchnorm}-{optimum.protocol}", title, words)


def _layers(count: int) -> list[float]:
    """Opacities of layers that add up evenly to the strongest."""
    reached = [_STRONGEST * number / count for number in range(count + 1)] if count else []
    return [1 - (1 - after) / (1 - before) for before, after in itertools.pairwise(reached)]


def _put_scale(canvas: Any, bands: Sequence[float]) -> None:
    """The color scale."""
    from killick.report.figures import COLORS, put_axes

    axes = put_axes(canvas, left=62, top=44 + _SIDE + 48, width=_SIDE, height=34)
    axes.set(xlim=(-1, max(1, len(bands))), ylim=(34, 0))
    axes.axis("off")
    color, muted = COLORS["gain"][0], COLORS["muted"][0]
    for number, level in enumerate(bands):
        strength = _STRONGEST * (number + 1) / len(bands)
        axes.axvspan(number, number + 0.96, 0.6, 1, facecolor=color, alpha=strength, linewidth=0)
        axes.text(number, 28, f"{100 * level:.0f}", ha="center", color=muted)
    axes.text(-1, 12, "%", color=muted)


def _draw_profiles(
    results: "Results", optima: Sequence[Optimum], batchnorm: str, span: float
) -> "Panel":
    """Mean accuracy on circles around the center."""
    import numpy as np

    from killick.report import figures
    from killick.studies.landscape.plane import profile
    from killick.studies.plots import PLOT

    titles = [each.protocol for each in optima]
    canvas = figures.new_canvas(44 + PLOT + 44 + figures.legend_height(titles))
    below = "top-1, %, mean on circles"
    heading = f"Against the distance, BatchNorm {batchnorm}"
    figures.put_heading(canvas, heading, below)
    axes = figures.put_axes(canvas, left=44, top=44, width=282, height=PLOT)
    words = []
    for each in optima:
        found = [profile(grid, span) for grid in each.planes.values()]
        lines, radii = 100 * np.stack([means for _, means in found]), found[0][0]
        style = results.style(each.protocol)
        figures.put_line(axes, radii, lines, style, every=2)
        words.append(f"{each.protocol} {lines.mean(0)[0]:.1f} to {lines.mean(0)[-1]:.1f}")
    axes.set_xlabel("distance, in norms of the weights")
    samples = [(title, figures.sample_line(results.style(title))) for title in titles]
    figures.put_legend(canvas, samples)
    title = f"Accuracy against the distance from the weights, BatchNorm {batchnorm}"
    return figures.finish(canvas, f"{NAME}-{batchnorm}-profile", title, f"{'; '.join(words)}.")


STUDY = Study(
    name="landscape",
    item="Fig. 4",
    title="Does masking find wider optima?",
    about="accuracy over a plane through the weights, and how wide the optimum in it is",
    options=Options,
    varies=("protocols",),
    arms=make_arms,
    findings=find,
    measure="killick.studies.landscape.plane:measure",
    sizes={
        "small": Size(
            # Radii of so small a network differ between directions as much as between seeds.
            options={"points": 9, "draws": 3, "images": 285, "statistics": 150},
            evaluation={"limit": 200},
        ),
        "smoke": Size(
            options={
                "points": 3,
                "images": 60,
                "statistics": 50,
                "corruptions": ["fog", "contrast"],
            }
        ),
    },
    notes=(
        "The paper does not state whether BatchNorm statistics follow the weights. The code of Li et"
        " al. (2018) keeps them; both are measured here.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
