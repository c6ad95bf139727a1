"""Figures of the evidence pages, from tables in `benchmarks/results/`.

python docs/evidence_figures.py     # each figure beside its table
"""

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from regularizer_tables import read_lines

from killick.report.figures import (
    COLORS,
    MUTED,
    Style,
    drawing,
    finish,
    new_chart,
    put_diagonal,
    put_line,
    to_file,
)

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
TUNED_FOR = 10  # epochs, in the reliability diagram: as on the page
_FEWEST = 100  # images of a bin that is drawn, in every seed
_STYLES = {
    "none": Style("muted", (0, (2, 1.5)), "^"),
    "standard": Style("arm-0", (0, (6, 2)), "s"),
    "masked-label": Style("arm-1", "-", "o"),
}
_TITLES = {"standard": "tuned without masks", "masked-label": "tuned with masks"}
Line = dict[str, str]


def draw_tuning_accuracy() -> str:
    """Accuracy under corruption after some epochs of tuning, less that of the finished network."""
    found = _by_epochs("corrupted")
    gains = {way: 100 * (values - found["none"]) for way, values in found.items() if way != "none"}
    below = "corrupted accuracy less that before tuning, points"
    return _draw_epochs("tuning-accuracy", "Accuracy under corruption", below, gains, 0.0)


def draw_tuning_calibration() -> str:
    """Calibration error under corruption after some epochs of tuning."""
    found = _by_epochs("smooth ECE, corrupted")
    before = float(found.pop("none").mean())
    below = "smooth ECE, corrupted; dotted: before tuning"
    return _draw_epochs("tuning-calibration", "Calibration under corruption", below, found, before)


def draw_reliability() -> str:
    """Accuracy against confidence on corrupted images: finished, and tuned both ways."""
    groups: dict[tuple[str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    for row in _read("tuning/reliability"):
        if row["epochs"] in ("0", str(TUNED_FOR)) and int(row["images"]) >= _FEWEST:
            pair = 100 * float(row["confidence"]), 100 * float(row["accuracy"])
            groups[row["tuning"], row["bin from"]][row["seed"]] = pair
    seeds = {row["seed"] for row in _read("tuning/reliability")}
    with drawing():
        canvas, axes = new_chart("Reliability under corruption", "accuracy, %, of all seeds")
        put_diagonal(axes)
        for way, style in _STYLES.items():
            bins = [at for (of, _), at in groups.items() if of == way and set(at) == seeds]
            points = np.array([[at[seed] for seed in sorted(seeds)] for at in bins])
            title = _TITLES.get(way, "finished network")
            put_line(axes, points[..., 0].mean(1), points[..., 1].T, style, title, every=2)
        axes.set(
            xlim=(15, 100), ylim=(0, 100), xlabel="confidence, %; below the diagonal: too sure"
        )
        return to_file(finish(canvas, "reliability", "Reliability", "accuracy by confidence").svg)


def draw_gain_against_cost() -> str:
    """Accuracy under corruption of regularizers, less that of plain training, by what they cost."""
    found: dict[
        tuple[float, str], dict[bool, float]
    ] = {}  # by cost and name; with masks or without
    for part in ("combined", "ensembles"):
        lines = read_lines(part)
        for arm in dict.fromkeys(line["arm"] for line in lines):
            own = [line for line in lines if line["arm"] == arm]
            cost = max(float(own[0]["training_cost"]), float(own[0]["inference_cost"]))
            name = arm.removesuffix("masked-label").removesuffix("+").removesuffix("standard")
            name = name.removesuffix("+").replace("_", " ").replace("dropout+mc", "mc")
            name = name or "no regularizer"
            if name.startswith("ensemble"):
                name = f"3 × {name.removeprefix('ensemble').removeprefix('+') or 'standard'}"
            value = statistics.fmean(100 * float(line["C"]) for line in own)
            found.setdefault((cost, name), {})[arm.endswith("masked-label")] = value
    base = found[1, "no regularizer"][False]
    rows = sorted(found.items(), key=lambda row: (-row[0][0], max(row[1].values())))
    with drawing():
        below = "corrupted accuracy less standard, points; (passes)"
        canvas, axes = new_chart("Gain against cost", below, height=16 * len(rows), left=162)
        axes.axvline(0, color=MUTED, linewidth=1)
        for masked, way, title in (
            (False, "standard", "standard"),
            (True, "masked-label", "with masked references"),
        ):
            x = [values[masked] - base for _, values in rows]
            style = _STYLES[way].line | {"linestyle": "none"}
            axes.plot(x, range(len(rows)), label=title, **style)
        axes.set_yticks(range(len(rows)), [f"{name} ({cost:g})" for (cost, name), _ in rows])
        return to_file(finish(canvas, "gain-cost", "Gain against cost", below).svg)


FIGURES: dict[str, Callable[[], str]] = {
    "tuning/accuracy.svg": draw_tuning_accuracy,
    "tuning/calibration.svg": draw_tuning_calibration,
    "tuning/reliability.svg": draw_reliability,
    "regularizers/small/gain-cost.svg": draw_gain_against_cost,
}


def _read(name: str) -> list[Line]:
    with open(RESULTS / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _by_epochs(measure: str) -> dict[str, "np.ndarray[tuple[int, int], np.dtype[np.float64]]"]:
    """For each way to tune the values, `(seeds, epochs)`."""
    rows = sorted(_read("tuning/epochs"), key=lambda row: (int(row["seed"]), int(row["epochs"])))
    seeds = len({row["seed"] for row in rows})
    return {
        way: np.array([float(row[measure]) for row in rows if row["tuning"] == way]).reshape(
            seeds, -1
        )
        for way in _STYLES
    }


def _draw_epochs(
    name: str,
    title: str,
    below: str,
    lines: "dict[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]]",
    before: float,
) -> str:
    epochs: Sequence[str] = sorted({row["epochs"] for row in _read("tuning/epochs")}, key=int)[1:]
    with drawing():
        canvas, axes = new_chart(title, below)
        axes.axhline(before, color=COLORS["muted"][0], linewidth=1, linestyle=(0, (1, 2)))
        for way, values in lines.items():
            put_line(axes, range(len(epochs)), values, _STYLES[way], _TITLES[way])
        axes.set_xticks(range(len(epochs)), epochs)
        axes.set_xlabel("epochs of tuning")
        return to_file(finish(canvas, name, title, below).svg)


if __name__ == "__main__":
    for place, draw in FIGURES.items():
        (RESULTS / place).write_text(draw(), encoding="utf-8")
