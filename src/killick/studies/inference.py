"""Fig. 2: does it matter how an anchored network is asked? Four ways, their accuracy and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.study import Size, Study, Treatment, plain

if TYPE_CHECKING:
    from killick.studies.results import Results
    from killick.studies.shown import Shown

# The paper's table: accuracy and its spread on CIFAR-100-C, and seconds for 1,000 samples, which it
# gives once for both ways to train.
PAPER = {
    ("anchored", "single"): (50.70, 0.44, 2.24),
    ("anchored", "marginal"): (50.70, 0.43, 3.51),
    ("anchored", "transductive"): (50.69, 0.45, 24.24),
    ("masked-label", "single"): (53.49, 0.38, 2.24),
    ("masked-label", "marginal"): (53.55, 0.42, 3.51),
    ("masked-label", "transductive"): (53.41, 0.30, 24.24),
}


@dataclass(frozen=True)
class Options:
    """Who is asked, about what, and how."""

    protocols: list[str] = setting(["anchored", "masked-label"], "arms that have references")
    corruptions: list[str] | None = setting(None, "of the test pictures; none: the 19 common ones")
    severities: list[int] = setting([1, 2, 3, 4, 5], "of each corruption")
    pictures: int | None = setting(None, "of the test set, by class; none: all", least=1)
    draws: int = setting(5, "how often references are drawn from the training set", least=1)
    k: int = setting(10, "references whose logits are averaged", least=2)
    candidates: int = setting(50, "references of which transduction takes the best", least=2)
    searched: int = setting(5, "of the draws, how many transduction is run for", least=1)
    bank: int = setting(10_000, "residuals of training that it compares with", least=1)
    at_once: int = setting(100, "pictures of a forward pass", least=1)
    timed: int = setting(1000, "pictures that each way is timed on", least=1)
    repeats: int = setting(5, "how often; the best counts", least=1)


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """The protocols as they are: only how they are asked is varied."""
    from killick.evaluation.plan import Choices

    names, severities = options.corruptions, tuple(options.severities)
    Choices(
        suites=("corruptions",),
        corruptions=None if names is None else tuple(names),
        severities=severities,
    ).check()
    if "standard" in options.protocols:
        raise OptionError("expected protocols with references, found standard, which has none.")
    if options.k > options.candidates:
        raise OptionError(
            f"expected k of at most the {options.candidates} candidates, whose first are averaged,"
            f" found {options.k}."
        )
    return plain(options.protocols)


def count_passes(options: Options) -> int:
    """Pictures shown in the four ways; a search costs about as much as five passes."""
    sets = len(options.corruptions or range(19)) * len(options.severities)
    ways = options.draws * options.k + 6 * min(options.searched, options.draws) + 1
    return (options.pictures or 10_000) * sets * ways


def show(results: "Results") -> "Shown":
    """Accuracy with its spread over draws, against seconds."""
    from killick.studies.asked import collect_asked, tabulate_ways, tell_controls, tell_ways
    from killick.studies.costs import Point, as_points, draw_costs
    from killick.studies.shown import Shown

    options, asked = results.plan.options, collect_asked(results)
    searched = min(options.searched, options.draws)
    spelled = {
        "single": "1 random reference",
        "mean-image": "the mean image",
        "marginal": f"mean of {options.k}",
        "transductive": f"best of {options.candidates}",
    }
    theirs = {"marginal": options.k == 10, "transductive": options.candidates == 50}
    paper = {place: values for place, values in PAPER.items() if theirs.get(place[1], True)}
    figure = draw_costs(
        results,
        as_points(asked),
        [Point(*place, *values) for place, values in paper.items()],
        spelled,
        "In the paper the ways differ in cost alone.",
    )
    table = tabulate_ways(
        asked,
        spelled,
        paper,
        f"Accuracy: mean over {options.draws} draws of references ({searched} of transduction) and"
        " all corrupted sets, ± over seeds. Over draws: of one network, mean over seeds. A"
        " difference is clear if it is larger than that and, over seeds, its 95 % interval is"
        " without 0; of one seed, if it is twice that."
        f" Seconds: the best of {options.repeats} turns on clean pictures, mean over seeds; other"
        " cells may run beside. The paper's: CIFAR-100-C, ResNet-18, ± over “multiple seeds”.",
    )
    return Shown(tell_ways(asked, spelled), (figure,), (table,), notes=tell_controls(results))


_FEW = ["gaussian_noise", "motion_blur", "fog", "pixelate"]
_SHOWN = {"suites": ("clean", "corruptions"), "references": 1}


def _asking(names: list[str], severities: list[int], pictures: int, **more: Any) -> dict[str, Any]:
    return {"corruptions": names, "severities": severities, "pictures": pictures, **more}


def _evaluating(names: list[str], severities: list[int], limit: int) -> dict[str, Any]:
    return {**_SHOWN, "corruptions": names, "severities": severities, "limit": limit}


STUDY = Study(
    name="inference",
    item="Fig. 2",
    title="Does it matter how the network is asked?",
    about="accuracy and seconds of one reference, the mean image, K references, and transduction",
    options=Options,
    varies=("protocols",),
    treat=treat,
    show=show,
    measure="killick.studies.asking:measure",
    passes=count_passes,
    sizes={
        "small": Size(
            "shapes-compare",
            options=_asking(_FEW, [3, 5], 500, searched=3, bank=2000, timed=500, repeats=3),
            evaluation=_evaluating(_FEW, [3, 5], 500),
        ),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 100, "data.validation": 0, "epochs": 1},
            _asking(["fog"], [3], 60, draws=2, k=3, candidates=5, bank=50, timed=50, repeats=1),
            seeds=(0,),
            evaluation=_evaluating(["fog"], [3], 60),
        ),
        "paper": Size(
            "cifar100-resnet18",
            options={"at_once": 1000},
            seeds=(0, 1, 2),
            evaluation=_SHOWN,
            remark="CIFAR-100 is fetched with --data.download true.",
        ),
    },
    unsaid=(
        "over what its ± runs (“multiple seeds”) and how many there are; taken: 5 draws of each of"
        " 3 trained networks, the two spreads apart.",
        "distance, space and residuals of its transduction; taken: Euclidean distance of normalized"
        " pixels to 10,000 residuals of random pairs with the transforms of training.",
        "on what it was timed, and with which batches.",
    ),
)
