"""Reliability diagrams without bins: accuracy against confidence."""

import math
import statistics
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from killick.metrics import smooth_ece, smooth_reliability
from killick.report import figures
from killick.report.conditions import CORRUPTED
from killick.report.evaluations import LabeledPredictions, labeled_predictions
from killick.report.figures import MUTED, WIDTH, Figure, Panel, Style
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.results.predictions import Array

KEY = "reliability"
_SUITES = {"clean": ("clean",), "corrupted": CORRUPTED}
_COLUMNS = (
    *("arm", "images", "confidence", "accuracy", "accuracy_least", "accuracy_most"),
    *("density", "images_nearby"),
)
_POINTS = 101
_SIDE = 210  # px of the diagram
_ENOUGH = 15  # images that must lie nearby for a line to be drawn


class _Curve(NamedTuple):
    """Accuracy as a function of confidence, over the seeds of an arm; each `(points,)`."""

    confidence: Array
    accuracy: Array  # of all seeds, each weighted by its images nearby
    least: Array  # minimum over seeds
    most: Array  # maximum over seeds
    density: Array  # mean over seeds
    nearby: Array  # how many images, of all seeds, each point is the mean of


def make(data: ReportData) -> Content:
    """A diagram for each arm: clean images, and all corrupted ones together."""
    panels: list[Panel] = []
    records: list[tuple[object, ...]] = []
    for arm in data.comparison.arms:
        found = {kind: labeled_predictions(arm, suites) for kind, suites in _SUITES.items()}
        found = {kind: runs for kind, runs in found.items() if runs}
        if not found:
            continue
        curves = {kind: _trace(runs) for kind, runs in found.items()}
        titles = {}
        for kind, runs in found.items():
            error = statistics.fmean(smooth_ece(*pair) for pair in _tensors(runs))
            titles[kind] = f"{kind}, smooth ECE {error:.3f}"
        name, style = f"{KEY}-{len(panels) + 1}", data.styles[arm.name]
        panels.append(_draw(name, arm.name, style, curves, titles))
        records += [
            (arm.name, kind, *map(float, values))
            for kind, curve in curves.items()
            for values in zip(*curve, strict=True)
            if not np.isnan(values[1])
        ]
    if not panels:
        return Content(missing="No predictions per image: evaluate without --no-predictions.")
    note = (
        f"Below the diagonal: overconfident. Lines are drawn where at least {_ENOUGH} images are"
        " nearby. Corrupted images are pooled here; the table has the mean over test sets."
    )
    return Content((Figure(KEY, note, tuple(panels), _COLUMNS, tuple(records)),))


def _tensors(runs: list[LabeledPredictions]) -> list[tuple[Tensor, Tensor]]:
    return [(torch.from_numpy(run.confidence), torch.from_numpy(run.correct)) for run in runs]


def _trace(runs: list[LabeledPredictions]) -> _Curve:
    diagrams = [smooth_reliability(*pair, points=_POINTS) for pair in _tensors(runs)]
    accuracy = np.ma.masked_invalid([diagram.accuracy.numpy() for diagram in diagrams])
    density = np.stack([diagram.density.numpy() for diagram in diagrams])
    # A Gaussian weighs as many points as a box of this width.
    windows = [2 * math.sqrt(math.pi) * diagram.bandwidth for diagram in diagrams]
    counts = [len(run.correct) * window for run, window in zip(runs, windows, strict=True)]
    return _Curve(
        diagrams[0].confidence.numpy(),
        np.ma.filled(np.ma.average(accuracy, axis=0, weights=density), np.nan),
        accuracy.min(0).filled(np.nan),
        accuracy.max(0).filled(np.nan),
        density.mean(0),
        np.array(counts) @ density,
    )


def _draw(
    name: str, arm: str, style: Style, curves: dict[str, _Curve], titles: dict[str, str]
) -> Panel:
    canvas = figures.new_canvas(44 + _SIDE + 12 + 46 + 42)
    figures.put_heading(canvas, figures.shorten(arm), "accuracy, %, against confidence, %")
    axes = figures.put_axes(canvas, left=40, top=44, width=WIDTH - 52, height=_SIDE)
    below = figures.put_axes(canvas, left=40, top=44 + _SIDE + 12, width=WIDTH - 52, height=46)
    figures.put_diagonal(axes)
    looks: dict[str, tuple[str, Any, float]] = {
        "clean": (MUTED, (0, (4, 2)), 1.5),
        "corrupted": (style.color, "-", 2.2),
    }
    for kind, curve in curves.items():
        color, dashes, width = looks[kind]
        shown = curve.nearby >= _ENOUGH
        x, y = 100 * curve.confidence, np.where(shown, 100 * curve.accuracy, np.nan)
        axes.plot(x, y, label=titles[kind], color=color, linestyle=dashes, linewidth=width)
        least, most = 100 * curve.least, 100 * curve.most
        axes.fill_between(x, least, most, where=shown, color=color, alpha=0.18, linewidth=0)
        below.plot(x, curve.density, color=color, linestyle=dashes, linewidth=width * 0.8)
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.set_xticks(range(0, 101, 20), [])
    below.set(xlim=(0, 100), yscale="log")
    below.set_ylim(bottom=0.005)
    below.set_xticks(range(0, 101, 20))
    below.yaxis.set_visible(False)
    below.grid(visible=False)
    below.set_xlabel("confidence; below: images there, log scale")
    return figures.finish(canvas, name, f"Reliability of {arm}", "; ".join(titles.values()))


SECTIONS.register(KEY, Section(KEY, "Calibration", 30, make))
