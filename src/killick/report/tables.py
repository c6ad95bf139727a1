"""Tables of text, as a page, a terminal and a spreadsheet show them."""

import csv
import io
from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are ready to be read.

    Attributes:
        name: Of its CSV file, without ending; unique in a report.
        title: What it shows.
        columns: Their heads; the first is that of the lines' names.
        rows: The name of each line and its cells.
        says: What to know when reading it.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    says: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.name

    @property
    def csv(self) -> str:
        """For a spreadsheet."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()
