"""What a study shows: sentences, figures, tables, and checks that hold or do not."""

from dataclasses import dataclass

from killick.report.figures import Figure, Missing
from killick.report.tables import TextTable


@dataclass(frozen=True)
class Check:
    """Something that must be so if the right method ran.

    Attributes:
        what: In a sentence.
        holds: Whether it is so; None where these results cannot tell.
        found: The numbers.
    """

    what: str
    holds: bool | None
    found: str

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return {True: "holds", False: "DOES NOT HOLD", None: "cannot be told"}[self.holds]


@dataclass(frozen=True)
class Shown:
    """All that a reader of a study sees first.

    Attributes:
        says: One to three sentences, from the numbers.
        figures: Drawn.
        tables: With the paper's values beside ours.
        checks: See `Check`.
        notes: What else to know when reading.
    """

    says: str
    figures: tuple[Figure | Missing, ...] = ()
    tables: tuple[TextTable, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
