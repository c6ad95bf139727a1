"""Beyond the paper: what does a short masked fine-tuning of a trained network bring?

A standard network is trained, anchored exactly (its predictions stay the same), and fine-tuned for a
few epochs with masked references. Controls: the same network fine-tuned as it is, one trained with
masked references from scratch for both budgets together, and soups of the fine-tuned runs, which
differ in their learning rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.experiments.arms import ARMS, Arm
from killick.settings import setting
from killick.studies.study import STUDIES, Size, Study, StudyArm

if TYPE_CHECKING:
    from killick.report.figures import Figure
    from killick.report.tables import TextTable
    from killick.studies.findings import Findings, Results

TUNED = ("standard", "masked-label")
_COLUMNS = (
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
        [0.5, 1.0, 2.0], "runs of a soup: their learning rates as multiples of tuning_lr"
    )
    greedy: bool = setting(
        True, "also greedy soups, chosen on validation images; needs data.validation"
    )


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """The base; fine-tuned both ways, with several learning rates; and masked from scratch."""
    if any(factor <= 0 for factor in options.soup):
        raise OptionError(f"--soup needs multiples above 0, found {options.soup}.")
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


def find(results: "Results") -> "Findings":
    """All arms side by side, and masked against standard fine-tuning."""
    from killick.studies.findings import Findings

    tuned, control = _tuned(results, "masked-label"), _tuned(results, "standard")
    soup = results.arm(way="soup", protocol="masked-label")
    parts = [
        f"{words} {results.compare(arm, base, key)}"
        for words, arm, base, key in (
            ("corrupted accuracy", tuned, control, "corrupted_top1"),
            ("smooth ECE", tuned, control, "corrupted_smooth_ece"),
            (
                "accuracy against masked from scratch",
                tuned,
                results.arm(way="scratch"),
                "corrupted_top1",
            ),
            ("accuracy of a soup against one run", soup, tuned, "corrupted_top1"),
        )
        if arm is not None and base is not None
    ]
    headline = f"Masked against standard fine-tuning: {'; '.join(parts) or 'unfinished'}."
    return Findings(headline, (_draw(results),), (_tabulate(results),))


def _tuned(results: "Results", protocol: str) -> str | None:
    return results.arm(way="tuned", protocol=protocol, factor=1.0)


def _title(results: "Results", arm: str) -> str:
    own, options = results.factors[arm], results.plan.options
    words = f"{own['way'].replace('-', ' ')}, {own['protocol'].removesuffix('-label')}"
    return f"{words}, lr {options.tuning_lr * own['factor']:g}" if "factor" in own else words


def _draw(results: "Results") -> "Figure":
    from killick.report.figures import Figure
    from killick.studies.findings import find_measure
    from killick.studies.plots import draw_points

    panels, records = [], []
    for key in ("corrupted_top1", "corrupted_smooth_ece"):
        column = find_measure(key)
        rows = {
            _title(results, arm): {
                str(own["protocol"]): [column.factor * value for value in values]
            }
            for arm, own in results.factors.items()
            if (values := results.values(arm, key).values())
        }
        panels.append(
            draw_points(results, rows, f"study-finetune-{key}", column.title, column.unit)
        )
        records += [
            (arm, seed, key, value)
            for arm in results.factors
            for seed, value in results.values(arm, key).items()
        ]
    columns = ("arm", "seed", "measure", "value")
    return Figure("study-finetune", "", tuple(panels), columns, tuple(records))


def _tabulate(results: "Results") -> "TextTable":
    from killick.report.tables import TextTable
    from killick.studies.findings import find_measure, format_difference, format_mean

    options, control = results.plan.options, _tuned(results, "standard")
    columns = [find_measure(key) for key in _COLUMNS]
    rows = []
    for arm, own in results.factors.items():
        runs = {"base": 0, "tuned": 1, "scratch": 1}.get(own["way"], len(options.soup))
        row = [_title(results, arm), str(options.base_epochs + runs * options.tuning_epochs)]
        for each in columns:
            values = results.values(arm, each.key).values()
            row.append(format_mean(values, each.factor, each.digits))
        gap = None if arm == control else results.difference(arm, control, "corrupted_top1")
        rows.append((*row, format_difference(gap)))
    titles = [f"{each.title}, {each.unit}" if each.unit else each.title for each in columns]
    return TextTable(
        "study-finetune-table",
        "A trained network, fine-tuned with and without masked references",
        ("arm", "epochs", *titles, "corrupted accuracy − tuned standard"),
        tuple(rows),
        "Mean ± standard deviation over seeds; differences with 95 % intervals. Epochs of a soup are"
        " those of all its runs, with one base.",
    )


STUDY = Study(
    name="finetune",
    item="",
    title="What does a short masked fine-tuning of a trained network bring?",
    about="a trained network anchored and fine-tuned with masking, against controls, and soups",
    options=Options,
    varies=("base_epochs", "tuning_epochs", "tuning_lr", "soup", "greedy"),
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
    notes=(
        "The base is trained once for each seed. BatchNorm statistics of soups are re-estimated on"
        " training images; greedy soups are chosen on validation images.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
