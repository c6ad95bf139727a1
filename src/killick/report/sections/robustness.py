"""Tables of occlusion, attacks, conformal sets and multiplicity, where they were evaluated."""

import statistics
from collections import defaultdict
from collections.abc import Callable

from killick.metrics import METRICS
from killick.report.conditions import FROM_ONE
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.tables import TextTable
from killick.results.rows import Row

KEY = "robustness"
Place = Callable[[Row], tuple[str, str] | None]  # the set and the column that a row belongs to


def make(data: ReportData) -> Content:
    """A table for each suite, a line for each arm; nothing if there are none."""
    tables = (
        _table(data, "occlusion", "Accuracy under occlusion, %", _place_occluded),
        _table(data, "adversarial", "Accuracy under attack, %", _place_attacked),
        _table(data, "conformal", "Conformal sets", _place_conformal),
        _table(data, "multiplicity", "Images on which members disagree, %", _place_multiplicity),
    )
    return Content(tables=tuple(table for table in tables if table is not None))


def _table(data: ReportData, name: str, title: str, place: Place) -> TextTable | None:
    """Means over seeds, from the first reference; of members, over all references."""
    cells: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for arm in data.comparison.arms:
        for row in (row for run in arm.runs for row in run.rows):
            single = row["inference"] in FROM_ONE or row["suite"] == "multiplicity"
            if single and (found := place(row)) is not None:
                cells[arm.name, found[0]][found[1]].append(row)
    if not cells:
        return None
    columns = tuple(dict.fromkeys(column for line in cells.values() for column in line))
    rows = tuple(
        (f"{arm}, {where}" if where else arm, *(_show(line.get(column, [])) for column in columns))
        for (arm, where), line in cells.items()
    )
    several = any(len(each) > 1 for line in cells.values() for each in line.values())
    note = "±: standard deviation over seeds." if several else ""
    return TextTable(f"{KEY}-{name}", title, ("arm", *columns), rows, note)


def _show(rows: list[Row]) -> str:
    """The mean of some rows, and their spread."""
    if not rows:
        return ""
    metric, values = METRICS.find(str(rows[0]["metric"])), [float(row["value"]) for row in rows]
    spread = f" ± {metric.format(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{metric.format(statistics.fmean(values))}{spread}"


def _place_occluded(row: Row) -> tuple[str, str] | None:
    if (row["suite"], row["metric"]) != ("occlusion", "top1"):
        return None
    return "", f"{row['severity']} % covered"


def _place_attacked(row: Row) -> tuple[str, str] | None:
    if (row["suite"], row["metric"]) != ("adversarial", "top1"):
        return None
    return "", f"{str(row['corruption']).upper()} {row['severity']}/255"


def _place_conformal(row: Row) -> tuple[str, str] | None:
    """Of whole sets: clean, shifted, and the mean over corruptions."""
    if not str(row["metric"]).startswith("conformal_") or row["severity"] not in ("", "all"):
        return None
    name = f"{row['suite']}, {row['corruption']}" if row["mean_of"] else str(row["set"])
    return "clean" if row["suite"] == "clean" else name, METRICS.find(str(row["metric"])).column


def _place_multiplicity(row: Row) -> tuple[str, str] | None:
    if row["suite"] != "multiplicity":
        return None
    return "", METRICS.find(str(row["metric"])).title


SECTIONS.register(KEY, Section(KEY, "Occlusion, attacks, conformal sets, multiplicity", 45, make))
