"""Writes a report: the page, its figures and tables, each file complete or unchanged."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from killick.errors import OptionError
from killick.report.figures import Figure, to_file
from killick.report.formatting import capitalize, enumerate_words
from killick.report.headline import headline
from killick.report.page import render_page
from killick.report.report_data import ReportData, make_report_data
from killick.report.sections import SECTIONS, Content, Section
from killick.report.statistics import write_summary
from killick.results.run_folder import Run
from killick.runtime.atomic_files import write_atomic

_MOST_NAMED = 4  # arms in a title
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
