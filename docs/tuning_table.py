"""What masks add after some epochs of tuning: differences, paired by seed, with intervals."""

import csv
import statistics
from pathlib import Path

from scipy import stats

FILE = Path(__file__).parent.parent / "benchmarks" / "results" / "tuning" / "epochs.csv"
# Measure: title, factor, digits.
_SHOWN = {
    "clean": ("clean accuracy, points", 100, 1),
    "corrupted": ("corrupted accuracy, points", 100, 1),
    "severity 5": ("severity 5, points", 100, 1),
    "smooth ECE, corrupted": ("smooth ECE, corrupted", 1, 3),
}


def describe_tuning() -> str:
    """A row for each number of epochs: with masks less without."""
    with open(FILE, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {(row["tuning"], row["epochs"], row["seed"]): row for row in rows}
    heads = ["epochs of tuning", *(title for title, _, _ in _SHOWN.values())]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for epochs in sorted({row["epochs"] for row in rows} - {"0"}, key=int):
        cells = [epochs]
        for measure, (_, factor, digits) in _SHOWN.items():
            gaps = [
                factor * (float(row[measure]) - float(found["standard", epochs, seed][measure]))
                for (way, length, seed), row in found.items()
                if (way, length) == ("masked-label", epochs)
            ]
            cells.append(describe_gaps(gaps, digits))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_gaps(gaps: list[float], digits: int) -> str:
    """The mean and its 95 % interval by Student's t, bold where that leaves out 0."""
    mean = statistics.fmean(gaps)
    reach = stats.t.ppf(0.975, len(gaps) - 1) * statistics.stdev(gaps) / len(gaps) ** 0.5
    low, mid, high = (
        f"{value:+.{digits}f}".replace("-", "−") for value in (mean - reach, mean, mean + reach)
    )
    mid = f"**{mid}**" if abs(mean) > reach else mid
    return f"{mid}<br>{low}\u00a0to\u00a0{high}"
