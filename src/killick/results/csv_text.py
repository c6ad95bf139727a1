"""CSV files that spreadsheets can open safely: a text from a file is never taken for a formula."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

_FORMULA = re.compile(r"[=+\-@\t\r\n]")  # at the beginning
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?"
_NUMBERS = re.compile(rf"{_NUMBER}( {_NUMBER})*", re.IGNORECASE | re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV with a first line of column names; None is empty."""
    return csv_lines([columns, *rows])


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Lines of CSV; texts are made harmless, numbers stay as they are."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(
        [harmless(cell) for cell in row] for row in rows
    )
    return text.getvalue()


def harmless(cell: Any) -> Any:
    r"""A cell that a spreadsheet shows as it is: an apostrophe stands before what looks like a formula.

    Example:
        >>> harmless("=HYPERLINK(1)"), harmless("-0.5"), harmless(-0.5), harmless("a\x07b")
        ("'=HYPERLINK(1)", '-0.5', -0.5, 'a\\x07b')
    """
    if not isinstance(cell, str) or _NUMBERS.fullmatch(cell):
        return cell
    shown = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", cell)
    return f"'{shown}" if _FORMULA.match(cell) else shown


def original(cell: str) -> str:
    """A cell as it was before `harmless` put an apostrophe before it."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell[1:]) else cell
