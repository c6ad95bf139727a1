"""Errors against the spread over references, and whether it ranks them better than confidence."""

from typing import NamedTuple

import numpy as np
import torch

from killick.metrics import METRICS
from killick.report import figures
from killick.report.bootstrap import BootstrapDraws, drawn_means, placements
from killick.report.conditions import LABELED
from killick.report.evaluations import LabeledPredictions, labeled_predictions
from killick.report.figures import Figure, Panel
from killick.report.intervals import ENOUGH_SEEDS, bootstrap_interval, t_interval
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.statistics import Estimate
from killick.report.summary_metrics import SummaryMetric
from killick.report.tables import TextTable
from killick.results.predictions import Array

KEY = "uncertainty"
_BINS = 10
_COLUMNS = (
    *("arm", "panel", "share_of_images", "mean_spread", "value", "least", "most"),
    "by_confidence",
)
_RANKING = ("arm", "finding", "AUROC of errors by spread, %", "by confidence, %")
_FINDINGS = {"better": "yes", "worse": "no, worse", "": "no significant difference"}
_ERROR_AUROC = SummaryMetric("error_auroc", "AUROC of errors", METRICS.find("error_auroc"))


class _Ranked(NamedTuple):
    """Images in the order of their spread, for each seed."""

    spread: Array  # mean in each bin of equal count, `(seeds, bins)`
    error: Array  # share of errors in each bin, `(seeds, bins)`
    # share of all errors among the most uncertain images, from none to all, `(seeds, bins + 1)`
    found: Array
    by_confidence: Array  # the same, by the lowest confidence


def make(data: ReportData) -> Content:
    """Errors by spread, and how many of them the most uncertain images hold."""
    ranked, rows = {}, []
    for arm in data.comparison.arms:
        runs = labeled_predictions(arm, LABELED, "marginal")
        runs = [run for run in runs if len(run.spread) == len(run.correct) >= _BINS]
        if any(0 < run.correct.mean() < 1 for run in runs):
            spread, confidence = compare_rankings(runs)
            verdict = _ERROR_AUROC.verdict(spread.difference)
            cells = spread.show(_ERROR_AUROC, full=True), confidence.show(_ERROR_AUROC)
            rows.append((arm.name, _FINDINGS[verdict], *cells))
        if runs:
            ranked[arm.name] = _Ranked(*map(np.stack, zip(*map(_rank, runs), strict=True)))
    if not ranked:
        return Content(
            missing="No spread over references: evaluate an anchored model with --references 5."
        )
    panels = (_draw_errors(data, ranked), _draw_found(data, ranked))
    records: list[tuple[object, ...]] = []
    for name, each in ranked.items():
        for place, (doubt, errors) in enumerate(zip(each.spread.T, each.error.T, strict=True)):
            share = (place + 0.5) / _BINS
            records.append((name, "errors", share, float(doubt.mean()), *_range(errors), None))
        for place, (found, other) in enumerate(
            zip(each.found.T, each.by_confidence.T, strict=True)
        ):
            share, by_confidence = place / _BINS, float(other.mean())
            records.append((name, "found", share, None, *_range(found), by_confidence))
    note = "Clean and corrupted images together. The CSV file has the same ranked by confidence."
    question = "Does the spread rank errors better than confidence?"
    about = "With the difference to confidence [95 %]. Clean and corrupted images together."
    table = TextTable(f"{KEY}-ranking", question, _RANKING, tuple(rows), about)
    figure = Figure(KEY, note, panels, _COLUMNS, tuple(records))
    return Content((figure,), (table,) if rows else ())


def compare_rankings(runs: list[LabeledPredictions]) -> tuple[Estimate, Estimate]:
    """The AUROC of errors by spread, with its difference to that by confidence; and the latter."""
    draws = BootstrapDraws()
    found, resampled = [], []
    for run in (run for run in runs if 0 < run.correct.mean() < 1):
        (spread, one), (confidence, two) = (
            _error_auroc(scores, ~run.correct) for scores in (run.spread, -run.confidence)
        )
        found.append((spread, confidence))
        by_image = np.bincount(run.image, one - two)  # all copies of an image are drawn together
        counts = draws.counts("", len(by_image))
        resampled.append(len(by_image) * drawn_means(counts, by_image))
    gaps = [spread - confidence for spread, confidence in found]
    over_images = bootstrap_interval(gaps, torch.stack(resampled).mean(0), len(by_image))
    gap = t_interval(gaps) if len(gaps) >= ENOUGH_SEEDS else over_images
    by_spread, by_confidence = (dict(enumerate(side)) for side in zip(*found, strict=True))
    return Estimate(by_spread, gap), Estimate(by_confidence, None)


def _error_auroc(scores: Array, wrong: Array) -> tuple[float, Array]:
    """The AUROC, and how much it changes to first order if an image is drawn once more."""
    beaten = placements(scores[wrong], scores[~wrong])
    lost = 1 - placements(scores[~wrong], scores[wrong])
    area, change = float(beaten.mean()), np.empty(len(wrong))
    change[wrong] = (beaten - area) / len(beaten)
    change[~wrong] = (lost - area) / len(lost)
    return area, change


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
