"""Fig. 1: does a larger reference set help?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.study import STUDIES, Size, Study, StudyArm, protocol_arms, vary_arm

if TYPE_CHECKING:
    from killick.studies.findings import Findings, Results

# Read off the paper's plots. Of anchored training only the range is legible.
ALL = "all"
_SIZES = (5, 50, 500, 2500, 5000, ALL)
CIFAR10 = {
    "standard": (75.65,) * 6,
    "masked-label": (73.9, 75.0, 77.15, 80.75, 81.2, 80.8),
}
CIFAR100 = {
    "standard": (50.2,) * 6,
    "masked-label": (48.45, 48.45, 50.75, 52.3, 52.8, 53.5),
}


@dataclass(frozen=True)
class Options:
    """What is varied."""

    sizes: list[int] = setting(
        [5, 50, 500, 2500, 5000, 0], "images in the reference set, class-balanced; 0: all"
    )
    protocols: list[str] = setting(["anchored", "masked-label"], "arms that have references")


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """One standard arm, and each protocol at each size. Each set contains all smaller ones."""
    if "standard" in options.protocols:
        raise OptionError("--protocols needs protocols with references, found standard.")
    found = protocol_arms(["standard"])
    for size in options.sizes:
        # References for evaluation are the first images of the same set.
        shared = {"protocol.reference_set": size, "protocol.stored": min(size, 10)} if size else {}
        for protocol in options.protocols:
            arm = vary_arm(protocol, f"references{size or '-all'}", shared)
            found.append(StudyArm(arm, {"protocol": protocol, "references": size or ALL}))
    return found


def find(results: "Results") -> "Findings":
    """Corrupted accuracy over the size of the reference set."""
    from killick.studies.findings import Findings
    from killick.studies.plots import PublishedValues, Sweep, format_level

    source = "read off the plot, ± 0.1; anchored"
    sweep = Sweep(
        results,
        "references",
        "corrupted_top1",
        "study-references",
        "images in the reference set",
        published=(
            PublishedValues("CIFAR-10-C", published(CIFAR10), f"{source} 76.35 to 76.5"),
            PublishedValues("CIFAR-100-C", published(CIFAR100), f"{source} 50.1 to 50.95"),
        ),
    )
    levels = results.levels("references")
    parts = [
        f"{protocol} {results.compare(last, first, 'corrupted_top1')}"
        for protocol in results.plan.options.protocols
        if (first := results.arm(protocol=protocol, references=levels[0]))
        and (last := results.arm(protocol=protocol, references=levels[-1]))
        and first != last
    ]
    sizes = f"{format_level(levels[-1])} against {format_level(levels[0])}" if levels else ""
    headline = f"Corrupted accuracy, {sizes} references: {'; '.join(parts)}."
    return Findings(headline, (sweep.figure(),), (sweep.table(),))


def published(lines: Mapping[str, Sequence[float]]) -> dict[tuple[str, Any], float]:
    """The paper's values by protocol and size."""
    return {
        (protocol, size): value
        for protocol, values in lines.items()
        for size, value in zip(_SIZES, values, strict=True)
    }


STUDY = Study(
    name="reference-size",
    item="Fig. 1",
    title="Does a larger reference set help?",
    about="corrupted accuracy against the size of the reference set, from 5 images to all",
    options=Options,
    varies=("sizes", "protocols"),
    arms=make_arms,
    findings=find,
    sizes={
        "small": Size(options={"sizes": [5, 50, 0]}),
        "smoke": Size(options={"sizes": [5, 0]}),
        "paper": Size("cifar10-resnet18", remark="Again with --recipe cifar100-resnet18."),
    },
)
STUDIES.register(STUDY.name, STUDY)
