"""Accuracy against the severity of corruptions, and its difference to the baseline."""

from collections.abc import Iterable

from matplotlib.axes import Axes

from killick.report.comparison import Arm
from killick.report.figures import (
    COLOURS,
    WIDTH,
    Figure,
    Missing,
    Panel,
    Style,
    drawing,
    finish,
    legend_height,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
    sample_line,
)
from killick.report.formatting import capitalise, percent, points
from killick.report.scene import Scene
from killick.report.statistics import Interval, Number, by_severity

NAME = "severity"
_COLUMNS = (
    *("arm", "severity", "top1_mean", "top1_spread", "seeds"),
    *("difference", "difference_low", "difference_high", "how"),
)
_HEIGHT = 200  # of the axes

Numbers = dict[str, dict[int, Number]]


def draw_severity(scene: Scene) -> Figure | Missing:
    """A line for each arm, clean pictures at severity 0."""
    numbers = by_severity(scene.comparison)
    arms = [arm for arm in scene.comparison.arms if len(numbers.get(arm.name, {})) > 1]
    if not arms:
        return Missing(
            "No accuracy by severity: the runs have no rows of the suite corruptions at single"
            " severities. Evaluate them with --suite clean,corruptions."
        )
    with drawing():
        panels = [_draw_accuracy(scene, arms, numbers)]
        others = [arm for arm in arms if _differences(numbers[arm.name])]
        if others:
            panels.append(_draw_differences(scene, others, numbers))
    records = [
        _record(arm, severity, number)
        for arm in arms
        for severity, number in sorted(numbers[arm.name].items())
    ]
    return Figure(NAME, _say(scene, arms, numbers), tuple(panels), _COLUMNS, tuple(records))


def _draw_accuracy(scene: Scene, arms: list[Arm], numbers: Numbers) -> Panel:
    titles = [arm.title for arm in arms]
    canvas = new_canvas(42 + _HEIGHT + 42 + legend_height(titles))
    put_heading(canvas, "Accuracy against severity", "top-1, %; bars: spread over seeds")
    axes = put_axes(canvas, left=40, top=42, width=WIDTH - 52, height=_HEIGHT)
    for place, arm in enumerate(arms):
        line = sorted(numbers[arm.name].items())
        spreads = [100 * (number.spread or 0) for _, number in line]
        means = [100 * number.mean for _, number in line]
        _bars(
            axes,
            [s for s, _ in line],
            means,
            [spreads, spreads],
            scene.styles[arm.name],
            _aside(place, len(arms)),
        )
    _label(axes, numbers, arms)
    put_legend(canvas, [(arm.title, sample_line(scene.styles[arm.name])) for arm in arms])
    last = max(severity for arm in arms for severity in numbers[arm.name])
    words = "; ".join(
        f"{arm.title} {percent(numbers[arm.name][last].mean)}"
        for arm in arms
        if last in numbers[arm.name]
    )
    return finish(
        canvas,
        NAME,
        "Accuracy against severity",
        f"Lines of top-1 accuracy from clean pictures to severity {last}. At {last}: {words}.",
    )


def _draw_differences(scene: Scene, arms: list[Arm], numbers: Numbers) -> Panel:
    baseline = scene.comparison.baseline
    assert baseline is not None
    titles = [arm.title for arm in arms]
    canvas = new_canvas(42 + _HEIGHT + 42 + legend_height([baseline.title, *titles]))
    put_heading(canvas, f"Difference to {baseline.title}", "points; bars: 95 % interval")
    axes = put_axes(canvas, left=40, top=42, width=WIDTH - 52, height=_HEIGHT)
    axes.axhline(0, color=scene.styles[baseline.name].colour, linewidth=1.4)
    for place, arm in enumerate(arms):
        found = _differences(numbers[arm.name])
        values = [100 * d.value for _, d in found]
        below = [100 * (d.value - (d.value if d.low is None else d.low)) for _, d in found]
        above = [100 * ((d.value if d.high is None else d.high) - d.value) for _, d in found]
        _bars(
            axes,
            [s for s, _ in found],
            values,
            [below, above],
            scene.styles[arm.name],
            _aside(place, len(arms)),
        )
    _label(axes, numbers, arms)
    put_legend(canvas, [(arm.title, sample_line(scene.styles[arm.name])) for arm in arms])
    return finish(
        canvas,
        f"{NAME}-difference",
        f"Difference to {baseline.title}",
        "The same, less the accuracy of the baseline at each severity. Above 0 is better.",
    )


def _bars(
    axes: Axes,
    severities: Iterable[int],
    values: list[float],
    reach: list[list[float]],
    style: Style,
    aside: float,
) -> None:
    """A line with a bar at each point; arms stand a little beside each other."""
    axes.errorbar(
        [severity + aside for severity in severities],
        values,
        yerr=reach,
        color=style.colour,
        linestyle=style.dashes,
        marker=style.marker,
        elinewidth=1.1,
        capsize=2,
    )


def _aside(place: int, count: int) -> float:
    step = min(0.07, 0.4 / count)
    return (place - (count - 1) / 2) * step


def _label(axes: Axes, numbers: Numbers, arms: list[Arm]) -> None:
    severities = sorted({severity for arm in arms for severity in numbers[arm.name]})
    axes.set_xticks(severities, ["clean" if s == 0 else str(s) for s in severities])
    axes.set_xlabel("severity of the corruptions", color=COLOURS["muted"][0])
    axes.margins(x=0.04, y=0.08)
    axes.grid(visible=False, axis="x")


def _differences(line: dict[int, Number]) -> list[tuple[int, Interval]]:
    return [(s, n.difference) for s, n in sorted(line.items()) if n.difference is not None]


def _record(arm: Arm, severity: int, number: Number) -> tuple[object, ...]:
    found = number.difference
    rest = ("", "", "", "") if found is None else (found.value, found.low, found.high, found.how)
    shown = ("" if value is None else value for value in rest)
    spread = "" if number.spread is None else number.spread
    return (arm.name, severity, number.mean, spread, len(number.values), *shown)


def _say(scene: Scene, arms: list[Arm], numbers: Numbers) -> str:
    """How much is lost from clean to the last severity, and how the subject compares there."""
    baseline, subject = scene.comparison.baseline, scene.subject
    first = next((arm for arm in arms if arm is baseline), arms[0])
    line = numbers[first.name]
    start, end = min(line), max(line)
    begins = "on clean pictures" if start == 0 else f"at severity {start}"
    sentence = (
        f"{capitalise(first.name)} goes from {percent(line[start].mean)} {begins} to"
        f" {percent(line[end].mean)} at severity {end}."
    )
    if subject is None or subject not in arms or end not in numbers[subject.name]:
        return sentence
    there = numbers[subject.name][end]
    sentence += f" {capitalise(subject.name)} is at {percent(there.mean)} there"
    if there.difference is None:
        return f"{sentence}."
    known = there.difference.tells or there.difference.low is None
    told = "" if known else ", which cannot be told from none"
    return f"{sentence} ({points(there.difference.value)}{told})."
