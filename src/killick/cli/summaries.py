"""Tables of evaluations, comparisons and studies for the terminal."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from killick.metrics.attention_locality import LOCAL
from killick.metrics.metric_registry import METRICS, SCORES, Metric
from killick.report.conditions import suite_of, title_of
from killick.report.head_values import read_heads
from killick.report.statistics import Table as Estimates
from killick.report.summary_metrics import find_summary_metric, summary_metrics
from killick.results.run_folder import Run
from killick.studies.findings import Findings
from killick.studies.study import Study

Row = dict[str, Any]
Rows = list[Row]
Cell = tuple[str, str, Row]  # the line and column it stands in

# Columns of a comparison, by their keys in the report's summary.
_ANSWERS = ("corrupted_top1", "corrupted_smooth_ece", "clean_top1", "ood_auroc")
_COMPARED = (
    *("clean_top1", "corrupted_top1", "shift_top1", "corrupted_smooth_ece"),
    *("ood_auroc", "synthetic_ood_auroc"),
)
_BELOW_CHANCE = "!: below chance (50 %)"
_WIDE = 1000  # columns, where there is no terminal


def _make_console() -> Console:
    width = None if sys.stdout.isatty() else _WIDE
    return Console(highlight=False, markup=False, width=width)


def _make_table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def show_summary(rows: Rows) -> None:
    """Print the rows of an evaluation: sets, corruptions by severity, OOD detection."""
    console = _make_console()
    top1 = [row for row in rows if row["metric"] == "top1" and row["severity"] not in ("", "all")]
    means = [row for row in top1 if row["mean_of"]]
    aurocs = [
        (title_of(suite_of(row), row["set"]), SCORES.find(row["score"]).title, row)
        for row in rows
        if row["metric"] == "auroc"
    ]
    single = [row for row in top1 if row["inference"] != "marginal" and not row["mean_of"]]
    tables = (
        ("set, images", _sets(rows)),
        ("top-1 %", _by_corruption(single, "corruptions", "cbar")),
        ("top-1 %, % covered", _by_corruption(single, "occlusion")),
        ("top-1 %, eps / 255", _by_corruption(single, "adversarial")),
        ("top-1 %, severity", [(_title(row), str(row["severity"]), row) for row in means]),
        (METRICS.find("auroc").column, aurocs),
        ("conformal sets", _conformal(rows)),
        ("members disagree", _disagreement(rows)),
    )
    for first, cells in tables:
        if cells:
            console.print(_table(first, cells))
            console.print()
    if (heads := read_heads(Run("", Path(), rows))) is not None:
        found = heads.summary
        console.print(
            f"attention distance of {found.heads} heads: minimum {found.minimum:.3f}, mean"
            f" {found.mean:.3f}, median {found.median:.3f}; {found.local} below {LOCAL:g}; the 3 most"
            f" local give {100 * found.diagonal_mass:.0f} % to their own patch, all give"
            f" {100 * found.prefix_mass:.0f} % to prefix tokens"
            f" ({heads.about['normalizer']}, {heads.about['prefix']})",
            soft_wrap=True,
        )
    for row in rows:
        if row["metric"] == "mce" and row["inference"] != "marginal":
            text = METRICS.find("mce").format(row["value"], unit=True)
            console.print(f"mCE {text} ({row['estimator']})", soft_wrap=True)
    constants = dict.fromkeys(str(row["table"]) for row in top1 if row["source"] == "generated")
    if any(constants):
        console.print(
            f"corruptions with constants of {', '.join(filter(None, constants))}", style="dim"
        )
    if any(row["value"] < METRICS.find("auroc").chance for _, _, row in aurocs):
        console.print(_BELOW_CHANCE, style="dim")
    if any(row["std"] != "" for row in rows):
        console.print("±: standard deviation over references", style="dim")


def _by_corruption(rows: Rows, *suites: str) -> list[Cell]:
    return [(r["corruption"], str(r["severity"]), r) for r in rows if r["suite"] in suites]


def _conformal(rows: Rows) -> list[Cell]:
    """Coverage and size of each set, corrupted ones in the mean."""
    found = [row for row in rows if METRICS.find(row["metric"]).suite == "conformal"]
    return [
        (_title(row), METRICS.find(row["metric"]).column, row)
        for row in found
        if row["severity"] in ("", "all")
    ]


def _disagreement(rows: Rows) -> list[Cell]:
    found = [row for row in rows if row["suite"] == "multiplicity"]
    return [(_title(row), METRICS.find(row["metric"]).column, row) for row in found]


def _sets(rows: Rows) -> list[Cell]:
    """Summary metrics of each set, corrupted ones in the mean."""
    shown = [
        row
        for row in rows
        if (row["suite"] in ("clean", "shift") or row["mean_of"])
        and row["severity"] in ("", "all")
        and row["reference"] == ""
    ]
    counts = {_title(row): int(row["count"]) for row in shown}
    columns = {
        (key, ""): metric.column
        for key, metric in METRICS.items()
        if metric.summary and metric.input in ("logits", "confidence")
    }
    columns["smooth_ece", "temperature"] = "scaled"
    return [
        (f"{_title(row)}, {counts[_title(row)]:,}", column, row)
        for place, column in columns.items()
        for row in shown
        if (row["metric"], row["scaling"]) == place
    ]


def _table(first: str, cells: list[Cell]) -> Table:
    """A line for each set and inference."""
    several = any(row["inference"] == "marginal" for _, _, row in cells)
    columns = list(dict.fromkeys(column for _, column, _ in cells))
    table = _make_table([first, *(["refs"] if several else []), *columns])
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for line, column, row in cells:
        metric = METRICS.find(row["metric"])
        text = _flagged(metric, row["value"])
        text += "" if row["std"] == "" else f"±{metric.format(row['std'])}"
        lines.setdefault((line, str(row["k"])), {}).setdefault(column, text)
    for (line, k), found in lines.items():
        table.add_row(line, *([k] if several else []), *(found.get(each, "") for each in columns))
    return table


def _flagged(metric: Metric, value: float) -> str:
    """A value, with a sign if guessing is better."""
    return metric.format(value) + "!" * (value < metric.chance)


def _title(row: Row) -> str:
    if not row["corruption"]:
        return str(row["set"])
    return f"{'C-bar' if row['suite'] == 'cbar' else 'corrupted'} ({row['corruption']})"


def show_comparison(estimates: Estimates) -> None:
    """Print the numbers of a report: the main differences, and a line for each arm."""
    console = _make_console()
    known = {each.key: each for each in summary_metrics()}
    columns = [known[key] for key in _COMPARED if any(key in line for line in estimates.values())]
    _show_answers(console, estimates)
    table = _make_table(["arm", *(f"{each.title} {each.metric.unit}".rstrip() for each in columns)])
    for arm, line in estimates.items():
        cells = []
        for column in columns:
            found, show = line.get(column.key), column.metric.format
            text = _flagged(column.metric, found.mean) if found else ""
            text += f"±{show(found.spread)}" if found and found.spread is not None else ""
            if found and found.difference is not None:
                text += f" ({show(found.difference.value, sign=True)})"
            cells.append(text)
        table.add_row(arm, *cells)
    console.print(table)
    shown = [
        (each, line[each.key])
        for line in estimates.values()
        for each in columns
        if each.key in line
    ]
    notes = {
        "±: standard deviation over seeds": any(each.spread is not None for _, each in shown),
        "(): to the baseline": any(each.difference is not None for _, each in shown),
        _BELOW_CHANCE: any(each.mean < column.metric.chance for column, each in shown),
    }
    if any(notes.values()):
        console.print("; ".join(note for note, holds in notes.items() if holds), style="dim")


def _show_answers(console: Console, estimates: Estimates) -> None:
    """Print for each arm whether it is better than the baseline in the metrics that matter."""
    table = _make_table(["arm", "metric", "difference", "interval", "verdict"])
    for arm, line in estimates.items():
        for metric in (find_summary_metric(key) for key in _ANSWERS if key in line):
            gap = line[metric.key].difference
            if gap is None or gap.low is None or gap.high is None:
                continue
            ends = " to ".join(metric.show(end, sign=True) for end in (gap.low, gap.high))
            title = f"{metric.title} {metric.metric.unit}".rstrip()
            verdict = metric.verdict(gap) or "not significant"
            table.add_row(arm, title, metric.show(gap.value, sign=True), ends, verdict)
    if table.row_count:
        console.print(
            "Is it better than the baseline? Differences with 95 % intervals:", style="bold"
        )
        console.print(table)
        console.print()


def show_study(study: Study, findings: Findings) -> None:
    """Print the findings of a study: its headline and tables."""
    console = _make_console()
    console.print(f"{study.title} ({study.item or 'beyond the paper'})", style="bold")
    console.print(findings.headline, soft_wrap=True)
    for table in findings.tables:
        console.print()
        console.print(f"{table.title}. {table.note}".rstrip(), style="dim", soft_wrap=True)
        drawn = _make_table(table.columns)
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    console.print()
