"""Accuracy against the severity of corruptions, and its difference to the baseline."""

from killick.report import figures
from killick.report.figures import Figure, Panel
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.statistics import RECORD, by_severity

KEY = "severity"
_Points = list[tuple[int, float, float, float]]  # severity, value, reach below and above


def make(data: ReportData) -> Content:
    """A line for each arm, clean images at severity 0."""
    found = by_severity(data.comparison)
    numbers = {arm: sorted(line.items()) for arm, line in found.items() if len(line) > 1}
    if not numbers:
        return Content(missing="No corrupted images: evaluate with --suite clean,corruptions.")
    means: dict[str, _Points] = {
        arm: [(severity, n.mean, n.spread or 0.0, n.spread or 0.0) for severity, n in line]
        for arm, line in numbers.items()
    }
    gaps: dict[str, _Points] = {
        arm: [
            (severity, d.value, *d.reach) for severity, n in line if (d := n.difference) is not None
        ]
        for arm, line in numbers.items()
    }
    title, below = "Accuracy against severity", "top-1, %; bars: spread over seeds"
    panels = [_draw(data, KEY, title, below, means)]
    if gaps := {arm: points for arm, points in gaps.items() if points}:
        title, below = f"Difference to {data.comparison.arms[0].name}", "points; 95 % interval"
        panels.append(_draw(data, f"{KEY}-difference", title, below, gaps))
    records = tuple(
        (arm, severity, *n.record) for arm, line in numbers.items() for severity, n in line
    )
    return Content((Figure(KEY, "", tuple(panels), ("arm", "severity", *RECORD), records),))


def _draw(data: ReportData, name: str, title: str, below: str, lines: dict[str, _Points]) -> Panel:
    canvas, axes = figures.new_chart(title, below)
    if name != KEY:
        axes.axhline(0, color=figures.COLORS["arm-0"][0], linewidth=1.4)
    for place, (arm, points) in enumerate(lines.items()):
        # Arms are shifted a little so that bars do not overlap.
        shift = (place - (len(lines) - 1) / 2) * min(0.07, 0.4 / len(lines))
        severities, values, low, high = zip(*points, strict=True)
        axes.errorbar(
            [severity + shift for severity in severities],
            [100 * value for value in values],
            yerr=[[100 * reach for reach in low], [100 * reach for reach in high]],
            label=arm,
            elinewidth=1.1,
            capsize=2,
            **data.styles[arm].line,
        )
    shown = sorted({point[0] for points in lines.values() for point in points})
    axes.set_xticks(shown, ["clean" if severity == 0 else str(severity) for severity in shown])
    axes.set_xlabel("severity of the corruptions")
    axes.margins(x=0.04, y=0.08)
    axes.grid(visible=False, axis="x")
    return figures.finish(canvas, name, title, f"{below}, by severity.")


SECTIONS.register(KEY, Section(KEY, "Accuracy against severity", 10, make))
