"""Writing a report: the page, its figures and tables, each file whole or as it was."""

import re
from collections.abc import Sequence
from pathlib import Path

from killick.errors import OptionError
from killick.report.comparison import make_comparison
from killick.report.examples import choose_examples
from killick.report.figures import Figure, choose_styles, to_file
from killick.report.formatting import capitalise, enumerate_words
from killick.report.headline import choose_subject, headline
from killick.report.heatmap import draw_heatmap
from killick.report.ood_detection import draw_energies, draw_roc
from killick.report.page import Section, render_page
from killick.report.provenance import find_provenance
from killick.report.reliability import draw_reliability
from killick.report.scene import Scene
from killick.report.severity import draw_severity
from killick.report.statistics import summarise, write_summary
from killick.report.training_curves import draw_curves
from killick.report.uncertainty import draw_uncertainty
from killick.results.run_folder import Run
from killick.runtime.atomic_files import write_atomic

_OURS = re.compile(
    r"(severity|corruptions|reliability|energy|roc|uncertainty|training|study)(-[a-z0-9-]+)?"
    r"\.(svg|csv)"
)
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
    scene: Scene | None = None,
) -> Path:
    """One page about runs side by side, and beside it what it shows as SVG and CSV files.

    Args:
        runs: As `killick.results.run_folder.find_runs` finds them.
        output: A folder, which gets `report.html`, `summary.csv` and `figures/`; or the HTML file,
            beside which the others are put.
        baseline: The name of the arm that differences are to; standard training by default.
        title: Of the page.
        command: By which all can be repeated.
        failed: What is missing because it failed or is not finished, a line each.
        before: Sections that come before the arms; names of their figures and tables begin with
            "study".
        lead: The sentences at the top, instead of those about the arms.
        scene: That `make_scene` made of the runs, where it did already.

    Returns:
        The HTML file.
    """
    page = output if output.suffix in (".html", ".htm") else output / PAGE
    scene = scene or make_scene(runs, baseline)
    sections = draw_sections(scene)
    text = render_page(
        scene,
        title=title or _default_title(scene),
        headline=headline(scene.comparison, scene.table) if lead is None else lead,
        sections=sections,
        examples=choose_examples(scene),
        provenance=find_provenance(scene.comparison, command),
        failed=failed,
        before=before,
    )
    figures = page.parent / FIGURES
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OptionError(
            f"expected a folder to write the report to, found {page.parent}: {problem.strerror}."
        ) from None
    shown = [*before, *sections]
    drawn = [f for section in shown for f in section.figures if isinstance(f, Figure)]
    _remove_old(figures)
    for figure in drawn:
        _write_figure(figure, figures)
    for table in (table for section in shown for table in section.tables):
        write_atomic(figures / f"{table.name}.csv", table.csv)
    write_summary(scene.comparison, scene.table, page.parent / SUMMARY)
    write_atomic(page, text)
    return page


def make_scene(runs: Sequence[Run], baseline: str | None = None) -> Scene:
    """The runs as arms, with their numbers and styles."""
    comparison = make_comparison(runs, baseline)
    styles = choose_styles(comparison)
    subject = None if comparison.baseline is None else choose_subject(comparison)
    return Scene(comparison, summarise(comparison), styles, subject)


def draw_sections(scene: Scene) -> tuple[Section, ...]:
    """All figures, in the order of the page."""
    return (
        Section("severity", "Accuracy against severity", (draw_severity(scene),)),
        Section("corruptions", "Corruption by corruption", (draw_heatmap(scene),)),
        Section("reliability", "Does confidence mean what it says?", (draw_reliability(scene),)),
        Section("detection", "Telling other pictures", (draw_energies(scene), draw_roc(scene))),
        Section("uncertainty", "Does spread tell of errors?", (draw_uncertainty(scene),)),
        Section("training", "Training", (draw_curves(scene),)),
    )


def _remove_old(folder: Path) -> None:
    """Figures of an earlier report, which may have had other panels; nothing else."""
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink()


def _write_figure(figure: Figure, folder: Path) -> None:
    for panel in figure.panels:
        write_atomic(folder / f"{panel.name}.svg", to_file(panel.svg))
    write_atomic(folder / f"{figure.name}.csv", figure.csv)


def _default_title(scene: Scene) -> str:
    arms = scene.comparison.arms
    if len(arms) == 1:
        return f"{capitalise(arms[0].name)} on {scene.comparison.data}"
    baseline = scene.comparison.baseline
    assert baseline is not None
    others = [arm.name for arm in arms if arm is not baseline]
    if len(others) > _MOST_NAMED:
        return f"{len(arms)} arms on {scene.comparison.data}"
    names = capitalise(enumerate_words(others))
    return f"{names} against {baseline.name} on {scene.comparison.data}"
