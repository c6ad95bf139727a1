"""Errors against the spread of predictions over references."""

from dataclasses import dataclass

import numpy as np

from killick.report import figures
from killick.report.arm_predictions import LabeledPredictions, labeled_predictions
from killick.report.conditions import LABELED
from killick.report.figures import MUTED, Figure, Missing, Panel
from killick.report.formatting import percent
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.results.predictions import Array

KEY = "uncertainty"
_BINS = 10
_FIFTH = 0.2
_COLUMNS = (
    *("arm", "panel", "share_of_images", "mean_spread", "value", "least", "most"),
    "by_confidence",
)


@dataclass(frozen=True)
class _Ranked:
    """An arm's images in the order of their spread, for each seed."""

    spread: Array  # mean in each bin of equal count, `(seeds, bins)`
    error: Array  # share of errors in each bin, `(seeds, bins)`
    # share of all errors among the most uncertain images, from none to all, `(seeds, bins + 1)`
    found: Array
    by_confidence: Array  # the same, by the lowest confidence


def make(data: ReportData) -> Content:
    """Errors by spread, and how many of them the most uncertain images hold."""
    ranked = {}
    for arm in data.comparison.arms:
        runs = labeled_predictions(arm, LABELED, "marginal")
        runs = [run for run in runs if len(run.spread) == len(run.correct) >= _BINS]
        if runs:
            ranked[arm.name] = _Ranked(*map(np.stack, zip(*map(_rank, runs), strict=True)))
    if not ranked:
        why = "No spread over references: evaluate an anchored model with --references 5."
        return Content((Missing(why),))
    with figures.drawing():
        panels = (_draw_errors(data, ranked), _draw_found(data, ranked))
    records = tuple(record for name, each in ranked.items() for record in _records(name, each))
    note = "Clean and corrupted images together. The CSV file has the same ranked by confidence."
    return Content((Figure(KEY, note, panels, _COLUMNS, records),))


def _rank(run: LabeledPredictions) -> tuple[Array, Array, Array, Array]:
    wrong = ~run.correct
    order = np.argsort(run.spread, kind="stable")
    bins = np.array_split(order, _BINS)
    spread = np.array([run.spread[part].mean() for part in bins])
    error = np.array([wrong[part].mean() for part in bins])
    by_confidence = _found(wrong[np.argsort(run.confidence, kind="stable")])
    return spread, error, _found(wrong[order[::-1]]), by_confidence


def _found(wrong: Array) -> Array:
    """The share of errors in the first part of the images, for parts from none to all."""
    ends = np.round(np.linspace(0, len(wrong), _BINS + 1)).astype(int)
    total = np.concatenate([[0], np.cumsum(wrong)])
    shares: Array = total[ends] / max(1, total[-1])
    return shares


def _draw_errors(data: ReportData, ranked: dict[str, _Ranked]) -> Panel:
    bands = figures.describe_bands(max(len(each.error) for each in ranked.values()), len(ranked))
    title = "Errors against spread"
    canvas, axes = figures.new_chart(title, f"% wrong in each tenth{bands}", list(ranked))
    middles = 100 * (np.arange(_BINS) + 0.5) / _BINS
    for name, each in ranked.items():
        figures.put_line(axes, middles, 100 * each.error, data.styles[name], of=len(ranked))
    figures.put_arm_legend(canvas, ranked, data.styles)
    axes.set_xlabel("images in order of spread, %", color=MUTED)
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    ends = {
        name: (each.error[:, 0].mean(), each.error[:, -1].mean()) for name, each in ranked.items()
    }
    words = "; ".join(
        f"{name} {percent(low)} to {percent(high)}" for name, (low, high) in ends.items()
    )
    description = f"Errors from the tenth with the least spread to that with the most: {words}."
    return figures.finish(canvas, KEY, title, description)


def _draw_found(data: ReportData, ranked: dict[str, _Ranked]) -> Panel:
    title = "Errors among the most uncertain images"
    canvas, axes = figures.new_chart(title, "% of all errors; dotted: by chance", list(ranked))
    shares = 100 * np.arange(_BINS + 1) / _BINS
    for name, each in ranked.items():
        figures.put_line(axes, shares, 100 * each.found, data.styles[name], of=len(ranked))
    figures.put_arm_legend(canvas, ranked, data.styles)
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    axes.axvline(100 * _FIFTH, color=MUTED, linewidth=0.8)
    axes.set_xlabel("images, most uncertain first, %", color=MUTED)
    axes.set(xlim=(0, 100), ylim=(0, 101))
    place = round(_FIFTH * _BINS)
    fifths = {name: each.found[:, place].mean() for name, each in ranked.items()}
    words = "; ".join(f"{name} {percent(share, 0)}" for name, share in fifths.items())
    description = f"Share of errors among the fifth with the most spread: {words}."
    return figures.finish(canvas, f"{KEY}-errors", title, description)


def _records(name: str, ranked: _Ranked) -> list[tuple[object, ...]]:
    records: list[tuple[object, ...]] = []
    for place in range(_BINS):
        share, spread = (place + 0.5) / _BINS, float(ranked.spread[:, place].mean())
        records.append((name, "errors", share, spread, *_range(ranked.error[:, place]), None))
    for place in range(_BINS + 1):
        confidence = float(ranked.by_confidence[:, place].mean())
        values = _range(ranked.found[:, place])
        records.append((name, "found", place / _BINS, None, *values, confidence))
    return records


def _range(column: Array) -> tuple[float, float, float]:
    return float(column.mean()), float(column.min()), float(column.max())


SECTIONS.register(KEY, Section(KEY, "Uncertainty over references", 50, make))
