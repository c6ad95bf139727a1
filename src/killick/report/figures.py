"""How all figures look: one palette, one size of text, SVG that follows light and dark.

Matplotlib draws with the light colours. On the page each of them becomes a CSS variable, so that a
figure changes with the page; in a file of its own it keeps them, and a rule for dark screens
follows. A panel is as wide as a phone, so that its text stays legible there; on wider screens
panels stand side by side.
"""

import csv
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from killick.report.comparison import Comparison

# What a colour is for: on light paper, on dark paper. Light ones differ from each other, because
# by them it is known, in the drawn file, what a colour was for.
COLOURS = {
    "ink": ("#1d2126", "#e8ebee"),
    "muted": ("#59616b", "#a9b2bc"),
    "grid": ("#dde2e7", "#343b43"),
    "paper": ("#fffffe", "#15181c"),
    "gain": ("#5aa2d9", "#1d689f"),
    "loss": ("#ea9440", "#9a4f0e"),
    # The baseline, then the other arms. Told apart also without red, green or blue cones.
    "arm-0": ("#3f4650", "#d3d9e0"),
    "arm-1": ("#1468b3", "#3f93ea"),
    "arm-2": ("#d9560b", "#ff9233"),
    "arm-3": ("#239b78", "#37d19c"),
    "arm-4": ("#c45aa8", "#d86fb4"),
    "arm-5": ("#6b5410", "#a8923a"),
    "arm-6": ("#6a3df0", "#b7a4ff"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
WIDTH = 340  # px of a panel at its natural size; a pixel is a point of matplotlib
LINE_OF_LEGEND = 16
_TEXT = 11.5
_HUES = 6  # beside the baseline's
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LONGEST_TITLE = 40
_ROUGH = re.compile(r"(\d\.\d\d)\d+")  # a hundredth of a pixel is enough

_MOST_BANDS = 6  # more would hide each other

Record = Sequence[Any]


@dataclass(frozen=True)
class Style:
    """How an arm is drawn: by colour, and by dashes and marker for who sees no colours."""

    role: str
    dashes: Any
    marker: str

    @property
    def colour(self) -> str:
        """To draw with."""
        return COLOURS[self.role][0]


@dataclass(frozen=True)
class Panel:
    """One drawing.

    Attributes:
        name: Of its file, without ending; unique in a report.
        title: Said first to who cannot see it.
        description: What it shows, for the same reader.
        svg: In light colours, without anything that is for a file of its own.
    """

    name: str
    title: str
    description: str
    svg: str


@dataclass(frozen=True)
class Figure:
    """Panels that show the same thing, and the numbers in them.

    Attributes:
        name: Of its CSV file, without ending.
        says: What to see, in a sentence or two, from the numbers.
        panels: In order.
        columns: Of the numbers.
        records: A line of numbers for each point drawn.
    """

    name: str
    says: str
    panels: tuple[Panel, ...]
    columns: tuple[str, ...]
    records: tuple[Record, ...]

    @property
    def csv(self) -> str:
        """The numbers as a table."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_plain(value) for value in record] for record in self.records)
        return text.getvalue()


@dataclass(frozen=True)
class Missing:
    """Why there is no figure, and how to get one."""

    why: str


def choose_styles(comparison: Comparison) -> dict[str, Style]:
    """A style for each arm by name; the baseline in the colour of ink."""
    styles = {}
    others = 0
    for arm in comparison.arms:
        if arm is comparison.baseline:
            styles[arm.name] = Style("arm-0", "-", "o")
            continue
        role = f"arm-{others % _HUES + 1}"
        others += 1
        dashes, marker = _DASHES[others % len(_DASHES)], _MARKERS[others % len(_MARKERS)]
        styles[arm.name] = Style(role, dashes, marker)
    return styles


@contextmanager
def drawing() -> Iterator[None]:
    """Draw inside: sets matplotlib up, and puts it back."""
    ink, muted, grid = (COLOURS[role][0] for role in ("ink", "muted", "grid"))
    settings: Any = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "killick",  # the same numbers give the same file
        "text.parse_math": False,  # names may have dollar signs
        "font.family": ["DejaVu Sans"],  # its widths; others stand in when it is shown
        "font.size": _TEXT,
        "text.color": ink,
        "axes.edgecolor": muted,
        "axes.labelcolor": ink,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "axes.unicode_minus": True,
        "figure.facecolor": COLOURS["paper"][0],
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "legend.frameon": False,
        "legend.handlelength": 3.0,
        "legend.fontsize": _TEXT,
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # not what the reader's own settings say
        matplotlib.rcParams.update(settings)
        # Names may be in any script; the font that they are shown in is the reader's.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_canvas(height: float, width: float = WIDTH) -> Canvas:
    """An empty panel, its size in px."""
    canvas = Canvas(figsize=(width / 72, height / 72), dpi=72)
    FigureCanvasSVG(canvas)
    return canvas


def put_axes(
    canvas: Canvas, *, left: float, top: float, width: float, height: float, **options: Any
) -> Axes:
    """Axes at a place in px, counted from the left and from the top."""
    whole_width, whole_height = canvas.get_size_inches() * 72
    bottom = whole_height - top - height
    box = (left / whole_width, bottom / whole_height, width / whole_width, height / whole_height)
    return canvas.add_axes(box, **options)


def put_heading(canvas: Canvas, title: str, below: str = "") -> None:
    """A title in the first 20 px, and below it what the axes show."""
    whole_height = canvas.get_size_inches()[1] * 72
    canvas.text(8 / WIDTH, 1 - 15 / whole_height, title, fontsize=12.5, fontweight="bold")
    if below:
        muted = COLOURS["muted"][0]
        canvas.text(8 / WIDTH, 1 - 31 / whole_height, below, fontsize=_TEXT, color=muted)


def put_legend(canvas: Canvas, entries: Iterable[tuple[str, Line2D | Any]]) -> None:
    """A legend at the lower edge, two columns wide."""
    titles, handles = zip(*entries, strict=True)
    shown = [shorten(title) for title in titles]
    canvas.legend(
        handles,
        shown,
        loc="lower left",
        bbox_to_anchor=(0.005, 0.0),
        ncols=columns_for(shown),
        columnspacing=1.2,
        labelspacing=0.35,
        borderaxespad=0.1,
        handletextpad=0.6,
    )


def columns_for(titles: Sequence[str]) -> int:
    """Columns of a legend that fit into the width of a panel."""
    widest = max(map(len, map(shorten, titles)), default=0)
    return 3 if widest <= 8 else 2 if widest <= 17 else 1


def legend_height(titles: Sequence[str]) -> int:
    """The px that a legend takes."""
    columns = columns_for(titles)
    return LINE_OF_LEGEND * -(-len(titles) // columns) + 6


def sample_line(style: Style) -> Line2D:
    """What stands for an arm in a legend."""
    return Line2D([], [], color=style.colour, linestyle=style.dashes, marker=style.marker)


def put_line(axes: Axes, x: Any, lines: Any, style: Style, *, of: int, every: int = 1) -> None:
    """The mean of several lines, and a band from the least to the most of them.

    Args:
        axes: To draw on.
        x: `(points,)`.
        lines: `(seeds, points)`.
        style: Of the arm.
        of: How many arms are drawn; of many the bands would hide each other.
        every: How far the markers are apart, in points.
    """
    axes.plot(
        x,
        lines.mean(0),
        color=style.colour,
        linestyle=style.dashes,
        marker=style.marker,
        markevery=every,
        markersize=4.5,
    )
    if len(lines) > 1 and of <= _MOST_BANDS:
        low, high = lines.min(0), lines.max(0)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.16, linewidth=0)


def describe_bands(seeds: int, arms: int) -> str:
    """What to say of bands, where there are any."""
    return "; band: all seeds" if seeds > 1 and arms <= _MOST_BANDS else ""


def shorten(title: str, longest: int = _LONGEST_TITLE) -> str:
    """A title that fits into a figure, without what no file of XML may hold.

    The middle is left out, as names that begin alike often differ at the end.

    Example:
        >>> shorten("masked-label-alpha0.25", 16)
        'masked-…lpha0.25'
    """
    title = clean(title)
    if len(title) <= longest:
        return title
    first = (longest - 1) // 2
    return f"{title[:first]}…{title[first + 1 - longest :]}"


def clean(text: str) -> str:
    """Text without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def finish(canvas: Canvas, name: str, title: str, description: str) -> Panel:
    """The drawing as a panel."""
    file = io.StringIO()
    canvas.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\s)(id|clip-path|xlink:href)="(url\()?(#?)', rf'\1\2="\3\4{name}-', svg)
    svg = re.sub(r'="[^"]*"', _tidy_attribute, svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    title, description = clean(title), clean(description)
    words = (
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>'
    )
    width, height = (round(72 * float(inches)) for inches in canvas.get_size_inches())
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-labelledby="{name}-title {name}-desc">'
    )
    return Panel(name, title, description, opening + words + svg[svg.index(">") + 1 :])


def _tidy_attribute(found: re.Match[str]) -> str:
    """An attribute with the fonts of the reader, and without needless digits."""
    text = re.sub(r"'DejaVu Sans'[^;\"]*", FONT, found.group())
    return _ROUGH.sub(r"\1", re.sub(r"\s+", " ", text))


def to_page(svg: str) -> str:
    """The drawing with the variables of a page for colours."""
    for role, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{role})")
    return svg


def to_file(svg: str) -> str:
    """The drawing as a file of its own, which follows the reader's screen by itself."""
    place = svg.index(">") + 1
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return f"{head}{svg[:place]}<style>{dark_rules()}</style>{svg[place:]}\n"


def dark_rules() -> str:
    """Rules that change the light colours of a file on a dark screen."""
    rules = [
        f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
        for light, dark in COLOURS.values()
        for kind in ("fill", "stroke")
    ]
    return f"@media (prefers-color-scheme: dark){{{''.join(rules)}}}"


def variables(side: int) -> str:
    """The colours of light (0) or dark (1) pages, as declarations of CSS."""
    return "".join(f"--{role}:{pair[side]};" for role, pair in COLOURS.items())


def _plain(value: Any) -> Any:
    """Floats with as many digits as mean something."""
    return f"{value:.6g}" if isinstance(value, float) else value
