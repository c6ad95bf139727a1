"""Fig. 5a: does anchoring still help beside strong augmentation?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from killick.settings import setting
from killick.studies.findings import Findings, Results
from killick.studies.plots import Sweep
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, cross_arms

# CIFAR-100-C at severity 5, ResNet-18: standard, anchored, masked.
PAPER = {
    "geometric": (33.98, 34.43, 38.06),
    "randaugment": (49.74, 50.15, 53.7),
    "trivialaugment": (47.42, 47.98, 51.22),
    "pixmix": (58.57, 58.38, 59.60),
}


@dataclass(frozen=True)
class Options:
    """What is varied."""

    policies: list[str] = setting(list(PAPER), f"of {', '.join(PAPER)}", among=tuple(PAPER))
    protocols: list[str] = setting(list(PROTOCOLS), "arms")


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """Every protocol with every policy, beside the recipe's own crop and flip ("geometric")."""
    levels = {
        policy: {"augment.policy": "none" if policy == "geometric" else policy}
        for policy in options.policies
    }
    return cross_arms("augmentation", levels, options.protocols)


def find(results: Results) -> Findings:
    """Accuracy at the highest severity, policy by policy."""
    values = {
        (protocol, policy): value
        for policy, row in PAPER.items()
        for protocol, value in zip(PROTOCOLS, row, strict=True)
    }
    paper = {"CIFAR-100-C": values}
    sweep = Sweep(results, "augmentation", "severity5_top1", paper, "Fig. 5a")
    return Findings(sweep.headline(), (sweep.figure(),), (sweep.table(),))


STUDY = Study(
    name="augmentation",
    item="Fig. 5a",
    title="Does anchoring still help beside strong augmentation?",
    about="geometric, RandAugment, TrivialAugment, PixMix x protocols, accuracy at severity 5",
    options=Options,
    arms=make_arms,
    findings=find,
    sizes={
        "small": Size(options={"protocols": ["standard", "masked-label"]}, seeds=(0,)),
        "smoke": Size(options={"policies": ["geometric", "pixmix"]}),
    },
    notes=(
        "The paper does not state the magnitudes: torchvision's defaults, and for PixMix those of"
        " its authors with images made by Killick.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
