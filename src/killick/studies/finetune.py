"""Beyond the paper: what does a short masked fine-tuning of a trained network bring?

A standard network is trained, anchored exactly (it then predicts what it did before), and trained
on for a few epochs with masked references. Beside it: the same network trained on as it is, one
trained with masked references from scratch for both budgets together, and soups of the fine-tuned
runs, which differ in their learning rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.experiments.arms import KNOWN, Arm
from killick.settings import setting
from killick.studies.study import Size, Study, Treatment
from killick.training.recipe import Recipe

if TYPE_CHECKING:
    from killick.report.tables import TextTable
    from killick.studies.results import Results
    from killick.studies.shown import Shown

TUNED = ("standard", "masked-label")
_MEASURES = (
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
        True, "also soups that take up only what helps on validation data; needs data.validation"
    )


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """The base; it tuned either way, with several learning rates; and masked from scratch."""
    if "epochs" in settings:
        raise OptionError(
            "expected base_epochs and tuning_epochs for the budget of the study finetune, found"
            f" epochs {settings['epochs']}."
        )
    if any(factor <= 0 for factor in options.soup):
        raise OptionError(f"expected multiples above 0 in soup, found {options.soup}.")
    first, more = options.base_epochs, options.tuning_epochs
    base = Arm("base", {**KNOWN["standard"].settings, "epochs": first})
    whole = {**KNOWN["masked-label"].settings, "epochs": first + more}
    found = [
        Treatment(base, {"way": "base", "protocol": "standard"}),
        # Second, so that another job has something to do while the base is trained.
        Treatment(Arm("scratch-masked-label", whole), {"way": "scratch", "protocol": TUNED[1]}),
    ]
    for protocol in TUNED:
        for factor in dict.fromkeys([1.0, *options.soup]):
            rate = options.tuning_lr * factor
            tuned = {**KNOWN[protocol].settings, "epochs": more, "optimizer.lr": rate}
            if protocol != "standard":
                tuned["protocol.stem"] = "exact"
            arm = Arm(f"tuned-{protocol}-lr{rate:g}", tuned, after=base)
            own = {"factor": factor, "soup": factor in options.soup}
            found.append(Treatment(arm, {"way": "tuned", "protocol": protocol, **own}))
    return found


def check(options: Options, recipes: Sequence[Recipe]) -> None:
    """Refuse greedy soups where nothing is set aside to choose them on."""
    several = len(set(options.soup)) > 1
    if options.greedy and several and not all(recipe.data.validation for recipe in recipes):
        raise OptionError(
            "expected training pictures set aside to choose greedy soups on, found none. Cut some"
            " off (--data.validation 0.1), or leave greedy soups out (--greedy false)."
        )


def show(results: "Results") -> "Shown":
    """All arms side by side, and what fine-tuning with masks brings over the same without."""
    from killick.studies.points import draw_points
    from killick.studies.shown import Shown

    arms = {arm: _spell(results, arm) for arm in results.factors}
    figure = draw_points(
        results,
        arms,
        ("corrupted_top1", "corrupted_smooth_ece"),
        name="study-finetune",
        says="Each arm on corrupted pictures: a small point for each seed, a bar for their spread.",
    )
    notes = (
        "The base is trained once for each seed, and shared by all that is tuned from it. Runs of"
        " a soup differ in their learning rate alone.",
        "BatchNorm statistics of soups are estimated anew on training samples."
        + (
            " Greedy soups were chosen on validation pictures."
            if results.plan.options.greedy
            else ""
        )
        + " The test set chose nothing.",
    )
    return Shown(_tell(results), (figure,), (_tabulate(results, arms),), notes=notes)


def _spell(results: "Results", arm: str) -> str:
    own, options = results.factors[arm], results.plan.options
    words = f"{own['way'].replace('-', ' ')}, {own['protocol'].removesuffix('-label')}"
    return f"{words}, lr {options.tuning_lr * own['factor']:g}" if "factor" in own else words


def _tabulate(results: "Results", arms: Mapping[str, str]) -> "TextTable":
    from killick.report.tables import TextTable
    from killick.studies.drawing import find_measure, mean_and_spread, tell_difference

    options, control = results.plan.options, _main(results, "standard")
    measures = [find_measure(key) for key in _MEASURES]
    compared = find_measure("corrupted_top1")
    rows = []
    for arm, spelled in arms.items():
        cells = [spelled, str(_spent(options, results.factors[arm]["way"]))]
        for each in measures:
            values = results.values(arm, each.key).values()
            cells.append(mean_and_spread(values, each.factor, each.digits))
        gain = None if arm == control else results.difference(arm, control, compared.key)
        rows.append((*cells, tell_difference(gain, compared.factor, compared.digits)))
    titles = [f"{each.title}, {each.unit}" if each.unit else each.title for each in measures]
    return TextTable(
        "study-finetune-table",
        "A trained network, tuned on with and without masked references",
        ("arm", "epochs spent", *titles, "corrupted, − tuned standard"),
        tuple(rows),
        "Mean ± standard deviation over seeds; differences to the standard network tuned equally"
        " long, in points, with their 95 % intervals. Epochs of a soup are those of all its runs.",
    )


def _spent(options: Options, way: str) -> int:
    """Epochs, with those of the base."""
    runs = {"base": 0, "tuned": 1, "scratch": 1}.get(way, len(options.soup))
    return options.base_epochs + runs * options.tuning_epochs


def _main(results: "Results", protocol: str) -> str | None:
    return results.arm(way="tuned", protocol=protocol, factor=1.0)


def _tell(results: "Results") -> str:
    """What masked fine-tuning is above the others, on corrupted pictures."""
    from killick.studies.drawing import judge, tell_difference

    tuned, soup = _main(results, "masked-label"), results.arm(way="soup", protocol="masked-label")
    sentences = []
    for text, arm, other in (
        ("masked against equally long standard fine-tuning", tuned, _main(results, "standard")),
        ("against masked from scratch for the whole budget", tuned, results.arm(way="scratch")),
        ("a soup of masked runs against one run", soup, tuned),
    ):
        found = results.difference(arm, other, "corrupted_top1")
        if found is not None:
            sentences.append(f"{text} {tell_difference(found)} points, {judge(found)}")
    text = f"Corrupted accuracy: {'; '.join(sentences) or 'not enough is finished'}."
    error = results.difference(tuned, _main(results, "standard"), "corrupted_smooth_ece")
    if error is not None:
        verdict = judge(error, higher_is_better=False)
        text += f" Smooth ECE, masked against standard: {tell_difference(error, 1, 3)}, {verdict}."
    return text


_SHOWN = {"suites": ("clean", "corruptions", "calibration"), "references": 1}
STUDY = Study(
    name="finetune",
    item="",
    title="What does a short masked fine-tuning of a trained network bring?",
    about="a trained network anchored and tuned with masks, against controls, and soups of such",
    options=Options,
    varies=("base_epochs", "tuning_epochs", "tuning_lr", "soup", "greedy"),
    treat=treat,
    show=show,
    finish="killick.studies.soups:finish",
    check=check,
    sizes={
        "small": Size("shapes-compare", evaluation={**_SHOWN, "limit": 400}),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 64, "data.validation": 40},
            {"base_epochs": 1, "tuning_epochs": 1, "soup": [1.0, 2.0], "greedy": False},
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 60, "corruptions": ("fog",), "severities": (5,)},
        ),
        "paper": Size(
            "cifar10-resnet18",
            {"data.validation": 2000},
            {"base_epochs": 200, "tuning_epochs": 20, "tuning_lr": 0.01},
            seeds=(0, 1, 2),
            evaluation=_SHOWN,
            remark="the paper has no such experiment: its CIFAR-10 settings, tuned for a tenth",
        ),
    },
)
