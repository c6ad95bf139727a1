"""Calibration over shifted sets, and published values of tables 1, 2, 3, 6 and 7."""

import csv
import statistics
from importlib import resources

from killick.studies.findings import Results, format_mean

# Columns of tables 2, 3 and 6: smooth ECE, its mean and standard deviation over shifted sets.
ERRORS = ("smooth ECE: mean over sets", "smooth ECE: deviation over sets")
_SUITES = ("corruptions", "cbar", "shift")


def shifted_errors(results: Results, arm: str) -> dict[int, list[float]]:
    """By seed the smooth ECE of each corrupted and each shifted set, from the first reference."""
    found: dict[int, list[float]] = {}
    for (name, seed), run in results.report.comparison.runs.items():
        for row in run.rows if name == arm else ():
            kind = (row["metric"], row["inference"], row["scaling"], row["mean_of"])
            if kind == ("smooth_ece", "single", "", "") and row["suite"] in _SUITES:
                found.setdefault(seed, []).append(float(row["value"]))
    return found


def error_columns(results: Results, arm: str) -> dict[str, str]:
    """The columns `ERRORS` of an arm."""
    errors = shifted_errors(results, arm)
    means = {seed: statistics.fmean(values) for seed, values in errors.items()}
    spreads = {seed: statistics.stdev(v) for seed, v in errors.items() if len(v) > 1}
    texts = (format_mean(means, 1, 3), format_mean(spreads, 1, 3))
    return dict(zip(ERRORS, texts, strict=True))


def read_published() -> list[dict[str, str]]:
    """The rows of tables 1, 2 and 6, with the columns `ERRORS` and AUROC by OOD set (3 and 7)."""
    file = resources.files("killick.studies") / "published" / "generalization.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
