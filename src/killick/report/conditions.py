"""Conditions: which metric, inference and test set a number about a model belongs to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from killick.results.rows import Row

SINGLE, MARGINAL = "single", "marginal"
# Inferences from one reference; a model's rows have one of them.
FROM_ONE = (SINGLE, "transductive", "mc-dropout", "tta")
CORRUPTED = ("corruptions", "cbar")  # suites
LABELED = ("clean", *CORRUPTED)
SHIFT = "shift"
OOD = "ood"
SYNTHETIC_OOD = "synthetic_ood"  # made by Killick; never averaged with OOD sets that were given
OTHER_SETS = (SHIFT, OOD, SYNTHETIC_OOD)
OOD_SCORE = "energy"
TEMPERATURE = "temperature"


class Condition(NamedTuple):
    """Under which condition a number was measured."""

    inference: str  # "single", from the first reference, or "marginal", the mean over references
    metric: str  # its key
    suite: str  # "clean", "corruptions", "cbar", "shift", "ood" or "synthetic_ood"
    set: str = ""  # the shifted or OOD set; else empty
    corruption: str = ""  # empty if there is none
    severity: int = 0  # from 1 to 5; 0 if there is none
    scaling: str = ""  # "temperature" if logits were divided by a fitted temperature; else empty


def suite_of(columns: Mapping[str, Any]) -> str:
    """The suite of a row or a file of predictions, synthetic OOD sets apart."""
    made = (columns.get("suite"), columns.get("source")) == (OOD, "generated")
    return SYNTHETIC_OOD if made else str(columns.get("suite", ""))


def title_of(suite: str, name: str) -> str:
    """The name of an OOD set, by which synthetic ones are known."""
    return f"{name} (synthetic)" if suite == SYNTHETIC_OOD else name


def condition_of(row: Row) -> Condition | None:
    """The condition of a row; None if reports do not use it, as for means over corruptions."""
    suite, scaling = suite_of(row), str(row["scaling"])
    corrupted, ood = suite in CORRUPTED, row["suite"] == OOD
    if suite not in (*LABELED, *OTHER_SETS) or row["inference"] not in (*FROM_ONE, MARGINAL):
        return None
    if row["mean_of"] or scaling not in ("", TEMPERATURE):
        return None
    if ood != (row["score"] == OOD_SCORE) or corrupted != bool(row["corruption"]):
        return None
    return Condition(
        SINGLE if row["inference"] in FROM_ONE else MARGINAL,
        str(row["metric"]),
        suite,
        str(row["set"]) if suite in OTHER_SETS else "",
        str(row["corruption"]) if corrupted else "",
        int(row["severity"]) if corrupted else 0,
        scaling,
    )
