"""Accuracy against the severity of corruptions, and its difference to the baseline."""

from killick.report import figures
from killick.report.figures import Figure, Panel
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.statistics import RECORD, Estimate, by_severity

KEY, DIFFERENCE = "severity", "severity-difference"
_Points = list[tuple[int, float, float, float]]  # severity, value, reach below and above


def make(data: ReportData) -> Content:
    """A line for each arm, clean images at severity 0."""
    numbers = _read(data)
    if not numbers:
        return Content(missing="No corrupted images: evaluate with --suite clean,corruptions.")
    means: dict[str, _Points] = {
        arm: [(severity, n.mean, n.spread or 0.0, n.spread or 0.0) for severity, n in line]
        for arm, line in numbers.items()
    }
    title, below = "Accuracy against severity", "top-1, %; bars: spread over seeds"
    panel = _draw(data, KEY, title, below, means)
    records = tuple(
        (arm, severity, *n.record) for arm, line in numbers.items() for severity, n in line
    )
    return Content((Figure(KEY, "", (panel,), ("arm", "severity", *RECORD), records),))


def make_differences(data: ReportData) -> Content:
    """The same less the baseline's: the answer in one figure, above the table of arms."""
    gaps = {
        arm: [(severity, n.difference) for severity, n in line if n.difference is not None]
        for arm, line in _read(data).items()
    }
    points: dict[str, _Points] = {
        arm: [(severity, gap.value, *gap.reach) for severity, gap in line]
        for arm, line in gaps.items()
        if line
    }
    if not points:
        return Content()
    title, below = f"Difference to {data.comparison.arms[0].name}", "points; 95 % interval"
    panel = _draw(data, DIFFERENCE, title, below, points)
    records = tuple(
        (arm, severity, gap.value, gap.low, gap.high, gap.method)
        for arm, line in gaps.items()
        for severity, gap in line
    )
    columns = ("arm", "severity", *RECORD[3:])
    return Content((Figure(DIFFERENCE, "", (panel,), columns, records),))


def _read(data: ReportData) -> dict[str, list[tuple[int, Estimate]]]:
    """The accuracy of each arm by severity, where there are corrupted images."""
    found = by_severity(data.comparison)
    return {arm: sorted(line.items()) for arm, line in found.items() if len(line) > 1}


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
SECTIONS.register(DIFFERENCE, Section(DIFFERENCE, "Difference by severity", -1, make_differences))
