"""Errors against the spread of predictions over references."""

from typing import NamedTuple

import numpy as np

from killick.report import figures
from killick.report.conditions import LABELED
from killick.report.evaluations import LabeledPredictions, labeled_predictions
from killick.report.figures import Figure, Panel
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.results.predictions import Array

KEY = "uncertainty"
_BINS = 10
_COLUMNS = (
    *("arm", "panel", "share_of_images", "mean_spread", "value", "least", "most"),
    "by_confidence",
)


class _Ranked(NamedTuple):
    """Images in the order of their spread, for each seed."""

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
        return Content(
            missing="No spread over references: evaluate an anchored model with --references 5."
        )
    panels = (_draw_errors(data, ranked), _draw_found(data, ranked))
    records: list[tuple[object, ...]] = []
    for name, each in ranked.items():
        for place, (spread, errors) in enumerate(zip(each.spread.T, each.error.T, strict=True)):
            share = (place + 0.5) / _BINS
            records.append((name, "errors", share, float(spread.mean()), *_range(errors), None))
        for place, (found, other) in enumerate(
            zip(each.found.T, each.by_confidence.T, strict=True)
        ):
            share, confidence = place / _BINS, float(other.mean())
            records.append((name, "found", share, None, *_range(found), confidence))
    note = "Clean and corrupted images together. The CSV file has the same ranked by confidence."
    return Content((Figure(KEY, note, panels, _COLUMNS, tuple(records)),))


def _rank(run: LabeledPredictions) -> _Ranked:
    wrong = ~run.correct
    order = np.argsort(run.spread, kind="stable")
    bins = np.array_split(order, _BINS)
    return _Ranked(
        np.array([run.spread[part].mean() for part in bins]),
        np.array([wrong[part].mean() for part in bins]),
        _found(wrong[order[::-1]]),
        _found(wrong[np.argsort(run.confidence, kind="stable")]),
    )


def _found(wrong: Array) -> Array:
    """The share of errors in the first part of the images, for parts from none to all."""
    ends = np.round(np.linspace(0, len(wrong), _BINS + 1)).astype(int)
    total = np.concatenate([[0], np.cumsum(wrong)])
    shares: Array = total[ends] / max(1, total[-1])
    return shares


def _draw_errors(data: ReportData, ranked: dict[str, _Ranked]) -> Panel:
    title, below = "Errors against spread", "% wrong in each tenth of the images"
    canvas, axes = figures.new_chart(title, below)
    middles = 100 * (np.arange(_BINS) + 0.5) / _BINS
    for name, each in ranked.items():
        figures.put_line(axes, middles, 100 * each.error, data.styles[name], name)
    axes.set(xlim=(0, 100), xlabel="images in order of spread, %")
    axes.set_ylim(bottom=0)
    return figures.finish(canvas, KEY, title, below)


def _draw_found(data: ReportData, ranked: dict[str, _Ranked]) -> Panel:
    title, below = "Errors among the most uncertain images", "% of all errors; dotted: by chance"
    canvas, axes = figures.new_chart(title, below)
    shares = 100 * np.arange(_BINS + 1) / _BINS
    for name, each in ranked.items():
        figures.put_line(axes, shares, 100 * each.found, data.styles[name], name)
    figures.put_diagonal(axes)
    axes.set(xlim=(0, 100), ylim=(0, 101), xlabel="images, most uncertain first, %")
    return figures.finish(canvas, f"{KEY}-errors", title, below)


def _range(column: Array) -> tuple[float, float, float]:
    return float(column.mean()), float(column.min()), float(column.max())


SECTIONS.register(KEY, Section(KEY, "Uncertainty over references", 50, make))
