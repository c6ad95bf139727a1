"""Cells: what a number is about, whether it comes from a row or from answers image by image."""

from collections.abc import Iterable
from typing import NamedTuple

from killick.corruptions.suites import PUBLISHED
from killick.results.rows import Row

SINGLE, MARGINAL = "single", "marginal"
LABELLED = ("clean", "corruptions", "cbar")  # suites of pictures that have labels
OOD = "ood"
OOD_SCORE = "energy"
TEMPERED = ", temperature"  # after the metric, where logits were divided by a fitted temperature
METRICS = {
    **{
        suite: ("top1", "smooth_ece", "nll", f"smooth_ece{TEMPERED}", f"nll{TEMPERED}")
        for suite in LABELLED
    },
    OOD: ("auroc", "fpr_at_95_tpr_in"),
}


class Cell(NamedTuple):
    """One number about a model.

    Attributes:
        inference: "single", from the first reference, or "marginal", the mean over references.
        metric: As rows call it, with `TEMPERED` after it where rows say that.
        suite: "clean", "corruptions", "cbar" or "ood".
        set: Of out-of-distribution pictures; else empty.
        corruption: Empty if there is none, as the next is 0.
        severity: From 1 to 5.
    """

    inference: str
    metric: str
    suite: str
    set: str = ""
    corruption: str = ""
    severity: int = 0


def cell_of(row: Row) -> Cell | None:
    """What a row is about; None if no report asks for it, as for means over corruptions."""
    suite, metric = str(row["suite"]), str(row["metric"])
    if row["scaling"] == "temperature":
        metric += TEMPERED
    if row["inference"] not in (SINGLE, MARGINAL) or metric not in METRICS.get(suite, ()):
        return None
    if row["scaling"] not in ("", "temperature"):
        return None
    if (suite == OOD) != (row["score"] == OOD_SCORE):
        return None
    corrupted = suite in ("corruptions", "cbar")
    if corrupted != (row["corruption"] in PUBLISHED):
        return None
    return Cell(
        str(row["inference"]),
        metric,
        suite,
        str(row["set"]) if suite == OOD else "",
        str(row["corruption"]) if corrupted else "",
        int(row["severity"]) if corrupted else 0,
    )


def cells_in(rows: Iterable[Row]) -> dict[Cell, float]:
    """The numbers that rows hold."""
    return {cell: float(row["value"]) for row in rows if (cell := cell_of(row)) is not None}
