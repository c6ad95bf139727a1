"""Accuracy under each corruption, and its difference to the baseline, as colored tables."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from killick.corruptions.suites import SUITES
from killick.report import figures
from killick.report.comparison import Comparison
from killick.report.conditions import CORRUPTED, SINGLE
from killick.report.figures import COLORS, MUTED, WIDTH, Figure, Missing, Panel
from killick.report.formatting import signed, spell_corruption
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.statistics import RECORD, Estimate, by_corruption

KEY = "corruptions"
# The kinds of Hendrycks and Dietterich (2019), each with the extra one that belongs to it.
_KINDS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
    "C-bar": tuple(dict.fromkeys((*SUITES["cbar-cifar"], *SUITES["cbar-imagenet"]))),
}
_COLUMNS_PER_PANEL = 5
_ROW, _GAP = 19, 20  # px of a row, and of the line that names a kind
_NAMES = 134  # px of the names at the left
_TOP = 38
_WIDEST_CELL = 62.0
_LONGEST_HEAD = 18  # letters
_LETTER = 6.6  # px, about
_TURN = math.radians(50)  # of heads that are wider than their column
_STRONGEST = 0.92  # opacity of the largest value


@dataclass(frozen=True)
class _HeatCell:
    """How strongly a cell is colored, from -1 to 1, and the text in it."""

    strength: float
    text: str
    bold: bool = False


@dataclass(frozen=True)
class _HeatMap:
    """Cells by corruption and column, and the ends of the color scale."""

    title: str
    below: str
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], _HeatCell]
    scale: tuple[str, str, str]


def make(data: ReportData) -> Content:
    """Corruptions by arms; of one arm its accuracy by severity."""
    comparison = data.comparison
    numbers = {name: line for name, line in by_corruption(comparison).items() if line}
    if not numbers:
        return Content((Missing("No corrupted images: evaluate with --suite clean,corruptions."),))
    kinds = _group(list(numbers))
    if comparison.baseline is None:
        maps = {KEY: _by_severity(comparison)}
    else:
        maps = {KEY: _differences(comparison, numbers), f"{KEY}-accuracy": _accuracies(numbers)}
    with figures.drawing():
        panels = tuple(
            _draw(f"{name}-{part + 1}" if part else name, kinds, heat_map, columns)
            for name, heat_map in maps.items()
            for part, columns in enumerate(_parts(heat_map.columns))
        )
    records = tuple(
        (kind, corruption, arm, *estimate.record)
        for kind, names in kinds.items()
        for corruption in names
        for arm, estimate in numbers[corruption].items()
    )
    columns = ("kind", "corruption", "arm", *RECORD)
    note = "" if comparison.baseline is None else "Bold: the 95 % interval excludes 0."
    return Content((Figure(KEY, note, panels, columns, records),))


def _group(corruptions: Sequence[str]) -> dict[str, list[str]]:
    """The corruptions by kind."""
    known = {name for names in _KINDS.values() for name in names}
    kinds = {**_KINDS, "others": [name for name in corruptions if name not in known]}
    found = {kind: [n for n in names if n in corruptions] for kind, names in kinds.items()}
    return {kind: names for kind, names in found.items() if names}


def _differences(comparison: Comparison, numbers: dict[str, dict[str, Estimate]]) -> _HeatMap:
    found = {
        (corruption, arm): estimate.difference
        for corruption, line in numbers.items()
        for arm, estimate in line.items()
        if estimate.difference is not None
    }
    largest = max((abs(d.value) for d in found.values()), default=0.0) or 1.0
    cells = {
        place: _HeatCell(d.value / largest, signed(100 * d.value, 1), d.significant)
        for place, d in found.items()
    }
    baseline = comparison.baseline
    assert baseline is not None
    return _HeatMap(
        f"Difference to {figures.shorten(baseline.name, 24)}",
        "top-1, points, mean over severities and seeds",
        tuple(arm.name for arm in comparison.arms if arm is not baseline),
        cells,
        (f"−{100 * largest:.1f}", "0", f"+{100 * largest:.1f}"),
    )


def _accuracies(numbers: dict[str, dict[str, Estimate]]) -> _HeatMap:
    means = {(name, arm): each.mean for name, line in numbers.items() for arm, each in line.items()}
    below = "top-1, %, mean over severities and seeds"
    return _shade("Accuracy by corruption", below, means)


def _by_severity(comparison: Comparison) -> _HeatMap:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for found in comparison.values.values():
        for each, value in found.items():
            if (each.inference, each.metric) == (SINGLE, "top1") and each.suite in CORRUPTED:
                values[each.corruption, str(each.severity)].append(value)
    means = {place: statistics.fmean(each) for place, each in sorted(values.items())}
    return _shade("Accuracy by corruption and severity", "top-1, %, mean over seeds", means)


def _shade(title: str, below: str, means: dict[tuple[str, str], float]) -> _HeatMap:
    """Accuracies from the lowest, which is pale, to the highest."""
    low, high = min(means.values()), max(means.values())
    reach = (high - low) or 1.0
    cells = {
        place: _HeatCell((mean - low) / reach, f"{100 * mean:.1f}") for place, mean in means.items()
    }
    first, middle, last = (f"{100 * value:.1f}" for value in (low, (low + high) / 2, high))
    columns = tuple(dict.fromkeys(column for _, column in means))
    return _HeatMap(title, below, columns, cells, (first, middle, last))


def _parts(columns: Sequence[str]) -> list[Sequence[str]]:
    """As many columns as fit into a panel, evenly."""
    panels = -(-len(columns) // _COLUMNS_PER_PANEL)
    width = -(-len(columns) // panels)
    return [columns[start : start + width] for start in range(0, len(columns), width)]


def _draw(
    name: str, kinds: dict[str, list[str]], heat_map: _HeatMap, columns: Sequence[str]
) -> Panel:
    heads = [figures.shorten(column, _LONGEST_HEAD) for column in columns]
    longest = max(map(len, heads)) * _LETTER
    turned = longest > _WIDEST_CELL
    above = math.sin(_TURN) * longest + 16 if turned else 22
    rows = sum(len(names) for names in kinds.values())
    height = above + rows * _ROW + len(kinds) * _GAP
    canvas = figures.new_canvas(_TOP + height + 46)
    figures.put_heading(canvas, heat_map.title, heat_map.below)
    axes = figures.put_axes(canvas, left=0, top=_TOP, width=WIDTH, height=height)
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    width = min(_WIDEST_CELL, (WIDTH - _NAMES - 4) / len(columns))
    if turned:  # the last head stands out to the right
        last = math.cos(_TURN) * len(heads[-1]) * _LETTER
        width = min(width, (WIDTH - _NAMES - 4 - last) / (len(columns) - 0.5))
    lefts = {column: _NAMES + i * width for i, column in enumerate(columns)}
    for head, left in zip(heads, lefts.values(), strict=True):
        side, angle = ("left", math.degrees(_TURN)) if turned else ("center", 0)
        place = (left + width / 2, above - 6)
        axes.text(*place, head, ha=side, va="bottom", rotation=angle, rotation_mode="anchor")
    top = above
    for kind, names in kinds.items():
        axes.text(8, top + _GAP - 5, kind, color=MUTED, fontstyle="italic")
        top += _GAP
        for corruption in names:
            spelled = figures.shorten(spell_corruption(corruption), 19)
            axes.text(_NAMES - 6, top + _ROW / 2, spelled, ha="right", va="center")
            for column, left in lefts.items():
                if (corruption, column) in heat_map.cells:
                    _put_cell(axes, left, top, width, heat_map.cells[corruption, column])
            top += _ROW
    scale = figures.put_axes(canvas, left=_NAMES, top=_TOP + height + 14, width=186, height=26)
    _put_scale(scale, heat_map.scale)
    words = "; ".join(
        f"{column}: "
        + " ".join(cell.text for (_, key), cell in heat_map.cells.items() if key == column)
        for column in columns
    )
    return figures.finish(canvas, name, heat_map.title, words)


def _put_cell(axes: Axes, left: float, top: float, width: float, cell: _HeatCell) -> None:
    role = "gain" if cell.strength >= 0 else "loss"
    axes.add_patch(
        Rectangle(
            (left + 0.75, top + 0.75),
            width - 1.5,
            _ROW - 1.5,
            facecolor=COLORS[role][0],
            alpha=_STRONGEST * min(1.0, abs(cell.strength)),
            linewidth=0,
        )
    )
    place = (left + width / 2, top + _ROW / 2)
    weight = "bold" if cell.bold else "normal"
    axes.text(*place, cell.text, ha="center", va="center_baseline", fontweight=weight)


def _put_scale(axes: Axes, words: Sequence[str]) -> None:
    """The colors from the lowest to the highest value."""
    both = words[1] == "0"
    axes.set(xlim=(0, 12), ylim=(26, 0))
    axes.axis("off")
    for step in range(12):
        strength = (step + 0.5) / 6 - 1 if both else (step + 0.5) / 12
        color, alpha = COLORS["gain" if strength > 0 else "loss"][0], _STRONGEST * abs(strength)
        axes.add_patch(Rectangle((step, 0), 0.97, 9, facecolor=color, alpha=alpha, linewidth=0))
    for place, side, text in zip((0, 6, 12), ("left", "center", "right"), words, strict=True):
        axes.text(place, 24, text, ha=side, color=MUTED)


SECTIONS.register(KEY, Section(KEY, "Accuracy by corruption", 20, make))
