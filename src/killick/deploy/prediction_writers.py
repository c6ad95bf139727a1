"""Records as JSON lines, CSV or a table; on the standard output, or in a file, whole or not."""

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text

from killick.deploy.image_paths import show_path
from killick.deploy.prediction_records import Record
from killick.errors import DataError, OptionError
from killick.runtime.atomic_files import atomic_file

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
class RecordFields:
    """Which fields all records have.

    Attributes:
        classes: How many there are.
        class_names: If known.
        std: Whether there are several references, and so a spread.
        in_distribution: Whether there is an OOD threshold.
        top: How many likely classes are included.
        probabilities: Whether those of all classes are included.
    """

    classes: int
    class_names: tuple[str, ...] | None = None
    std: bool = False
    in_distribution: bool = False
    top: int = 0
    probabilities: bool = False


class JsonLines:
    """An object a line. A path that is no UTF-8 is kept in escapes, as Python's `os` has them."""

    def head(self) -> str:
        """What comes before all records."""
        return ""

    def lines(self, records: Sequence[Record]) -> str:
        """Some records, each with its line end."""
        return "".join(f"{_as_json(_short(record.to_dict()))}\n" for record in records)

    def foot(self, totals: str) -> str:
        """What comes after all records."""
        return ""


class Csv(JsonLines):
    """A line for each record, with the fields of JSON; lists become numbered columns.

    Args:
        fields: Decides which columns there are.
    """

    def __init__(self, fields: RecordFields) -> None:
        self._columns = ["image", "label", "index", "confidence", "uncertainty", "energy"]
        self._columns += ["std"] * fields.std + ["in_distribution"]
        for place in range(1, min(fields.top, fields.classes) + 1):
            self._columns += [f"top_{place}", f"top_{place}_probability"]
        if fields.probabilities:
            self._columns += [f"probability_{index}" for index in range(fields.classes)]
        self._columns.append("error")

    def head(self) -> str:
        """The names of the columns."""
        return _as_csv(self._columns)

    def lines(self, records: Sequence[Record]) -> str:
        """A line for each record."""
        return "".join(_as_csv(self._cells(record)) for record in records)

    def _cells(self, record: Record) -> list[str]:
        fields = _short(record.to_dict())
        for place, each in enumerate(fields.pop("top", ()), 1):
            fields[f"top_{place}"] = each["label"]
            fields[f"top_{place}_probability"] = each["probability"]
        for index, probability in enumerate(fields.pop("probabilities", ())):
            fields[f"probability_{index}"] = probability
        found = [fields.get(column) for column in self._columns]
        return [
            "" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell)
            for cell in found
        ]


class Table(JsonLines):
    """Aligned columns, which can be printed line by line.

    Args:
        fields: Decides which columns there are, and how wide.
        width: Of a line.
        color: Whether OOD and unreadable images stand out.
    """

    def __init__(self, fields: RecordFields, width: int = 100, *, color: bool = False) -> None:
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            force_terminal=color,
            width=width,
            color_system="auto" if color else None,
            highlight=False,
            markup=False,
        )
        names = fields.class_names or (str(fields.classes - 1),)
        longest = max(cell_len(show_path(name)) for name in names)
        label = max(len("label"), min(longest, _LONGEST_LABEL))
        # Title and width of what comes after the path; numbers stand to the right.
        self._columns = [("label", label), ("confidence", 10), ("uncertainty", 11)]
        self._columns += [("std", 6)] * fields.std
        self._columns += [("distribution", 12)] * fields.in_distribution
        if fields.top:
            self._columns.append(("most likely", min(fields.top, 3) * 16))
        taken = sum(2 + wide for _, wide in self._columns)
        self._path = min(max(12, width - taken), _LONGEST_PATH)

    def head(self) -> str:
        """The titles."""
        titles = [_aligned(title, title, wide) for title, wide in self._columns]
        path = set_cell_size("image", self._path)
        return self._rendered([Text("  ".join([path, *titles]), "bold")])

    def lines(self, records: Sequence[Record]) -> str:
        """A line for each record; an unreadable image has the reason."""
        return self._rendered([self._line(record) for record in records])

    def foot(self, totals: str) -> str:
        """The totals."""
        return self._rendered([Text(totals, "bold")])

    def _line(self, record: Record) -> Text:
        image = show_path(record.image)
        path = set_cell_size(shorten(image, self._path), self._path)
        if record.error is not None:
            reason = show_path(record.error).removeprefix(f"cannot read {image}: ")
            return Text(f"{path}  {reason}", "red")
        cells = {
            "label": show_path(record.label or ""),
            "confidence": f"{100 * (record.confidence or 0):.1f} %",
            "uncertainty": f"{record.uncertainty:.3f}",
            "std": "" if record.std is None else f"{record.std:.3f}",
            "distribution": {True: "in", False: "out", None: ""}[record.in_distribution],
            "most likely": ", ".join(
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


def make_format(
    name: str, fields: RecordFields, *, width: int = 100, color: bool = False
) -> JsonLines:
    """The format of a name among `FORMATS`."""
    if name == "json":
        return JsonLines()
    return Csv(fields) if name == "csv" else Table(fields, width, color=color)


def choose_format(given: str | None, output: Path | None, on_terminal: bool) -> str:
    """The format given; else by the file's extension; else a table on a terminal, or JSON lines."""
    if given is not None:
        return given
    if output is None:
        return "table" if on_terminal else "json"
    known = EXTENSIONS.get(output.suffix.lower())
    if known is None:
        raise OptionError(
            f"the extension of --output {output} is none of {' '.join(EXTENSIONS)}. Name the"
            " format: --format json."
        )
    return known


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` once all is in it; what was there stays until then.

    What is no ordinary file, such as a named pipe, is written directly.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    if path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder.")
    direct = path.exists() and not path.is_file()
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") if direct else atomic_file(path) as file:
            yield file


def write_to(stream: BinaryIO, name: object = "the output") -> Callable[[str], None]:
    """A function that writes text and flushes: a reader at the other end sees lines at once.

    Args:
        stream: Where to.
        name: For errors.
    """

    def write(text: str) -> None:
        with _write_errors(name):
            stream.write(text.encode("utf-8", "backslashreplace"))
            stream.flush()

    return write


@contextlib.contextmanager
def _write_errors(name: object) -> Iterator[None]:
    """A pipe without a reader is no error of the user; other write errors are `DataError`s."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise DataError(f"cannot write {name}: {problem.strerror}.") from problem


def shorten(text: str, cells: int) -> str:
    """The end of a text, so that it fits: the end of a path says more than its beginning.

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


def _aligned(title: str, text: str, cells: int) -> str:
    if title in ("label", "distribution", "most likely"):
        longer = cell_len(text) > cells
        return set_cell_size(chop_cells(text, cells - 1)[0] + "…" if longer else text, cells)
    return " " * (cells - cell_len(text)) + text


def _short(value: Any) -> Any:
    """The same with numbers of seven digits, all that a float32 has."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [_short(each) for each in value]
    return {key: _short(each) for key, each in value.items()} if isinstance(value, dict) else value


def _as_json(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(fields)
    return text


def _as_csv(cells: list[str]) -> str:
    """A line. Python's own writer leaves a lone carriage return without quotes."""
    quoted = (
        '"{}"'.format(cell.replace('"', '""')) if _NEEDS_QUOTES.search(cell) else cell
        for cell in cells
    )
    return f"{','.join(quoted)}\n"
