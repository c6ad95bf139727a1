"""Findings of the study of locality: values of each arm, effects, and equal loss."""

import math
import statistics
from collections.abc import Mapping

from killick.errors import DataError
from killick.metrics.attention_locality import LOCAL
from killick.report.head_values import SUMMARY, summary_cells
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

# Minimum distance on CIFAR-100; of a group of cells the largest or the smallest.
PUBLISHED = {"baseline": 0.316, "modern": 0.008, "with CutMix": 0.024, "without CutMix": 0.210}
MINIMUM = "attention_minimum"
PANELS = {  # units by measure: a minimum never stands alone
    "minimum": "of the largest between patches",
    "mean": "of the largest between patches",
    "local": "heads",
    "diagonal_mass": "of all attention",
}
EARLY = {"attention_early_distance": "early distance", "attention_early_entropy": "early entropy"}
_LEAST = 1e-6  # whose logarithm stands for that of 0


def make_findings(results: Results) -> Findings:
    """All tables, and a figure of minimum and mean distance, local heads and diagonal mass."""
    if not results.records(metric=MINIMUM):
        raise DataError(
            "no attention was measured, as the networks have none. Train a transformer: --network"
            " timm:vit_tiny_patch16_224."
        )
    tables = (
        _table_of_arms(results),
        _table_of_published(results),
        _table_of_effects(results),
        _table_of_equal_loss(results),
    )
    plots = [
        Plot(
            SUMMARY[name],
            {
                protocol: {
                    cell: results.by_seed(
                        f"attention_{name}", arm=find_arm(results, protocol, cell)
                    )
                    for cell in CELLS
                }
                for protocol in results.levels("protocol")
            },
            unit,
            "cell",
            1,
        )
        for name, unit in PANELS.items()
    ]
    figure = draw_figure("study-locality", plots, draw_points)
    return Findings(_headline(results), (figure,), tuple(each for each in tables if each.rows))


def find_arm(
    results: Results, protocol: str, cell: str, references: str | None = None
) -> str | None:
    """The arm of a cell that was trained for the whole budget; by default with clean references."""
    usual = "" if protocol == "standard" else "clean"
    wanted = {"protocol": protocol, "cell": cell, "budget": 1.0}
    wanted["references"] = usual if references is None else references
    arms = results.factors.items()
    return next((arm for arm, own in arms if wanted.items() <= own.items()), None)


def _cells_with(results: Results, cutmix: bool) -> dict[str, str]:
    """The arms of standard training in cells with CutMix, or in those without, by cell."""
    cells = (cell for cell, parts in CELLS.items() if ("cutmix" in parts) == cutmix)
    found = {cell: find_arm(results, "standard", cell) for cell in cells}
    return {cell: arm for cell, arm in found.items() if arm and results.by_seed(MINIMUM, arm=arm)}


def _summarize(results: Results, *arms: str) -> dict[str, str]:
    """The attention of all runs of some arms, by column: a minimum never stands alone."""
    names = (*SUMMARY, "heads")
    values = {
        name: [v for arm in arms for v in results.by_seed(f"attention_{name}", arm=arm).values()]
        for name in names
    }
    return summary_cells(values)


def _headline(results: Results) -> str:
    words = []
    for cutmix in (True, False):
        if arms := _cells_with(results, cutmix).values():
            cells = _summarize(results, *arms)
            minimum, mean, local, own = (cells[SUMMARY[name]] for name in PANELS)
            words.append(
                f"{'with' if cutmix else 'without'} CutMix minimum {minimum}, mean {mean}, {local}"
                f" heads below {LOCAL:g}, diagonal mass of the 3 most local {own}"
            )
    return f"Attention distance, standard training: {'; '.join(words) or NONE}."


def _table_of_arms(results: Results) -> TextTable:
    rows = []
    for arm in results.factors:
        row = {"arm": arm, **_summarize(results, arm)}
        for metric, title in {**EARLY, LOSS: "clean training loss"}.items():
            row[title] = format_mean(results.by_seed(metric, arm=arm), 1, 3)
        rows.append({**row, "accuracy, %": results.format(arm, "clean_top1")})
    return make_table("study-locality-arms", "Attention of each arm", rows, _describe(results))


def _describe(results: Results) -> str:
    """How attention was measured."""
    record = results.records(metric=MINIMUM)[0]
    names = ("normalizer", "prefix", "grid", "windows", "layers", "count")
    words = [f"{name} {record[name]}" for name in names]
    changes = [each["value"] for each in results.records(metric="attention_change")]
    words += [f"change by doubling the images {max(changes):.4f} at most"] if changes else []
    return f"{', '.join(words)}."


def _table_of_published(results: Results) -> TextTable:
    """Beside a published bound on several cells, the cell here that is closest to breaking it."""
    rows = []
    for name, value in PUBLISHED.items():
        row = {"training protocol": name, "published minimum, CIFAR-100": f"{value:.3f}"}
        cutmix = name == "with CutMix"
        if name in CELLS:
            arm = find_arm(results, "standard", name)
        else:
            row["training protocol"] += ", at most" if cutmix else ", at least"
            minima = {
                arm: statistics.fmean(results.by_seed(MINIMUM, arm=arm).values())
                for arm in _cells_with(results, cutmix).values()
            }
            arm = (max if cutmix else min)(minima, key=minima.__getitem__, default=None)
        rows.append({**row, "here": arm or NONE, **(_summarize(results, arm) if arm else {})})
    return make_table("study-locality-published", "Beside the published values", rows)


def _outcomes(results: Results, arm: str) -> dict[str, Values]:
    """All that arms are compared by, by seed."""
    minima = results.by_seed(MINIMUM, arm=arm)
    return {
        "log minimum distance": {s: math.log(max(v, _LEAST)) for s, v in minima.items()},
        **{title: results.by_seed(metric, arm=arm) for metric, title in EARLY.items()},
        "accuracy, %": {s: 100 * v for s, v in results.values(arm, "clean_top1").items()},
    }


def _table_of_effects(results: Results) -> TextTable:
    """Main effects and interactions in each protocol, over seeds."""
    rows = []
    for protocol in results.levels("protocol"):
        for references in results.levels("references"):
            by_cell = {
                parts: _outcomes(results, arm)
                for cell, parts in CELLS.items()
                if (arm := find_arm(results, protocol, cell, references)) is not None
            }
            titles = list(next(iter(by_cell.values()), {}))
            found = {
                title: effects({cell: own[title] for cell, own in by_cell.items()}, FACTORS)
                for title in titles
            }
            for chosen in found[titles[0]] if titles else ():
                row = {"protocol": protocol, "references": references or NONE}
                row["effect"] = " x ".join(chosen)
                rows.append({**row, **{t: _format(found[t].get(chosen, {})) for t in titles}})
    note = "Of turning a part on, over all cells that allow it; intervals are over seeds."
    return make_table("study-locality-effects", "Main effects and interactions", rows, note)


def _format(values: Values) -> str:
    """A mean over seeds with Student's t interval."""
    found = list(values.values())
    if not found:
        return NONE
    if len(found) < 2 or statistics.stdev(found) < 1e-12:
        return format_difference(no_interval(statistics.fmean(found), ""), 1, 3)
    return format_difference(t_interval(found), 1, 3)


def _table_of_equal_loss(results: Results) -> TextTable:
    """Baseline and modern where their loss on clean training images is the same."""
    arms = {
        cell: [
            arm
            for arm, own in results.factors.items()
            if (own["protocol"], own["cell"]) == ("standard", cell)
        ]
        for cell in ("baseline", "modern")
    }
    rows = []
    if all(len(each) > 1 for each in arms.values()):
        losses = {arm: results.by_seed(LOSS, arm=arm) for own in arms.values() for arm in own}
        common = lowest_common(arms, losses)
        for cell, own in arms.items():
            row = {"cell": cell, "clean training loss": format_mean(common, 1, 3)}
            outcomes = {arm: _outcomes(results, arm) for arm in own}
            for title in outcomes[own[0]]:
                values = {
                    seed: value
                    for seed, loss in common.items()
                    if (
                        value := interpolate(
                            [(losses[arm][seed], outcomes[arm][title][seed]) for arm in own], loss
                        )
                    )
                    is not None
                }
                row[title] = format_mean(values, 1, 3)
            rows.append(row)
    note = "Interpolated between budgets, at the lowest loss that both reach."
    return make_table("study-locality-loss", "At equal training loss", rows, note)


def lowest_common(arms: Mapping[str, list[str]], losses: Mapping[str, Values]) -> dict[int, float]:
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
    return None
