"""How training went: loss and validation accuracy by epoch."""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from killick.report.arm_predictions import Array
from killick.report.comparison import Arm
from killick.report.figures import (
    COLOURS,
    WIDTH,
    Figure,
    Missing,
    Panel,
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
from killick.report.formatting import tell_some
from killick.report.scene import Scene
from killick.results.run_folder import Run

NAME = "training"
_COLUMNS = ("arm", "what", "epoch", "mean", "least", "most", "seeds")
_HEIGHT = 190
_FEW_EPOCHS = 4  # fewer than this: every line of the log is a point
_MOST_POINTS = 200


@dataclass(frozen=True)
class _Curve:
    """A number by epoch, `(seeds, points)`, where all seeds have it."""

    epochs: Array
    values: Array


def draw_curves(scene: Scene) -> Figure | Missing:
    """The mean over seeds, and from the least to the most of them."""
    kinds = {
        "loss": ("train", "loss", 1.0, "Training loss", "mean over the epoch"),
        "accuracy": ("validation", "accuracy", 100.0, "Validation accuracy", "%"),
    }
    arms = scene.comparison.arms
    panels, records = [], []
    last: dict[str, float] = {}
    with drawing():
        for what, (kind, key, factor, title, below) in kinds.items():
            found = {arm.name: _trace(arm, kind, key) for arm in arms}
            curves = {name: curve for name, curve in found.items() if curve is not None}
            if not curves:
                continue
            panels.append(_draw(scene, curves, what, factor, (title, below)))
            records += _records(what, curves)
            if what == "accuracy":
                last = {name: float(curve.values[:, -1].mean()) for name, curve in curves.items()}
    if not panels:
        return Missing(
            "No training curves: the runs have no metrics.jsonl, as rows alone do. Report their"
            " whole folders."
        )
    return Figure(NAME, _say(scene, last), tuple(panels), _COLUMNS, tuple(records))


def _trace(arm: Arm, kind: str, key: str) -> _Curve | None:
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
    scene: Scene, curves: dict[str, _Curve], what: str, factor: float, words: tuple[str, str]
) -> Panel:
    arms = [arm for arm in scene.comparison.arms if arm.name in curves]
    canvas = new_canvas(44 + _HEIGHT + 42 + legend_height([arm.title for arm in arms]))
    seeds = max(len(curve.values) for curve in curves.values())
    put_heading(canvas, words[0], f"{words[1]}{describe_bands(seeds, len(arms))}")
    axes = put_axes(canvas, left=40, top=44, width=WIDTH - 52, height=_HEIGHT)
    for arm in arms:
        curve = curves[arm.name]
        every = max(1, len(curve.epochs) // 6)
        style, values = scene.styles[arm.name], factor * curve.values
        put_line(axes, curve.epochs, values, style, of=len(arms), every=every)
    axes.set_xlabel("epoch", color=COLOURS["muted"][0])
    axes.margins(x=0.03)
    if what == "loss":
        axes.set_ylim(bottom=0)
    put_legend(canvas, [(arm.title, sample_line(scene.styles[arm.name])) for arm in arms])
    ends = "; ".join(
        f"{arm.title} {factor * curves[arm.name].values[:, -1].mean():.3g}" for arm in arms
    )
    return finish(canvas, f"{NAME}-{what}", words[0], f"By epoch; at the end: {ends}.")


def _records(what: str, curves: dict[str, _Curve]) -> list[tuple[object, ...]]:
    return [
        (name, what, float(epoch), float(v.mean()), float(v.min()), float(v.max()), len(v))
        for name, curve in curves.items()
        for epoch, v in zip(curve.epochs, curve.values.T, strict=True)
    ]


def _say(scene: Scene, last: dict[str, float]) -> str:
    sentences = []
    if last:
        ends = tell_some(last, digits=1)
        sentences.append(f"Validation accuracy after the last epoch: {ends}.")
    protocols = {
        str(row["protocol"]) for arm in scene.comparison.arms for row in arm.runs[0].rows[:1]
    }
    if "masked" in protocols:
        sentences.append(
            "The training loss of masked arms counts the masked batches too, which are harder or"
            " have another target, so it cannot be compared with that of other arms."
        )
    return " ".join(sentences) or "Loss by epoch, mean over seeds."
