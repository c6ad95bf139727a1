"""Tables 3 and 7: OOD detection by energy, and calibration under shift."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.settings import setting
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, protocol_arms

if TYPE_CHECKING:
    from killick.report.figures import Figure
    from killick.report.statistics import Estimate
    from killick.report.tables import TextTable
    from killick.studies.findings import Findings, Results

    Numbers = Mapping[str, Mapping[Any, Estimate]]  # by arm, and by set or severity

# ImageNet: AUROC of iSUN, Textures, Places365 (Table 7) and NINCO (Table 3, without anchored
# training); smooth ECE, its mean and standard deviation over shifted sets (Tables 3 and 6).
PAPER: dict[tuple[str, str], tuple[float | None, ...]] = {
    ("SwinV2-T", "standard"): (80.25, 76.83, 72.53, 77.46, 0.121, 0.034),
    ("SwinV2-T", "anchored"): (78.68, 76.64, 74.75, None, 0.121, 0.032),
    ("SwinV2-T", "masked-label"): (77.69, 78.09, 77.16, 78.49, 0.117, 0.027),
    ("SwinV2-S", "standard"): (82.89, 77.87, 70.63, 74.73, 0.126, 0.039),
    ("SwinV2-S", "anchored"): (87.73, 80.83, 76.67, None, 0.122, 0.045),
    ("SwinV2-S", "masked-label"): (84.18, 79.66, 74.85, 78.47, 0.119, 0.041),
    ("ViT-B/16", "standard"): (86.92, 79.24, 65.72, 65.98, 0.109, 0.037),
    ("ViT-B/16", "anchored"): (85.17, 76.88, 66.16, None, 0.106, 0.035),
    ("ViT-B/16", "masked-label"): (84.55, 78.91, 67.18, 70.32, 0.105, 0.028),
    ("SwinV2-B", "standard"): (85.32, 76.35, 65.99, 72.13, 0.132, 0.055),
    ("SwinV2-B", "anchored"): (85.98, 77.88, 70.75, None, 0.129, 0.058),
    ("SwinV2-B", "masked-label"): (87.34, 75.74, 73.66, 74.53, 0.124, 0.051),
}
PAPER_SETS = ("iSUN", "Textures", "Places365", "NINCO")
_BASE = "standard"
_SMOOTH = "smooth_ece"
_SUITES = {"corruptions": "common corruptions", "cbar": "C-bar"}


@dataclass(frozen=True)
class Options:
    """What is compared."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms")


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """The protocols themselves; the sets are those of the evaluation."""
    return protocol_arms(options.protocols)


def find(results: "Results") -> "Findings":
    """AUROC by OOD set, and calibration over shifted sets."""
    from killick.studies.findings import Findings

    base, parts = results.arm(protocol=_BASE), []
    for protocol in results.levels("protocol"):
        arm = results.arm(protocol=protocol)
        if protocol != _BASE:
            area = results.compare(arm, base, "ood_auroc")
            error = results.compare(arm, base, "corrupted_smooth_ece")
            parts.append(f"{protocol} OOD AUROC {area}, corrupted smooth ECE {error}")
    headline = f"Against {_BASE}: {'; '.join(parts)}."
    return Findings(headline, (draw_safety(results),), (tabulate_safety(results),))


def errors_of(results: "Results", arm: str) -> dict[int, dict[tuple[str, str, int], float]]:
    """By seed the smooth ECE of each shifted set, keyed by suite, name and severity.

    Shifted are all corrupted sets and the sets of the suite "shift"; the clean one is not.
    """
    from killick.report.conditions import SINGLE

    found: dict[int, dict[tuple[str, str, int], float]] = {}
    comparison = results.report.comparison
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


def tabulate_safety(results: "Results") -> "TextTable":
    """A row for each arm and for each network of the paper."""
    from killick.report.statistics import ood_by_set
    from killick.report.tables import TextTable
    from killick.studies.findings import NONE, format_difference, format_mean

    by_set = ood_by_set(results.report.comparison)
    ours = {name.lower(): name for name in by_set}
    columns = [*by_set, *(name for name in PAPER_SETS if name.lower() not in ours)]
    rows, sets = [], set()
    for arm in results.factors:
        areas = {name: by_set[name][arm].values for name in by_set if arm in by_set[name]}
        row = [arm, "here", *(format_mean(areas.get(name, {}).values()) for name in columns)]
        row.append(format_mean(results.values(arm, "ood_auroc").values()))
        gap = results.difference(arm, results.arm(protocol=_BASE), "ood_auroc")
        row.append(format_difference(gap))
        errors = errors_of(results, arm)
        sets |= {place for each in errors.values() for place in each}
        means = [statistics.fmean(each.values()) for each in errors.values()]
        spreads = [statistics.stdev(each.values()) for each in errors.values() if len(each) > 1]
        row.append(format_mean(means, 1, 3))
        row.append(f"{statistics.fmean(spreads):.3f}" if spreads else NONE)
        rows.append(tuple(row))
    for (network, protocol), (*known, mean, spread) in PAPER.items():
        theirs = {
            ours.get(name.lower(), name): f"{area:.2f}"
            for name, area in zip(PAPER_SETS, known, strict=True)
            if area is not None
        }
        row = [f"{network}, {protocol}", "paper, ImageNet"]
        row += [*(theirs.get(name, NONE) for name in columns), NONE, NONE]
        rows.append((*row, f"{mean:.3f}", f"{spread:.3f}"))
    return TextTable(
        "study-safety-table",
        "OOD detection and calibration under shift",
        (
            "protocol",
            "source",
            *(f"AUROC, %: {name}" for name in columns),
            "AUROC, %: mean",
            f"mean − {_BASE}",
            "smooth ECE: mean over sets",
            "smooth ECE: deviation over sets",
        ),
        tuple(rows),
        f"AUROC of the energy, test images against each OOD set; smooth ECE over {len(sets)} shifted"
        " sets. Mean ± standard deviation over seeds; differences with 95 % intervals. The paper's"
        " standard networks are torchvision's; its ECE may be a mean over batches of 64, which is"
        " higher.",
    )


def draw_safety(results: "Results") -> "Figure":
    """AUROC by OOD set, and smooth ECE by severity."""
    from killick.report.figures import Figure
    from killick.report.statistics import by_severity, ood_by_set
    from killick.studies.plots import draw_lines

    comparison = results.report.comparison
    by_set = ood_by_set(comparison)
    areas = {
        arm: {name: numbers[arm] for name, numbers in by_set.items() if arm in numbers}
        for arm in results.factors
    }
    found: dict[str, tuple[Numbers, str, str, str]] = {
        "auroc": (areas, "AUROC of the energy", "%", "OOD set")
    }
    for suite, words in _SUITES.items():
        errors = by_severity(comparison, suite, _SMOOTH)
        found[suite] = (errors, f"Smooth ECE, {words}", "in hundredths", "severity; 0: clean")
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
        if levels in ([], [0]):  # not evaluated, or clean images alone
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
    return Figure("study-safety", "", tuple(panels), columns, tuple(records))


STUDY = Study(
    name="safety",
    item="Tables 3 and 7",
    title="Are anchored networks safer?",
    about="AUROC of the energy by OOD set, and smooth ECE over shifted sets",
    options=Options,
    varies=("protocols",),
    arms=make_arms,
    findings=find,
    suites=("clean", "corruptions", "cbar", "calibration", "ood"),
    sizes={
        "smoke": Size(evaluation={"corruptions": ("fog", "sparkles"), "severities": (3, 5)}),
        "paper": Size(
            "imagenet-swinv2-t",
            seeds=(0,),
            remark="Needs --data imagenet:FOLDER, --ood iSUN=pictures:FOLDER (likewise Textures,"
            " Places365, NINCO), and --suite clean,corruptions,cbar,calibration,ood,shift --shift"
            " R=imagefolder:FOLDER (likewise Sketch). Other networks: --recipe imagenet-swinv2-s,"
            " imagenet-vit-b16, imagenet-swinv2-b. Untested.",
        ),
    },
    notes=(
        "Logits are of one reference, as in the paper's text; its code takes the mean of five.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
