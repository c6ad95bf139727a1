"""Whether the spread over references tells where an anchored model errs."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from killick.report.arm_predictions import CORRUPTED, Array, Judged, judged
from killick.report.comparison import Arm
from killick.report.figures import (
    COLOURS,
    WIDTH,
    Figure,
    Missing,
    Panel,
    Style,
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
from killick.report.formatting import percent, tell_some
from killick.report.scene import Scene

NAME = "uncertainty"
_BINS = 10
_HEIGHT = 200
_FIFTH = 0.2
_COLUMNS = (
    *("arm", "panel", "share_of_images", "mean_spread", "value", "least", "most"),
    "by_confidence",
)


@dataclass(frozen=True)
class _Ranked:
    """An arm's images in the order of their spread, for each seed apart.

    Attributes:
        spread: Mean in each bin of equal count, `(seeds, bins)`.
        error: Share of errors in each bin, likewise.
        caught: Share of all errors among the most uncertain images, `(seeds, bins + 1)`: none of
            the images, the most uncertain tenth, and so on to all.
        by_confidence: The same, by the lowest confidence.
        errors: Share of errors of each seed, over all images.
    """

    spread: Array
    error: Array
    caught: Array
    by_confidence: Array
    errors: Array


def draw_uncertainty(scene: Scene) -> Figure | Missing:
    """Errors by spread, and how many of them the most uncertain images hold."""
    ranked = {}
    for arm in scene.comparison.arms:
        runs = judged(arm, ("clean", *CORRUPTED), "marginal")
        runs = [run for run in runs if len(run.spread) == len(run.correct) >= _BINS]
        if runs:
            ranked[arm.name] = _rank(runs)
    arms = [arm for arm in scene.comparison.arms if arm.name in ranked]
    if not arms:
        return Missing(
            "No errors against spread: they need the answers of an anchored model from several"
            " references. Evaluate one with --references 5 and without --no-answers."
        )
    with drawing():
        panels = (_draw_errors(scene, arms, ranked), _draw_caught(scene, arms, ranked))
    records = [record for arm in arms for record in _records(arm, ranked[arm.name])]
    return Figure(NAME, _say(arms, ranked), panels, _COLUMNS, tuple(records))


def _rank(runs: list[Judged]) -> _Ranked:
    rows = [_rank_one(run) for run in runs]
    spread, error, caught, by_confidence = (np.stack(column) for column in zip(*rows, strict=True))
    errors = np.array([1 - run.correct.mean() for run in runs])
    return _Ranked(spread, error, caught, by_confidence, errors)


def _rank_one(run: Judged) -> tuple[Array, Array, Array, Array]:
    wrong = ~run.correct
    order = np.argsort(run.spread, kind="stable")
    bins = np.array_split(order, _BINS)
    spread = np.array([run.spread[part].mean() for part in bins])
    error = np.array([wrong[part].mean() for part in bins])
    caught = _caught(wrong[order[::-1]])
    return spread, error, caught, _caught(wrong[np.argsort(run.confidence, kind="stable")])


def _caught(wrong: Array) -> Array:
    """The share of errors in the first part of the images, for parts from none to all."""
    ends = np.round(np.linspace(0, len(wrong), _BINS + 1)).astype(int)
    total = np.concatenate([[0], np.cumsum(wrong)])
    shares: Array = total[ends] / max(1, total[-1])
    return shares


def _draw_errors(scene: Scene, arms: list[Arm], ranked: dict[str, _Ranked]) -> Panel:
    middles = 100 * (np.arange(_BINS) + 0.5) / _BINS

    def put(axes: Axes, arm: Arm, style: Style) -> None:
        put_line(axes, middles, 100 * ranked[arm.name].error, style, of=len(arms))

    seeds = max(len(each.errors) for each in ranked.values())
    below = f"% wrong in each tenth{describe_bands(seeds, len(arms))}"
    canvas, axes = _canvas(scene, arms, "Errors against spread", below, put)
    axes.set_xlabel("images in order of spread, %", color=COLOURS["muted"][0])
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    words = "; ".join(
        f"{arm.title} from {percent(ranked[arm.name].error[:, 0].mean())} to"
        f" {percent(ranked[arm.name].error[:, -1].mean())}"
        for arm in arms
    )
    description = f"Share of errors from the tenth of least spread to that of most: {words}."
    return finish(canvas, NAME, "Errors against spread over references", description)


def _draw_caught(scene: Scene, arms: list[Arm], ranked: dict[str, _Ranked]) -> Panel:
    shares = 100 * np.arange(_BINS + 1) / _BINS

    def put(axes: Axes, arm: Arm, style: Style) -> None:
        put_line(axes, shares, 100 * ranked[arm.name].caught, style, of=len(arms))

    canvas, axes = _canvas(
        scene, arms, "Errors among the most uncertain", "% of all errors; dotted: by chance", put
    )
    axes.plot([0, 100], [0, 100], color=COLOURS["muted"][0], linewidth=1, linestyle=(0, (1, 2)))
    axes.axvline(100 * _FIFTH, color=COLOURS["muted"][0], linewidth=0.8)
    axes.set_xlabel("images looked at, most uncertain first, %", color=COLOURS["muted"][0])
    axes.set(xlim=(0, 100), ylim=(0, 101))
    description = f"The most uncertain fifth holds {_fifths(arms, ranked)} of the errors."
    return finish(canvas, f"{NAME}-caught", "Errors among the most uncertain images", description)


def _canvas(
    scene: Scene,
    arms: list[Arm],
    title: str,
    below: str,
    put: Callable[[Axes, Arm, Style], None],
) -> tuple[Canvas, Axes]:
    titles = [arm.title for arm in arms]
    canvas = new_canvas(44 + _HEIGHT + 42 + legend_height(titles))
    put_heading(canvas, title, below)
    axes = put_axes(canvas, left=40, top=44, width=WIDTH - 52, height=_HEIGHT)
    for arm in arms:
        put(axes, arm, scene.styles[arm.name])
    put_legend(canvas, [(arm.title, sample_line(scene.styles[arm.name])) for arm in arms])
    return canvas, axes


def _records(arm: Arm, ranked: _Ranked) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for place in range(_BINS):
        column = ranked.error[:, place]
        share, spread = (place + 0.5) / _BINS, float(ranked.spread[:, place].mean())
        found.append((arm.name, "errors", share, spread, *_three(column), ""))
    for place in range(_BINS + 1):
        confidence = float(ranked.by_confidence[:, place].mean())
        three = _three(ranked.caught[:, place])
        found.append((arm.name, "caught", place / _BINS, "", *three, confidence))
    return found


def _three(column: Array) -> tuple[float, float, float]:
    return float(column.mean()), float(column.min()), float(column.max())


def _fifths(arms: list[Arm], ranked: dict[str, _Ranked]) -> str:
    place = round(_FIFTH * _BINS)
    return tell_some({arm.name: ranked[arm.name].caught[:, place].mean() for arm in arms})


def _say(arms: list[Arm], ranked: dict[str, _Ranked]) -> str:
    place = round(_FIFTH * _BINS)
    by_confidence = {arm.name: ranked[arm.name].by_confidence[:, place].mean() for arm in arms}
    return (
        f"The fifth of the images with the most spread over references holds"
        f" {_fifths(arms, ranked)} of the errors; 20 % would be chance. The fifth with the lowest"
        f" confidence holds {tell_some(by_confidence)}. Clean and corrupted images together."
    )
