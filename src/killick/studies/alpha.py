"""Table 4: how often should references be masked, and towards what?"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from killick.settings import setting
from killick.studies.findings import Findings, Results
from killick.studies.plots import Sweep
from killick.studies.study import STUDIES, Size, Study, StudyArm, vary_arm

# CIFAR-100, ResNet-18: clean and corrupted accuracy by alpha.
PAPER = {
    "clean": {0.0: 77.21, 0.25: 77.89, 0.5: 76.97, 0.75: 75.4, 1.0: 57.90},
    "corrupted": {0.0: 51.01, 0.25: 53.77, 0.5: 52.61, 0.75: 52.30, 1.0: 35.40},
}


@dataclass(frozen=True)
class Options:
    """What is varied."""

    alphas: list[float] = setting(list(PAPER["clean"]), "share of masked steps, 0 to 1")
    targets: list[str] = setting(["label", "uniform"], "of masked pairs")


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """Both targets at each alpha. At 0 nothing is masked, so one arm stands for both."""
    found = []
    for alpha in options.alphas:
        for target in options.targets if alpha else options.targets[:1]:
            protocol = f"masked-{target}" if alpha else "anchored"
            arm = vary_arm(protocol, f"alpha{alpha:g}", {"protocol.alpha": alpha})
            factors = {"protocol": protocol, "alpha": alpha} if alpha else {"alpha": alpha}
            found.append(StudyArm(arm, factors))
    return found


def find(results: Results) -> Findings:
    """Clean and corrupted accuracy over alpha, for both targets."""
    clean, corrupted = (
        Sweep(
            results,
            "alpha",
            f"{word}_top1",
            {f"CIFAR-100, {word}": {("masked-label", a): v for a, v in values.items()}},
            "Table 4",
            "alpha, the share of masked steps",
            base="masked-label",
        )
        for word, values in PAPER.items()
    )
    best = [
        f"{protocol} {max(line, key=lambda alpha: statistics.fmean(line[alpha].values())):g}"
        for protocol, line in corrupted.curves.items()
    ]
    return Findings(
        f"Alpha of the highest corrupted accuracy: {', '.join(best)}.",
        (clean.figure(), corrupted.figure()),
        (clean.table(), corrupted.table()),
    )


STUDY = Study(
    name="alpha",
    item="Table 4",
    title="How often should references be masked, and towards what?",
    about="clean and corrupted accuracy against the share of masked steps, for both targets",
    options=Options,
    arms=make_arms,
    findings=find,
    sizes={"small": Size(settings={"epochs": 30}), "smoke": Size(options={"alphas": [0.0, 1.0]})},
    notes=(
        "The paper does not state the target. Towards uniform, alpha 1 would be at chance, 1 %; its"
        " table has 57.9 %.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
