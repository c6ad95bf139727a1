"""Accuracy against the severity of corruptions, and its difference to the baseline."""

from matplotlib.axes import Axes

from killick.report import figures
from killick.report.figures import MUTED, Figure, Missing, Panel
from killick.report.formatting import percent
from killick.report.run_groups import ArmRuns
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.statistics import RECORD, Estimate, by_severity

KEY = "severity"
Numbers = dict[str, dict[int, Estimate]]  # arm, severity
_Points = list[tuple[int, float, float, float]]  # severity, value, reach below and above


def make(data: ReportData) -> Content:
    """A line for each arm, clean images at severity 0."""
    numbers = by_severity(data.comparison)
    arms = [arm for arm in data.comparison.arms if len(numbers[arm.name]) > 1]
    if not arms:
        return Content((Missing("No corrupted images: evaluate with --suite clean,corruptions."),))
    with figures.drawing():
        panels = [_draw_accuracy(data, arms, numbers)]
        others = [arm for arm in arms if any(n.difference for n in numbers[arm.name].values())]
        if others:
            panels.append(_draw_differences(data, others, numbers))
    records = tuple(
        (arm.name, severity, *estimate.record)
        for arm in arms
        for severity, estimate in sorted(numbers[arm.name].items())
    )
    return Content((Figure(KEY, "", tuple(panels), ("arm", "severity", *RECORD), records),))


def _draw_accuracy(data: ReportData, arms: list[ArmRuns], numbers: Numbers) -> Panel:
    names = [arm.name for arm in arms]
    title = "Accuracy against severity"
    canvas, axes = figures.new_chart(title, "top-1, %; bars: spread over seeds", names)
    for place, name in enumerate(names):
        points = [
            (severity, 100 * n.mean, 100 * (n.spread or 0), 100 * (n.spread or 0))
            for severity, n in sorted(numbers[name].items())
        ]
        _put_points(axes, points, data, name, place, len(names))
    _label(axes, numbers, names)
    figures.put_arm_legend(canvas, names, data.styles)
    last = max(severity for name in names for severity in numbers[name])
    ends = {name: numbers[name][last].mean for name in names if last in numbers[name]}
    words = "; ".join(f"{name} {percent(mean)}" for name, mean in ends.items())
    return figures.finish(canvas, KEY, title, f"Top-1 accuracy at severity {last}: {words}.")


def _draw_differences(data: ReportData, arms: list[ArmRuns], numbers: Numbers) -> Panel:
    baseline = data.comparison.baseline
    assert baseline is not None
    names = [arm.name for arm in arms]
    title = f"Difference to {baseline.name}"
    canvas, axes = figures.new_chart(title, "points; bars: 95 % interval", names)
    axes.axhline(0, color=data.styles[baseline.name].color, linewidth=1.4)
    for place, name in enumerate(names):
        points = []
        for severity, estimate in sorted(numbers[name].items()):
            if (d := estimate.difference) is not None:
                below = 0.0 if d.low is None else d.value - d.low
                above = 0.0 if d.high is None else d.high - d.value
                points.append((severity, 100 * d.value, 100 * below, 100 * above))
        _put_points(axes, points, data, name, place, len(names))
    _label(axes, numbers, names)
    figures.put_arm_legend(canvas, names, data.styles)
    description = "Accuracy minus that of the baseline at each severity."
    return figures.finish(canvas, f"{KEY}-difference", title, description)


def _put_points(
    axes: Axes, points: _Points, data: ReportData, name: str, place: int, count: int
) -> None:
    """A line with error bars; arms are shifted a little so that bars do not overlap."""
    style = data.styles[name]
    shift = (place - (count - 1) / 2) * min(0.07, 0.4 / count)
    severities, values, below, above = zip(*points, strict=True)
    axes.errorbar(
        [severity + shift for severity in severities],
        values,
        yerr=[below, above],
        color=style.color,
        linestyle=style.dashes,
        marker=style.marker,
        elinewidth=1.1,
        capsize=2,
    )


def _label(axes: Axes, numbers: Numbers, names: list[str]) -> None:
    severities = sorted({severity for name in names for severity in numbers[name]})
    axes.set_xticks(severities, ["clean" if s == 0 else str(s) for s in severities])
    axes.set_xlabel("severity of the corruptions", color=MUTED)
    axes.margins(x=0.04, y=0.08)
    axes.grid(visible=False, axis="x")


SECTIONS.register(KEY, Section(KEY, "Accuracy against severity", 10, make))
