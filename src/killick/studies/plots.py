"""Figures and tables that several studies share."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from killick.report.figures import (
    Figure,
    Panel,
    drawing,
    finish,
    legend_height,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
    put_line,
    sample_line,
    shorten,
)
from killick.report.tables import TextTable
from killick.studies.findings import (
    NONE,
    Results,
    find_measure,
    format_difference,
    format_mean,
)

PLOT = 190  # px of height
Lines = Mapping[str, Mapping[Any, Sequence[float]]]  # a value per seed, by protocol and level


@dataclass(frozen=True)
class PublishedValues:
    """A curve or column of the paper.

    Attributes:
        title: The data: "CIFAR-100-C".
        values: In the unit of the measure, by protocol and level.
        source: "Table 4", or "read off the plot, ± 0.1".
    """

    title: str
    values: Mapping[tuple[str, Any], float]
    source: str

    @property
    def protocols(self) -> list[str]:
        """Whose curves there are."""
        return list(dict.fromkeys(protocol for protocol, _ in self.values))

    @property
    def levels(self) -> list[Any]:
        """Levels at which there are values."""
        return list(dict.fromkeys(level for _, level in self.values))


@dataclass(frozen=True)
class Sweep:
    """A measure of each protocol over the levels of a factor, as a figure and as a table.

    Attributes:
        results: Of the study.
        factor: What is varied.
        measure: The key of the measure.
        name: Of the files; begins with "study".
        along: Label of the horizontal axis.
        base: The protocol that differences are to, at the same level.
        published: The paper's values.
    """

    results: Results
    factor: str
    measure: str
    name: str
    along: str
    base: str = "standard"
    published: tuple[PublishedValues, ...] = ()

    def arm(self, protocol: str, level: Any) -> str | None:
        """The arm of a protocol at a level, or the one that does not depend on it."""
        results = self.results
        found = results.arm(protocol=protocol, **{self.factor: level})
        if found is not None:
            return found
        arms = results.arms(protocol=protocol)
        return next((name for name in arms if self.factor not in results.factors[name]), None)

    def headline(self, protocol: str = "masked-label") -> str:
        """A protocol against the base at each level."""
        parts = [
            f"{format_level(level)}: {self.results.compare(arm, base, self.measure)}"
            for level in self.results.levels(self.factor)
            if (arm := self.arm(protocol, level)) and (base := self.arm(self.base, level))
        ]
        column = find_measure(self.measure)
        what = f"{column.title}, {column.unit}" if column.unit else column.title
        return f"{protocol} − {self.base}, {what}, by {self.factor}: {'; '.join(parts) or NONE}."

    def figure(self) -> Figure:
        """Our curves, and the paper's in panels beside them."""
        results, column = self.results, find_measure(self.measure)
        levels = results.levels(self.factor)
        lines: dict[str, dict[Any, list[float]]] = {}
        for protocol in results.levels("protocol"):
            found = {
                level: [
                    column.factor * value
                    for value in results.values(self.arm(protocol, level), self.measure).values()
                ]
                for level in levels
            }
            lines[protocol] = {level: values for level, values in found.items() if values}
        unit = f", {column.unit}" if column.unit else ""
        below = f"{column.title}{unit}"
        panels = [draw_lines(results, lines, levels, self.name, "Here", below, self.along)]
        for number, each in enumerate(self.published):
            curves = {
                protocol: {
                    level: [each.values[protocol, level]]
                    for level in each.levels
                    if (protocol, level) in each.values
                }
                for protocol in each.protocols
            }
            title, name = f"In the paper: {each.title}", f"{self.name}-paper{number}"
            panels.append(
                draw_lines(results, curves, each.levels, name, title, each.source, self.along)
            )
        records = tuple(
            (protocol, str(level), number, value)
            for protocol, points in lines.items()
            for level, values in points.items()
            for number, value in enumerate(values)
        )
        columns = ("protocol", self.factor, "number of the seed", self.measure)
        return Figure(self.name, "", tuple(panels), columns, records)

    def table(self) -> TextTable:
        """A row for each level, with differences and the paper's values."""
        results, column = self.results, find_measure(self.measure)
        protocols = results.levels("protocol")
        others = [p for p in protocols if p != self.base] if self.base in protocols else []
        columns = [self.factor, *protocols, *(f"{each} − {self.base}" for each in others)]
        columns += [f"paper, {each.title}: {p}" for each in self.published for p in each.protocols]
        rows = []
        for level in self._all_levels():
            arms = {protocol: self.arm(protocol, level) for protocol in protocols}
            if level not in results.levels(self.factor):
                arms = dict.fromkeys(protocols)
            row = [format_level(level)]
            for arm in arms.values():
                values = results.values(arm, self.measure).values()
                row.append(format_mean(values, column.factor, column.digits))
            for protocol in others:
                gap = results.difference(arms[protocol], arms[self.base], self.measure)
                row.append(format_difference(gap, column.factor, column.digits))
            for each in self.published:
                known = [each.values.get((protocol, level)) for protocol in each.protocols]
                row += [NONE if value is None else f"{value:g}" for value in known]
            rows.append(tuple(row))
        title = f"{column.title[:1].upper()}{column.title[1:]} by {self.factor}"
        sources = "; ".join(f"{each.title}: {each.source}" for each in self.published)
        note = f"Unit: {column.unit or 'none'}; mean ± standard deviation over seeds;"
        note += " differences with 95 % intervals."
        note += f" Paper: {sources}." if sources else ""
        return TextTable(f"{self.name}-table", title, tuple(columns), tuple(rows), note)

    def _all_levels(self) -> list[Any]:
        """Numbers in order, then names; also levels that only the paper has."""
        theirs = [level for each in self.published for level in each.levels]
        found = list(dict.fromkeys([*self.results.levels(self.factor), *theirs]))
        numbers = sorted(level for level in found if isinstance(level, int | float))
        return [*numbers, *(level for level in found if isinstance(level, str))]


def draw_lines(
    results: Results,
    lines: Lines,
    levels: Sequence[Any],
    name: str,
    heading: str,
    below: str,
    along: str,
) -> Panel:
    """A panel with a line for each protocol, over equally spaced levels."""
    titles = list(lines)
    with drawing():
        canvas = new_canvas(44 + PLOT + 44 + legend_height(titles))
        put_heading(canvas, heading, below)
        axes = put_axes(canvas, left=44, top=44, width=282, height=PLOT)
        for protocol, points in lines.items():
            there = [level for level in levels if level in points]
            places = np.array([levels.index(level) for level in there], dtype=float)
            count = min((len(points[level]) for level in there), default=0)
            if not count:
                continue
            values = np.array([[points[level][i] for level in there] for i in range(count)])
            put_line(axes, places, values, results.style(protocol))
        axes.set_xticks(range(len(levels)), [format_level(level) for level in levels])
        axes.set_xlim(-0.3, len(levels) - 0.7)
        axes.set_xlabel(along)
        put_legend(canvas, [(title, sample_line(results.style(title))) for title in titles])
        words = "; ".join(
            f"{protocol} " + ", ".join(f"{format_level(k)}: {np.mean(v):.1f}" for k, v in p.items())
            for protocol, p in lines.items()
        )
        return finish(canvas, name, heading, f"{below}, {along}. {words}.")


def draw_points(
    results: Results,
    rows: Mapping[str, Mapping[str, Sequence[float]]],
    name: str,
    heading: str,
    below: str,
    left: float = 150,
) -> Panel:
    """A panel with a row for each name: the mean of each protocol, and a bar over its seeds."""
    protocols = list(dict.fromkeys(protocol for row in rows.values() for protocol in row))
    most = max((len(row) for row in rows.values()), default=1)
    height = len(rows) * (17 * most + 8)
    words = []
    with drawing():
        canvas = new_canvas(44 + height + 30 + legend_height(protocols))
        put_heading(canvas, heading, f"{below}; bars: all seeds" if results.seeds > 1 else below)
        axes = put_axes(canvas, left=left, top=44, width=332 - left, height=height)
        for place, (title, row) in enumerate(rows.items()):
            for number, (protocol, values) in enumerate(row.items()):
                style, y = results.style(protocol), place + 0.75 * (number + 0.5) / len(row) - 0.375
                mean = statistics.fmean(values)
                axes.plot([min(values), max(values)], [y, y], color=style.color, linewidth=1.4)
                axes.plot([mean], [y], color=style.color, marker=style.marker)
                words.append(f"{title}, {protocol}: {mean:.3g}")
        axes.set_yticks(range(len(rows)), [shorten(title, round(left / 7)) for title in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.08)
        put_legend(canvas, [(each, sample_line(results.style(each))) for each in protocols])
        return finish(canvas, name, heading, f"{below}. {'; '.join(words)}.")


def format_level(level: Any) -> str:
    """A level as text."""
    return f"{level:g}" if isinstance(level, float) else str(level)
