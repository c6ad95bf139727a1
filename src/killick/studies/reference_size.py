"""Fig. 1: does a larger reference set help?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from killick.experiments.arms import ARMS
from killick.settings import setting
from killick.studies.findings import Findings, Results
from killick.studies.plots import Sweep
from killick.studies.study import STUDIES, WITH_REFERENCES, Size, Study, StudyArm, vary_arm

ALL = "all"
# Read off the paper's plots: standard, then masked by the size of the reference set. Of anchored
# training only the range is legible.
PAPER = {
    "CIFAR-10-C": (75.65, {5: 73.9, 50: 75.0, 500: 77.15, 2500: 80.75, 5000: 81.2, ALL: 80.8}),
    "CIFAR-100-C": (50.2, {5: 48.45, 50: 48.45, 500: 50.75, 2500: 52.3, 5000: 52.8, ALL: 53.5}),
}


@dataclass(frozen=True)
class Options:
    """What is varied."""

    sizes: list[int] = setting(
        [5, 50, 500, 2500, 5000, 0], "images in the reference set, class-balanced; 0: all"
    )
    protocols: list[str] = setting(
        ["anchored", "masked-label"], "arms that have references", among=WITH_REFERENCES
    )


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """One standard arm, and each protocol at each size. Each set contains all smaller ones."""
    found = [StudyArm(ARMS["standard"], {"protocol": "standard"})]
    for size in options.sizes:
        # References for evaluation are the first images of the same set.
        shared = {"protocol.reference_set": size, "protocol.stored": min(size, 10)} if size else {}
        for protocol in options.protocols:
            arm = vary_arm(protocol, f"references{size or '-all'}", shared)
            found.append(StudyArm(arm, {"protocol": protocol, "references": size or ALL}))
    return found


def find(results: Results) -> Findings:
    """Corrupted accuracy over the size of the reference set."""
    published = {
        title: {("standard", size): standard for size in masked}
        | {("masked-label", size): value for size, value in masked.items()}
        for title, (standard, masked) in PAPER.items()
    }
    sweep = Sweep(
        results,
        "references",
        "corrupted_top1",
        published,
        "Fig. 1, read off, ± 0.1; anchored: 76.35 to 76.5 and 50.1 to 50.95",
        "images in the reference set",
    )
    return Findings(sweep.headline(), (sweep.figure(),), (sweep.table(),))


STUDY = Study(
    name="reference-size",
    item="Fig. 1",
    title="Does a larger reference set help?",
    about="corrupted accuracy against the size of the reference set, from 5 images to all",
    options=Options,
    arms=make_arms,
    findings=find,
    sizes={
        "small": Size(options={"sizes": [5, 50, 0]}),
        "smoke": Size(options={"sizes": [5, 0]}),
        "paper": Size("cifar10-resnet18", remark="Again with --recipe cifar100-resnet18."),
    },
)
STUDIES.register(STUDY.name, STUDY)
