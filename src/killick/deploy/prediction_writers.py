"""Records as text: JSON lines, CSV or a table; on the standard output, or a file, whole or not."""

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text

from killick.deploy.image_paths import show_path
from killick.deploy.prediction_records import Record
from killick.errors import DataError, OptionError

FORMATS = ("table", "json", "csv")
EXTENSIONS = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".txt": "table",
}
_LONGEST_PATH = 60  # beyond which it is shortened, so that wide terminals have no wide gaps
_LONGEST_LABEL = 24
_NEEDS_QUOTES = re.compile(r'[,"\r\n]')


@dataclass(frozen=True)
class Shape:
    """What every record of a list has.

    Attributes:
        classes: How many there are.
        class_names: If known.
        several: Whether there are several references, and so a spread.
        judged: Whether in and out of distribution are told apart.
        top: How many likely classes are named.
        probabilities: Whether those of all classes are told.
    """

    classes: int
    class_names: tuple[str, ...] | None = None
    several: bool = False
    judged: bool = False
    top: int = 0
    probabilities: bool = False


class Format(Protocol):
    """How records become text."""

    def head(self) -> str:
        """What comes before all records."""
        ...

    def lines(self, records: Sequence[Record]) -> str:
        """Some records, each with its line end."""
        ...

    def foot(self, totals: str) -> str:
        """What comes after all of them."""
        ...


class JsonLines:
    """An object a line. A path that is no UTF-8 is kept in escapes, as Python's `os` has them."""

    def head(self) -> str:
        """Nothing."""
        return ""

    def lines(self, records: Sequence[Record]) -> str:
        """An object for each record."""
        return "".join(f"{_as_json(_shortened(record.to_dict()))}\n" for record in records)

    def foot(self, totals: str) -> str:
        """Nothing: whoever reads this counts by themselves."""
        return ""


class Csv:
    """A line for each record, with the fields of JSON; lists become numbered columns.

    Args:
        shape: Decides which columns there are.
    """

    def __init__(self, shape: Shape) -> None:
        self._top = range(1, min(shape.top, shape.classes) + 1)
        self._columns = ["image", "label", "index", "confidence", "uncertainty", "energy"]
        self._columns += ["std"] * shape.several + ["in_distribution"]
        for place in self._top:
            self._columns += [f"top_{place}", f"top_{place}_probability"]
        if shape.probabilities:
            self._columns += [f"probability_{index}" for index in range(shape.classes)]
        self._columns.append("error")

    def head(self) -> str:
        """The names of the columns."""
        return _as_csv([self._columns])

    def lines(self, records: Sequence[Record]) -> str:
        """A line for each record."""
        return _as_csv([self._cells(record) for record in records])

    def foot(self, totals: str) -> str:
        """Nothing."""
        return ""

    def _cells(self, record: Record) -> list[str]:
        fields = _shortened(record.to_dict())
        for place, each in enumerate(fields.pop("top", ()), 1):
            fields[f"top_{place}"] = each["label"]
            fields[f"top_{place}_probability"] = each["probability"]
        for index, probability in enumerate(fields.pop("probabilities", ())):
            fields[f"probability_{index}"] = probability
        return [_as_cell(fields.get(column)) for column in self._columns]


class Table:
    """Aligned columns for people, which can be shown as they come.

    Args:
        shape: Decides which columns there are, and how wide.
        width: Of a line.
        coloured: Whether what is out of distribution, or broken, stands out.
    """

    def __init__(self, shape: Shape, width: int = 100, *, coloured: bool = False) -> None:
        self._shape, self._width = shape, width
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            force_terminal=coloured,
            width=width,
            color_system="auto" if coloured else None,
            highlight=False,
            markup=False,
        )
        names = shape.class_names or (str(shape.classes - 1),)
        longest = max(cell_len(show_path(name)) for name in names)
        self._label = max(len("label"), min(longest, _LONGEST_LABEL))
        # Title and width of what comes after the path; numbers stand to the right.
        self._columns = [("label", self._label), ("confidence", 10), ("uncertainty", 11)]
        self._columns += [("std", 6)] * shape.several + [("distribution", 12)] * shape.judged
        if shape.top:
            self._columns.append(("likeliest", min(shape.top, 3) * 16))
        taken = sum(2 + wide for _, wide in self._columns)
        self._path = min(max(12, width - taken), _LONGEST_PATH)

    def head(self) -> str:
        """The titles."""
        titles = [_aligned(title, title, wide) for title, wide in self._columns]
        return self._rendered([Text("  ".join([_fit("image", self._path), *titles]), "bold")])

    def lines(self, records: Sequence[Record]) -> str:
        """A line for each record; one that is broken says why."""
        return self._rendered([self._line(record) for record in records])

    def foot(self, totals: str) -> str:
        """The totals."""
        return self._rendered([Text(totals, "bold")])

    def _line(self, record: Record) -> Text:
        path = _fit(shorten(show_path(record.image), self._path), self._path)
        if record.error is not None:
            return Text(f"{path}  {_reason(record)}", "red")
        cells = {
            "label": show_path(record.label or ""),
            "confidence": f"{100 * (record.confidence or 0):.1f} %",
            "uncertainty": f"{record.uncertainty:.3f}",
            "std": "" if record.std is None else f"{record.std:.3f}",
            "distribution": {True: "in", False: "out", None: ""}[record.in_distribution],
            "likeliest": ", ".join(
                f"{show_path(each.label)} {100 * each.probability:.1f} %" for each in record.top
            ),
        }
        shown = [_aligned(title, cells[title], wide) for title, wide in self._columns]
        return Text("  ".join([path, *shown]), "yellow" if record.in_distribution is False else "")

    def _rendered(self, lines: list[Text]) -> str:
        self._out.seek(0)
        self._out.truncate()
        for line in lines:
            line.rstrip()
            self._console.print(line, soft_wrap=True)
        return self._out.getvalue()


def make_format(name: str, shape: Shape, *, width: int = 100, coloured: bool = False) -> Format:
    """The format of a name among `FORMATS`."""
    if name == "json":
        return JsonLines()
    return Csv(shape) if name == "csv" else Table(shape, width, coloured=coloured)


def choose_format(asked: str | None, output: Path | None, on_terminal: bool) -> str:
    """Which format: as asked for; by the file's extension; for people a table, else JSON lines."""
    if asked is not None:
        return asked
    if output is None:
        return "table" if on_terminal else "json"
    known = EXTENSIONS.get(output.suffix.lower())
    if known is None:
        raise OptionError(
            f"expected --output with an extension among {' '.join(EXTENSIONS)}, found {output}."
            " Name the format: --format json."
        )
    return known


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` once all is in it; what was there stays until then.

    What is no ordinary file, such as a pipe with a name, is written as it is.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    if path.is_dir():
        raise DataError(f"cannot write {path}: expected a file, found a folder.")
    straight = path.exists() and not path.is_file()
    beside = path if straight else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(beside, "wb")  # noqa: SIM115, it is closed below
        try:
            yield file
        finally:
            with _told(path):
                file.close()
        if not straight:
            with _told(path):
                os.replace(beside, path)
    finally:
        if not straight:
            with contextlib.suppress(OSError):
                beside.unlink()


def write_to(stream: BinaryIO, name: object = "the output") -> Callable[[str], None]:
    """What writes text at once: who reads at the other end sees lines while work goes on.

    Args:
        stream: Where to.
        name: What an error calls it.
    """

    def write(text: str) -> None:
        with _told(name):
            stream.write(text.encode("utf-8", "backslashreplace"))
            stream.flush()

    return write


@contextlib.contextmanager
def _told(name: object) -> Iterator[None]:
    """Nobody reading any more is no mistake; all else that keeps from writing is told."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise DataError(f"cannot write {name}: {problem.strerror}.") from problem


def shorten(text: str, cells: int) -> str:
    """The end of a text, so that it fits: of a path, the name says more than where it begins.

    Example:
        >>> shorten("photos/holidays/beach.jpg", 12)
        '…s/beach.jpg'
    """
    if cell_len(text) <= cells:
        return text
    kept = text
    while cell_len(kept) > cells - 1:
        kept = kept[max(1, (cell_len(kept) - cells) // 2) :]
    return f"…{kept}"


def _fit(text: str, cells: int) -> str:
    return set_cell_size(text, cells)


def _aligned(title: str, text: str, cells: int) -> str:
    if title in ("label", "distribution", "likeliest"):
        longer = cell_len(text) > cells
        return _fit(chop_cells(text, cells - 1)[0] + "…" if longer else text, cells)
    return " " * (cells - cell_len(text)) + text


def _reason(record: Record) -> str:
    """Why a picture is broken, without saying again which."""
    told = show_path(record.error or "")
    return told.removeprefix(f"cannot read {show_path(record.image)}: ")


def _shortened(fields: dict[str, Any]) -> dict[str, Any]:
    """The same with numbers of seven digits, all that a float32 has."""
    return {name: _short(value) for name, value in fields.items()}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [_short(each) for each in value]
    return _shortened(value) if isinstance(value, dict) else value


def _as_json(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(fields)
    return text


def _as_csv(rows: list[list[str]]) -> str:
    """Rows as lines. Python's own writer leaves a lone carriage return without quotes."""
    return "".join(f"{','.join(map(_quoted, row))}\n" for row in rows)


def _quoted(cell: str) -> str:
    if _NEEDS_QUOTES.search(cell) is None:
        return cell
    doubled = cell.replace('"', '""')
    return f'"{doubled}"'


def _as_cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
