"""Table 4: how often should references be masked, and towards what?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.settings import setting
from killick.studies.study import STUDIES, Size, Study, StudyArm, vary_arm

if TYPE_CHECKING:
    from killick.studies.findings import Check, Findings, Results

# CIFAR-100, ResNet-18: clean and corrupted accuracy.
_ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
PAPER = {
    "clean": (77.21, 77.89, 76.97, 75.4, 57.90),
    "corrupted": (51.01, 53.77, 52.61, 52.30, 35.40),
}
_DEVIATIONS = 4  # above chance that a network without labels may be


@dataclass(frozen=True)
class Options:
    """What is varied."""

    alphas: list[float] = setting(list(_ALPHAS), "share of masked steps, 0 to 1")
    targets: list[str] = setting(["label", "uniform"], "of masked pairs")


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """Both targets at each alpha. At 0 nothing is masked, so one arm stands for both."""
    found = []
    for alpha in options.alphas:
        for target in options.targets if alpha else options.targets[:1]:
            protocol = f"masked-{target}" if alpha else "anchored"
            arm = vary_arm(protocol, f"alpha{alpha:g}", {"protocol.alpha": alpha})
            also = {} if alpha else {"also": f"masked-{options.targets[-1]}"}
            found.append(StudyArm(arm, {"protocol": f"masked-{target}", "alpha": alpha, **also}))
    return found


def find(results: "Results") -> "Findings":
    """Clean and corrupted accuracy over alpha, for both targets."""
    from killick.studies.findings import Findings
    from killick.studies.plots import PublishedValues, Sweep

    sweeps = []
    for word, values in PAPER.items():
        known = {("masked-label", a): value for a, value in zip(_ALPHAS, values, strict=True)}
        sweeps.append(
            Sweep(
                results,
                "alpha",
                f"{word}_top1",
                f"study-alpha-{word}",
                "alpha, the share of masked steps",
                base="masked-label",
                published=(PublishedValues(f"CIFAR-100, {word}", known, "Table 4"),),
            )
        )
    figures, tables = zip(*((each.figure(), each.table()) for each in sweeps), strict=True)
    return Findings(_headline(results), figures, tables, tuple(_check(results)))


def _check(results: "Results") -> "list[Check]":
    """Masked towards uniform in every step, no label reaches the network."""
    from killick.report.formatting import percent
    from killick.studies.findings import Check

    values = results.values(results.arm(protocol="masked-uniform", alpha=1.0), "clean_top1")
    if not values:
        return []
    chance = 1 / results.classes
    most = chance + _DEVIATIONS * (chance * (1 - chance) / results.images) ** 0.5
    label = results.number(results.arm(protocol="masked-label", alpha=1.0), "clean_top1")
    holds: bool | None = max(values.values()) <= most
    if holds and label is not None and label.mean <= most:
        holds = None  # nothing has learned anything, whatever its target
    found = ", ".join(percent(value) for value in values.values())
    return [Check(f"masked-uniform at alpha 1 is at chance, {percent(chance)}", holds, found)]


def _headline(results: "Results") -> str:
    """The alpha with the highest corrupted accuracy, for each target."""
    parts = []
    for protocol in results.levels("protocol"):
        arms = {
            level: results.arm(protocol=protocol, alpha=level) for level in results.levels("alpha")
        }
        means = {
            alpha: number.mean
            for alpha, arm in arms.items()
            if (number := results.number(arm, "corrupted_top1")) is not None
        }
        if means:
            best = max(means, key=means.__getitem__)
            gain = results.compare(arms[best], results.arm(alpha=0.0), "corrupted_top1")
            parts.append(f"{protocol} at alpha {best:g}" + (f", {gain}" if best else ""))
    return f"Highest corrupted accuracy, against no masking: {'; '.join(parts)}."


STUDY = Study(
    name="alpha",
    item="Table 4",
    title="How often should references be masked, and towards what?",
    about="clean and corrupted accuracy against the share of masked steps, for both targets",
    options=Options,
    varies=("alphas", "targets"),
    arms=make_arms,
    findings=find,
    sizes={
        "small": Size(settings={"epochs": 30}),
        "smoke": Size(options={"alphas": [0.0, 1.0]}),
    },
    notes=(
        "The paper does not state the target. Towards uniform, alpha 1 would be at chance, 1 %; its"
        " table has 57.9 %.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
