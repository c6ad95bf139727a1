"""Fig. 5b: does label noise hurt anchored training more? And who learns wrong labels by heart?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.study import PROTOCOLS, Size, Study, Treatment, cross

if TYPE_CHECKING:
    from killick.studies.results import Results
    from killick.studies.shown import Shown

# Corrupted accuracy at 20 % of wrong labels, the only place where the plot is legible.
PAPER = {("standard", 20): 38.1, ("anchored", 20): 38.5, ("masked-label", 20): 41.85}


@dataclass(frozen=True)
class Options:
    """What is varied."""

    levels: list[float] = setting(
        [0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2],
        "shares of the training labels flipped to another class; 0: none",
    )
    protocols: list[str] = setting(list(PROTOCOLS), "arms at each level")


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """Every protocol at every level; what a lower level flips, a higher one flips too."""
    for level in options.levels:
        if not 0 <= level <= 1:
            raise OptionError(f"expected levels between 0 and 1, found {level:g}.")
    found = {_percent(level): {"data.label_noise": float(level)} for level in options.levels}
    return cross("noise", found, options.protocols)


def show(results: "Results") -> "Shown":
    """Corrupted accuracy over the noise, and what became of the wrong labels."""
    from killick.studies.drawing import Published, draw_sweep, tabulate_sweep
    from killick.studies.memorised import ALONG, check_flipped, draw_training, tabulate_training
    from killick.studies.shown import Shown

    published = [Published("CIFAR-100-C", PAPER, "read off the plot, ± 0.1, at 20 % alone")]
    figure = draw_sweep(
        results,
        "noise",
        "corrupted_top1",
        name="study-noise",
        heading="Corrupted accuracy",
        along=ALONG,
        says="In the paper masked training is about 4 points above, with 20 % of labels flipped.",
    )
    table = tabulate_sweep(
        results,
        "noise",
        "corrupted_top1",
        name="study-noise-table",
        title="Corrupted accuracy by label noise, % of the training labels",
        published=published,
    )
    return Shown(
        _tell(results),
        (figure, draw_training(results)),
        (table, tabulate_training(results)),
        check_flipped(results),
        (
            "References to evaluate from are balanced over the labels as they are given, so each"
            " level has another; arms of one level share it.",
        ),
    )


def _tell(results: "Results") -> str:
    """At the highest noise: who is better there, and who has learned how much by heart."""
    from killick.report.formatting import capitalise
    from killick.studies.drawing import judge, mean_and_spread, tell_difference
    from killick.studies.memorised import values_of
    from killick.studies.memorising import BY_HEART

    levels, said = results.levels("noise"), []
    most, protocols = max(levels), results.levels("protocol")
    base = results.arm(protocol=protocols[0], noise=most)
    for protocol in protocols[1:]:
        found = results.difference(
            results.arm(protocol=protocol, noise=most), base, "corrupted_top1"
        )
        said.append(
            f"With {most} % of the labels flipped, corrupted accuracy of {protocol} less that of"
            f" {protocols[0]}: {tell_difference(found)} points, {judge(found)}."
        )
    learned = [
        f"{protocol} {mean_and_spread(values)} %"
        for protocol in protocols
        if (values := values_of(results, BY_HEART, protocol, most))
    ]
    if learned:
        told = ", ".join(learned)
        said.append(f"Share of the wrong labels there that was learned by heart: {told}.")
    return capitalise(" ".join(said))


def _percent(share: float) -> int | float:
    """A share in percent; whole ones without a point, as names have them."""
    percent = round(100 * share, 6)
    return int(percent) if percent == int(percent) else percent


_SHOWN = {"suites": ("clean", "corruptions"), "references": 1}
STUDY = Study(
    name="label-noise",
    item="Fig. 5b",
    title="Does label noise hurt anchored training more?",
    about="corrupted accuracy with 0.5 to 20 % flipped labels, and what is learned by heart",
    options=Options,
    varies=("levels", "protocols"),
    treat=treat,
    show=show,
    measure="killick.studies.memorising:measure",
    sizes={
        "small": Size(
            "shapes-compare",
            options={"levels": [0.0, 0.05, 0.2]},
            evaluation={**_SHOWN, "limit": 300},
        ),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 100, "data.validation": 0, "epochs": 1},
            {"levels": [0.0, 0.2], "protocols": ["standard", "masked-label"]},
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 60, "corruptions": ("fog",), "severities": (3,)},
        ),
        "paper": Size("cifar100-resnet18", evaluation=_SHOWN, seeds=(0, 1, 2)),
    },
    unsaid=(
        "whether a flipped label may be the old one; taken: always another class, each as often,"
        " and an exact share of the labels.",
        "whether the same labels are flipped at every level; taken: what a lower level flips, a"
        " higher one flips too, to the same class.",
        "how many seeds; taken: 3.",
    ),
)
