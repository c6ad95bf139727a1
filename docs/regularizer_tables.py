"""Tables of the regularizers on CIFAR-10, from the lines that `benchmarks/regularizers.py` writes."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from tuning_table import describe_gaps

from killick.protocols import COMPONENTS

FILE = Path(__file__).parent.parent / "benchmarks/results/regularizers/small/runs.csv"
MASKED = "masked-label"
Line = dict[str, str]
Columns = dict[str, tuple[str, int, int]]
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
    "OOD AUROC, %": ("OOD AUROC", 100, 1),
    "smooth ECE, C": ("smooth ECE, C", 1, 3),
    "with a temperature": ("smooth ECE, C, temperature", 1, 3),
}
_COMBINED = {**_SHOWN, "with one fitted under C": ("fitted under corruption", 1, 3)}
_NOISY = {
    "clean, %": ("clean", 100, 1),
    "C, %": ("C", 100, 1),
    "smooth ECE, C": ("smooth ECE, C", 1, 3),
    "wrong labels memorized, %": ("flipped_labels_memorized", 100, 1),
    "true label predicted instead, %": ("flipped_labels_corrected", 100, 1),
    "right labels predicted, %": ("true_labels_top1", 100, 1),
}
_DIFFERENCES = {
    "clean, points": ("clean", 100, 1),
    "C, points": ("C", 100, 1),
    "severity 5, points": ("C, severity 5", 100, 1),
    "PGD-20, points": ("PGD-20", 100, 1),
    "smooth ECE, C": ("smooth ECE, C", 1, 3),
    "with a temperature": ("smooth ECE, C, temperature", 1, 3),
    "OOD AUROC, points": ("OOD AUROC", 100, 1),
}


def read_lines(part: str) -> list[Line]:
    """The lines of a part, with the smooth ECE by a temperature that was fitted under corruption."""
    fitted = {
        (line["arm"], line["seed"]): line["smooth ECE, corrupted"]
        for line in _read(FILE.with_name("temperatures.csv"))
        if line["fitted_on"] == "corrupted"
    }
    return [
        {**line, "fitted under corruption": fitted.get((line["arm"], line["seed"]), "")}
        for line in _read(FILE)
        if line["part"] == part
    ]


def _read(file: Path) -> list[Line]:
    """The lines of a file: no regularizer first, each with masks after it without."""
    return sorted(_read_rows(file), key=lambda line: _place(line["arm"]))


def _read_rows(file: Path) -> list[Line]:
    with open(file, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def _place(arm: str) -> tuple[bool, str, bool]:
    plain = arm.removeprefix("ensemble+").removesuffix(MASKED).removesuffix("+")
    plain = plain.removesuffix("standard")
    return plain != "", plain, arm.endswith(MASKED)


def describe_components() -> str:
    """What each component does, the passes of a step with it, and its time where measured."""
    path = FILE.parent.parent.parent / "components-cpu.csv"
    times = {line["contender"]: f"{float(line['ratio']):.2f}" for line in _read_rows(path)}
    rows = []
    for name, kind in sorted(COMPONENTS.items()):
        about = (kind.__doc__ or "").strip().partition("\n")[0].removesuffix(".")
        passes = f"{kind().cost():.2g}" + ", and another network's" * kind().extra_passes()
        rows.append([f"`{name}`", about, passes, times.get(name, "")])
    return _table(["name", "what it does", "a step costs", "measured"], rows)


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
            rows.append([arm, costs, *_values(own, _COMBINED)])
    return _table(["arm", "cost", *_COMBINED], rows)


def describe_tuned() -> str:
    """A finished network, tuned in several ways."""
    lines = read_lines("tuned")
    arms = dict.fromkeys(line["arm"] for line in lines)
    rows = [[arm, *_values([line for line in lines if line["arm"] == arm], _SHOWN)] for arm in arms]
    return _table(["tuned with", *_SHOWN], rows)


def describe_noise() -> str:
    """Arms trained with wrong labels, and differences: test images, training images by label."""
    lines = _read(FILE.with_name("noise.csv"))
    arms = dict.fromkeys(line["arm"] for line in lines)
    rows = [[arm, *_values([line for line in lines if line["arm"] == arm], _NOISY)] for arm in arms]
    alone = [arm for arm in arms if arm != "standard" and not arm.endswith(MASKED)]
    pairs = [(arm, "standard") for arm in [MASKED, *alone]]
    pairs += [(arm, MASKED) for arm in alone] + [(f"{arm}+{MASKED}", arm) for arm in alone]
    rows += _differences(lines, pairs, _NOISY)
    return _table(["trained with", *_NOISY], rows)


def describe_differences() -> str:
    """What regularizers and masks add, alone and to each other, paired by seed."""
    lines = read_lines("combined")
    arms = [*dict.fromkeys(line["arm"] for line in lines)]
    alone = [arm for arm in arms if arm != "standard" and not arm.endswith(MASKED)]
    pairs = [(arm, "standard") for arm in [*alone, MASKED]]
    pairs += [(arm, MASKED) for arm in alone]
    pairs += [(f"{arm}+{MASKED}", arm) for arm in alone]
    rows = _differences(lines, pairs, _DIFFERENCES)
    lines = read_lines("tuned")
    arms = [arm for arm in dict.fromkeys(line["arm"] for line in lines) if arm != "standard"]
    pairs = [(arm, "standard") for arm in arms]
    pairs += [(arm, MASKED) for arm in arms if arm != MASKED]
    rows += [[f"tuned: {row[0]}", *row[1:]] for row in _differences(lines, pairs, _DIFFERENCES)]
    return _table(["difference", *_DIFFERENCES], rows)


def _differences(
    lines: Sequence[Line], pairs: Iterable[tuple[str, str]], columns: Columns
) -> list[list[str]]:
    """A row for each two arms with several seeds in common, the first less the second."""
    rows = []
    for arm, base in pairs:
        values = [
            {line["seed"]: line for line in lines if line["arm"] == each} for each in (arm, base)
        ]
        seeds = values[0].keys() & values[1].keys()
        if len(seeds) < 2:
            continue
        cells = []
        for column, factor, digits in columns.values():
            ours, theirs = ({seed: float(own[seed][column]) for seed in seeds} for own in values)
            gaps = [factor * (ours[seed] - theirs[seed]) for seed in sorted(seeds)]
            cells.append(describe_gaps(gaps, digits))
        rows.append([f"{arm} less {base}", *cells])
    return rows


def _values(lines: Sequence[Line], columns: Columns) -> Iterable[str]:
    """Mean and, of several, standard deviation over seeds."""
    for column, factor, digits in columns.values():
        values = [factor * float(line[column]) for line in lines if line[column]]
        text = f"{statistics.fmean(values):.{digits}f}" if values else "–"
        yield text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
