"""Fig. 5a: does anchoring still help beside strong augmentation?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import check_option
from killick.settings import setting
from killick.studies.study import PROTOCOLS, Size, Study, Treatment, cross

if TYPE_CHECKING:
    from killick.studies.results import Results
    from killick.studies.shown import Shown

# CIFAR-100-C at severity 5, ResNet-18: standard, anchored, masked.
PAPER = {
    "geometric": (33.98, 34.43, 38.06),
    "randaugment": (49.74, 50.15, 53.7),
    "trivialaugment": (47.42, 47.98, 51.22),
    "pixmix": (58.57, 58.38, 59.60),
}
# Beside the recipe's own crop and flip. References stay clean, as in the authors' code.
POLICIES = {
    "geometric": {"augment.policy": "none"},
    "randaugment": {"augment.policy": "randaugment"},
    "trivialaugment": {"augment.policy": "trivialaugment"},
    "pixmix": {"augment.policy": "pixmix"},
}


@dataclass(frozen=True)
class Options:
    """What is varied."""

    policies: list[str] = setting(list(POLICIES), f"of {', '.join(POLICIES)}")
    protocols: list[str] = setting(list(PROTOCOLS), "arms")


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """Every protocol with every policy."""
    for policy in options.policies:
        check_option("a policy", policy, POLICIES)
    levels = {policy: POLICIES[policy] for policy in options.policies}
    return cross("augmentation", levels, options.protocols)


def show(results: "Results") -> "Shown":
    """Accuracy at the highest severity, policy by policy."""
    from killick.studies.drawing import Published, draw_sweep, tabulate_sweep
    from killick.studies.shown import Shown

    values = {
        (protocol, policy): value
        for policy, row in PAPER.items()
        for protocol, value in zip(PROTOCOLS, row, strict=True)
    }
    published = [Published("CIFAR-100-C", values, "Fig. 5a")]
    figure = draw_sweep(
        results,
        "augmentation",
        "severity5_top1",
        name="study-augmentation",
        heading="Here",
        along="augmentation",
        says="Accuracy at severity 5. In the paper masking adds to each policy.",
        published=published,
    )
    table = tabulate_sweep(
        results,
        "augmentation",
        "severity5_top1",
        name="study-augmentation-table",
        title="Accuracy at severity 5 by augmentation",
        published=published,
    )
    return Shown(_tell(results), (figure,), (table,))


def _tell(results: "Results") -> str:
    """With which policies masking helped, hurt, or did neither."""
    from killick.report.formatting import capitalise, enumerate_words
    from killick.studies.drawing import judge, tell_difference

    found: dict[str, list[str]] = {}
    for policy in results.levels("augmentation"):
        arm = results.arm(protocol="masked-label", augmentation=policy)
        base = results.arm(protocol="standard", augmentation=policy)
        gain = results.difference(arm, base, "severity5_top1")
        if gain is not None:
            found.setdefault(judge(gain), []).append(f"{policy} {tell_difference(gain)}")
    sentences = [
        f"{capitalise(word)} with {enumerate_words(all_)}." for word, all_ in found.items()
    ]
    return "Masked-label against standard at severity 5, in points. " + " ".join(sentences)


_SHOWN = {"suites": ("clean", "corruptions"), "references": 1}
STUDY = Study(
    name="augmentation",
    item="Fig. 5a",
    title="Does anchoring still help beside strong augmentation?",
    about="geometric, RandAugment, TrivialAugment, PixMix x protocols, accuracy at severity 5",
    options=Options,
    varies=("policies", "protocols"),
    treat=treat,
    show=show,
    sizes={
        "small": Size(
            "shapes-compare",
            options={"protocols": ["standard", "masked-label"]},
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 400},
        ),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 60, "data.validation": 0, "epochs": 1, "data.workers": 0},
            {"policies": ["geometric", "pixmix"]},
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 60, "corruptions": ("fog",)},
        ),
        "paper": Size("cifar100-resnet18", evaluation=_SHOWN, seeds=(0, 1, 2)),
    },
    unsaid=(
        "the magnitudes; taken: torchvision's defaults of RandAugment and TrivialAugment, and for"
        " PixMix those of its authors with pictures made by Killick (augment.mixing_set: others).",
        "whether crop and flip stay beside a policy; taken: they do.",
        "how many seeds; taken: 3.",
    ),
)
