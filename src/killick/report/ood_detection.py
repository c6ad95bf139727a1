"""Telling other pictures from the data by the energy: histograms, and what thresholds give."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.lines import Line2D

from killick.metrics import auroc, roc
from killick.report.arm_predictions import Array, energies
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
    legend_height,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
    sample_line,
    shorten,
)
from killick.report.formatting import enumerate_words, percent
from killick.report.scene import Scene

NAMES = ("energy", "roc")
MOST_SETS = 6  # drawn; more would be a wall of panels
_BINS = 40
_RATES = np.linspace(0, 1, 101)
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (9, 2)))

# Seed and set -> energies; the clean test set is "".
Energies = dict[tuple[int, str], Array]


def draw_energies(scene: Scene) -> Figure | Missing:
    """A histogram for each arm: the test set, and each set of other pictures."""
    found = _collect(scene)
    if not found:
        return _missing("No histograms of scores")
    panels, records = [], []
    with drawing():
        for place, arm in enumerate(_arms(scene, found)):
            style = scene.styles[arm.name]
            panel, lines = _draw_histogram(arm, place, style, found[arm.name], _sets(found))
            panels.append(panel)
            records += lines
    columns = ("arm", "set", "energy_from", "energy_to", "share")
    return Figure(NAMES[0], _say_energies(scene, found), tuple(panels), columns, tuple(records))


def draw_roc(scene: Scene) -> Figure | Missing:
    """For each set of other pictures, a line for each arm."""
    found = _collect(scene)
    if not found:
        return _missing("No ROC curves")
    panels, records = [], []
    areas: dict[tuple[str, str], float] = {}
    with drawing():
        for place, name in enumerate(_sets(found)):
            panel, lines = _draw_roc(scene, name, place, found, areas)
            panels.append(panel)
            records += lines
    columns = ("set", "arm", "false_positive_rate", "true_positive_rate", "least", "most", "auroc")
    return Figure(NAMES[1], _say_roc(scene, areas), tuple(panels), columns, tuple(records))


def _missing(what: str) -> Missing:
    return Missing(
        f"{what}: they need the answers to each image of the suites clean and ood, which these runs"
        " do not have. Evaluate with --suite clean,ood and without --no-answers."
    )


def _collect(scene: Scene) -> dict[str, Energies]:
    """The energies of the arms that have both kinds of pictures."""
    found = {}
    for arm in scene.comparison.arms:
        mine = {(seed, name): values for seed, name, values in energies(arm)}
        clean = {seed for seed, name in mine if not name}
        mine = {place: values for place, values in mine.items() if place[0] in clean}
        if any(name for _, name in mine):
            found[arm.name] = mine
    return found


def _arms(scene: Scene, found: dict[str, Energies]) -> list[Arm]:
    return [arm for arm in scene.comparison.arms if arm.name in found]


def _sets(found: dict[str, Energies]) -> list[str]:
    names = dict.fromkeys(name for mine in found.values() for _, name in mine if name)
    return sorted(names)[:MOST_SETS]


def _draw_histogram(
    arm: Arm, place: int, style: Style, mine: Energies, sets: Sequence[str]
) -> tuple[Panel, list[tuple[object, ...]]]:
    together: dict[str, list[Array]] = defaultdict(list)
    for (_, name), values in sorted(mine.items()):
        together[name].append(values)
    pooled = {name: np.concatenate(together[name]) for name in ("", *sets) if name in together}
    everything = np.concatenate(list(pooled.values()))
    everything = everything[np.isfinite(everything)]
    low, high = np.quantile(everything, [0.002, 0.998]) if len(everything) else (0.0, 1.0)
    room = (high - low) / _BINS or 1.0
    edges = np.linspace(low - room, high + room, _BINS + 1)
    titles = [name or "test set" for name in pooled]
    height = 150
    canvas = new_canvas(44 + height + 42 + legend_height(titles))
    put_heading(canvas, shorten(arm.title, 40), "images by energy, each set to the same height")
    axes = put_axes(canvas, left=16, top=44, width=WIDTH - 28, height=height)
    records: list[tuple[object, ...]] = []
    entries = []
    for number, (name, values) in enumerate(pooled.items()):
        shares = np.histogram(np.clip(values, low, high), edges)[0] / len(values)
        heights = shares / (shares.max() or 1.0)
        if name:
            dashes = _DASHES[(number - 1) % len(_DASHES)]
            line = axes.stairs(heights, edges, color=style.colour, linestyle=dashes, linewidth=1.8)
        else:
            line = axes.stairs(
                heights, edges, fill=True, color=COLOURS["muted"][0], alpha=0.4, linewidth=0
            )
        entries.append((name or "test set", line))
        records += [
            (arm.name, name or "test set", float(a), float(b), float(share))
            for a, b, share in zip(edges[:-1], edges[1:], shares, strict=True)
        ]
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("energy; further right is stranger", color=COLOURS["muted"][0])
    axes.margins(x=0)
    put_legend(canvas, entries)
    medians = enumerate_words(
        [f"{name or 'the test set'} {np.median(values):.1f}" for name, values in pooled.items()]
    )
    title = f"Energies of {arm.title}"
    return finish(canvas, f"{NAMES[0]}-{place + 1}", title, f"Medians: {medians}."), records


def _draw_roc(
    scene: Scene,
    name: str,
    place: int,
    found: dict[str, Energies],
    areas: dict[tuple[str, str], float],
) -> tuple[Panel, list[tuple[object, ...]]]:
    arms = [arm for arm in _arms(scene, found) if any(s == name for _, s in found[arm.name])]
    side = 210
    lines, records, words = [], [], []
    for arm in arms:
        mine = found[arm.name]
        seeds = sorted(seed for seed, s in mine if s == name)
        pairs = [(torch.from_numpy(mine[s, ""]), torch.from_numpy(mine[s, name])) for s in seeds]
        rates = np.stack([_true_rates(*pair) for pair in pairs])
        area = statistics.fmean(auroc(*pair) for pair in pairs)
        areas[name, arm.name] = area
        lines.append((arm, rates, area))
        words.append(f"{arm.title} {100 * area:.1f} %")
        columns = zip(_RATES, rates.mean(0), rates.min(0), rates.max(0), strict=True)
        records += [(name, arm.name, *map(float, values), area) for values in columns]
    titles = [f"{arm.title} {100 * area:.1f}" for arm, _, area in lines]
    canvas = new_canvas(44 + side + 42 + legend_height(titles))
    put_heading(
        canvas, f"Against {shorten(name, 30)}", "% found, against % of the test set flagged"
    )
    axes = put_axes(canvas, left=40, top=44, width=WIDTH - 52, height=side)
    axes.plot([0, 100], [0, 100], color=COLOURS["muted"][0], linewidth=1, linestyle=(0, (1, 2)))
    entries: list[tuple[str, Line2D]] = []
    for (arm, rates, _), title in zip(lines, titles, strict=True):
        style = scene.styles[arm.name]
        axes.plot(
            100 * _RATES,
            100 * rates.mean(0),
            color=style.colour,
            linestyle=style.dashes,
            marker=style.marker,
            markevery=(5 + 4 * len(entries), 25),
            markersize=4.5,
        )
        entries.append((title, sample_line(style)))
    axes.set(xlim=(0, _far_enough([rates for _, rates, _ in lines])), ylim=(0, 101))
    axes.set_xlabel("false alarms, %; in the legend: AUROC, %", color=COLOURS["muted"][0])
    put_legend(canvas, entries)
    title = f"ROC of energy, test set against {name}"
    description = f"AUROC, mean over seeds: {'; '.join(words)}."
    return finish(canvas, f"{NAMES[1]}-{place + 1}", title, description), records


def _far_enough(lines: Sequence[Array]) -> int:
    """The false alarms, in percent, beyond which nothing happens any more."""
    found = np.min([rates.mean(0) for rates in lines], axis=0) >= 0.995
    first = float(_RATES[int(np.argmax(found))]) if found.any() else 1.0
    return min(100, max(20, 10 * math.ceil(10 * first + 0.5)))


def _true_rates(inside: torch.Tensor, outside: torch.Tensor) -> Array:
    """The share that is found, at evenly spaced shares of false alarms."""
    curve = roc(inside, outside)
    false, true = curve.false_positive.numpy(), curve.true_positive.numpy()
    rates: Array = np.interp(_RATES, false, true)
    # At no false alarms at all, what is found before the first of them.
    rates[0] = true[false == 0].max()
    return rates


def _say_energies(scene: Scene, found: dict[str, Energies]) -> str:
    """How much of the other pictures scores above nearly all of the test set."""
    sentences = [
        "The less the outlines overlap the filled area, the better other pictures can be told."
        " Each arm has a scale of its own; only the overlap can be compared."
    ]
    arms = _arms(scene, found)
    told = [arm for arm in arms if arm in (scene.comparison.baseline, scene.subject)] or arms[:1]
    for arm in told:
        mine, shares = found[arm.name], []
        for name in _sets(found):
            seeds = [seed for seed, s in mine if s == name]
            if seeds:
                caught = [
                    float((mine[seed, name] > np.quantile(mine[seed, ""], 0.95)).mean())
                    for seed in seeds
                ]
                shares.append(f"{percent(statistics.fmean(caught), 0)} of {name}")
        sentences.append(
            f"A threshold that keeps 95 % of the test set catches {enumerate_words(shares)} with"
            f" {arm.name}."
        )
    return " ".join(sentences)


def _say_roc(scene: Scene, areas: dict[tuple[str, str], float]) -> str:
    """Who is best at how many sets."""
    sets = list(dict.fromkeys(name for name, _ in areas))
    parts = []
    for name in sets:
        line = {arm: area for (s, arm), area in areas.items() if s == name}
        best = max(line, key=line.__getitem__)
        parts.append(f"{name}: {best} ({percent(line[best])})")
    if len(scene.comparison.arms) == 1:
        areas_alone = [f"{name} {percent(area)}" for (name, _), area in areas.items()]
        return f"Area under the curve: {enumerate_words(areas_alone)}."
    return (
        f"Highest area under the curve, in the mean over seeds, against {'; '.join(parts)}."
        " Lines nearer to the upper left corner are better."
    )
