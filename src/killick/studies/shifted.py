"""Trust under shift: foreign pictures told by their energy, and calibration over shifted sets."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from killick.report.conditions import SINGLE
from killick.report.figures import Figure
from killick.report.formatting import count_words, enumerate_words
from killick.report.statistics import Estimate, by_severity, ood_by_set
from killick.report.tables import TextTable
from killick.studies.drawing import (
    NONE,
    draw_lines,
    judge,
    mean_and_spread,
    tell_difference,
)
from killick.studies.results import Results

VISION_OOD = ("isun", "textures", "places365")  # whose plain mean the paper calls so
Numbers = Mapping[str, Mapping[Any, Estimate]]  # by arm, and by set or severity
_SMOOTH = "smooth_ece"
_SUITES = {"corruptions": "common corruption", "cbar": "C-bar corruption"}


def errors_of(results: Results, arm: str) -> dict[int, dict[tuple[str, str, int], float]]:
    """By seed the smooth ECE of each shifted set, which is known by suite, name and severity.

    Shifted are all corrupted sets, and the sets of the suite "shift"; the clean one is not.
    """
    found: dict[int, dict[tuple[str, str, int], float]] = {}
    comparison = results.scene.comparison
    for (name, seed), values in comparison.values.items():
        if name != arm:
            continue
        errors = {
            (each.suite, each.corruption, each.severity): value
            for each, value in values.items()
            if (each.metric, each.inference, each.scaling) == (_SMOOTH, SINGLE, "")
            and each.suite in _SUITES
        }
        for row in comparison.runs[name, seed].rows:
            asked = (row["suite"], row["metric"], row["inference"], row["scaling"])
            if asked == ("shift", _SMOOTH, SINGLE, ""):
                errors["shift", str(row["set"]), 0] = float(row["value"])
        if errors:
            found[seed] = errors
    return found


def describe_sets(results: Results) -> str:
    """Over which sets the mean of calibration errors runs.

    With fewer sets in one run than in another, each run has the mean of its own; this tells of all.
    """
    sets = {
        place
        for arm in results.factors
        for errors in errors_of(results, arm).values()
        for place in errors
    }
    parts = []
    for suite, words in _SUITES.items():
        names = {name for kind, name, _ in sets if kind == suite}
        severities = sorted({severity for kind, _, severity in sets if kind == suite})
        if names:
            strengths = "severities" if len(severities) > 1 else "severity"
            told = ", ".join(map(str, severities))
            parts.append(f"{count_words(len(names), words)} at {strengths} {told}")
    if shifts := sorted(name for kind, name, _ in sets if kind == "shift"):
        parts.append(enumerate_words(shifts))
    return f"{count_words(len(sets), 'set')}: {'; '.join(parts)}" if parts else "no sets"


def has_vision_ood(results: Results) -> bool:
    """Whether the foreign sets are those of the paper."""
    return set(VISION_OOD) <= {name.lower() for name in ood_by_set(results.scene.comparison)}


def tabulate_safety(results: Results, base: str = "standard") -> TextTable:
    """A line for each arm: AUROC by set, their mean, and the calibration error over shifted sets.

    Args:
        results: Of the study.
        base: The protocol that differences are to.
    """
    by_set = ood_by_set(results.scene.comparison)
    vision = [name for name in by_set if name.lower() in VISION_OOD]
    rows = []
    for arm in results.factors:
        areas = {name: by_set[name][arm].values for name in by_set if arm in by_set[name]}
        cells = [arm, *(mean_and_spread(areas.get(name, {}).values()) for name in by_set)]
        cells += [mean_and_spread(results.values(arm, "ood_auroc").values())]
        if has_vision_ood(results):
            cells += [_mean_of([areas.get(name, {}) for name in vision])]
        cells += [tell_difference(results.difference(arm, results.arm(protocol=base), "ood_auroc"))]
        errors = [list(each.values()) for each in errors_of(results, arm).values()]
        spreads = [statistics.stdev(each) for each in errors if len(each) > 1]
        cells += [mean_and_spread(map(statistics.fmean, errors), 1, 3)]
        cells += [f"{statistics.fmean(spreads):.3f}" if spreads else NONE]
        rows.append(tuple(cells))
    columns = ["protocol", *(f"AUROC: {name}" for name in by_set), f"AUROC: mean of {len(by_set)}"]
    columns += ["AUROC: Vision OOD"] if has_vision_ood(results) else []
    columns += [f"mean − that of {base}", "smooth ECE: mean over sets"]
    columns += ["smooth ECE: standard deviation over sets"]
    says = "AUROC of the energy in %, test pictures against each foreign set; mean ± standard"
    says += " deviation over seeds, differences with their 95 % intervals. Smooth ECE: mean over"
    says += f" {describe_sets(results)}; ± over seeds, and beside it the standard deviation over"
    says += " these sets, mean over seeds."
    title = "Foreign pictures told, and calibration under shift"
    return TextTable("study-safety-table", title, tuple(columns), tuple(rows), says)


def draw_safety(results: Results, says: str) -> Figure:
    """AUROC by foreign set, and smooth ECE by severity."""
    comparison = results.scene.comparison
    by_set = ood_by_set(comparison)
    areas = {
        arm: {name: numbers[arm] for name, numbers in by_set.items() if arm in numbers}
        for arm in results.factors
    }
    found: dict[str, tuple[Numbers, str, str, str]] = {
        "auroc": (areas, "AUROC of the energy", "%", "foreign set")
    }
    for suite, words in _SUITES.items():
        errors = by_severity(comparison, suite, _SMOOTH)
        found[suite] = (errors, f"Smooth ECE, {words}s", "in hundredths", "severity; 0: clean")
    panels, records = [], []
    for key, (numbers, heading, below, along) in found.items():
        lines = {
            arm: {
                level: [100 * value for value in number.values.values()]
                for level, number in numbers.get(arm, {}).items()
            }
            for arm in results.factors
        }
        levels = list(dict.fromkeys(level for line in lines.values() for level in line))
        if levels in ([], [0]):  # not evaluated, or clean pictures alone
            continue
        name = f"study-safety-{key}"
        panels.append(draw_lines(results, lines, levels, name, heading, below, along))
        records += [
            (heading, arm, level, value / 100)
            for arm, line in lines.items()
            for level, values in line.items()
            for value in values
        ]
    columns = ("measure", "protocol", "set or severity", "value")
    return Figure("study-safety", says, tuple(panels), columns, tuple(records))


def tell_safety(results: Results, base: str = "standard") -> str:
    """What each protocol did against the base: telling foreign pictures, and calibration."""
    sets = enumerate_words(list(ood_by_set(results.scene.comparison)))
    sentences = []
    for protocol in results.levels("protocol"):
        if protocol == base:
            continue
        pair = (results.arm(protocol=protocol), results.arm(protocol=base))
        area = results.difference(*pair, "ood_auroc")
        error = results.difference(*pair, "corrupted_smooth_ece")
        sentences.append(
            f"{protocol} against {base}: AUROC of the energy, mean over {sets},"
            f" {tell_difference(area)} points, {judge(area)}; smooth ECE under the common"
            f" corruptions {tell_difference(error, 1, 3)}, {judge(error, higher_is_better=False)}."
        )
    return " ".join(sentences)


def _mean_of(by_set: Sequence[dict[int, float]]) -> str:
    """The plain mean of some sets, for each seed that has all of them."""
    seeds = [seed for seed in by_set[0] if all(seed in each for each in by_set)]
    return mean_and_spread(statistics.fmean(each[seed] for each in by_set) for seed in seeds)
