"""OOD detection by the energy: AUROC by set, histograms and ROC curves."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from killick.metrics import auroc, roc
from killick.report import figures
from killick.report.evaluations import energies
from killick.report.figures import MUTED, Figure, Panel, Style
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.statistics import ood_by_set, show_arms
from killick.report.summary_metrics import find_summary_metric
from killick.report.tables import TextTable
from killick.results.predictions import Array

KEY = "detection"
_BINS = 40
_RATES = np.linspace(0, 1, 101)
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (9, 2)))
_ENERGY = ("arm", "set", "energy_from", "energy_to", "share")
_ROC = ("set", "arm", "false_positive_rate", "true_positive_rate", "least", "most", "auroc")

Energies = dict[int, dict[str, Array]]  # by seed and OOD set; the clean test set is ""
Records = list[tuple[object, ...]]


def make(data: ReportData) -> Content:
    """AUROC and ROC curves for each OOD set, and a histogram for each arm."""
    found = {arm.name: mine for arm in data.comparison.arms if (mine := energies(arm))}
    if not found:
        return Content(missing="No predictions for OOD images: evaluate with --suite clean,ood.")
    every = (name for mine in found.values() for sets in mine.values() for name in sets)
    names = list(dict.fromkeys(every))
    bins: Records = []
    histograms = [
        _draw_histogram(arm, f"{KEY}-energy-{number}", data.styles[arm], mine, names, bins)
        for number, (arm, mine) in enumerate(found.items(), 1)
    ]
    points: Records = []
    curves = [
        _draw_roc(data, name, f"{KEY}-roc-{number}", found, points)
        for number, name in enumerate(names[1:], 1)
    ]
    note = "Energies of different arms are on different scales."
    return Content(
        (
            Figure(f"{KEY}-energy", note, tuple(histograms), _ENERGY, tuple(bins)),
            Figure(f"{KEY}-roc", "", tuple(curves), _ROC, tuple(points)),
        ),
        _make_table(data),
    )


def _make_table(data: ReportData) -> tuple[TextTable, ...]:
    """The AUROC of each set; nothing where the arms have no set in common."""
    arms = [arm.name for arm in data.comparison.arms]
    metric = find_summary_metric("ood_auroc")
    found = ood_by_set(data.comparison)
    rows = tuple((name, *show_arms(metric, line, arms)) for name, line in found.items())
    gaps = "; difference to the baseline [95 %]" if data.comparison.baseline else ""
    note = f"Mean ± standard deviation over seeds{gaps}."
    low = any(each.mean < metric.metric.chance for line in found.values() for each in line.values())
    note += " !: below chance (50 %)." if low else ""
    return (TextTable(KEY, "AUROC, %", ("OOD set", *arms), rows, note),) if rows else ()


def _draw_histogram(
    arm: str, file: str, style: Style, mine: Energies, names: Sequence[str], records: Records
) -> Panel:
    parts = {
        name: [mine[seed][name] for seed in sorted(mine) if name in mine[seed]] for name in names
    }
    pooled = {name or "test set": np.concatenate(each) for name, each in parts.items() if each}
    low, high = np.quantile(np.concatenate(list(pooled.values())), [0.002, 0.998])
    margin = (high - low) / _BINS or 1.0
    edges = np.linspace(low - margin, high + margin, _BINS + 1)
    below = "images by energy, each set scaled to the same height"
    canvas, axes = figures.new_chart(figures.shorten(arm), below, height=150, left=16)
    for place, (name, values) in enumerate(pooled.items()):
        shares = np.histogram(np.clip(values, low, high), edges)[0] / len(values)
        heights = shares / shares.max()
        look: dict[str, Any] = {"fill": True, "color": MUTED, "alpha": 0.4, "linewidth": 0}
        if place:
            dashes = _DASHES[(place - 1) % len(_DASHES)]
            look = {"color": style.color, "linestyle": dashes, "linewidth": 1.8}
        axes.stairs(heights, edges, label=name, **look)
        records += [
            (arm, name, float(first), float(last), float(share))
            for first, last, share in zip(edges[:-1], edges[1:], shares, strict=True)
        ]
    axes.locator_params(axis="x", nbins=6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("energy")
    axes.margins(x=0)
    return figures.finish(canvas, file, f"Energies of {arm}", below)


def _draw_roc(
    data: ReportData, name: str, file: str, found: dict[str, Energies], records: Records
) -> Panel:
    below = "% of OOD images found; in the legend: AUROC, %"
    canvas, axes = figures.new_chart(figures.shorten(name), below)
    figures.put_diagonal(axes)
    for arm, mine in found.items():
        pairs = [
            (torch.from_numpy(sets[""]), torch.from_numpy(sets[name]))
            for _, sets in sorted(mine.items())
            if name in sets
        ]
        if pairs:
            rates = np.stack([_true_rates(*pair) for pair in pairs])
            area = statistics.fmean(auroc(*pair) for pair in pairs)
            title = f"{arm} {100 * area:.1f}"
            figures.put_line(axes, 100 * _RATES, 100 * rates, data.styles[arm], title)
            columns = zip(_RATES, rates.mean(0), rates.min(0), rates.max(0), strict=True)
            records += [(name, arm, *map(float, values), area) for values in columns]
    axes.set(xlim=(0, 100), ylim=(0, 101), xlabel="false positives, % of the test set")
    return figures.finish(canvas, file, f"ROC curves of {name}", below)


def _true_rates(inside: torch.Tensor, outside: torch.Tensor) -> Array:
    """The true positive rate at evenly spaced false positive rates."""
    curve = roc(inside, outside)
    false, true = curve.false_positive.numpy(), curve.true_positive.numpy()
    rates: Array = np.interp(_RATES, false, true)
    rates[0] = true[false == 0].max()
    return rates


SECTIONS.register(KEY, Section(KEY, "OOD detection", 40, make))
