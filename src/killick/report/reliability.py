"""How often each arm is right at each confidence: reliability diagrams without bins."""

import math
import statistics
from dataclasses import dataclass

import numpy as np
import torch

from killick.metrics import smooth_ece, smooth_reliability
from killick.report.arm_predictions import CORRUPTED, Array, Judged, judged
from killick.report.comparison import Arm
from killick.report.figures import (
    COLOURS,
    WIDTH,
    Figure,
    Missing,
    Panel,
    Style,
    drawing,
    finish,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
    shorten,
)
from killick.report.scene import Scene

NAME = "reliability"
_COLUMNS = (
    *("arm", "images", "confidence", "accuracy", "accuracy_least", "accuracy_most"),
    *("density", "images_nearby"),
)
_POINTS = 101
_SIDE = 210  # px of the diagram
_ENOUGH = 15  # images that must lie nearby for a line to mean something


@dataclass(frozen=True)
class _Curve:
    """Accuracy as a function of confidence, over the seeds of an arm.

    Attributes:
        errors: The smooth calibration error of each seed.
        accuracy: Of all seeds, each counted by its images nearby.
        least: Over seeds, as `most`.
        density: In the mean over seeds.
        nearby: How many images, of all seeds, each point is the mean of.
    """

    errors: tuple[float, ...]
    confidence: Array
    accuracy: Array
    least: Array
    most: Array
    density: Array
    nearby: Array

    @property
    def error(self) -> float:
        return statistics.fmean(self.errors)


def draw_reliability(scene: Scene) -> Figure | Missing:
    """A diagram for each arm: clean images, and all corrupted ones together."""
    curves: dict[str, dict[str, _Curve]] = {}
    for arm in scene.comparison.arms:
        sets = {"clean": judged(arm, ("clean",)), "corrupted": judged(arm, CORRUPTED)}
        found = {kind: _trace(runs) for kind, runs in sets.items() if runs}
        if found:
            curves[arm.name] = found
    if not curves:
        return Missing(
            "No reliability diagrams: they need the answers to each image, which these runs do not"
            " have. Evaluate again without --no-answers, and keep the folder answers/ of each run."
        )
    arms = [arm for arm in scene.comparison.arms if arm.name in curves]
    most = max(float(c.density.max()) for found in curves.values() for c in found.values())
    with drawing():
        panels = [
            _draw(arm, place, scene.styles[arm.name], curves[arm.name], most)
            for place, arm in enumerate(arms)
        ]
    records = [
        (arm.name, kind, *(float(value) for value in values))
        for arm in arms
        for kind, curve in curves[arm.name].items()
        for values in zip(
            *(curve.confidence, curve.accuracy, curve.least, curve.most, curve.density),
            curve.nearby,
            strict=True,
        )
        if not np.isnan(values[1])
    ]
    return Figure(NAME, _say(scene, arms, curves), tuple(panels), _COLUMNS, tuple(records))


def _trace(runs: list[Judged]) -> _Curve:
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


def _draw(arm: Arm, place: int, style: Style, curves: dict[str, _Curve], most: float) -> Panel:
    canvas = new_canvas(44 + _SIDE + 12 + 46 + 40 + 40)
    put_heading(canvas, shorten(arm.title, 40), "accuracy, %, against confidence, %")
    axes = put_axes(canvas, left=40, top=44, width=WIDTH - 52, height=_SIDE)
    below = put_axes(canvas, left=40, top=44 + _SIDE + 12, width=WIDTH - 52, height=46)
    axes.plot([0, 100], [0, 100], color=COLOURS["muted"][0], linewidth=1, linestyle=(0, (1, 2)))
    looks = {
        "clean": (COLOURS["muted"][0], (0, (4, 2)), 1.5),
        "corrupted": (style.colour, "-", 2.2),
    }
    entries = []
    for kind, curve in curves.items():
        colour, dashes, width = looks[kind]
        shown = curve.nearby >= _ENOUGH
        x, y = 100 * curve.confidence, np.where(shown, 100 * curve.accuracy, np.nan)
        (line,) = axes.plot(x, y, color=colour, linestyle=dashes, linewidth=width)
        if len(curve.errors) > 1:
            least, highest = 100 * curve.least, 100 * curve.most
            axes.fill_between(x, least, highest, where=shown, color=colour, alpha=0.18, linewidth=0)
        below.plot(x, curve.density, color=colour, linestyle=dashes, linewidth=width * 0.8)
        entries.append((f"{kind}, smooth ECE {curve.error:.3f}", line))
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.set_xticks(range(0, 101, 20), [])
    below.set(xlim=(0, 100), yscale="log", ylim=(0.005, 1.5 * most))
    below.set_xticks(range(0, 101, 20))
    below.set_yticks([], minor=False)
    below.set_yticks([], minor=True)
    below.grid(visible=False)
    below.set_xlabel("confidence; below: images there, log scale", color=COLOURS["muted"][0])
    put_legend(canvas, [(title, line) for title, line in entries])
    words = ", ".join(
        f"{kind} images have a smooth calibration error of {curve.error:.3f} and are {_lean(curve)}"
        for kind, curve in curves.items()
    )
    return finish(canvas, f"{NAME}-{place + 1}", f"Reliability of {arm.title}", f"{words}.")


def _lean(curve: _Curve) -> str:
    """Whether it is too sure, over all its images."""
    weight = np.where(np.isnan(curve.accuracy), 0.0, curve.density)
    gap = float((weight * (curve.confidence - np.nan_to_num(curve.accuracy))).sum() / weight.sum())
    if abs(gap) < 0.01:
        return "on the whole as sure as right"
    return "on the whole too sure" if gap > 0 else "on the whole not sure enough"


def _say(scene: Scene, arms: list[Arm], curves: dict[str, dict[str, _Curve]]) -> str:
    sentences = [
        "A line below the diagonal is too sure, above it not sure enough; it is drawn where at"
        f" least {_ENOUGH} images lie nearby."
    ]
    kind = "corrupted" if any("corrupted" in curves[arm.name] for arm in arms) else "clean"
    baseline, subject = scene.comparison.baseline, scene.subject
    told = [arm for arm in (baseline, subject) if arm is not None and arm in arms] or arms[:1]
    for arm in told:
        curve = curves[arm.name].get(kind)
        if curve is not None:
            sentences.append(
                f"On {kind} images {arm.name} is {_lean(curve)} (smooth ECE {curve.error:.3f})."
            )
    if kind == "corrupted":
        sentences.append(
            "Here all corrupted images are judged together; the table has the mean over the single"
            " sets, which is higher wherever one set is overrated and another underrated."
        )
    return " ".join(sentences)
