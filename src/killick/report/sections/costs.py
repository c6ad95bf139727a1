"""What each arm gains over the baseline, against what it costs in training and inference."""

import statistics

from killick.report import figures
from killick.report.conditions import FROM_ONE, MARGINAL
from killick.report.figures import Figure, Panel
from killick.report.run_groups import ArmRuns, seed_of
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.summary_metrics import find_summary_metric
from killick.report.tables import TextTable
from killick.results.run_folder import Run

KEY = "costs"
_METRICS = ("corrupted_top1", "corrupted_smooth_ece")
_NOTE = (
    "Passes through the network, counted, relative to one standard network that is trained for as many"
    " epochs as the baseline; with those of a network that an arm starts from. Step time: measured,"
    " relative to the baseline on the same device."
)


def make(data: ReportData) -> Content:
    """A table of costs, and gains against them; nothing where all arms cost the same."""
    arms, baseline = data.comparison.arms, data.comparison.baseline
    if baseline is None:
        return Content()
    found = {arm.name: count_costs(arm, baseline) for arm in arms}
    axes = [
        kind
        for kind in ("training", "inference")
        if len({own[kind] for own in found.values() if kind in own}) > 1
    ]
    if not axes:
        return Content()
    columns = list(dict.fromkeys(kind for costs in found.values() for kind in costs))
    rows = tuple(
        (arm.name, *(f"{found[arm.name].get(kind, 1):g}" for kind in columns), _time(arm, baseline))
        for arm in arms
    )
    table = TextTable(f"{KEY}-table", "Costs", ("arm", *columns, "step time"), rows, _NOTE)
    panels, records = [], []
    for key in _METRICS:
        for kind in axes if any(key in line for line in data.table.values()) else ():
            panel, points = _draw(data, key, kind, found)
            panels.append(panel)
            records += points
    if not panels:
        return Content(tables=(table,))
    heads = ("metric", "cost", "arm", "passes", "gain", "low", "high")
    return Content((Figure(KEY, "", tuple(panels), heads, tuple(records)),), (table,))


def _draw(
    data: ReportData, key: str, kind: str, costs: dict[str, dict[str, float]]
) -> tuple[Panel, list[tuple[object, ...]]]:
    """A point for each arm: its difference to the baseline at its cost, with the interval."""
    metric, records = find_summary_metric(key), list[tuple[object, ...]]()
    unit = "points" if metric.metric.unit == "%" else "lower is better"
    canvas, axes = figures.new_chart(metric.title, f"difference to the baseline, {unit}")
    axes.axhline(0, color=figures.MUTED, linewidth=1)
    known = [own[kind] for own in costs.values() if kind in own]
    beside = 0.03 * (max(known) - min(known))  # arms of the same cost are drawn side by side
    for arm, line in data.table.items():
        if key not in line or kind not in costs[arm]:
            continue
        gap, cost, factor = line[key].difference, costs[arm][kind], metric.metric.factor
        value = 0.0 if gap is None else gap.value * factor
        below, above = (0.0, 0.0) if gap is None else (end * factor for end in gap.reach)
        style = data.styles[arm].line | {"linestyle": "none"}
        place = cost + beside * sum(record[3] == cost for record in records)
        axes.errorbar([place], [value], [[below], [above]], label=arm, elinewidth=1, **style)
        records.append((key, kind, arm, cost, value, value - below, value + above))
    axes.set_xlabel(f"passes of {kind}, relative to standard")
    axes.margins(x=0.1)
    name = f"{KEY}-{kind}-{key.replace('_', '-')}"
    return figures.finish(canvas, name, f"{metric.title} against {kind} cost", unit), records


def count_costs(arm: ArmRuns, baseline: ArmRuns) -> dict[str, float]:
    """The costs of an arm, where its rows have them; of training, for the epochs of the baseline."""
    found: dict[str, float] = {}
    for row in arm.runs[0].rows:
        single = row["inference"] in FROM_ONE
        for kind, column, wanted in (
            ("training", "training_cost", single),
            ("inference", "inference_cost", single),
            ("mean over references", "inference_cost", row["inference"] == MARGINAL),
        ):
            if wanted and row[column] != "":
                found.setdefault(kind, float(row[column]))
    epochs = [each.runs[0].rows[0]["epochs"] for each in (arm, baseline)]
    if "training" in found and all(epochs):
        found["training"] *= float(epochs[0]) / float(epochs[1])
    return found


def _time(arm: ArmRuns, baseline: ArmRuns) -> str:
    """The time of a training step relative to the baseline's, mean over the seeds of both."""
    base = {seed_of(run): run for run in baseline.runs}
    ratios = []
    for run in arm.runs:
        other = base.get(seed_of(run))
        mine, theirs = _speed(run), None if other is None else _speed(other)
        if mine and theirs and other is not None and _place(run) == _place(other):
            ratios.append(theirs / mine)
    return f"{statistics.fmean(ratios):.2f}" if ratios else "–"


def _speed(run: Run) -> float | None:
    """Images per second in training, the median over its log."""
    found = [each.get("images_per_second") for each in run.metrics if each.get("kind") == "train"]
    speeds = [speed for speed in found if isinstance(speed, int | float) and speed > 0]
    return statistics.median(speeds) if speeds else None


def _place(run: Run) -> tuple[object, ...]:
    return tuple(run.environment.get(name) for name in ("device", "system", "threads"))


SECTIONS.register(KEY, Section(KEY, "Gain against cost", 50, make))
