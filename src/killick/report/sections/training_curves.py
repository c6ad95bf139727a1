"""Training loss and validation accuracy by epoch."""

import math
import statistics
from collections import defaultdict

import numpy as np

from killick.report import figures
from killick.report.figures import Figure, Panel
from killick.report.run_groups import ArmRuns
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.results.predictions import Array
from killick.results.run_folder import Run

KEY = "training"
_COLUMNS = ("arm", "what", "epoch", "mean", "least", "most", "seeds")
_FEW_EPOCHS = 4  # fewer than this: every line of the log is a point


def make(data: ReportData) -> Content:
    """The mean over seeds, and a band from the minimum to the maximum."""
    kinds = {
        "loss": ("train", 1, "Training loss", "mean over the epoch"),
        "accuracy": ("validation", 100, "Validation accuracy", "%"),
    }
    panels: list[Panel] = []
    records: list[tuple[object, ...]] = []
    for what, (kind, factor, title, below) in kinds.items():
        found = {arm.name: _trace(arm, kind, what) for arm in data.comparison.arms}
        curves = {name: (x, factor * values) for name, (x, values) in found.items() if len(x)}
        if curves:
            canvas, axes = figures.new_chart(title, below)
            for name, (epochs, values) in curves.items():
                figures.put_line(axes, epochs, values, data.styles[name], name)
            axes.set_xlabel("epoch")
            axes.margins(x=0.03)
            if what == "loss":
                axes.set_ylim(bottom=0)
            panels.append(figures.finish(canvas, f"{KEY}-{what}", title, below))
        records += [
            (name, what, float(e), float(v.mean()), float(v.min()), float(v.max()), len(v))
            for name, (epochs, values) in found.items()
            for e, v in zip(epochs, values.T, strict=True)
        ]
    if not panels:
        return Content(missing="No metrics.jsonl: report whole run folders.")
    masked = any(arm.protocol == "masked" for arm in data.comparison.arms)
    note = "The training loss of masked arms includes masked batches." if masked else ""
    return Content((Figure(KEY, note, tuple(panels), _COLUMNS, tuple(records)),))


def _trace(arm: ArmRuns, kind: str, key: str) -> tuple[Array, Array]:
    """Epochs that all runs of an arm logged, and their values, `(seeds, epochs)`."""
    logs = [log for run in arm.runs if (log := _read_log(run, kind, key))]
    epochs = sorted(set.intersection(*map(set, logs))) if logs else []
    return np.array(epochs), np.array([[log[epoch] for epoch in epochs] for log in logs])


def _read_log(run: Run, kind: str, key: str) -> dict[float, float]:
    """Values by epoch. Training is averaged over whole epochs, unless they are few."""
    entries = [entry for entry in run.metrics if entry.get("kind") == kind]
    length = max((entry["epoch"] for entry in entries), default=0)
    whole = kind == "train" and length >= _FEW_EPOCHS
    found: dict[float, list[float]] = defaultdict(list)
    for entry in entries:
        value = entry.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            epoch = math.ceil(entry["epoch"] - 1e-6) if whole else entry["epoch"]
            found[epoch + run.epochs_before].append(value)
    return {epoch: statistics.fmean(values) for epoch, values in found.items()}


SECTIONS.register(KEY, Section(KEY, "Training", 60, make))
