"""Tables of occlusion, attacks, conformal sets and multiplicity, where they were evaluated."""

import statistics

from killick.metrics import METRICS
from killick.report.conditions import FROM_ONE
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.tables import TextTable
from killick.results.rows import Row

KEY = "robustness"
_TITLES = {
    "occlusion": "Accuracy under occlusion, %",
    "adversarial": "Accuracy under attack, %",
    "conformal": "Conformal sets",
    "multiplicity": "Images on which members disagree, %",
}
Lines = dict[str, dict[str, list[Row]]]  # rows by line and column of a table


def make(data: ReportData) -> Content:
    """A table for each suite, means over seeds; from the first reference, of members over all."""
    found: dict[str, Lines] = {name: {} for name in _TITLES}
    for arm in data.comparison.arms:
        for row in (row for run in arm.runs for row in run.rows):
            single = row["inference"] in FROM_ONE or row["suite"] == "multiplicity"
            if single and (place := _place(row)) is not None:
                name, where, column = place
                line = found[name].setdefault(f"{arm.name}, {where}" if where else arm.name, {})
                line.setdefault(column, []).append(row)
    return Content(tables=tuple(_table(name, lines) for name, lines in found.items() if lines))


def _place(row: Row) -> tuple[str, str, str] | None:
    """The table, the set and the column that a row belongs to."""
    suite, metric, severity = row["suite"], str(row["metric"]), row["severity"]
    if suite == "occlusion" and metric == "top1":
        return suite, "", f"{severity} % covered"
    if suite == "adversarial" and metric == "top1":
        return suite, "", f"{str(row['corruption']).upper()} {severity}/255"
    if suite == "multiplicity":
        return suite, "", METRICS.find(metric).title
    if metric.startswith("conformal_") and severity in ("", "all"):  # whole sets, and means
        where = f"{suite}, {row['corruption']}" if row["mean_of"] else str(row["set"])
        return "conformal", "clean" if suite == "clean" else where, METRICS.find(metric).column
    return None


def _table(name: str, lines: Lines) -> TextTable:
    columns = tuple(dict.fromkeys(column for line in lines.values() for column in line))
    rows = tuple(
        (arm, *(_show(line.get(column, [])) for column in columns)) for arm, line in lines.items()
    )
    several = any(len(each) > 1 for line in lines.values() for each in line.values())
    note = "±: standard deviation over seeds." if several else ""
    return TextTable(f"{KEY}-{name}", _TITLES[name], ("arm", *columns), rows, note)


def _show(rows: list[Row]) -> str:
    """The mean of some rows, and their spread."""
    if not rows:
        return ""
    metric, values = METRICS.find(str(rows[0]["metric"])), [float(row["value"]) for row in rows]
    spread = f" ± {metric.format(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{metric.format(statistics.fmean(values))}{spread}"


SECTIONS.register(KEY, Section(KEY, "Occlusion, attacks, conformal sets, multiplicity", 45, make))
