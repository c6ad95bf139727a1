"""Figures and tables that studies share: a metric over the levels of a factor, by protocol."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.report.tables import TextTable
from killick.studies.findings import Curves, Results, find_metric, make_table, title_of

if TYPE_CHECKING:
    from killick.report.figures import Figure, Panel

_MOST_TICKS = 11
# A protocol looks the same in all studies.
_STYLES: dict[str, tuple[str, Any, str]] = {
    "standard": ("arm-0", "-", "o"),
    "anchored": ("arm-1", (0, (6, 2)), "s"),
    "masked-label": ("arm-2", "-", "^"),
    "masked-uniform": ("arm-3", (0, (2, 1.5)), "D"),
    "finetuned": ("arm-4", (0, (7, 2, 1.5, 2)), "v"),
}
_OTHER = ("arm-5", (0, (2, 1.5)), "P")


@dataclass(frozen=True)
class Plot:
    """A panel: a value for each seed, by protocol and level."""

    title: str
    curves: Curves
    unit: str = "%"  # or "accuracy, %"
    along: str = ""  # what the levels are
    factor: float = 100  # from values to the unit

    @property
    def levels(self) -> list[Any]:
        """Those with values: numbers in order, then names."""
        return sort_levels(level for line in self.curves.values() for level in line if line[level])


def draw_lines(plot: Plot, name: str) -> "Panel":
    """A line for each protocol over equally spaced levels."""
    import numpy as np

    from killick.report.figures import Style, finish, new_chart, put_line

    levels = plot.levels
    seeds = {seed for line in plot.curves.values() for values in line.values() for seed in values}
    canvas, axes = new_chart(plot.title, f"{plot.unit}; bands: all seeds")
    every = -(-len(levels) // _MOST_TICKS)
    for protocol, line in plot.curves.items():
        there = [level for level in levels if line.get(level)]
        common = [seed for seed in sorted(seeds) if all(seed in line[level] for level in there)]
        if there and common:
            values = np.array([[line[level][seed] for level in there] for seed in common])
            places = [levels.index(level) for level in there]
            style = Style(*_STYLES.get(protocol, _OTHER))
            put_line(axes, places, plot.factor * values, style, protocol, every=every)
    axes.set_xticks(range(0, len(levels), every), [format_level(each) for each in levels[::every]])
    axes.set_xlim(-0.3, len(levels) - 0.7)
    axes.set_xlabel(plot.along)
    return finish(canvas, name, plot.title, f"{plot.unit}, by {plot.along}; a line per protocol.")


def draw_points(plot: Plot, name: str) -> "Panel":
    """A row for each level: the mean of each protocol, and a bar over its seeds."""
    from killick.report.figures import Style, finish, new_chart, shorten

    levels, protocols = plot.levels, list(plot.curves)
    rows = [[p for p in protocols if plot.curves[p].get(level)] for level in levels]
    height = len(levels) * (17 * max(map(len, rows)) + 8)
    below = f"{plot.unit}; bars: all seeds"
    canvas, axes = new_chart(plot.title, below, height=height, left=150)
    for place, (level, row) in enumerate(zip(levels, rows, strict=True)):
        for number, protocol in enumerate(row):
            values = [plot.factor * value for value in plot.curves[protocol][level].values()]
            style = Style(*_STYLES.get(protocol, _OTHER))
            y = place + 0.75 * (number + 0.5) / len(row) - 0.375
            axes.plot([min(values), max(values)], [y, y], color=style.color, linewidth=1.4)
            axes.plot([statistics.fmean(values)], [y], label=protocol, **style.line)
    axes.set_yticks(range(len(levels)), [shorten(format_level(level), 21) for level in levels])
    axes.set_ylim(len(levels) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.08)
    return finish(canvas, name, plot.title, f"{plot.unit}; a row per {plot.along or 'test'}.")


def draw_figure(
    name: str, plots: Sequence[Plot], draw: "Callable[[Plot, str], Panel]" = draw_lines
) -> "Figure":
    """A figure with a panel for each plot that has values, and these as CSV.

    Its name begins with "study"; `draw` is `draw_lines` or `draw_points`.
    """
    from killick.report.figures import Figure, drawing

    with drawing():
        panels = [
            draw(plot, f"{name}-{number}") for number, plot in enumerate(plots) if plot.levels
        ]
    records = tuple(
        (plot.title, protocol, format_level(level), seed, plot.factor * value)
        for plot in plots
        for protocol, line in plot.curves.items()
        for level, values in line.items()
        for seed, value in values.items()
    )
    columns = ("panel", "protocol", "level", "seed", "value")
    return Figure(name, "", tuple(panels), columns, records)


def plot_metric(metric: str, curves: Curves, along: str = "") -> Plot:
    """A plot of a summary metric, with its title and unit."""
    column = find_metric(metric)
    return Plot(column.title, curves, column.metric.unit, along, column.metric.factor)


def sort_levels(levels: Iterable[Any]) -> list[Any]:
    """Different levels: numbers in order, then names as they come."""
    found = list(dict.fromkeys(levels))
    names = [level for level in found if isinstance(level, str)]
    return [*sorted(level for level in found if level not in names), *names]


def format_level(level: Any) -> str:
    """A level as text."""
    return f"{level:g}" if isinstance(level, float) else str(level)


@dataclass(frozen=True)
class Sweep:
    """A summary metric of each protocol over the levels of a factor, as a figure and as a table."""

    results: Results
    factor: str
    metric: str  # its key, such as "corrupted_top1"
    # The paper's values by data, and by protocol and level; where the paper has them.
    published: Mapping[str, Mapping[tuple[str, Any], float]]
    source: str  # of these
    along: str = ""  # what the levels are, if the name of the factor does not say it
    base: str = "standard"  # the protocol that differences are to, at the same level

    def arm(self, protocol: str, level: Any) -> str | None:
        """The arm of a protocol at a level."""
        return self.results.arm(protocol=protocol, **{self.factor: level})

    def headline(self, protocol: str = "masked-label") -> str:
        """A protocol against the base at each level."""
        parts = [
            f"{format_level(level)}: {self.compare(protocol, level)}"
            for level in self.results.levels(self.factor)
        ]
        title = title_of(self.metric)
        return f"{protocol} − {self.base}, {title}, by {self.factor}: {'; '.join(parts)}."

    def compare(self, protocol: str, level: Any) -> str:
        """The difference of a protocol to the base at a level."""
        arm, base = self.arm(protocol, level), self.arm(self.base, level)
        return self.results.compare(arm, base, self.metric)

    @property
    def curves(self) -> Curves:
        """The values by protocol and level, where there are any."""
        results = self.results
        return {
            protocol: {
                level: values
                for level in results.levels(self.factor)
                if (values := results.values(self.arm(protocol, level), self.metric))
            }
            for protocol in results.levels("protocol")
        }

    def figure(self) -> "Figure":
        """A line for each protocol."""
        plot = plot_metric(self.metric, self.curves, self.along or self.factor)
        return draw_figure(f"study-{self.factor}-{self.metric}", [plot])

    def table(self) -> TextTable:
        """A row for each level, with differences and the paper's values."""
        results, known = self.results, [*self.results.levels(self.factor)]
        protocols = results.levels("protocol")
        others = [p for p in protocols if p != self.base] if self.base in protocols else []
        known += [level for values in self.published.values() for _, level in values]
        rows = []
        for level in sort_levels(known):
            row = {self.factor: format_level(level)}
            for protocol in protocols:
                row[protocol] = results.format(self.arm(protocol, level), self.metric)
            for protocol in others:
                row[f"{protocol} − {self.base}"] = self.compare(protocol, level)
            for title, values in self.published.items():
                row |= {
                    f"paper, {title}: {protocol}": f"{value:g}"
                    for (protocol, place), value in values.items()
                    if place == level
                }
            rows.append(row)
        title = f"{title_of(self.metric)}, by {self.factor}"
        name = f"study-{self.factor}-{self.metric}-table"
        return make_table(name, title, rows, f"Paper: {self.source}.")
