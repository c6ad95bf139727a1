"""Conditions: which metric, inference and test set a number about a model belongs to."""

from typing import NamedTuple

from killick.results.rows import Row

SINGLE, MARGINAL = "single", "marginal"
# Inferences from one reference; a model's rows have one of them.
FROM_ONE = (SINGLE, "transductive", "mc-dropout", "tta")
CORRUPTED = ("corruptions", "cbar")  # suites
LABELED = ("clean", *CORRUPTED)
SHIFT = "shift"
OOD = "ood"
OOD_SCORE = "energy"
TEMPERATURE = "temperature"


class Condition(NamedTuple):
    """Under which condition a number was measured."""

    inference: str  # "single", from the first reference, or "marginal", the mean over references
    metric: str  # its key
    suite: str  # "clean", "corruptions", "cbar", "shift" or "ood"
    set: str = ""  # the shifted or OOD set; else empty
    corruption: str = ""  # empty if there is none
    severity: int = 0  # from 1 to 5; 0 if there is none
    scaling: str = ""  # "temperature" if logits were divided by a fitted temperature; else empty


def condition_of(row: Row) -> Condition | None:
    """The condition of a row; None if reports do not use it, as for means over corruptions."""
    suite, scaling = str(row["suite"]), str(row["scaling"])
    corrupted, ood = suite in CORRUPTED, suite == OOD
    if suite not in (*LABELED, SHIFT, OOD) or row["inference"] not in (*FROM_ONE, MARGINAL):
        return None
    if row["mean_of"] or scaling not in ("", TEMPERATURE):
        return None
    if ood != (row["score"] == OOD_SCORE) or corrupted != bool(row["corruption"]):
        return None
    return Condition(
        SINGLE if row["inference"] in FROM_ONE else MARGINAL,
        str(row["metric"]),
        suite,
        str(row["set"]) if suite in (SHIFT, OOD) else "",
        str(row["corruption"]) if corrupted else "",
        int(row["severity"]) if corrupted else 0,
        scaling,
    )
