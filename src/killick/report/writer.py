"""Writes a report: the page, its figures and tables, each file complete or unchanged."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from killick.errors import OptionError
from killick.report.comparison import Comparison
from killick.report.figures import Figure, to_file
from killick.report.formatting import capitalize, count_words, enumerate_words, signed, signless
from killick.report.page import render_page
from killick.report.report_data import ReportData, make_report_data
from killick.report.sections import SECTIONS, Content, Section
from killick.report.statistics import Estimate, mean_title, restrict, write_summary
from killick.report.summary_metrics import SummaryMetric, find_summary_metric
from killick.results.run_folder import Run
from killick.runtime.atomic_files import write_atomic

_MOST_NAMED = 4  # arms in a title
# The first of these that both arms have is compared.
_COMPARED = ("corrupted_top1", "cbar_top1", "clean_top1", "ood_auroc")
_DESCRIBED = ("clean_top1", "corrupted_top1", "cbar_top1", "ood_auroc", "corrupted_smooth_ece")
PAGE, FIGURES, SUMMARY = "report.html", "figures", "summary.csv"


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
    first, after = ([(each, each.make(data)) for each in part] for part in (before, own))
    text = render_page(
        data,
        title=title or _default_title(data),
        headline=headline(data) if lead is None else lead,
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
        _write_files(content, figures)
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


def _write_files(content: Content, folder: Path) -> None:
    figures = [figure for figure in content.figures if isinstance(figure, Figure)]
    for figure in figures:
        for panel in figure.panels:
            write_atomic(folder / f"{panel.name}.svg", to_file(panel.svg))
        write_atomic(folder / f"{figure.name}.csv", figure.csv)
    for table in content.tables:
        write_atomic(folder / f"{table.name}.csv", table.csv)


def _default_title(data: ReportData) -> str:
    arms, baseline = data.comparison.arms, data.comparison.baseline
    if baseline is None:
        return f"{capitalize(arms[0].name)} on {data.comparison.data}"
    others = [arm.name for arm in arms if arm is not baseline]
    if len(others) > _MOST_NAMED:
        return f"{len(arms)} arms on {data.comparison.data}"
    names = capitalize(enumerate_words(others))
    return f"{names} against {baseline.name} on {data.comparison.data}"


def headline(data: ReportData) -> str:
    """The main arm against the baseline in the metric that matters most; of one arm its numbers."""
    comparison, arm = data.comparison, data.main_arm
    ours, name = data.table[arm.name], capitalize(arm.name)
    if comparison.baseline is None:
        metrics = [find_summary_metric(key) for key in _DESCRIBED if key in ours]
        words = [f"{_value(ours[m.key], m)} {_title(comparison, m)}" for m in metrics]
        return f"{name}: {', '.join(words) or 'no numbers'} ({count_words(len(arm.runs), 'seed')})."
    theirs = data.table[comparison.baseline.name]
    for key in _COMPARED:
        if key in ours and key in theirs and (gap := ours[key].difference) is not None:
            metric = find_summary_metric(key)
            seeds = [seed for seed in ours[key].values if seed in theirs[key].values]
            mine, base = (_value(restrict(line[key], seeds), metric) for line in (ours, theirs))
            points = " points" if metric.unit == "%" else ""
            change = f"{signed(metric.factor * gap.value, metric.digits)}{points}"
            if gap.low is not None and gap.high is not None:
                ends = (signed(metric.factor * end, metric.digits) for end in (gap.low, gap.high))
                change += f", 95 % interval {' to '.join(ends)}"
                change += "" if gap.significant else ", not significant"
            else:
                change += ", no interval"
            return (
                f"{name} has {mine} {_title(comparison, metric)}, {comparison.baseline.name}"
                f" {base} ({change}; {count_words(len(seeds), 'seed')})."
            )
    return f"{name} and {comparison.baseline.name} have no metric in common."


def _title(comparison: Comparison, metric: SummaryMetric) -> str:
    mean = mean_title(comparison) if metric.suite == "corruptions" else ""
    return f"{metric.title} ({mean})" if mean else metric.title


def _value(estimate: Estimate, metric: SummaryMetric) -> str:
    """Mean and spread: "83.1 ± 0.4 %"."""
    text = signless(metric.factor * estimate.mean, metric.digits)
    if estimate.spread is not None:
        text += f" ± {signless(metric.factor * estimate.spread, metric.digits)}"
    return f"{text} {metric.unit}".rstrip()
