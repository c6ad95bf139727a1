"""The numbers of an evaluation that a person wants to see first."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from killick.report.tables import TextTable
    from killick.studies.findings import Findings
    from killick.studies.study import Study

Row = dict[str, Any]
Rows = list[Row]
Column = tuple[str, str, str, float]  # title, metric, scaling, factor

_SETS: tuple[Column, ...] = (
    ("top-1 %", "top1", "", 100),
    ("NLL", "nll", "", 1),
    ("ECE", "ece", "", 1),
    ("smooth ECE", "smooth_ece", "", 1),
    ("scaled", "smooth_ece", "temperature", 1),
)
# Columns of a comparison: title, measure of the report.
_COMPARED = {
    "clean %": "clean_top1",
    "corrupted %": "corrupted_top1",
    "smooth ECE, corrupted": "corrupted_smooth_ece",
    "OOD AUROC %": "ood_auroc",
}


def show_summary(rows: Rows, console: Console | None = None) -> None:
    """Print a table for each kind of suite."""
    console = console or Console(highlight=False, markup=False)
    tables = [_sets(rows), _corruptions(rows), _severities(rows), _detection(rows)]
    for table in tables:
        if table is not None:
            console.print(table)
            console.print()
    for row in rows:
        if row["metric"] == "mce" and row["inference"] == "single":
            console.print(f"mCE {100 * row['value']:.1f} % ({row['estimator']})", soft_wrap=True)
    if any(row["std"] != "" for row in rows):
        console.print("±: standard deviation over references", style="dim")


def _sets(rows: Rows) -> Table | None:
    """Accuracy and calibration of each set, corrupted ones in the mean."""
    shown = [
        row
        for row in rows
        if (row["suite"] in ("clean", "shift") or _is_mean(row))
        and row["severity"] in ("", "all")
        and row["reference"] == ""
    ]
    found = {row["metric"] + row["scaling"] for row in shown}
    columns = [column for column in _SETS if column[1] + column[2] in found]
    counts = {_title(row): int(row["count"]) for row in shown}

    def title(row: Row) -> str:
        return f"{_title(row)}, {counts[_title(row)]:,}"

    return _table("set, images", shown, title, columns, lambda row, column: True)


def _corruptions(rows: Rows) -> Table | None:
    """Accuracy for each corruption, from the first reference."""
    shown = [
        row
        for row in rows
        if row["metric"] == "top1"
        and row["inference"] == "single"
        and row["suite"] in ("corruptions", "cbar")
        and not _is_mean(row)
    ]
    severities = sorted({row["severity"] for row in shown})
    columns: list[Column] = [(str(severity), "top1", "", 100) for severity in severities]

    def belongs(row: Row, column: str) -> bool:
        return str(row["severity"]) == column

    return _table("top-1 %", shown, lambda row: str(row["corruption"]), columns, belongs)


def _severities(rows: Rows) -> Table | None:
    """Accuracy by severity."""
    shown = [row for row in rows if row["metric"] == "top1" and _is_mean(row)]
    shown = [row for row in shown if row["severity"] != "all"]
    severities = sorted({row["severity"] for row in shown})
    columns: list[Column] = [(str(severity), "top1", "", 100) for severity in severities]
    return _table(
        "top-1 %, severity",
        shown,
        _title,
        columns,
        lambda row, column: str(row["severity"]) == column,
    )


def _detection(rows: Rows) -> Table | None:
    """AUROC of each score on each set of other pictures."""
    shown = [row for row in rows if row["metric"] == "auroc"]
    names = list(dict.fromkeys(row["score"] for row in shown))
    short = {"mutual_information": "mutual inf.", "residual_distance": "residual"}
    titles = {name: short.get(name, name.replace("_", " ")) for name in names}
    columns: list[Column] = [(title, "auroc", "", 100) for title in titles.values()]
    return _table(
        "AUROC %",
        shown,
        lambda row: str(row["set"]),
        columns,
        lambda row, column: titles[row["score"]] == column,
    )


def _table(
    first: str,
    rows: Rows,
    title: Callable[[Row], str],
    columns: list[Column],
    belongs: Callable[[Row, str], bool],
) -> Table | None:
    """A line for each set and inference."""
    if not rows:
        return None
    several = any(row["inference"] == "marginal" for row in rows)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    if several:
        table.add_column("refs", justify="right")
    for name, *_ in columns:
        table.add_column(name, justify="right")
    for place in dict.fromkeys((title(row), row["inference"], row["k"]) for row in rows):
        mine = [row for row in rows if (title(row), row["inference"], row["k"]) == place]
        cells = [
            _cell([row for row in mine if belongs(row, name)], metric, scaling, factor)
            for name, metric, scaling, factor in columns
        ]
        table.add_row(place[0], *([str(place[2])] if several else []), *cells)
    return table


def _is_mean(row: Row) -> bool:
    return str(row["corruption"]).startswith("mean of")


def _title(row: Row) -> str:
    if not row["corruption"]:
        return str(row["set"])
    which = str(row["corruption"]).removeprefix("mean of ")
    return f"{'C-bar' if row['suite'] == 'cbar' else 'corrupted'} ({which})"


def _cell(rows: Rows, metric: str, scaling: str, factor: float) -> str:
    row = next((r for r in rows if r["metric"] == metric and r["scaling"] == scaling), None)
    if row is None:
        return ""
    digits = 1 if factor == 100 else 3
    text = f"{factor * row['value']:.{digits}f}"
    if row["std"] != "":
        text += f"±{factor * row['std']:.{digits}f}"
    return text


def show_comparison(folder: Path, console: Console | None = None) -> None:
    """Print the summary that a report leaves beside itself: an arm a line."""
    from killick.report.summary_metrics import summary_metrics

    console = console or Console(highlight=False, markup=False)
    with open(folder / "summary.csv", encoding="utf-8", newline="") as file:
        found = {(row["arm"], row["measure"]): row for row in csv.DictReader(file)}
    measures = {measure.key: measure for measure in summary_metrics()}
    shown = [
        (title, measures[key])
        for title, key in _COMPARED.items()
        if any(measure == key for _, measure in found)
    ]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("arm")
    for title, _ in shown:
        table.add_column(title, justify="right")
    for arm in dict.fromkeys(arm for arm, _ in found):
        cells = []
        for _, measure in shown:
            row = found.get((arm, measure.key))
            text = ""
            if row is not None:
                text = f"{measure.factor * float(row['mean']):.{measure.digits}f}"
                if row["spread"]:
                    text += f"±{measure.factor * float(row['spread']):.{measure.digits}f}"
                if row["difference"]:
                    text += f" ({measure.factor * float(row['difference']):+.{measure.digits}f})"
            cells.append(text)
        table.add_row(arm, *cells)
    console.print(table)
    rows = found.values()
    notes = [
        note
        for note, there in (
            ("±: standard deviation over seeds", any(row["spread"] for row in rows)),
            ("(): to the baseline", any(row["difference"] for row in rows)),
        )
        if there
    ]
    if notes:
        console.print("; ".join(notes), style="dim")


def show_study(study: "Study", findings: "Findings", console: Console | None = None) -> None:
    """Print the findings of a study: its headline, tables and checks."""
    console = console or Console(highlight=False, markup=False)
    console.print(f"{study.title} ({study.item or 'beyond the paper'})", style="bold")
    console.print(findings.headline, soft_wrap=True)
    for table in findings.tables:
        console.print()
        console.print(f"{table.title}. {table.note}".rstrip(), style="dim", soft_wrap=True)
        _show_table(table, console)
    console.print()
    for check in findings.checks:
        console.print(f"{check.what}: {check.verdict} ({check.found})", soft_wrap=True)
    for note in findings.notes:
        console.print(note, style="dim", soft_wrap=True)


def _show_table(table: "TextTable", console: Console) -> None:
    """A line for each row; columns as lines where that is narrower and the terminal is narrow."""
    columns, rows = table.columns, table.rows
    if _width(columns, rows) > console.width:
        turned = list(zip(columns, *rows, strict=True))
        if _width(turned[0], turned[1:]) < _width(columns, rows):
            columns, rows = turned[0], tuple(turned[1:])
    width = _width(columns, rows)
    if console.is_terminal and width > console.width:
        note = f"it takes {width} columns, and here are {console.width}: see the report"
        console.print(note, style="dim")
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        drawn.add_column(column, justify="right" if number else "left")
    for row in rows:
        drawn.add_row(*row)
    if width > console.width:  # not on a terminal: as wide as it is
        console = Console(file=console.file, width=width, highlight=False, markup=False)
    console.print(drawn)


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Of a table whose heads may be broken between words."""
    heads = [max(map(len, head.split()), default=0) for head in columns]
    cells = [max(map(len, column)) for column in zip(*rows, strict=True)] or heads
    return sum(max(pair) + 2 for pair in zip(heads, cells, strict=True))
