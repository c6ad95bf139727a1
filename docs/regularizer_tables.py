"""Tables of the regularizers on CIFAR-10, from the lines that `benchmarks/regularizers.py` writes."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from tuning_table import describe_gaps

FILE = Path(__file__).parent.parent / "benchmarks/results/regularizers/small/runs.csv"
MASKED = "masked-label"
Line = dict[str, str]
# Heading: column, factor, digits.
_ALONE = {
    "clean, %": ("clean", 100, 1),
    "C, %": ("C", 100, 1),
    "smooth ECE, C": ("smooth ECE, C", 1, 3),
    "NLL, C": ("NLL, C", 1, 3),
}
_SHOWN = {
    "clean, %": ("clean", 100, 1),
    "C, %": ("C", 100, 1),
    "severity 5, %": ("C, severity 5", 100, 1),
    "C-bar, %": ("C-bar", 100, 1),
    "occluded, %": ("occluded", 100, 1),
    "PGD-20, %": ("PGD-20", 100, 1),
    "smooth ECE, C": ("smooth ECE, C", 1, 3),
    "with a temperature": ("smooth ECE, C, temperature", 1, 3),
    "OOD AUROC, %": ("OOD AUROC", 100, 1),
}
_DIFFERENCES = {
    "clean, points": ("clean", 100, 1),
    "C, points": ("C", 100, 1),
    "severity 5, points": ("C, severity 5", 100, 1),
    "smooth ECE, C": ("smooth ECE, C", 1, 3),
    "with a temperature": ("smooth ECE, C, temperature", 1, 3),
    "OOD AUROC, points": ("OOD AUROC", 100, 1),
}


def read_lines(part: str) -> list[Line]:
    """The lines of a part: no regularizer first, each with masks after it without."""
    with open(FILE, newline="", encoding="utf-8") as file:
        found = [line for line in csv.DictReader(file) if line["part"] == part]
    return sorted(found, key=lambda line: _place(line["arm"]))


def _place(arm: str) -> tuple[bool, str, bool]:
    plain = arm.removeprefix("ensemble+").removesuffix(MASKED).removesuffix("+")
    plain = plain.removesuffix("standard")
    return plain != "", plain, arm.endswith(MASKED)


def describe_alone() -> str:
    """Each method alone, the lowest NLL under corruption first."""
    lines = sorted(read_lines("alone"), key=lambda line: float(line["NLL, C"]))
    rows = [
        [line["arm"], f"{float(line['training_cost']):.2g}", *_values([line], _ALONE)]
        for line in lines
    ]
    return _table(["method", "cost", *_ALONE], rows)


def describe_combined() -> str:
    """Arms of several seeds, then their ensembles."""
    rows = []
    for part in ("combined", "ensembles"):
        lines = read_lines(part)
        for arm in dict.fromkeys(line["arm"] for line in lines):
            own = [line for line in lines if line["arm"] == arm]
            costs = f"{own[0]['training_cost']} / {own[0]['inference_cost']}"
            rows.append([arm, costs, *_values(own, _SHOWN)])
    return _table(["arm", "cost", *_SHOWN], rows)


def describe_tuned() -> str:
    """A finished network, tuned in several ways."""
    lines = read_lines("tuned")
    arms = dict.fromkeys(line["arm"] for line in lines)
    rows = [[arm, *_values([line for line in lines if line["arm"] == arm], _SHOWN)] for arm in arms]
    return _table(["tuned with", *_SHOWN], rows)


def describe_temperatures() -> str:
    """Calibration under corruption by what the temperature was fitted on."""
    with open(FILE.with_name("temperatures.csv"), newline="", encoding="utf-8") as file:
        lines = sorted(csv.DictReader(file), key=lambda line: _place(line["arm"]))
    kinds = {"nothing": "no temperature", "clean": "fitted on clean images"}
    kinds["corrupted"] = "fitted on corrupted images"
    rows = []
    for arm in dict.fromkeys(line["arm"] for line in lines):
        own = [[x for x in lines if (x["arm"], x["fitted_on"]) == (arm, kind)] for kind in kinds]
        column = {"": ("smooth ECE, corrupted", 1, 3)}
        rows.append([arm, *(next(iter(_values(each, column))) for each in own)])
    return _table(["smooth ECE, C", *kinds.values()], rows)


def describe_differences() -> str:
    """What each regularizer and masking add, paired by seed."""
    lines = read_lines("combined")
    arms = [*dict.fromkeys(line["arm"] for line in lines)]
    pairs = [(arm, "standard") for arm in arms if arm != "standard" and not arm.endswith(MASKED)]
    pairs += [(MASKED, "standard")]
    pairs += [(arm, arm.removesuffix(f"+{MASKED}")) for arm in arms if arm.endswith(f"+{MASKED}")]
    rows = []
    for arm, base in pairs:
        values = [
            {line["seed"]: line for line in lines if line["arm"] == each} for each in (arm, base)
        ]
        cells = [
            describe_gaps(
                [
                    factor * (float(line[column]) - float(values[1][seed][column]))
                    for seed, line in values[0].items()
                ],
                digits,
            )
            for column, factor, digits in _DIFFERENCES.values()
        ]
        rows.append([f"{arm} less {base}", *cells])
    return _table(["difference", *_DIFFERENCES], rows)


def _values(lines: Sequence[Line], columns: dict[str, tuple[str, int, int]]) -> Iterable[str]:
    """Mean and, of several, standard deviation over seeds."""
    for column, factor, digits in columns.values():
        values = [factor * float(line[column]) for line in lines if line[column]]
        text = f"{statistics.fmean(values):.{digits}f}" if values else "–"
        yield text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
