"""Accuracy against what it costs to ask, drawn: our points, and the paper's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from killick.report.figures import (
    COLOURS,
    Figure,
    Panel,
    drawing,
    finish,
    legend_height,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
)
from killick.report.formatting import signless
from killick.studies.asked import Asked
from killick.studies.asking import MARGINAL, MEAN, SINGLE, TRANSDUCTIVE
from killick.studies.results import Results

_MARKERS = {SINGLE: "o", MEAN: "s", MARGINAL: "^", TRANSDUCTIVE: "D"}
_PLOT = 190  # px of height


@dataclass(frozen=True)
class Point:
    """What is drawn of an arm asked in one way: percent, and seconds for 1,000 pictures."""

    protocol: str
    inference: str
    top1: float
    spread: float | None
    seconds: float


def as_points(asked: Mapping[tuple[str, str], Asked]) -> list[Point]:
    """Those ways that were timed."""
    points = []
    for way in asked.values():
        if way.mean_seconds is not None:
            spread = None if way.over_draws is None else 100 * way.over_draws
            mean = 100 * way.mean
            points.append(Point(way.protocol, way.inference, mean, spread, way.mean_seconds))
    return points


def draw_costs(
    results: Results,
    ours: Sequence[Point],
    theirs: Sequence[Point],
    spelled: Mapping[str, str],
    says: str,
) -> Figure:
    """Accuracy against seconds, here and in the paper.

    Args:
        results: For the styles.
        ours: What was measured.
        theirs: What the paper has.
        spelled: The ways for people.
        says: What to see.
    """
    name = "study-inference"
    panels = [
        _draw(results, ours, spelled, name, "Here"),
        _draw(results, theirs, spelled, f"{name}-paper", "In the paper: CIFAR-100-C, ResNet-18"),
    ]
    columns = ("where", "protocol", "inference", "top1", "over_draws", "seconds_per_1000")
    records = tuple(
        (where, point.protocol, point.inference, point.top1, _plain(point.spread), point.seconds)
        for where, points in (("here", ours), ("paper", theirs))
        for point in points
    )
    return Figure(name, says, tuple(panels), columns, records)


def _draw(
    results: Results, points: Sequence[Point], spelled: Mapping[str, str], name: str, heading: str
) -> Panel:
    ways = list(dict.fromkeys(point.inference for point in points))
    protocols = list(dict.fromkeys(point.protocol for point in points))
    titles = [*protocols, *(spelled[way] for way in ways)]
    with drawing():
        canvas = new_canvas(44 + _PLOT + 44 + legend_height(titles))
        put_heading(canvas, heading, "corrupted accuracy, %; bars: spread over draws")
        axes = put_axes(canvas, left=44, top=44, width=282, height=_PLOT)
        for point in points:
            axes.errorbar(
                [point.seconds],
                [point.top1],
                yerr=None if point.spread is None else [point.spread],
                color=results.style(point.protocol).colour,
                marker=_MARKERS[point.inference],
                linestyle="none",
                elinewidth=1.1,
                capsize=2,
                markersize=6,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.12, y=0.15)
        axes.set_xlabel("seconds for 1,000 pictures, logarithmic")
        muted = COLOURS["muted"][0]
        put_legend(
            canvas,
            [
                *((each, _sample(results.style(each).colour, "")) for each in protocols),
                *((spelled[way], _sample(muted, _MARKERS[way])) for way in ways),
            ],
        )
        words = "; ".join(
            f"{point.protocol}, {spelled[point.inference]}: {signless(point.top1, 1)} % in"
            f" {point.seconds:.3g} s"
            for point in points
        )
        return finish(canvas, name, heading, f"Accuracy and seconds for 1,000 pictures. {words}.")


def _sample(colour: str, marker: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none" if marker else "-")


def _plain(value: float | None) -> float | str:
    return "" if value is None else value
