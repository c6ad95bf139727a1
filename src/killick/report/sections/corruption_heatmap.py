"""Accuracy under each corruption, and its difference to the baseline, as colored tables."""

from collections.abc import Iterator
from typing import NamedTuple

from matplotlib.patches import Rectangle

from killick.corruptions.suites import SUITES
from killick.report import figures
from killick.report.figures import COLORS, MUTED, WIDTH, Figure, Panel
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
_ARMS = 4  # in a panel
_WIDEST_CELL = 62.0
_LONGEST_NAME = 19  # letters, also of heads
_STRONGEST = 0.92  # opacity of the largest value


class _HeatCell(NamedTuple):
    """How strongly a cell is colored, from -1 to 1, and the text in it."""

    strength: float
    text: str
    bold: bool = False


_Cells = dict[tuple[str, str], _HeatCell]  # by corruption and arm


def make(data: ReportData) -> Content:
    """Differences to the baseline and accuracies, corruptions by arms."""
    comparison = data.comparison
    found = by_corruption(comparison)
    numbers = {(row, arm): each for row, line in found.items() for arm, each in line.items()}
    if not numbers:
        return Content(missing="No corrupted images: evaluate with --suite clean,corruptions.")
    kinds = _group([corruption for corruption, line in found.items() if line])
    panels: list[Panel] = []
    gaps = {place: gap for place, each in numbers.items() if (gap := each.difference) is not None}
    if comparison.baseline is not None:
        largest = max((abs(gap.value) for gap in gaps.values()), default=0.0) or 1.0
        cells = {
            place: _HeatCell(gap.value / largest, signed(100 * gap.value, 1), gap.significant)
            for place, gap in gaps.items()
        }
        title = f"Difference to {figures.shorten(comparison.baseline.name, 24)}"
        panels += _draw(KEY, title, "top-1, points; bold: 95 % interval excludes 0", kinds, cells)
    low, high = (end(each.mean for each in numbers.values()) for end in (min, max))
    cells = {
        place: _HeatCell((each.mean - low) / ((high - low) or 1.0), f"{100 * each.mean:.1f}")
        for place, each in numbers.items()
    }
    below = "top-1, %, mean over severities and seeds"
    panels += _draw(f"{KEY}-accuracy", "Accuracy by corruption", below, kinds, cells)
    records = tuple(
        (kind, corruption, arm, *estimate.record)
        for kind, names in kinds.items()
        for corruption in names
        for arm, estimate in found[corruption].items()
    )
    columns = ("kind", "corruption", "arm", *RECORD)
    return Content((Figure(KEY, "", tuple(panels), columns, records),))


def _group(corruptions: list[str]) -> dict[str, list[str]]:
    """The corruptions by kind."""
    known = {name for names in _KINDS.values() for name in names}
    kinds = {**_KINDS, "others": [name for name in corruptions if name not in known]}
    found = {kind: [n for n in names if n in corruptions] for kind, names in kinds.items()}
    return {kind: names for kind, names in found.items() if names}


def _draw(
    name: str, title: str, below: str, kinds: dict[str, list[str]], cells: _Cells
) -> Iterator[Panel]:
    """Panels with as many arms as fit."""
    every = list(dict.fromkeys(arm for _, arm in cells))
    for number, start in enumerate(range(0, len(every), _ARMS), 1):
        arms = every[start : start + _ARMS]
        yield _draw_panel(f"{name}-{number}" if start else name, title, below, kinds, cells, arms)


def _draw_panel(
    name: str, title: str, below: str, kinds: dict[str, list[str]], cells: _Cells, arms: list[str]
) -> Panel:
    heads = [figures.shorten(arm, _LONGEST_NAME) for arm in arms]
    rows = [row for kind, names in kinds.items() for row in (kind, *names)]
    top, height = 58 + 5 * max(map(len, heads)), _ROW * len(rows)
    canvas = figures.new_canvas(top + height + 8)
    figures.put_heading(canvas, title, below)
    width = min(_WIDEST_CELL * len(arms), WIDTH - _NAMES - 60)  # heads stand out to the right
    axes = figures.put_axes(canvas, left=_NAMES, top=top, width=width, height=height)
    axes.set(xlim=(0, len(arms)), ylim=(len(rows), 0))
    across = [place + 0.5 for place in range(len(arms))]
    axes.set_xticks(across, heads, rotation=50, ha="left", rotation_mode="anchor")
    names = [figures.shorten(spell_corruption(row), _LONGEST_NAME) for row in rows]
    axes.set_yticks([place + 0.5 for place in range(len(rows))], names)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    for y, (row, label) in enumerate(zip(rows, axes.get_yticklabels(), strict=True)):
        if row in kinds:
            label.set(color=MUTED, fontstyle="italic")
        for x, arm in enumerate(arms):
            if cell := cells.get((row, arm)):
                color = COLORS["gain" if cell.strength >= 0 else "loss"][0]
                alpha = _STRONGEST * abs(cell.strength)
                place = (x + 0.02, y + 0.04)
                axes.add_patch(Rectangle(place, 0.96, 0.92, color=color, alpha=alpha, linewidth=0))
                weight = "bold" if cell.bold else "normal"
                text = axes.text(x + 0.5, y + 0.5, cell.text, ha="center", fontweight=weight)
                text.set_verticalalignment("center_baseline")
    return figures.finish(canvas, name, title, below)


SECTIONS.register(KEY, Section(KEY, "Accuracy by corruption", 20, make))
