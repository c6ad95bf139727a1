"""Records as JSON lines, CSV or a table; on the standard output, or in a file, whole or not."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from killick.core.image_model import Threshold
from killick.data.decoding import printable
from killick.deploy.prediction_records import Record
from killick.errors import DataError, OptionError
from killick.evaluation.classifier import Classifier
from killick.results.csv_text import csv_lines
from killick.runtime.atomic_files import atomic_file

EXTENSIONS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".txt": "table"}
_LONGEST_LABEL = 24


class JsonLines:
    """An object a line."""

    head = ""  # what comes before all records

    def lines(self, records: Sequence[Record]) -> str:
        """Some records, each with its line end."""
        found = [_rounded(record.to_dict()) for record in records]
        return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in found)


class Csv(JsonLines):
    """A line for each record, with the fields of JSON; lists become numbered columns."""

    def __init__(self, classifier: Classifier, top: int, probabilities: bool) -> None:
        columns = ["image", "label", "index", "confidence", "uncertainty", "energy"]
        columns += ["std"] if (classifier.references or 1) > 1 else []
        columns += ["in_distribution"]
        if (threshold := classifier.threshold) is not None:
            columns += ["fitted_on", *(f"refused_{name}" for name in threshold.refused)]
        for place in range(1, min(top, classifier.classes) + 1):
            columns += [f"top_{place}", f"top_{place}_probability"]
        if probabilities:
            columns += [f"probability_{index}" for index in range(classifier.classes)]
        self._columns = [*columns, "error"]
        self.head = csv_lines([self._columns])

    def lines(self, records: Sequence[Record]) -> str:
        """A line for each record."""
        found = map(_flat, records)
        return csv_lines([[each.get(column) for column in self._columns] for each in found])


class Table(JsonLines):
    """A line for each record, for people: columns of fixed widths, and the path at the end."""

    def __init__(self, classifier: Classifier, top: int) -> None:
        names = [printable(name) for name in classifier.class_names or ()]
        label = min(max(map(len, ["label", *names])), _LONGEST_LABEL)
        self._columns = {"label": label, "confidence": 10, "uncertainty": 11}
        if (classifier.references or 1) > 1:
            self._columns["std"] = 6
        if classifier.threshold is not None:
            self._columns["distribution"] = 12
        if top:
            self._columns["most likely"] = 16 * min(top, 3)
        self.head = self._line({title: title for title in (*self._columns, "image")})

    def lines(self, records: Sequence[Record]) -> str:
        """A line for each record; an unreadable image has the reason."""
        return "".join(self._line(_cells(record)) for record in records)

    def _line(self, cells: dict[str, str]) -> str:
        line = ""
        for title, wide in self._columns.items():
            cell = printable(cells.get(title, ""))
            cell = cell if len(cell) <= wide else f"{cell[: wide - 1]}…"
            side = ">" if title in ("confidence", "uncertainty", "std") else "<"
            line += f"{cell:{side}{wide}}  "
        return f"{line}{printable(cells['image'])}\n"


def _cells(record: Record) -> dict[str, str]:
    """The columns of a table."""
    if record.error is not None:
        return {"label": "error", "image": record.error}
    likely = [f"{each.label} {100 * each.probability:.1f} %" for each in record.top]
    return {
        "label": record.label or "",
        "confidence": f"{100 * (record.confidence or 0):.1f} %",
        "uncertainty": f"{record.uncertainty:.3f}",
        "std": "" if record.std is None else f"{record.std:.3f}",
        "distribution": "in" if record.in_distribution else "out",
        "most likely": ", ".join(likely),
        "image": record.image,
    }


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
def open_output(path: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes text at once to the standard output or a file.

    The file takes the place of `path` once all is in it; what is no ordinary file, such as a named
    pipe, is written directly. A pipe without a reader is no error of the user.
    """

    def write(text: str) -> None:
        # A path that is no UTF-8 is kept in escapes, as Python's `os` and JSON have them.
        file.write(text.encode("utf-8", "backslashreplace"))
        file.flush()

    try:
        with _open_bytes(path) as file:
            yield write
    except BrokenPipeError:
        raise
    except OSError as problem:
        where = path or "the output"
        raise DataError(f"cannot write {where}: {problem.strerror}.") from problem


def _open_bytes(path: Path | None) -> contextlib.AbstractContextManager[BinaryIO]:
    if path is None:
        return contextlib.nullcontext(sys.stdout.buffer)
    place = Path(os.path.realpath(path))  # a link stays one
    place.parent.mkdir(parents=True, exist_ok=True)
    direct = place.exists() and not place.is_file()
    return place.open("wb") if direct else atomic_file(place)


@dataclass
class RecordCounts:
    """Counts of all records so far, of OOD images if there is a threshold, and the speed."""

    threshold: Threshold | None
    images: int = 0
    broken: int = 0
    out: int = 0
    _began: float = field(default_factory=time.monotonic)

    def add(self, records: list[Record]) -> None:
        """Count some more."""
        self.images += len(records)
        self.broken += sum(record.error is not None for record in records)
        self.out += sum(record.in_distribution is False for record in records)

    @property
    def speed(self) -> str:
        """Images per second."""
        return f"{self.images / max(1e-9, time.monotonic() - self._began):,.1f} images/s"

    def describe(self) -> str:
        """All of it in a line."""
        parts = [f"{self.images:,} image{'s' * (self.images != 1)}"]
        parts += [f"{self.broken:,} unreadable"] if self.broken else []
        if self.threshold is not None:
            parts.append(
                f"{self.out:,} out of distribution (threshold {self.threshold.describe()})"
            )
        return ", ".join([*parts, self.speed])


def _flat(record: Record) -> dict[str, Any]:
    """The fields of a record as columns."""
    found: dict[str, Any] = _rounded(record.to_dict())
    for place, each in enumerate(found.pop("top", ()), 1):
        found[f"top_{place}"] = each["label"]
        found[f"top_{place}_probability"] = each["probability"]
    found |= {f"refused_{name}": share for name, share in found.pop("refused", {}).items()}
    for index, probability in enumerate(found.pop("probabilities", ())):
        found[f"probability_{index}"] = probability
    if isinstance(inside := found.get("in_distribution"), bool):
        found["in_distribution"] = str(inside).lower()
    return found


def _rounded(value: Any) -> Any:
    """The same with numbers of seven digits, all that a float32 has."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value
