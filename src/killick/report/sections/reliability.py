"""Reliability diagrams without bins: accuracy against confidence."""

import math
import statistics
from dataclasses import dataclass

import numpy as np
import torch

from killick.metrics import smooth_ece, smooth_reliability
from killick.report import figures
from killick.report.arm_predictions import LabeledPredictions, labeled_predictions
from killick.report.conditions import CORRUPTED
from killick.report.figures import MUTED, WIDTH, Figure, Missing, Panel, Style
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.results.predictions import Array

KEY = "reliability"
_COLUMNS = (
    *("arm", "images", "confidence", "accuracy", "accuracy_least", "accuracy_most"),
    *("density", "images_nearby"),
)
_POINTS = 101
_SIDE = 210  # px of the diagram
_ENOUGH = 15  # images that must lie nearby for a line to be drawn


@dataclass(frozen=True)
class _Curve:
    """Accuracy as a function of confidence, over the seeds of an arm."""

    errors: tuple[float, ...]  # the smooth calibration error of each seed
    confidence: Array  # the places, as all that follow `(points,)`
    accuracy: Array  # of all seeds, each weighted by its images nearby
    least: Array  # minimum over seeds
    most: Array  # maximum over seeds
    density: Array  # mean over seeds
    nearby: Array  # how many images, of all seeds, each point is the mean of


def make(data: ReportData) -> Content:
    """A diagram for each arm: clean images, and all corrupted ones together."""
    curves: dict[str, dict[str, _Curve]] = {}
    for arm in data.comparison.arms:
        sets = {"clean": ("clean",), "corrupted": CORRUPTED}
        runs = {kind: labeled_predictions(arm, suites) for kind, suites in sets.items()}
        if any(runs.values()):
            curves[arm.name] = {kind: _trace(found) for kind, found in runs.items() if found}
    if not curves:
        why = "No predictions per image: evaluate without --no-predictions."
        return Content((Missing(why),))
    most = max(float(c.density.max()) for found in curves.values() for c in found.values())
    with figures.drawing():
        panels = tuple(
            _draw(name, f"{KEY}-{number}", data.styles[name], found, most)
            for number, (name, found) in enumerate(curves.items(), 1)
        )
    records = tuple(
        (name, kind, *(float(value) for value in values))
        for name, found in curves.items()
        for kind, c in found.items()
        for values in zip(
            *(c.confidence, c.accuracy, c.least, c.most, c.density, c.nearby), strict=True
        )
        if not np.isnan(values[1])
    )
    note = (
        f"Below the diagonal: overconfident. Lines are drawn where at least {_ENOUGH} images are"
        " nearby. Corrupted images are pooled here; the table has the mean over test sets."
    )
    return Content((Figure(KEY, note, panels, _COLUMNS, records),))


def _trace(runs: list[LabeledPredictions]) -> _Curve:
    errors, lines, densities = [], [], []
    nearby = np.zeros(_POINTS)
    for run in runs:
        confidence, correct = torch.from_numpy(run.confidence), torch.from_numpy(run.correct)
        errors.append(smooth_ece(confidence, correct))
        diagram = smooth_reliability(confidence, correct, points=_POINTS)
        lines.append(diagram.accuracy.numpy())
        densities.append(diagram.density.numpy())
        # A Gaussian weighs as many points as a box of this width.
        window = 2 * math.sqrt(math.pi) * diagram.bandwidth
        nearby += len(confidence) * densities[-1] * window
        places = diagram.confidence.numpy()
    accuracy, density = np.stack(lines), np.stack(densities)
    weight = np.where(np.isnan(accuracy), 0.0, density)
    total = weight.sum(0)
    known = total > 0
    mean = np.full(_POINTS, np.nan)
    mean[known] = (np.nan_to_num(accuracy) * weight).sum(0)[known] / total[known]
    return _Curve(
        tuple(errors),
        places,
        mean,
        np.where(known, np.nanmin(np.where(known, accuracy, 0.0), 0), np.nan),
        np.where(known, np.nanmax(np.where(known, accuracy, 0.0), 0), np.nan),
        density.mean(0),
        nearby,
    )


def _draw(arm: str, name: str, style: Style, curves: dict[str, _Curve], most: float) -> Panel:
    canvas = figures.new_canvas(44 + _SIDE + 12 + 46 + 40 + 40)
    figures.put_heading(canvas, figures.shorten(arm), "accuracy, %, against confidence, %")
    axes = figures.put_axes(canvas, left=40, top=44, width=WIDTH - 52, height=_SIDE)
    below = figures.put_axes(canvas, left=40, top=44 + _SIDE + 12, width=WIDTH - 52, height=46)
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    looks = {"clean": (MUTED, (0, (4, 2)), 1.5), "corrupted": (style.color, "-", 2.2)}
    entries = []
    for kind, curve in curves.items():
        color, dashes, width = looks[kind]
        shown = curve.nearby >= _ENOUGH
        x, y = 100 * curve.confidence, np.where(shown, 100 * curve.accuracy, np.nan)
        (line,) = axes.plot(x, y, color=color, linestyle=dashes, linewidth=width)
        if len(curve.errors) > 1:
            least, highest = 100 * curve.least, 100 * curve.most
            axes.fill_between(x, least, highest, where=shown, color=color, alpha=0.18, linewidth=0)
        below.plot(x, curve.density, color=color, linestyle=dashes, linewidth=width * 0.8)
        entries.append((f"{kind}, smooth ECE {statistics.fmean(curve.errors):.3f}", line))
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.set_xticks(range(0, 101, 20), [])
    below.set(xlim=(0, 100), yscale="log", ylim=(0.005, 1.5 * most))
    below.set_xticks(range(0, 101, 20))
    below.set_yticks([], minor=False)
    below.set_yticks([], minor=True)
    below.grid(visible=False)
    below.set_xlabel("confidence; below: images there, log scale", color=MUTED)
    figures.put_legend(canvas, entries)
    description = "; ".join(title for title, _ in entries)
    return figures.finish(canvas, name, f"Reliability of {arm}", f"{description}.")


SECTIONS.register(KEY, Section(KEY, "Calibration", 30, make))
