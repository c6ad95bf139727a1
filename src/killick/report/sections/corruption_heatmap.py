"""Accuracy under each corruption, and its difference to the baseline, as colored tables."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.patches import Rectangle

from killick.corruptions.suites import SUITES
from killick.report import figures
from killick.report.comparison import Comparison
from killick.report.conditions import CORRUPTED, SINGLE
from killick.report.figures import COLORS, MUTED, WIDTH, Figure, Missing, Panel
from killick.report.formatting import signed, spell_corruption
from killick.report.sections import SECTIONS, Content, ReportData, Section
from killick.report.statistics import RECORD, by_corruption

KEY = "corruptions"
# The kinds of Hendrycks and Dietterich (2019), each with the extra one that belongs to it.
_KINDS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
    "C-bar": tuple(dict.fromkeys((*SUITES["cbar-cifar"], *SUITES["cbar-imagenet"]))),
}
_ROW = 19  # px
_NAMES = 134  # px of the names at the left
_TOP = 38
_WIDEST_CELL = 62.0
_LONGEST_HEAD = 18  # letters
_STRONGEST = 0.92  # opacity of the largest value


class _HeatCell(NamedTuple):
    """How strongly a cell is colored, from -1 to 1, and the text in it."""

    strength: float
    text: str
    bold: bool = False


_Cells = dict[tuple[str, str], _HeatCell]  # by corruption and column


def make(data: ReportData) -> Content:
    """Corruptions by arms; of one arm its accuracy by severity."""
    comparison = data.comparison
    numbers = {name: line for name, line in by_corruption(comparison).items() if line}
    if not numbers:
        return Content((Missing("No corrupted images: evaluate with --suite clean,corruptions."),))
    kinds = _group(list(numbers))
    if comparison.baseline is None:
        below = "top-1, %, mean over seeds"
        cells = _shade(_by_severity(comparison))
        panels = _draw(KEY, "Accuracy by corruption and severity", below, kinds, cells)
    else:
        lines = [(name, arm, each) for name, line in numbers.items() for arm, each in line.items()]
        gaps = {(name, arm): d for name, arm, each in lines if (d := each.difference) is not None}
        largest = max((abs(d.value) for d in gaps.values()), default=0.0) or 1.0
        cells = {
            place: _HeatCell(d.value / largest, signed(100 * d.value, 1), d.significant)
            for place, d in gaps.items()
        }
        title = f"Difference to {figures.shorten(comparison.baseline.name, 24)}"
        panels = _draw(KEY, title, "top-1, points; bold: 95 % interval excludes 0", kinds, cells)
        cells = _shade({(name, arm): each.mean for name, arm, each in lines})
        below = "top-1, %, mean over severities and seeds"
        panels += _draw(f"{KEY}-accuracy", "Accuracy by corruption", below, kinds, cells)
    records = tuple(
        (kind, corruption, arm, *estimate.record)
        for kind, names in kinds.items()
        for corruption in names
        for arm, estimate in numbers[corruption].items()
    )
    columns = ("kind", "corruption", "arm", *RECORD)
    return Content((Figure(KEY, "", tuple(panels), columns, records),))


def _group(corruptions: Sequence[str]) -> dict[str, list[str]]:
    """The corruptions by kind."""
    known = {name for names in _KINDS.values() for name in names}
    kinds = {**_KINDS, "others": [name for name in corruptions if name not in known]}
    found = {kind: [n for n in names if n in corruptions] for kind, names in kinds.items()}
    return {kind: names for kind, names in found.items() if names}


def _by_severity(comparison: Comparison) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for found in comparison.values.values():
        for each, value in found.items():
            if (each.inference, each.metric) == (SINGLE, "top1") and each.suite in CORRUPTED:
                values[each.corruption, str(each.severity)].append(value)
    return {place: statistics.fmean(each) for place, each in sorted(values.items())}


def _shade(means: Mapping[tuple[str, str], float]) -> _Cells:
    """Accuracies from the lowest, which is pale, to the highest."""
    low, high = min(means.values()), max(means.values())
    reach = (high - low) or 1.0
    return {
        place: _HeatCell((mean - low) / reach, f"{100 * mean:.1f}") for place, mean in means.items()
    }


def _draw(
    name: str, title: str, below: str, kinds: dict[str, list[str]], cells: _Cells
) -> list[Panel]:
    """Panels with as many columns as fit."""
    columns = list(dict.fromkeys(column for _, column in cells))
    turned = max(map(len, columns), default=0) > 8
    most = 4 if turned else 5
    return [
        _draw_panel(
            f"{name}-{start // most + 1}" if start else name,
            *(title, below, kinds, cells, columns[start : start + most], turned),
        )
        for start in range(0, len(columns), most)
    ]


def _draw_panel(
    name: str,
    title: str,
    below: str,
    kinds: dict[str, list[str]],
    cells: _Cells,
    columns: Sequence[str],
    turned: bool,
) -> Panel:
    heads = [figures.shorten(column, _LONGEST_HEAD) for column in columns]
    above = 20 + (5 * max(map(len, heads)) if turned else 0)
    rows = [row for kind, names in kinds.items() for row in (kind, *names)]
    height = _ROW * len(rows)
    canvas = figures.new_canvas(_TOP + above + height + 8)
    figures.put_heading(canvas, title, below)
    room = WIDTH - _NAMES - (60 if turned else 8)  # the last head stands out to the right
    width = min(_WIDEST_CELL, room / len(columns)) * len(columns)
    axes = figures.put_axes(canvas, left=_NAMES, top=_TOP + above, width=width, height=height)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    axes.set_xticks([place + 0.5 for place in range(len(columns))], heads)
    axes.set_yticks([place + 0.5 for place in range(len(rows))], map(spell_corruption, rows))
    axes.tick_params(length=0, top=True, labeltop=True, labelbottom=False)
    if turned:
        for label in axes.get_xticklabels():
            label.set(rotation=50, ha="left", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    for y, (row, label) in enumerate(zip(rows, axes.get_yticklabels(), strict=True)):
        if row in kinds:
            label.set(color=MUTED, fontstyle="italic")
        for x, column in enumerate(columns):
            if (row, column) in cells:
                cell = cells[row, column]
                color = COLORS["gain" if cell.strength >= 0 else "loss"][0]
                alpha = _STRONGEST * abs(cell.strength)
                place = (x + 0.02, y + 0.04)
                axes.add_patch(Rectangle(place, 0.96, 0.92, color=color, alpha=alpha, linewidth=0))
                weight = "bold" if cell.bold else "normal"
                text = axes.text(x + 0.5, y + 0.5, cell.text, ha="center", fontweight=weight)
                text.set_verticalalignment("center_baseline")
    return figures.finish(canvas, name, title, below)


SECTIONS.register(KEY, Section(KEY, "Accuracy by corruption", 20, make))
