"""Writes a report: the page, its figures and tables, each file complete or unchanged."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from killick.errors import OptionError
from killick.report.conditions import OOD, OTHER_SETS, SHIFT
from killick.report.figures import Figure, drawing, to_file
from killick.report.formatting import count_words
from killick.report.intervals import Interval
from killick.report.page import render_page
from killick.report.report_data import ReportData, make_report_data
from killick.report.run_groups import ArmRuns
from killick.report.sections import SECTIONS, Content, Section
from killick.report.statistics import Estimate, mean_title, write_summary
from killick.report.summary_metrics import SummaryMetric, find_summary_metric
from killick.report.tables import TextTable
from killick.results.run_folder import Run
from killick.runtime.atomic_files import write_atomic
from killick.runtime.devices import one_thread

_MOST_NAMED = 4  # arms in a title
# The first of these that both arms have is compared.
_COMPARED = ("corrupted_top1", "cbar_top1", "shift_top1", "clean_top1", "ood_auroc")
_DESCRIBED = ("clean_top1", *_COMPARED[:3], "ood_auroc", "corrupted_smooth_ece")
_IMAGES = {
    "clean": "clean images",
    "corruptions": "corrupted images",
    "cbar": "C-bar's corrupted images",
    SHIFT: "shifted sets",
    OOD: "OOD sets",
}
PAGE, FIGURES, SUMMARY = "report.html", "figures", "summary.csv"


@one_thread()
def write_report(
    runs: Sequence[Run],
    output: Path,
    *,
    baseline: str | None = None,
    title: str | None = None,
    command: str | None = None,
    failed: Sequence[str] = (),
    before: Sequence[Section] = (),
    lead: str | None = None,
    data: ReportData | None = None,
) -> Path:
    """One page about runs side by side, and beside it its figures and tables as SVG and CSV files.

    Args:
        runs: As `killick.results.run_folder.find_runs` finds them.
        output: A folder, which gets `report.html`, `summary.csv` and `figures/`; or the HTML file,
            beside which the others are put.
        baseline: The name of the arm that differences are to; standard training by default.
        title: Of the page.
        command: By which all can be repeated.
        failed: What is missing because it failed or is not finished, a line each.
        before: Sections that come before the table of arms.
        lead: The sentence at the top, instead of the one about the arms.
        data: What `make_report_data` made of the runs, if that was done already.

    Returns:
        The HTML file.
    """
    page = output if output.suffix in (".html", ".htm") else output / PAGE
    data = replace(data or make_report_data(runs, baseline), command=command or "")
    own = sorted((section for _, section in SECTIONS.items()), key=lambda each: each.order)
    above = [*before, *(each for each in own if each.order < 0)]
    with drawing():
        first, after = (
            [(each, content) for each in part if (content := each.make(data)) != Content()]
            for part in (above, [each for each in own if each.order >= 0])
        )
    text = render_page(
        data,
        title=title or _default_title(data),
        headline=headline(data) if lead is None else [lead],
        before=first,
        sections=after,
        failed=failed,
    )
    figures = page.parent / FIGURES
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OptionError(f"cannot write into {page.parent}: {problem.strerror}.") from None
    _remove_old(figures, [*before, *own])
    for _, content in (*first, *after):
        for panel in (panel for figure in content.figures for panel in figure.panels):
            write_atomic(figures / f"{panel.name}.svg", to_file(panel.svg))
        tables: list[Figure | TextTable] = [*content.figures, *content.tables]
        for table in tables:
            write_atomic(figures / f"{table.name}.csv", table.csv)
    write_summary(data.comparison, data.table, page.parent / SUMMARY)
    write_atomic(page, text)
    return page


def _remove_old(folder: Path, sections: Iterable[Section]) -> None:
    """Figures of an earlier report, which may have had other panels; nothing else."""
    keys = "|".join(re.escape(section.key) for section in sections)
    ours = re.compile(rf"({keys})(-[a-z0-9-]+)?\.(svg|csv)")
    for path in folder.iterdir():
        if ours.fullmatch(path.name):
            path.unlink()


def _default_title(data: ReportData) -> str:
    baseline, where = data.comparison.baseline, data.comparison.data
    if baseline is None:
        return f"{data.main_arm.name} on {where}"
    others = [arm.name for arm in _others(data)]
    names = ", ".join(others[:-1]) + f" and {others[-1]}" if len(others) > 1 else others[0]
    if len(others) > _MOST_NAMED:
        names = f"{len(others)} arms"
    verb = "Is" if len(others) == 1 else "Are"
    return f"{verb} {names} better than {baseline.name} on {where}?"


def _others(data: ReportData) -> list[ArmRuns]:
    return [arm for arm in data.comparison.arms if arm is not data.comparison.baseline]


def headline(data: ReportData) -> list[str]:
    """A sentence for each arm, or of many for the main one: is it better than the baseline?

    Each has the metric that matters most; one more has the main arm's on given OOD sets.
    """
    main, others = data.main_arm.name, _others(data)
    if data.comparison.baseline is None:
        ours = data.table[main]
        words = [_spell(data, key, ours[key]) for key in _DESCRIBED if key in ours]
        seeds = count_words(len(data.main_arm.runs), "seed")
        return [f"On {data.comparison.data}, {main} has {', '.join(words)} ({seeds})."]
    names = [arm.name for arm in others] if len(others) <= _MOST_NAMED else [main]
    shared = {
        name: [key for key in _COMPARED if _difference(data, name, key) is not None]
        for name in names
    }
    lines = [_compare(data, name, keys[0]) for name, keys in shared.items() if keys]
    if "ood_auroc" in shared[main][1:]:
        lines.append(_compare(data, main, "ood_auroc"))
    return lines or [f"{main} and {data.comparison.baseline.name} have no metric in common."]


def _difference(data: ReportData, name: str, key: str) -> Interval | None:
    estimate = data.table[name].get(key)
    return None if estimate is None else estimate.difference


def _compare(data: ReportData, name: str, key: str) -> str:
    """A metric of an arm and of the baseline, over the seeds that both have."""
    baseline, gap = data.comparison.baseline, _difference(data, name, key)
    assert baseline is not None
    assert gap is not None
    ours, base, metric = (
        data.table[name][key],
        data.table[baseline.name][key],
        find_summary_metric(key),
    )
    seeds = [seed for seed in ours.values if seed in base.values]
    mine, other = (
        replace(each, values={seed: each.values[seed] for seed in seeds}) for each in (ours, base)
    )
    verdict, interval = "", "no interval"
    if gap.low is not None and gap.high is not None:
        low, high = (metric.show(end, sign=True) for end in (gap.low, gap.high))
        better = metric.verdict(gap)
        verdict = f" is {better}" if better else " shows no significant difference"
        interval = f"95 % interval {low} to {high}"
    where = _IMAGES[metric.suite]
    if metric.suite in OTHER_SETS:
        where += f" ({mean_title(data.comparison, metric.suite)})"
    return (
        f"{name}{verdict}: {_value(metric, mine)} {metric.metric.title} on {where},"
        f" {baseline.name} {_value(metric, other)}"
        f" ({metric.show(gap.value, sign=True)} points, {interval}, {count_words(len(seeds), 'seed')})."
    )


def _spell(data: ReportData, key: str, estimate: Estimate) -> str:
    """A value with its metric: "83.1 ± 0.4 % corrupted accuracy (mean of 19 corruptions)"."""
    metric = find_summary_metric(key)
    mean = "" if metric.suite == "clean" else mean_title(data.comparison, metric.suite)
    return f"{_value(metric, estimate)} {metric.title}" + (f" ({mean})" if mean else "")


def _value(metric: SummaryMetric, estimate: Estimate) -> str:
    low = " (below chance)" if estimate.mean < metric.metric.chance else ""
    return f"{estimate.show(metric)} {metric.metric.unit}".rstrip() + low
