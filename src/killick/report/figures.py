"""How all figures look: one palette, one text size, SVG that follows light and dark themes.

Matplotlib draws with the light colors. On the page each of them becomes a CSS variable, so that a
figure changes with the page; in a file of its own it keeps them, followed by a rule for dark
screens. A panel is as wide as a phone; on wider screens panels stand side by side.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.transforms import Bbox

from killick.report.comparison import Comparison
from killick.results.csv_text import to_csv

# What a color is for: on light paper, on dark paper. Light ones differ from each other, because
# they are replaced by their role after drawing.
COLORS = {
    "ink": ("#1d2126", "#e8ebee"),
    "muted": ("#59616b", "#a9b2bc"),
    "grid": ("#dde2e7", "#343b43"),
    "paper": ("#fffffe", "#15181c"),
    "gain": ("#5aa2d9", "#1d689f"),
    "loss": ("#ea9440", "#9a4f0e"),
    # The baseline, then the other arms; distinguishable without red, green or blue cones.
    "arm-0": ("#3f4650", "#d3d9e0"),
    "arm-1": ("#1468b3", "#3f93ea"),
    "arm-2": ("#d9560b", "#ff9233"),
    "arm-3": ("#239b78", "#37d19c"),
    "arm-4": ("#c45aa8", "#d86fb4"),
    "arm-5": ("#6b5410", "#a8923a"),
    "arm-6": ("#6a3df0", "#b7a4ff"),
}
MUTED = COLORS["muted"][0]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
WIDTH = 340  # px of a panel at its natural size; a pixel is a point of matplotlib
_STYLE = Path(__file__).with_name("figures.mplstyle")
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_ROUGH = re.compile(r"(\d\.\d\d)\d+")  # a hundredth of a pixel is enough

Record = Sequence[Any]


@dataclass(frozen=True)
class Style:
    """How an arm is drawn: color, dashes and marker."""

    role: str
    dashes: Any
    marker: str

    @property
    def color(self) -> str:
        """To draw with."""
        return COLORS[self.role][0]

    @property
    def line(self) -> dict[str, Any]:
        """Arguments for matplotlib."""
        return {"color": self.color, "linestyle": self.dashes, "marker": self.marker}


@dataclass(frozen=True)
class Panel:
    """One drawing."""

    name: str  # of its file, without ending; unique in a report
    title: str  # for screen readers
    svg: str  # in light colors, without anything that is for a file of its own


@dataclass(frozen=True)
class Figure:
    """Panels that belong together, and the numbers in them."""

    name: str  # of its CSV file, without ending; begins with the key of its section
    note: str  # one line under it, or empty
    panels: tuple[Panel, ...]  # in order
    columns: tuple[str, ...]  # of the numbers
    records: tuple[Record, ...]  # a line of numbers for each point drawn

    @property
    def csv(self) -> str:
        """The numbers as a CSV file, floats with six digits."""
        lines = ([f"{v:.6g}" if isinstance(v, float) else v for v in r] for r in self.records)
        return to_csv(self.columns, lines)


def choose_styles(comparison: Comparison) -> dict[str, Style]:
    """A style for each arm by name; the baseline in ink."""
    first = int(comparison.baseline is None)  # the baseline is the first arm
    return {
        arm.name: Style(
            f"arm-{(place - 1) % 6 + 1 if place else 0}",
            _DASHES[place % len(_DASHES)],
            _MARKERS[place % len(_MARKERS)],
        )
        for place, arm in enumerate(comparison.arms, first)
    }


@contextmanager
def drawing() -> Iterator[None]:
    """Draw inside: sets matplotlib up and restores it afterwards."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rc_file(_STYLE)  # on matplotlib's defaults, not on the user's own settings
        # Names may be in any script; browsers have the glyphs.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_canvas(height: float) -> Canvas:
    """An empty panel, its height in px."""
    canvas = Canvas(figsize=(WIDTH / 72, height / 72), dpi=72)
    FigureCanvasSVG(canvas)
    return canvas


def put_axes(canvas: Canvas, *, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in px, counted from the left and from the top."""
    whole_width, whole_height = canvas.get_size_inches() * 72
    bottom = whole_height - top - height
    box = (left / whole_width, bottom / whole_height, width / whole_width, height / whole_height)
    return canvas.add_axes(box)


def put_heading(canvas: Canvas, title: str, below: str) -> None:
    """A title in the first 20 px, and below it what the axes show."""
    whole_height = canvas.get_size_inches()[1] * 72
    canvas.text(8 / WIDTH, 1 - 15 / whole_height, title, fontsize=12.5, fontweight="bold")
    canvas.text(8 / WIDTH, 1 - 31 / whole_height, below, color=MUTED)


def new_chart(
    heading: str, below: str, *, height: float = 200, left: float = 40
) -> tuple[Canvas, Axes]:
    """A panel with one pair of axes under a heading."""
    canvas = new_canvas(44 + height + 42)
    put_heading(canvas, heading, below)
    return canvas, put_axes(canvas, left=left, top=44, width=WIDTH - left - 12, height=height)


def put_line(
    axes: Axes, x: Any, lines: Any, style: Style, label: str, *, every: int | None = None
) -> None:
    """The mean of `lines`, `(seeds, points)`, and a band from their minimum to their maximum.

    A marker is drawn at `every` so many points, by default at ten of them.
    """
    every = every or max(1, len(x) // 10)
    axes.plot(x, lines.mean(0), label=label, markevery=every, markersize=4.5, **style.line)
    if len(lines) > 1:
        low, high = lines.min(0), lines.max(0)
        axes.fill_between(x, low, high, color=style.color, alpha=0.16, linewidth=0)


def put_diagonal(axes: Axes) -> None:
    """A dotted line from 0 to 100 % on both axes."""
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=(0, (1, 2)))


def shorten(title: str, longest: int = 40) -> str:
    """A title that fits into a figure, its middle left out, without control characters.

    Example:
        >>> shorten("masked-label-alpha0.25", 16)
        'masked-…lpha0.25'
    """
    title = _clean(title)
    if len(title) <= longest:
        return title
    first = (longest - 1) // 2
    return f"{title[:first]}…{title[first + 1 - longest :]}"


def _clean(text: str) -> str:
    """Text without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def finish(canvas: Canvas, name: str, title: str, description: str) -> Panel:
    """The drawing as a panel, with a legend of all that has a label below it."""
    width, height = (round(72 * float(inches)) for inches in canvas.get_size_inches())
    legend = _put_legend(canvas)
    box = Bbox([[0, -legend / 72], [width / 72, height / 72]])
    file = io.StringIO()
    canvas.savefig(
        file, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches=box, pad_inches=0
    )
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\s)(id|clip-path|xlink:href)="(url\()?(#?)', rf'\1\2="\3\4{name}-', svg)
    svg = re.sub(r'="[^"]*"', _tidy_attribute, svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    title, description = _clean(title), _clean(description)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' viewBox="0 0 {width} {height + legend}" width="{width}" height="{height + legend}"'
        f' role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>'
    )
    return Panel(name, title, opening + svg[svg.index(">") + 1 :])


def _put_legend(canvas: Canvas) -> int:
    """Hang a legend below the canvas; its height in px."""
    found: dict[str, Any] = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(shorten(label), handle)
    if not found:
        return 0
    widest = max(map(len, found))
    columns = 3 if widest <= 8 else 2 if widest <= 17 else 1
    canvas.legend(
        list(found.values()),
        list(found),
        loc="upper left",
        bbox_to_anchor=(0.005, 0.0),
        ncols=columns,
        columnspacing=1.2,
        labelspacing=0.35,
        borderaxespad=0.1,
        handletextpad=0.6,
    )
    return 16 * math.ceil(len(found) / columns) + 6


def _tidy_attribute(found: re.Match[str]) -> str:
    """An attribute with the fonts of the page, and without needless digits."""
    text = re.sub(r"'DejaVu Sans'[^;\"]*", FONT, found.group())
    return _ROUGH.sub(r"\1", re.sub(r"\s+", " ", text))


def to_page(svg: str) -> str:
    """The drawing with CSS variables for colors."""
    for role, (light, _) in COLORS.items():
        svg = svg.replace(light, f"var(--{role})")
    return svg


def to_file(svg: str) -> str:
    """The drawing as a file of its own, with rules for dark screens."""
    place = svg.index(">") + 1
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return f"{head}{svg[:place]}<style>{dark_rules()}</style>{svg[place:]}\n"


def dark_rules() -> str:
    """CSS rules that replace the light colors of a file on a dark screen."""
    rules = [
        f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
        for light, dark in COLORS.values()
        for kind in ("fill", "stroke")
    ]
    return f"@media (prefers-color-scheme: dark){{{''.join(rules)}}}"


def variables(side: int) -> str:
    """The colors of light (0) or dark (1) pages, as CSS declarations."""
    return "".join(f"--{role}:{pair[side]};" for role, pair in COLORS.items())
