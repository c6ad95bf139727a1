"""Imagenette at 64 px: means over seeds, and what masks add, with intervals."""

import csv
import statistics
from pathlib import Path

from tuning_table import describe_gaps

FILE = Path(__file__).parent.parent / "benchmarks" / "results" / "imagenette-64px" / "runs.csv"
# Measure: title, factor, digits.
_SHOWN = {
    "clean": ("clean %", 100, 1),
    "corrupted": ("corrupted %", 100, 1),
    "severity 5": ("severity 5 %", 100, 1),
    "C-bar": ("C-bar %", 100, 1),
    "smooth ECE, corrupted": ("smooth ECE, corrupted", 1, 3),
    "smooth ECE, corrupted, temperature": ("the same, with a temperature", 1, 3),
}
_ARMS = {
    "standard": "standard",
    "masked-label": "masked, label",
    "standard-tuning": "10 epochs more, standard",
    "masked-tuning": "10 epochs more, masked, label",
}
_GAPS = {
    "masked less standard": ("masked-label", "standard"),
    "10 epochs more: masked less standard": ("masked-tuning", "standard-tuning"),
}


def describe_imagenette() -> str:
    """A row for each arm, then the differences, paired by seed."""
    with open(FILE, newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["seed"])

    def values(arm: str, measure: str) -> list[float]:
        factor = _SHOWN[measure][1]
        return [factor * float(row[measure]) for row in rows if row["arm"] == arm]

    lines = [["training", *(title for title, _, _ in _SHOWN.values())], ["---"] * (1 + len(_SHOWN))]
    for arm, title in _ARMS.items():
        cells = []
        for measure, (_, _, digits) in _SHOWN.items():
            found = values(arm, measure)
            mean, spread = statistics.fmean(found), statistics.stdev(found)
            cells.append(f"{mean:.{digits}f} ± {spread:.{digits}f}")
        lines.append([title, *cells])
    for title, arms in _GAPS.items():
        cells = []
        for measure, (_, _, digits) in _SHOWN.items():
            pairs = zip(*(values(arm, measure) for arm in arms), strict=True)
            cells.append(describe_gaps([one - other for one, other in pairs], digits))
        lines.append([title, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
