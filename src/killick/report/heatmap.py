"""Which corruptions an arm is better or worse at than the baseline, as a coloured table."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from killick.corruptions.suites import PUBLISHED, list_corruptions
from killick.report.comparison import Arm, rows_of
from killick.report.figures import (
    COLOURS,
    WIDTH,
    Figure,
    Missing,
    Panel,
    drawing,
    finish,
    new_canvas,
    put_axes,
    put_heading,
    shorten,
)
from killick.report.formatting import (
    count_words,
    enumerate_words,
    percent,
    signed,
    spell_corruption,
)
from killick.report.scene import Scene
from killick.report.statistics import Number, by_corruption

NAME = "corruptions"
# The kinds of Hendrycks and Dietterich (2019), each with the extra one that belongs to it.
_KINDS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
}
_COLUMNS_OF_A_PANEL = 5
_ROW, _GAP = 19, 20  # px of a row, and of the line that names a kind
_NAMES = 134  # px of the names at the left
_TOP = 38
_WIDEST_CELL = 62.0
_LONGEST_HEAD = 18  # letters
_LETTER = 6.6  # px, about
_TURN = math.radians(50)  # of heads that are wider than their column
_STRONGEST = 0.92  # opacity of the largest value
_CSV = (
    *("kind", "corruption", "arm", "top1_mean", "top1_spread", "seeds"),
    *("difference", "difference_low", "difference_high", "how"),
)


@dataclass(frozen=True)
class _Cell:
    """What a field shows: how strongly it is coloured, from -1 to 1, and the text in it."""

    strength: float
    text: str
    certain: bool = False


_Cells = dict[tuple[str, str], _Cell]  # by corruption and column


def draw_heatmap(scene: Scene) -> Figure | Missing:
    """Corruptions by arms, differences to the baseline; of one arm its accuracy by severity."""
    numbers = by_corruption(scene.comparison)
    numbers = {corruption: line for corruption, line in numbers.items() if line}
    if not numbers:
        return Missing(
            "No accuracy by corruption: the runs have no rows of the suite corruptions. Evaluate"
            " them with --suite clean,corruptions."
        )
    kinds = _group(list(numbers))
    with drawing():
        if scene.comparison.baseline is None:
            panels, says = _draw_one(scene.comparison.arms[0], kinds, numbers)
        else:
            panels, says = _draw_differences(scene, kinds, numbers)
    records = [
        _record(kind, corruption, arm, numbers[corruption][arm.name])
        for kind, names in kinds.items()
        for corruption in names
        for arm in scene.comparison.arms
        if arm.name in numbers[corruption]
    ]
    return Figure(NAME, says, panels, _CSV, tuple(records))


def _group(corruptions: Sequence[str]) -> dict[str, list[str]]:
    """The corruptions by kind, each in the order of the list."""
    kinds = {
        kind: [name for name in names if name in corruptions] for kind, names in _KINDS.items()
    }
    known = {name for names in _KINDS.values() for name in names}
    rest = [name for name in PUBLISHED if name in corruptions and name not in known]
    rest += [name for name in corruptions if name not in PUBLISHED]
    kinds["C-bar" if set(rest) <= set(_cbar()) else "others"] = rest
    return {kind: names for kind, names in kinds.items() if names}


def _cbar() -> tuple[str, ...]:
    return (*list_corruptions("cbar", "cifar"), *list_corruptions("cbar", "imagenet"))


def _draw_differences(
    scene: Scene, kinds: dict[str, list[str]], numbers: dict[str, dict[str, Number]]
) -> tuple[tuple[Panel, ...], str]:
    baseline = scene.comparison.baseline
    assert baseline is not None
    arms = [arm for arm in scene.comparison.arms if arm is not baseline]
    found = {
        (corruption, arm.name): number.difference
        for corruption, line in numbers.items()
        for arm in arms
        if (number := line.get(arm.name)) is not None and number.difference is not None
    }
    largest = max((abs(d.value) for d in found.values()), default=0.0) or 1.0
    cells = {
        place: _Cell(
            d.value / largest,
            signed(100 * d.value, 1),
            d.tells,
        )
        for place, d in found.items()
    }
    scale = [f"−{100 * largest:.1f}", "0", f"+{100 * largest:.1f}"]
    panels = []
    for place, part in enumerate(_parts(arms)):
        facts = (
            _numbered(NAME, place),
            f"Accuracy less that of {shorten(baseline.title, 20)}",
            "points; bold: the 95 % interval leaves out 0",
            "; ".join(_describe(arm, kinds, cells) for arm in part),
        )
        panels.append(_draw(kinds, {arm.name: arm.title for arm in part}, cells, facts, scale))
    panels += _draw_accuracies(scene, kinds, numbers)
    assert scene.subject is not None
    return tuple(panels), _say(scene.subject, cells)


def _draw_accuracies(
    scene: Scene, kinds: dict[str, list[str]], numbers: dict[str, dict[str, Number]]
) -> list[Panel]:
    """The accuracies themselves, of all arms."""
    means = {
        (corruption, name): number.mean
        for corruption, line in numbers.items()
        for name, number in line.items()
    }
    cells, scale = _shade(means)
    return [
        _draw(
            kinds,
            {arm.name: arm.title for arm in part},
            cells,
            (
                _numbered(f"{NAME}-accuracy", number),
                "Accuracy by corruption",
                "top-1, %, mean over severities and seeds",
                "; ".join(_describe(arm, kinds, cells) for arm in part),
            ),
            scale,
        )
        for number, part in enumerate(_parts(scene.comparison.arms))
    ]


def _shade(means: dict[tuple[str, str], float]) -> tuple[_Cells, list[str]]:
    """Accuracies from the lowest, which is pale, to the highest, and the words of the scale."""
    low, high = min(means.values()), max(means.values())
    reach = (high - low) or 1.0
    cells = {
        place: _Cell((mean - low) / reach, f"{100 * mean:.1f}") for place, mean in means.items()
    }
    return cells, [f"{100 * value:.1f}" for value in (low, (low + high) / 2, high)]


def _parts(arms: Sequence[Arm]) -> list[Sequence[Arm]]:
    """As many arms as fit into a panel, evenly."""
    panels = -(-len(arms) // _COLUMNS_OF_A_PANEL)
    width = -(-len(arms) // panels)
    return [arms[start : start + width] for start in range(0, len(arms), width)]


def _numbered(name: str, number: int) -> str:
    return name if number == 0 else f"{name}-{number + 1}"


def _draw_one(
    arm: Arm, kinds: dict[str, list[str]], numbers: dict[str, dict[str, Number]]
) -> tuple[tuple[Panel, ...], str]:
    """Accuracy by corruption and severity; the paler, the lower."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in arm.runs:
        for row in rows_of(run):
            single = row["inference"] == "single" and row["metric"] == "top1"
            if single and row["corruption"] in numbers and not row["scaling"]:
                values[str(row["corruption"]), str(row["severity"])].append(float(row["value"]))
    means = {place: statistics.fmean(found) for place, found in values.items()}
    cells, scale = _shade(means)
    columns = {severity: severity for severity in sorted({severity for _, severity in cells})}
    overall = {name: line[arm.name].mean for name, line in numbers.items() if arm.name in line}
    worst, best = min(overall, key=overall.__getitem__), max(overall, key=overall.__getitem__)
    words = (
        f"{spell_corruption(worst)} costs most ({percent(overall[worst])} in the mean over"
        f" severities), {spell_corruption(best)} least ({percent(overall[best])})."
    )
    facts = (NAME, "Accuracy by corruption and severity", "top-1, %", words)
    panel = _draw(kinds, columns, cells, facts, scale)
    return (panel,), words[:1].upper() + words[1:]


def _draw(
    kinds: dict[str, list[str]],
    columns: dict[str, str],
    cells: _Cells,
    facts: tuple[str, str, str, str],
    scale: list[str],
) -> Panel:
    name, title, below, description = facts
    heads = {key: shorten(text, _LONGEST_HEAD) for key, text in columns.items()}
    longest = max(map(len, heads.values())) * _LETTER
    turned = longest > _WIDEST_CELL
    above = math.sin(_TURN) * longest + 16 if turned else 22
    rows = sum(len(names) for names in kinds.values())
    height = above + rows * _ROW + len(kinds) * _GAP
    canvas = new_canvas(_TOP + height + 46)
    put_heading(canvas, title, below)
    axes = put_axes(canvas, left=0, top=_TOP, width=WIDTH, height=height)
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    # The last head stands out to the right.
    last = math.cos(_TURN) * len(list(heads.values())[-1]) * _LETTER
    cell_width = min(_WIDEST_CELL, (WIDTH - _NAMES - 4) / len(columns))
    if turned:
        cell_width = min(cell_width, (WIDTH - _NAMES - 4 - last) / (len(columns) - 0.5))
    lefts = {key: _NAMES + i * cell_width for i, key in enumerate(columns)}
    for key, text in heads.items():
        _put_head(axes, lefts[key] + cell_width / 2, above - 6, text, turned)
    top = above
    for kind, names in kinds.items():
        axes.text(8, top + _GAP - 5, kind, color=COLOURS["muted"][0], fontstyle="italic")
        top += _GAP
        for corruption in names:
            axes.text(
                _NAMES - 6,
                top + _ROW / 2,
                shorten(spell_corruption(corruption), 19),
                ha="right",
                va="center",
            )
            for key, left in lefts.items():
                if (corruption, key) in cells:
                    _put_cell(axes, left, top, cell_width, cells[corruption, key])
            top += _ROW
    _put_scale(put_axes(canvas, left=_NAMES, top=_TOP + height + 14, width=186, height=26), scale)
    return finish(canvas, name, title, description)


def _put_head(axes: Axes, middle: float, bottom: float, text: str, turned: bool) -> None:
    side = "left" if turned else "center"
    angle = math.degrees(_TURN) if turned else 0
    axes.text(middle, bottom, text, ha=side, va="bottom", rotation=angle, rotation_mode="anchor")


def _put_cell(axes: Axes, left: float, top: float, width: float, cell: _Cell) -> None:
    role = "gain" if cell.strength >= 0 else "loss"
    axes.add_patch(
        Rectangle(
            (left + 0.75, top + 0.75),
            width - 1.5,
            _ROW - 1.5,
            facecolor=COLOURS[role][0],
            alpha=_STRONGEST * min(1.0, abs(cell.strength)),
            linewidth=0,
        )
    )
    axes.text(
        left + width / 2,
        top + _ROW / 2,
        cell.text,
        ha="center",
        va="center_baseline",
        fontweight="bold" if cell.certain else "normal",
    )


def _put_scale(axes: Axes, words: list[str]) -> None:
    """The colours from the least to the largest value."""
    both = words[1] == "0"
    axes.set(xlim=(0, 12), ylim=(26, 0))
    axes.axis("off")
    for step in range(12):
        strength = (step + 0.5) / 6 - 1 if both else (step + 0.5) / 12
        role = "gain" if strength > 0 else "loss"
        colour, alpha = COLOURS[role][0], _STRONGEST * abs(strength)
        axes.add_patch(Rectangle((step, 0), 0.97, 9, facecolor=colour, alpha=alpha, linewidth=0))
    for place, text in zip((0, 6, 12), words, strict=True):
        side = {0: "left", 6: "center", 12: "right"}[place]
        axes.text(place, 24, text, ha=side, color=COLOURS["muted"][0])


def _describe(arm: Arm, kinds: dict[str, list[str]], cells: _Cells) -> str:
    means = []
    for kind, names in kinds.items():
        texts = [cells[name, arm.name].text for name in names if (name, arm.name) in cells]
        if texts:
            means.append(f"{kind} {' '.join(texts)}")
    return f"{arm.title}: {', '.join(means)}"


def _say(arm: Arm, cells: _Cells) -> str:
    """Where the arm wins and where it loses."""
    mine = {name: cell for (name, key), cell in cells.items() if key == arm.name}
    if not mine:
        return f"No differences of {arm.name} could be taken."
    better = [name for name, cell in mine.items() if cell.certain and cell.strength > 0]
    worse = [name for name, cell in mine.items() if cell.certain and cell.strength < 0]
    unclear = len(mine) - len(better) - len(worse)
    sentence = (
        f"Of {count_words(len(mine), 'corruption')}, {arm.name} is better at {len(better)} and"
        f" worse at {len(worse)}; {unclear} cannot be told."
        " By chance alone one in twenty would be called better or worse."
    )
    if len(mine) < 4:
        return sentence
    ranked = sorted(mine, key=lambda name: mine[name].strength, reverse=True)
    top, bottom = ranked[:3], ranked[-1]
    listed = enumerate_words([f"{spell_corruption(name)} ({mine[name].text})" for name in top])
    last = f"{spell_corruption(bottom)} ({mine[bottom].text})"
    return f"{sentence} It does best at {listed}, worst at {last}."


def _record(kind: str, corruption: str, arm: Arm, number: Number) -> tuple[object, ...]:
    found = number.difference
    rest = ("", "", "", "") if found is None else (found.value, found.low, found.high, found.how)
    shown = ("" if value is None else value for value in rest)
    spread = "" if number.spread is None else number.spread
    return (kind, corruption, arm.name, number.mean, spread, len(number.values), *shown)
