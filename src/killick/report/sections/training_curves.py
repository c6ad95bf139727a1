"""Training loss and validation accuracy by epoch."""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from killick.report import figures
from killick.report.figures import MUTED, Figure, Missing, Panel
from killick.report.run_groups import ArmRuns
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.results.predictions import Array
from killick.results.run_folder import Run

KEY = "training"
_COLUMNS = ("arm", "what", "epoch", "mean", "least", "most", "seeds")
_FEW_EPOCHS = 4  # fewer than this: every line of the log is a point
_MOST_POINTS = 200


@dataclass(frozen=True)
class _Curve:
    """A number by epoch, `(seeds, points)`, where all seeds have it."""

    epochs: Array
    values: Array


def make(data: ReportData) -> Content:
    """The mean over seeds, and a band from the minimum to the maximum."""
    kinds = {
        "loss": ("train", 1.0, "Training loss", "mean over the epoch"),
        "accuracy": ("validation", 100.0, "Validation accuracy", "%"),
    }
    panels: list[Panel] = []
    records: list[tuple[object, ...]] = []
    with figures.drawing():
        for what, (kind, factor, title, below) in kinds.items():
            found = {arm.name: _trace(arm, kind, what) for arm in data.comparison.arms}
            curves = {name: curve for name, curve in found.items() if curve is not None}
            if curves:
                panels.append(_draw(data, curves, what, factor, title, below))
                records += [
                    (name, what, float(e), float(v.mean()), float(v.min()), float(v.max()), len(v))
                    for name, curve in curves.items()
                    for e, v in zip(curve.epochs, curve.values.T, strict=True)
                ]
    if not panels:
        return Content((Missing("No metrics.jsonl: report whole run folders."),))
    masked = any(arm.protocol == "masked" for arm in data.comparison.arms)
    note = "The training loss of masked arms includes masked batches." if masked else ""
    return Content((Figure(KEY, note, tuple(panels), _COLUMNS, tuple(records)),))


def _trace(arm: ArmRuns, kind: str, key: str) -> _Curve | None:
    """What the runs of an arm logged, at the epochs of the one that logged least."""
    lines = [line for run in arm.runs if len((line := _log(run, kind, key))[0])]
    if not lines:
        return None
    epochs = min((x for x, _ in lines), key=len)
    epochs = epochs[
        (epochs >= max(x[0] for x, _ in lines)) & (epochs <= min(x[-1] for x, _ in lines))
    ]
    if not len(epochs):
        return None
    epochs = epochs[:: math.ceil(len(epochs) / _MOST_POINTS)]
    return _Curve(epochs, np.stack([np.interp(epochs, x, y) for x, y in lines]))


def _log(run: Run, kind: str, key: str) -> tuple[Array, Array]:
    """Epochs and values. Training is averaged over whole epochs, unless they are few."""
    entries = [entry for entry in run.metrics if entry.get("kind") == kind and _has(entry, key)]
    length = max((float(entry["epoch"]) for entry in entries), default=0.0)
    whole = kind == "train" and length >= _FEW_EPOCHS
    sums: dict[float, float] = defaultdict(float)
    steps: dict[float, int] = defaultdict(int)
    before = 0
    for entry in entries:
        epoch = float(entry["epoch"])
        place = float(math.ceil(epoch - 1e-6)) if whole else epoch
        # A line of the log is the mean over the steps since the one before.
        count = max(1, int(entry["step"]) - before)
        before = int(entry["step"])
        sums[place] += count * float(entry[key])
        steps[place] += count
    epochs = sorted(sums)
    values = np.array([sums[epoch] / steps[epoch] for epoch in epochs])
    return np.array(epochs) + run.epochs_before, values


def _has(entry: dict[str, Any], key: str) -> bool:
    return all(
        isinstance(entry.get(name), int | float) and math.isfinite(entry[name])
        for name in ("epoch", key)
    )


def _draw(
    data: ReportData, curves: dict[str, _Curve], what: str, factor: float, title: str, below: str
) -> Panel:
    bands = figures.describe_bands(max(len(curve.values) for curve in curves.values()), len(curves))
    canvas, axes = figures.new_chart(title, f"{below}{bands}", list(curves), height=190)
    for name, curve in curves.items():
        every = max(1, len(curve.epochs) // 6)
        values = factor * curve.values
        figures.put_line(axes, curve.epochs, values, data.styles[name], of=len(curves), every=every)
    axes.set_xlabel("epoch", color=MUTED)
    axes.margins(x=0.03)
    if what == "loss":
        axes.set_ylim(bottom=0)
    figures.put_arm_legend(canvas, curves, data.styles)
    ends = {name: factor * curve.values[:, -1].mean() for name, curve in curves.items()}
    words = "; ".join(f"{name} {end:.3g}" for name, end in ends.items())
    return figures.finish(canvas, f"{KEY}-{what}", title, f"At the last epoch: {words}.")


SECTIONS.register(KEY, Section(KEY, "Training", 60, make))
