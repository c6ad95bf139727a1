"""Shifted sets one by one: accuracy and calibration of each arm."""

from killick.report.conditions import SHIFT
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.statistics import shift_by_set, show_arms
from killick.report.summary_metrics import find_summary_metric
from killick.report.tables import TextTable

KEY = "shifted"
_METRICS = ("top1", "smooth_ece", "nll")


def make(data: ReportData) -> Content:
    """A table for each metric: sets down, arms across. Nothing without shifted sets."""
    arms = [arm.name for arm in data.comparison.arms]
    counts = _counts(data)
    tables = []
    for key in _METRICS:
        metric = find_summary_metric(f"{SHIFT}_{key}")
        rows = tuple(
            (name, counts[name], *show_arms(metric, line, arms))
            for name, line in shift_by_set(data.comparison, key).items()
        )
        if rows:
            unit = f", {metric.metric.unit}" if metric.metric.unit else ""
            title = f"{metric.metric.title}{unit}"
            heads = ("set", "images", *arms)
            tables.append(
                TextTable(f"{KEY}-{key.replace('_', '-')}", title, heads, rows, _note(data))
            )
    return Content(tables=tuple(tables))


def _note(data: ReportData) -> str:
    baseline = data.comparison.baseline
    note = "Only the logits of a set's own classes compete."
    if baseline is None:
        return note
    return f"{note} Mean ± standard deviation over seeds; difference to {baseline.name} [95 %]."


def _counts(data: ReportData) -> dict[str, str]:
    return {
        str(row["set"]): f"{int(row['count']):,}"
        for run in data.comparison.runs.values()
        for row in run.rows
        if row["suite"] == SHIFT
    }


SECTIONS.register(KEY, Section(KEY, "Shifted sets", 25, make))
