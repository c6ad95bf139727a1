"""Tables of text, as a page, a terminal and a spreadsheet show them."""

from dataclasses import dataclass

from killick.results.csv_text import to_csv


@dataclass(frozen=True)
class TextTable:
    """A table of formatted text."""

    name: str  # of its CSV file, without ending; unique in a report
    title: str  # what it shows
    columns: tuple[str, ...]  # their heads; the first is that of the row names
    rows: tuple[tuple[str, ...], ...]  # the name of each row and its cells
    note: str = ""  # one line under it

    @property
    def csv(self) -> str:
        """As a CSV file."""
        return to_csv(self.columns, self.rows)
