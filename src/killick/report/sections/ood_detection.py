"""OOD detection by the energy: histograms and ROC curves."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from killick.metrics import auroc, roc
from killick.report import figures
from killick.report.arm_predictions import energies
from killick.report.figures import MUTED, Figure, Missing, Panel, Style
from killick.report.formatting import enumerate_words, percent
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.results.predictions import Array

KEY = "detection"
MOST_SETS = 6  # drawn
_BINS = 40
_RATES = np.linspace(0, 1, 101)
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (9, 2)))

Energies = dict[tuple[int, str], Array]  # by seed and set; the clean test set is ""
Records = list[tuple[object, ...]]


def make(data: ReportData) -> Content:
    """A histogram for each arm, and ROC curves for each OOD set."""
    found = _collect(data)
    if not found:
        why = "No predictions for OOD images: evaluate with --suite clean,ood."
        return Content((Missing(why),))
    names = dict.fromkeys(name for mine in found.values() for _, name in mine if name)
    sets = sorted(names)[:MOST_SETS]
    with figures.drawing():
        histograms = [
            _draw_histogram(arm, number, data.styles[arm], mine, sets)
            for number, (arm, mine) in enumerate(found.items(), 1)
        ]
        curves = [_draw_roc(data, name, number, found) for number, name in enumerate(sets, 1)]
    return Content(
        (
            _figure(
                *("energy", "Energies of different arms are on different scales.", histograms),
                ("arm", "set", "energy_from", "energy_to", "share"),
            ),
            _figure(
                *("roc", "", curves),
                (
                    *("set", "arm", "false_positive_rate", "true_positive_rate", "least", "most"),
                    "auroc",
                ),
            ),
        )
    )


def _figure(
    name: str, note: str, drawn: list[tuple[Panel, Records]], columns: tuple[str, ...]
) -> Figure:
    panels = tuple(panel for panel, _ in drawn)
    records = tuple(record for _, records in drawn for record in records)
    return Figure(f"{KEY}-{name}", note, panels, columns, records)


def _collect(data: ReportData) -> dict[str, Energies]:
    """The energies of the arms that have both test images and OOD images."""
    found = {}
    for arm in data.comparison.arms:
        mine = {(seed, name): values for seed, name, values in energies(arm)}
        clean = {seed for seed, name in mine if not name}
        mine = {place: values for place, values in mine.items() if place[0] in clean}
        if any(name for _, name in mine):
            found[arm.name] = mine
    return found


def _draw_histogram(
    arm: str, number: int, style: Style, mine: Energies, sets: Sequence[str]
) -> tuple[Panel, Records]:
    together: dict[str, list[Array]] = defaultdict(list)
    for (_, name), values in sorted(mine.items()):
        together[name].append(values)
    pooled = {name: np.concatenate(together[name]) for name in ("", *sets) if name in together}
    everything = np.concatenate(list(pooled.values()))
    everything = everything[np.isfinite(everything)]
    low, high = np.quantile(everything, [0.002, 0.998]) if len(everything) else (0.0, 1.0)
    margin = (high - low) / _BINS or 1.0
    edges = np.linspace(low - margin, high + margin, _BINS + 1)
    titles = {name: name or "test set" for name in pooled}
    below = "images by energy, each set scaled to the same height"
    canvas, axes = figures.new_chart(
        figures.shorten(arm), below, list(titles.values()), height=150, left=16
    )
    records: Records = []
    entries = []
    for place, (name, values) in enumerate(pooled.items()):
        shares = np.histogram(np.clip(values, low, high), edges)[0] / len(values)
        heights = shares / (shares.max() or 1.0)
        if name:
            dashes = _DASHES[(place - 1) % len(_DASHES)]
            line = axes.stairs(heights, edges, color=style.color, linestyle=dashes, linewidth=1.8)
        else:
            line = axes.stairs(heights, edges, fill=True, color=MUTED, alpha=0.4, linewidth=0)
        entries.append((titles[name], line))
        records += [
            (arm, titles[name], float(a), float(b), float(share))
            for a, b, share in zip(edges[:-1], edges[1:], shares, strict=True)
        ]
    axes.locator_params(axis="x", nbins=6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("energy", color=MUTED)
    axes.margins(x=0)
    figures.put_legend(canvas, entries)
    medians = [f"{titles[name]} {np.median(values):.1f}" for name, values in pooled.items()]
    description = f"Median energies: {enumerate_words(medians)}."
    return figures.finish(
        canvas, f"{KEY}-energy-{number}", f"Energies of {arm}", description
    ), records


def _draw_roc(
    data: ReportData, name: str, number: int, found: dict[str, Energies]
) -> tuple[Panel, Records]:
    records: Records = []
    lines: dict[str, Array] = {}
    areas: dict[str, float] = {}
    for arm, mine in found.items():
        seeds = sorted(seed for seed, s in mine if s == name)
        if not seeds:
            continue
        pairs = [(torch.from_numpy(mine[s, ""]), torch.from_numpy(mine[s, name])) for s in seeds]
        rates = np.stack([_true_rates(*pair) for pair in pairs])
        lines[arm] = rates.mean(0)
        areas[arm] = statistics.fmean(auroc(*pair) for pair in pairs)
        columns = zip(_RATES, lines[arm], rates.min(0), rates.max(0), strict=True)
        records += [(name, arm, *map(float, values), areas[arm]) for values in columns]
    titles = {arm: f"{arm} {100 * area:.1f}" for arm, area in areas.items()}
    below = "% of OOD images found; in the legend: AUROC, %"
    canvas, axes = figures.new_chart(
        figures.shorten(name), below, list(titles.values()), height=210
    )
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    for place, (arm, line) in enumerate(lines.items()):
        style = data.styles[arm]
        axes.plot(
            100 * _RATES,
            100 * line,
            color=style.color,
            linestyle=style.dashes,
            marker=style.marker,
            markevery=(5 + 4 * place, 25),
            markersize=4.5,
        )
    axes.set(xlim=(0, _last_rate(list(lines.values()))), ylim=(0, 101))
    axes.set_xlabel("false positives, % of the test set", color=MUTED)
    figures.put_legend(
        canvas, [(title, figures.sample_line(data.styles[arm])) for arm, title in titles.items()]
    )
    words = "; ".join(f"{arm} {percent(area)}" for arm, area in areas.items())
    title = f"ROC curves, {name} against the test set"
    return figures.finish(canvas, f"{KEY}-roc-{number}", title, f"AUROC: {words}."), records


def _last_rate(lines: Sequence[Array]) -> int:
    """The false positive rate, in percent, beyond which all curves have reached the top."""
    found = np.min(lines, axis=0) >= 0.995
    first = float(_RATES[int(np.argmax(found))]) if found.any() else 1.0
    return min(100, max(20, 10 * math.ceil(10 * first + 0.5)))


def _true_rates(inside: torch.Tensor, outside: torch.Tensor) -> Array:
    """The true positive rate at evenly spaced false positive rates."""
    curve = roc(inside, outside)
    false, true = curve.false_positive.numpy(), curve.true_positive.numpy()
    rates: Array = np.interp(_RATES, false, true)
    rates[0] = true[false == 0].max()
    return rates


SECTIONS.register(KEY, Section(KEY, "OOD detection", 40, make))
