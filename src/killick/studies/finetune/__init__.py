"""Beyond the paper: what does a short masked fine-tuning of a trained network bring?

A standard network is trained, anchored exactly (its predictions stay the same), and fine-tuned for a
few epochs with masked references. Controls: the same network fine-tuned as it is, one trained with
masked references from scratch for both budgets together, and soups of the fine-tuned runs, which
differ in their learning rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from killick.experiments.arms import ARMS, Arm
from killick.settings import setting
from killick.studies.findings import Findings, Results, Values, make_table
from killick.studies.plots import draw_figure, draw_points, plot_metric
from killick.studies.study import STUDIES, Size, Study, StudyArm

TUNED = ("standard", "masked-label")
_METRICS = (
    *("clean_top1", "corrupted_top1", "severity5_top1", "corrupted_smooth_ece"),
    "corrupted_smooth_ece_temperature",
)


@dataclass(frozen=True)
class Options:
    """The budgets, and what goes into the soups."""

    base_epochs: int = setting(30, "of the standard network that is fine-tuned", least=1)
    tuning_epochs: int = setting(10, "of fine-tuning", least=1)
    tuning_lr: float = setting(0.02, "highest learning rate of fine-tuning", above=0)
    soup: list[float] = setting(
        [0.5, 1.0, 2.0], "runs of a soup: their learning rates as multiples of tuning_lr", above=0
    )
    greedy: bool = setting(
        True, "also greedy soups, chosen on validation images; needs data.validation"
    )


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """The base; fine-tuned both ways, with several learning rates; and masked from scratch."""
    first, more = options.base_epochs, options.tuning_epochs
    base = Arm("base", {**ARMS["standard"].settings, "epochs": first})
    whole = {**ARMS["masked-label"].settings, "epochs": first + more}
    found = [
        StudyArm(base, {"way": "base", "protocol": "standard"}),
        # Second, so that another process has something to do while the base is trained.
        StudyArm(Arm("scratch-masked-label", whole), {"way": "scratch", "protocol": TUNED[1]}),
    ]
    for protocol in TUNED:
        for factor in dict.fromkeys([1.0, *options.soup]):
            rate = options.tuning_lr * factor
            tuned = {**ARMS[protocol].settings, "epochs": more, "optimizer.lr": rate}
            if protocol != "standard":
                tuned["protocol.stem"] = "exact"
            arm = Arm(f"tuned-{protocol}-lr{rate:g}", tuned, after=base)
            own = {"factor": factor, "soup": factor in options.soup}
            found.append(StudyArm(arm, {"way": "tuned", "protocol": protocol, **own}))
    return found


def find(results: Results) -> Findings:
    """All arms side by side, and masked against standard fine-tuning."""
    options = results.plan.options
    control, tuned = (results.arm(way="tuned", protocol=each, factor=1.0) for each in TUNED)
    rows = []
    for arm, own in results.factors.items():
        runs = {"base": 0, "tuned": 1, "scratch": 1}.get(own["way"], len(options.soup))
        epochs = options.base_epochs + runs * options.tuning_epochs
        gap = results.compare(arm, control, "corrupted_top1")
        row = {"arm": arm, "epochs": str(epochs), **results.summarize(arm, _METRICS)}
        rows.append(row | {"corrupted accuracy − tuned standard": gap})
    table = make_table(
        "study-finetune-table",
        "A trained network, fine-tuned with and without masked references",
        rows,
        "Epochs of a soup are those of all its runs, with one base.",
    )
    plots = []
    for metric in ("corrupted_top1", "corrupted_smooth_ece"):
        curves: dict[str, dict[str, Values]] = {protocol: {} for protocol in TUNED}
        for arm, own in results.factors.items():
            curves[own["protocol"]][arm] = results.values(arm, metric)
        plots.append(plot_metric(metric, curves, "arm"))
    accuracy, error = (
        results.compare(tuned, control, f"corrupted_{each}") for each in ("top1", "smooth_ece")
    )
    return Findings(
        f"Masked against standard fine-tuning: corrupted accuracy {accuracy}, smooth ECE {error}.",
        (draw_figure("study-finetune", plots, draw_points),),
        (table,),
    )


STUDY = Study(
    name="finetune",
    item="",
    title="What does a short masked fine-tuning of a trained network bring?",
    about="a trained network anchored and fine-tuned with masking, against controls, and soups",
    options=Options,
    arms=make_arms,
    findings=find,
    finish="killick.studies.finetune.soups:make_soups",
    suites=("clean", "corruptions", "calibration"),
    sizes={
        "smoke": Size(
            options={"base_epochs": 1, "tuning_epochs": 1, "soup": [1.0, 2.0], "greedy": False},
            evaluation={"corruptions": ("fog",), "severities": (5,)},
        ),
        "paper": Size(
            "cifar10-resnet18",
            {"data.validation": 2000},
            {"base_epochs": 200, "tuning_epochs": 20, "tuning_lr": 0.01},
            remark="The paper has no such experiment: its CIFAR-10 settings, tuned for a tenth.",
        ),
    },
)
STUDIES.register(STUDY.name, STUDY)
