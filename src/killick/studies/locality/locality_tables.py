"""Findings of the study of locality: values of each arm, effects, controls, and equal loss."""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple

from killick.metrics.attention_locality import LOCAL
from killick.report.head_values import RunHeads, read_heads
from killick.report.intervals import no_interval, t_interval
from killick.report.tables import TextTable
from killick.studies.findings import (
    NONE,
    Findings,
    Results,
    Values,
    format_difference,
    format_mean,
    make_table,
)
from killick.studies.locality import CELLS
from killick.studies.locality.factorial import FACTORS, effects
from killick.studies.locality.training_loss import METRIC as LOSS
from killick.studies.plots import Plot, draw_figure, draw_points

# Minimum distance on CIFAR-100; for a group of cells the largest or the smallest.
PUBLISHED = {"baseline": 0.316, "modern": 0.008, "with CutMix": 0.024, "without CutMix": 0.210}
_LEAST = 1e-6  # whose logarithm stands for that of 0


class Outcome(NamedTuple):
    """A number of each run that arms are compared by."""

    title: str
    value: Callable[[RunHeads], float]


MINIMUM = Outcome("minimum distance", lambda run: run.summary.minimum)
SHOWN = (
    MINIMUM,
    Outcome("mean", lambda run: run.summary.mean),
    Outcome("median", lambda run: run.summary.median),
    Outcome("diagonal mass of the 3 most local", lambda run: run.summary.diagonal_mass),
    Outcome("early distance", lambda run: statistics.fmean(h.distance for h in run.early)),
    Outcome("early entropy", lambda run: statistics.fmean(h.entropy for h in run.early)),
)
LOG = Outcome("log minimum distance", lambda run: math.log(max(run.summary.minimum, _LEAST)))
COMPARED = (LOG, *SHOWN[-2:])


class Locality:
    """The heads of all finished runs, by arm and seed."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.runs = {
            key: heads
            for key, run in results.report.comparison.runs.items()
            if (heads := read_heads(run)) is not None
        }

    def values(self, arm: str | None, outcome: Outcome) -> Values:
        """An outcome of an arm, by seed."""
        return {seed: outcome.value(run) for (name, seed), run in self.runs.items() if name == arm}

    def outcomes(self, arm: str | None) -> dict[str, Values]:
        """All that arms are compared by, by seed."""
        found = {each.title: self.values(arm, each) for each in COMPARED}
        return {**found, "accuracy, %": self.results.values(arm, "clean_top1")}


def make_findings(results: Results) -> Findings:
    """All tables, and a figure of the minimum distances."""
    found = Locality(results)
    tables = [_table_of_arms(found), _table_of_published(found), _table_of_effects(found)]
    tables.append(_table_of_equal_loss(found))
    curves = {
        protocol: {
            cell: found.values(results.arm(protocol=protocol, cell=cell, budget=1.0), MINIMUM)
            for cell in results.levels("cell")
            if cell
        }
        for protocol in results.levels("protocol")
    }
    plot = Plot("Minimum distance", curves, "of the largest between patches", "cell", 1)
    figure = draw_figure("study-locality", [plot], draw_points)
    return Findings(_headline(found), (figure,), tuple(each for each in tables if each.rows))


def _headline(found: Locality) -> str:
    """Cells with and without CutMix, in standard training."""
    words = []
    for on in (True, False):
        arms = [
            _standard(found, cell) for cell, parts in CELLS.items() if ("cutmix" in parts) == on
        ]
        values = [v for arm in arms for v in found.values(arm, MINIMUM).values()]
        if values:
            between = f"{min(values):.3f} to {max(values):.3f} in {len(values)} runs"
            words.append(f"{'with' if on else 'without'} CutMix {between}")
    return f"Minimum attention distance, standard training: {'; '.join(words) or NONE}."


def _standard(found: Locality, cell: str) -> str | None:
    return found.results.arm(protocol="standard", cell=cell, budget=1.0)


def _table_of_arms(found: Locality) -> TextTable:
    rows = []
    for arm in found.results.factors:
        runs = [run for (name, _), run in found.runs.items() if name == arm]
        local = [run.summary.local for run in runs]
        row = {"arm": arm}
        row |= {each.title: format_mean(found.values(arm, each), 1, 3) for each in SHOWN[:3]}
        if runs:
            counts = (
                f"{min(local)}" if min(local) == max(local) else f"{min(local)} to {max(local)}"
            )
            row[f"heads below {LOCAL:g}"] = f"{counts} of {runs[0].summary.heads}"
        row |= {each.title: format_mean(found.values(arm, each), 1, 3) for each in SHOWN[3:]}
        row["accuracy, %"] = found.results.format(arm, "clean_top1")
        row["clean training loss"] = format_mean(found.results.by_seed(LOSS, arm=arm), 1, 3)
        rows.append(row)
    return make_table("study-locality-arms", "Attention of each arm", rows, _describe(found))


def _describe(found: Locality) -> str:
    """How it was measured, in words."""
    about = next((run.about for run in found.runs.values()), {})
    changes = [run.change for run in found.runs.values() if run.change is not None]
    words = [f"{name} {value}" for name, value in about.items()]
    words += (
        [f"doubling the images changed a head by {max(changes):.4f} at most"] if changes else []
    )
    return f"{', '.join(words)}."


def _table_of_published(found: Locality) -> TextTable:
    """Beside the published values; for groups of cells the value that was published."""
    rows = []
    for name, value in PUBLISHED.items():
        row = {"minimum distance": name, "published, CIFAR-100": f"{value:.3f}"}
        if name in CELLS:
            row["here"] = format_mean(found.values(_standard(found, name), MINIMUM), 1, 3)
        else:
            on = name.startswith("with ")
            cells = [cell for cell, parts in CELLS.items() if ("cutmix" in parts) == on]
            means = [
                statistics.fmean(values.values())
                for cell in cells
                if (values := found.values(_standard(found, cell), MINIMUM))
            ]
            row["minimum distance"] += ", at most" if on else ", at least"
            row["here"] = f"{(max if on else min)(means):.3f}" if means else NONE
        rows.append(row)
    return make_table("study-locality-published", "Beside the published values", rows)


def _table_of_effects(found: Locality) -> TextTable:
    """Main effects and interactions in each protocol, over seeds."""
    results, rows = found.results, []
    for protocol in results.levels("protocol"):
        for references in results.levels("references"):
            arms = {
                parts: arm
                for name, parts in CELLS.items()
                if (arm := _exact(results, protocol, name, references)) is not None
            }
            outcomes = {arm: found.outcomes(arm) for arm in arms.values()}
            titles = [each.title for each in COMPARED] + ["accuracy, %"]
            by_title = {
                title: effects(
                    {parts: outcomes[arm][title] for parts, arm in arms.items()}, FACTORS
                )
                for title in titles
            }
            for chosen in by_title[titles[0]]:
                row = {"protocol": protocol, "references": references, "effect": " x ".join(chosen)}
                for title in titles:
                    factor, digits = (100, 1) if title.endswith("%") else (1, 3)
                    row[title] = _format(by_title[title].get(chosen, {}), factor, digits)
                rows.append(row)
    return make_table(
        "study-locality-effects",
        "Main effects and interactions",
        rows,
        "Of turning a part on, over all cells that allow it; the interval is over seeds.",
    )


def _exact(results: Results, protocol: str, cell: str, references: str) -> str | None:
    wanted = {"protocol": protocol, "cell": cell, "references": references, "budget": 1.0}
    arms = results.factors.items()
    return next((arm for arm, own in arms if wanted.items() <= own.items()), None)


def _format(values: Values, factor: float, digits: int) -> str:
    """A mean over seeds with Student's t interval."""
    found = list(values.values())
    if not found:
        return NONE
    spread = len(found) > 1 and statistics.stdev(found) > 1e-12
    return format_difference(
        t_interval(found) if spread else no_interval(statistics.fmean(found), ""), factor, digits
    )


def _table_of_equal_loss(found: Locality) -> TextTable:
    """Baseline and modern where their loss on clean training images is the same."""
    results, rows = found.results, []
    arms = {
        cell: [
            n
            for n, own in results.factors.items()
            if own.get("cell") == cell and own["protocol"] == "standard"
        ]
        for cell in ("baseline", "modern")
    }
    if all(len(each) > 1 for each in arms.values()):
        losses = {arm: results.by_seed(LOSS, arm=arm) for each in arms.values() for arm in each}
        common = _common_losses(arms, losses)
        for cell, own in arms.items():
            row = {"cell": cell, "clean training loss": format_mean(common, 1, 3)}
            for title in (each.title for each in COMPARED):
                at_loss = {}
                for seed, loss in common.items():
                    points = [(losses[arm][seed], found.outcomes(arm)[title][seed]) for arm in own]
                    if (value := interpolate(points, loss)) is not None:
                        at_loss[seed] = value
                row[title] = format_mean(at_loss, 1, 3)
            rows.append(row)
    note = "Interpolated between budgets, at the lowest loss that both reach."
    return make_table("study-locality-loss", "At equal training loss", rows, note)


def _common_losses(arms: Mapping[str, list[str]], losses: Mapping[str, Values]) -> dict[int, float]:
    """By seed, the lowest loss that both cells reach."""
    seeds = set.intersection(*(set(values) for values in losses.values()))
    return {
        seed: max(min(losses[arm][seed] for arm in own) for own in arms.values())
        for seed in sorted(seeds)
    }


def interpolate(points: list[tuple[float, float]], place: float) -> float | None:
    """The value at a place between points, linear; None outside of them.

    Example:
        >>> interpolate([(2.0, 10.0), (1.0, 20.0)], 1.5), interpolate([(1.0, 2.0)], 3.0)
        (15.0, None)
    """
    points = sorted(points)
    for (x, y), (next_x, next_y) in zip(points, points[1:], strict=False):
        if x <= place <= next_x:
            return y if next_x == x else y + (next_y - y) * (place - x) / (next_x - x)
    return next((y for x, y in points if x == place), None)
