"""What every figure is drawn from."""

from dataclasses import dataclass

from killick.report.comparison import Arm, Comparison
from killick.report.figures import Style
from killick.report.statistics import Table


@dataclass(frozen=True)
class Scene:
    """A comparison with its numbers, and how its arms are drawn.

    Attributes:
        comparison: All arms.
        table: Their numbers.
        styles: By the name of the arm.
        subject: The arm that sentences set against the baseline; None with one arm.
    """

    comparison: Comparison
    table: Table
    styles: dict[str, Style]
    subject: Arm | None
