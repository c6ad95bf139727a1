"""Figures and tables that several studies share: a measure over what is varied, arm by arm."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from killick.report.figures import (
    Figure,
    Panel,
    describe_bands,
    drawing,
    finish,
    legend_height,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
    put_line,
    sample_line,
)
from killick.report.formatting import signed, signless
from killick.report.intervals import ENOUGH_SEEDS, Interval
from killick.report.summary_metrics import SummaryMetric, find_summary_metric
from killick.report.tables import TextTable
from killick.studies.results import Results

_PLOT = 190  # px of height
NONE = "–"


@dataclass(frozen=True)
class Published:
    """A curve or column of the paper.

    Attributes:
        title: What it is of: "CIFAR-100-C".
        values: In the unit of the measure, by protocol and level; one that has the level None
            does not depend on it.
        how: Where it stands: "table 4", or "read off the plot, ± 0.1".
    """

    title: str
    values: Mapping[tuple[str, Any], float]
    how: str


def find_measure(key: str) -> SummaryMetric:
    """The measure with a key."""
    return find_summary_metric(key)


def mean_and_spread(values: Iterable[float], factor: float = 100, digits: int = 1) -> str:
    """The mean of some values, and their standard deviation where there are several.

    Example:
        >>> mean_and_spread([0.5, 0.52])
        '51.0 ± 1.4'
    """
    found = [factor * value for value in values]
    if not found:
        return NONE
    text = signless(statistics.fmean(found), digits)
    if len(found) > 1:
        text += f" ± {signless(statistics.stdev(found), digits)}"
    return text


def tell_difference(found: Interval | None, factor: float = 100, digits: int = 1) -> str:
    """A difference with its interval, for a table.

    Example:
        >>> tell_difference(Interval(0.02, 0.01, 0.03, ""))
        '+2.0 (+1.0 to +3.0)'
    """
    if found is None:
        return NONE
    text = signed(factor * found.value, digits)
    if found.low is not None and found.high is not None:
        low, high = (signed(factor * end, digits) for end in (found.low, found.high))
        text += f" ({low} to {high})"
    return text


def judge(found: Interval | None, higher_is_better: bool = True) -> str:
    """In a word what a difference is: "better", "worse", or that it is not clear.

    It is clear where its interval leaves out 0 and the seeds agree. The interval of few seeds is
    one over images: it knows nothing of other seeds.

    Example:
        >>> judge(Interval(0.02, 0.01, 0.03, "", (0.021, 0.019)))
        'better in these 2 seeds'
        >>> judge(Interval(0.02, 0.01, 0.03, "", (0.06, -0.02)))
        'no clear difference: the seeds disagree'
        >>> judge(Interval(-0.02, -0.03, -0.01, "", (-0.02,)))
        'worse in this one seed'
    """
    if found is None:
        return "not known"
    if not found.significant:
        return "no clear difference"
    if not found.seeds_agree:
        return "no clear difference: the seeds disagree"
    word = "better" if (found.value > 0) == higher_is_better else "worse"
    seeds = len(found.by_seed)
    if not seeds or seeds >= ENOUGH_SEEDS:
        return word
    return f"{word} in {'this one seed' if seeds == 1 else f'these {seeds} seeds'}"


def draw_sweep(
    results: Results,
    factor: str,
    measure: str,
    *,
    name: str,
    heading: str,
    along: str,
    says: str,
    published: Sequence[Published] = (),
) -> Figure:
    """A measure of each protocol over the levels of a factor; beside it the paper's curves.

    A protocol that has no levels is a line at the same height.

    Args:
        results: Of the study.
        factor: What is varied.
        measure: Its key.
        name: Of the figure; begins with "study".
        heading: Of the panel with our numbers.
        along: What the horizontal axis is.
        says: What to see.
        published: The paper's curves, a panel each.
    """
    shown = find_measure(measure)
    levels = results.levels(factor)
    lines: dict[str, dict[Any, list[float]]] = {}
    for protocol in results.levels("protocol"):
        at = {level: results.arm(protocol=protocol, **{factor: level}) for level in levels}
        alone = _without(results, protocol, factor)
        found = {
            level: [shown.factor * v for v in results.values(arm or alone, measure).values()]
            for level, arm in at.items()
        }
        lines[protocol] = {level: values for level, values in found.items() if values}
    records = tuple(
        (protocol, str(level), number, value)
        for protocol, points in lines.items()
        for level, values in points.items()
        for number, value in enumerate(values)
    )
    unit = f", {shown.unit}" if shown.unit else ""
    bands = describe_bands(results.seeds, len(lines))
    panels = [
        draw_lines(results, lines, levels, name, heading, f"{shown.title}{unit}{bands}", along)
    ]
    for number, each in enumerate(published):
        wanted = list(dict.fromkeys(level for _, level in each.values if level is not None))
        curves = {
            protocol: {
                level: [each.values[key]]
                for level in wanted
                if (key := _known(each.values, protocol, level)) is not None
            }
            for protocol in dict.fromkeys(protocol for protocol, _ in each.values)
        }
        title = f"In the paper: {each.title}"
        panels.append(
            draw_lines(results, curves, wanted, f"{name}-paper{number}", title, each.how, along)
        )
    columns = ("protocol", factor, "number of the seed", measure)
    return Figure(name, says, tuple(panels), columns, records)


def draw_lines(
    results: Results,
    lines: Mapping[str, Mapping[Any, Sequence[float]]],
    levels: Sequence[Any],
    name: str,
    heading: str,
    below: str,
    along: str,
) -> Panel:
    """A panel with a line for each protocol, over levels that stand equally far apart.

    Args:
        results: For the styles.
        lines: Values, one for each seed, by protocol and level.
        levels: In order.
        name: Of the panel.
        heading: Its title.
        below: What the vertical axis is.
        along: What the horizontal axis is.
    """
    titles = list(lines)
    height = 44 + _PLOT + 44 + legend_height(titles)
    with drawing():
        canvas = new_canvas(height)
        put_heading(canvas, heading, below)
        axes = put_axes(canvas, left=44, top=44, width=282, height=_PLOT)
        for protocol, points in lines.items():
            there = [level for level in levels if level in points]
            places = np.array([levels.index(level) for level in there], dtype=float)
            count = min((len(points[level]) for level in there), default=0)
            if not count:
                continue
            values = np.array([[points[level][i] for level in there] for i in range(count)])
            put_line(axes, places, values, results.style(protocol), of=len(lines))
        axes.set_xticks(range(len(levels)), [spell_level(level) for level in levels])
        axes.set_xlim(-0.3, len(levels) - 0.7)
        axes.set_xlabel(along)
        put_legend(canvas, [(title, sample_line(results.style(title))) for title in titles])
        words = "; ".join(
            f"{protocol} " + ", ".join(f"{spell_level(k)}: {np.mean(v):.1f}" for k, v in p.items())
            for protocol, p in lines.items()
        )
        return finish(canvas, name, heading, f"{below}, {along}. {words}.")


def tabulate_sweep(
    results: Results,
    factor: str,
    measure: str,
    *,
    name: str,
    title: str,
    base: str = "standard",
    published: Sequence[Published] = (),
) -> TextTable:
    """The numbers of `draw_sweep`: a line for each level, with differences and the paper's values.

    Args:
        results: Of the study.
        factor: What is varied.
        measure: Its key.
        name: Of the table; begins with "study".
        title: What it shows.
        base: The protocol that differences are to, at the same level.
        published: The paper's values, a column for each protocol.
    """
    shown = find_measure(measure)
    protocols = results.levels("protocol")
    others = [protocol for protocol in protocols if protocol != base]
    columns = [factor, *protocols]
    compared = base in protocols
    columns += [f"{protocol} − {base}" for protocol in others] if compared else []
    for each in published:
        told = dict.fromkeys(protocol for protocol, _ in each.values)
        columns += [f"paper, {each.title}: {protocol}" for protocol in told]
    rows = []
    for level in _levels_of(results, factor, published):
        arms = {
            protocol: results.arm(protocol=protocol, **{factor: level})
            or _without(results, protocol, factor)
            for protocol in protocols
        }
        known = level in results.levels(factor)
        cells = [spell_level(level)]
        for protocol in protocols:
            values = results.values(arms[protocol], measure).values() if known else ()
            cells.append(mean_and_spread(values, shown.factor, shown.digits))
        for protocol in others if compared else ():
            found = results.difference(arms[protocol], arms[base], measure) if known else None
            cells.append(tell_difference(found, shown.factor, shown.digits))
        for each in published:
            for protocol in dict.fromkeys(protocol for protocol, _ in each.values):
                key = _known(each.values, protocol, level)
                cells.append(NONE if key is None else f"{each.values[key]:g}")
        rows.append(tuple(cells))
    seeds = "1 seed" if results.seeds == 1 else f"{results.seeds} seeds"
    says = f"{shown.title[:1].upper()}{shown.title[1:]}, {shown.unit or 'as it is'}"
    says += f": mean ± standard deviation over {seeds}" if results.seeds > 1 else ", of one seed"
    says += "; differences with their 95 % intervals." if compared and others else "."
    how = "; ".join(f"{each.title}: {each.how}" for each in published)
    return TextTable(
        name, title, tuple(columns), tuple(rows), says + (f" The paper's: {how}." if how else "")
    )


def spell_level(level: Any) -> str:
    """A level for people."""
    return f"{level:g}" if isinstance(level, float) else str(level)


def _levels_of(results: Results, factor: str, published: Sequence[Published]) -> list[Any]:
    """Those of our arms, then those that the paper alone has."""
    ours = results.levels(factor)
    theirs = [level for each in published for _, level in each.values if level is not None]
    found = list(dict.fromkeys([*ours, *theirs]))
    numbers = sorted(level for level in found if isinstance(level, int | float))
    words = [level for level in found if isinstance(level, str)]
    return [*numbers, *words]


def _without(results: Results, protocol: str, factor: str) -> str | None:
    """The arm of a protocol to which the factor does not apply."""
    return next(
        (name for name in results.arms(protocol=protocol) if factor not in results.factors[name]),
        None,
    )


def _known(values: Mapping[tuple[str, Any], float], protocol: str, level: Any) -> Any:
    return next((key for key in ((protocol, level), (protocol, None)) if key in values), None)
