"""The page: all that is shown, put into one HTML file that needs nothing else."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from killick import __version__
from killick.report.comparison import Arm, Comparison
from killick.report.examples import Examples
from killick.report.figures import COLOURS, Figure, Missing, dark_rules, to_page, variables
from killick.report.formatting import enumerate_words, signed, signless
from killick.report.provenance import Provenance
from killick.report.scene import Scene
from killick.report.statistics import Measure, Number, measures_of
from killick.report.tables import TextTable

_FIRST = (
    *("clean_top1", "corrupted_top1", "severity5_top1", "cbar_top1", "clean_smooth_ece"),
    *("corrupted_smooth_ece", "ood_auroc"),
)
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: By which it is linked to.
        title: Its heading.
        figures: In order; a `Missing` is shown as the line that it is.
        says: Before the figures.
        tables: After them.
        notes: Last.
    """

    key: str
    title: str
    figures: tuple[Figure | Missing, ...]
    says: str = ""
    tables: tuple[TextTable, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableCell:
    """A number of the table of arms, as text.

    Attributes:
        order: By which the column is sorted; empty if there is no number.
        mean: With its unit left out.
        spread: Over seeds, or empty.
        best: Whether no arm is better.
        difference: To the baseline, or empty.
        interval: Of the difference, or empty.
        verdict: "better" or "worse" where the interval leaves out 0, else empty.
        how: How the interval was found.
        values: Of each seed.
    """

    order: str = ""
    mean: str = ""
    spread: str = ""
    best: bool = False
    difference: str = ""
    interval: str = ""
    verdict: str = ""
    how: str = ""
    values: str = ""


@dataclass(frozen=True)
class ArmTable:
    """A table of arms by measures."""

    title: str
    measures: tuple[Measure, ...]
    rows: tuple[tuple[Arm, tuple[TableCell, ...]], ...]


def make_tables(scene: Scene) -> tuple[ArmTable, ...]:
    """First what matters most, then what is left, then the means over references."""
    measures = [
        measure
        for measure in measures_of(scene.comparison)
        if any(measure.key in line for line in scene.table.values())
    ]
    single = [measure for measure in measures if measure.inference == "single"]
    parts = {
        "": [measure for measure in single if measure.key in _FIRST],
        "More measures": [measure for measure in single if measure.key not in _FIRST],
        "Asked from several references, in the mean": [m for m in measures if m not in single],
    }
    return tuple(_make_table(scene, title, part) for title, part in parts.items() if part)


def _make_table(scene: Scene, title: str, measures: Sequence[Measure]) -> ArmTable:
    best = {measure.key: _best(scene, measure) for measure in measures}
    rows = [
        (
            arm,
            tuple(
                _make_cell(measure, scene.table[arm.name].get(measure.key), best[measure.key])
                for measure in measures
            ),
        )
        for arm in scene.comparison.arms
    ]
    return ArmTable(title, tuple(measures), tuple(rows))


def _best(scene: Scene, measure: Measure) -> float | None:
    """The best mean of several arms."""
    means = [line[measure.key].mean for line in scene.table.values() if measure.key in line]
    if len(means) < 2:
        return None
    return max(means) if measure.higher_is_better else min(means)


def _make_cell(measure: Measure, number: Number | None, best: float | None) -> TableCell:
    if number is None:
        return TableCell()
    factor, digits = measure.factor, measure.digits
    found = number.difference
    cell = TableCell(
        order=repr(number.mean),
        mean=signless(factor * number.mean, digits),
        spread="" if number.spread is None else signless(factor * number.spread, digits),
        best=number.mean == best,
        values=", ".join(
            f"seed {seed}: {signless(factor * value, digits)}"
            for seed, value in number.values.items()
        ),
    )
    if found is None:
        return cell
    interval, verdict = "", ""
    if found.low is not None and found.high is not None:
        interval = f"{signed(factor * found.low, digits)} to {signed(factor * found.high, digits)}"
        if found.tells:
            verdict = "better" if (found.value > 0) == measure.higher_is_better else "worse"
    difference = signed(factor * found.value, digits)
    return TableCell(
        **{
            **vars(cell),
            "difference": difference,
            "interval": interval,
            "verdict": verdict,
            "how": found.how,
        }
    )


def describe_comparison(comparison: Comparison) -> str:
    """One line under the title."""
    seeds = sorted({len(arm.runs) for arm in comparison.arms})
    words = "seed" if seeds == [1] else "seeds"
    span = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    several = f"{len(comparison.arms)} arms, " if len(comparison.arms) > 1 else ""
    return f"{comparison.data}; {several}{span} {words}{' each' if several else ''}"


def say_of_table(scene: Scene) -> str:
    """What the marks in the table mean, and how the intervals were found."""
    sentences = ["Mean ± standard deviation over seeds."]
    baseline = scene.comparison.baseline
    if baseline is None:
        return sentences[0] if any(len(arm.runs) > 1 for arm in scene.comparison.arms) else ""
    found = [
        number.difference
        for line in scene.table.values()
        for number in line.values()
        if number.difference is not None
    ]
    ways = list(dict.fromkeys(each.how for each in found if each.low is not None))
    sentences.append(f"Below it the difference to {baseline.title}")
    sentences[-1] += f" with its 95 % interval ({enumerate_words(ways)})." if ways else "."
    sentences.append(
        "Where the interval leaves out 0, the difference is called better or worse. Best: the best"
        " mean of its column, be it by little."
    )
    return " ".join(sentences)


def render_page(
    scene: Scene,
    *,
    title: str,
    headline: str,
    sections: Sequence[Section],
    examples: Examples | Missing,
    provenance: Provenance,
    failed: Sequence[str] = (),
    before: Sequence[Section] = (),
) -> str:
    """The HTML of the whole report; `before` are the sections that come before the arms."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["to_page"] = lambda svg: Markup(to_page(svg))
    environment.filters["to_uri"] = _to_uri
    environment.filters["tidy"] = _tidy
    environment.tests["missing"] = lambda each: isinstance(each, Missing)
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        title=title,
        about=describe_comparison(scene.comparison),
        headline=headline,
        failed=failed,
        notes=scene.comparison.notes,
        baseline=scene.comparison.baseline,
        arms=scene.comparison.arms,
        styles=scene.styles,
        tables=make_tables(scene),
        table_says=say_of_table(scene),
        before=before,
        sections=sections,
        examples=examples,
        provenance=provenance,
        style=Markup(_with_colours(style)),
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
        colours={role: pair[0] for role, pair in COLOURS.items()},
        dark_rules=dark_rules(),
        version=__version__,
    )


def _with_colours(style: str) -> str:
    """The style sheet with the colours of the figures in their places."""
    return style.replace("/* LIGHT */", variables(0)).replace("/* DARK */", variables(1))


def _to_uri(text: str) -> str:
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def _tidy(text: str) -> str:
    """Numbers are not parted from their units at the end of a line."""
    return text.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")
