"""Fig. 4: does masking find wider optima? Accuracy over a plane through the weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError, check_option
from killick.settings import setting
from killick.studies.study import PROTOCOLS, Size, Study, Treatment, plain

if TYPE_CHECKING:
    from killick.studies.optima import Optimum
    from killick.studies.results import Results
    from killick.studies.shown import Shown

# The paper has maps without numbers: CIFAR-100-C, ResNet-18, about 51 x 51 points.
PAPER = "In the paper the optimum of masked training is “wider and flatter”; no width is given."
READ = "Read off the paper's plot, it has the higher peak, and its contours look no wider."
_BASE = "standard"
_KINDS = 19 * 5  # common corruptions by severities


@dataclass(frozen=True)
class Options:
    """The plane, and what is shown at each of its points."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms to look around")
    points: int = setting(51, "of a side of the plane; odd", least=3)
    span: float = setting(1.0, "half a side, in lengths of the weights", above=0)
    directions: int = setting(0, "seed of the directions, the same for all arms", least=0)
    draws: int = setting(1, "pairs of directions, a plane each; radii are averaged", least=1)
    batchnorm: list[str] = setting(
        ["kept", "settled"], "statistics kept as trained, or settled anew at every point"
    )
    statistics: int = setting(1000, "training pictures that they are settled on", least=2)
    corruptions: list[str] | None = setting(None, "of the test pictures; none: the 19 common ones")
    severities: list[int] = setting([1, 2, 3, 4, 5], "of each corruption")
    pictures: int | None = setting(
        9500, "corrupted, shared out among the corruptions; none: all of each", least=1
    )


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """The protocols as they are: what is varied are their weights, afterwards."""
    if options.points % 2 == 0:
        raise OptionError(
            f"expected an odd number of points, with one in the centre, found {options.points}."
        )
    for how in options.batchnorm:
        check_option("batchnorm", how, ("kept", "settled"))
    return plain(options.protocols)


def count_passes(options: Options) -> int:
    """Pictures shown at all points."""
    sets = len(options.corruptions or range(19)) * len(options.severities)
    shown = options.pictures or 10_000 * sets
    settling = options.batchnorm.count("settled") * options.statistics
    return options.draws * options.points**2 * (len(options.batchnorm) * shown + settling)


def show(results: "Results") -> "Shown":
    """A map and a radius for each arm, with BatchNorm kept and settled."""
    from killick.studies.optima import (
        collect_optima,
        draw_optima,
        spread_over_draws,
        tabulate_optima,
    )
    from killick.studies.shown import Shown

    options = results.plan.options
    optima = {how: collect_optima(results, how) for how in options.batchnorm}
    figures = [draw_optima(results, found, how, options.span) for how, found in optima.items()]
    table = tabulate_optima(
        optima,
        _BASE,
        "The region around the weights in which accuracy is at most 10 points below the centre; at"
        " least 90 % and half of it, counted from chance. Its radius is that of a disc of the same"
        " area, in lengths of the weights: at 1 each filter is moved as far as it is long. Mean ±"
        f" standard deviation over seeds; differences with their 95 % intervals. {PAPER} {READ}",
    )
    notes = [
        "Both directions are random, each filter as long as that of the weights; biases and norms"
        " stay. All arms are moved alike but for the first layer, wider in anchored networks.",
        "Kept statistics of BatchNorm do not fit the moved weights: part of what is lost is due to"
        " them. Settled, they are those of the same training pictures at every point.",
    ]
    for how in options.batchnorm:
        if (spread := spread_over_draws(results, how)) is not None:
            notes.append(
                f"BatchNorm {how}: between the {options.draws} draws of directions the radius"
                f" within 10 points of one network has a standard deviation of {spread:.2f}."
            )
    known = [each for found in optima.values() for each in found]
    low = dict.fromkeys(each.protocol for each in known if each.centre < 2 / results.classes)
    if low:
        notes.append(f"Near chance in the centre, so that its radii mean little: {', '.join(low)}.")
    says = " ".join(_tell(how, found) for how, found in optima.items())
    return Shown(f"{says} {PAPER}", tuple(figures), (table,), notes=tuple(notes))


def _tell(how: str, optima: "Sequence[Optimum]") -> str:
    """Whose optimum is wider, if that can be told."""
    from killick.studies.optima import judge_width
    from killick.studies.width import RADII

    listed = ", ".join(f"{each.protocol} {each.tell_radius(RADII[0])}" for each in optima)
    text = f"Radius within 10 points of the centre, BatchNorm {how}: {listed}"
    base = next((each for each in optima if each.protocol == _BASE), None)
    if base is not None:
        others = [each for each in optima if each is not base]
        words = [f"{each.protocol} {judge_width(each, base, RADII[0])}" for each in others]
        text += f"; against {_BASE}: {', '.join(words)}" if words else ""
    return f"{text}."


_SHOWN = {"suites": ("clean", "corruptions"), "references": 1}
STUDY = Study(
    name="landscape",
    item="Fig. 4",
    title="Does masking find wider optima?",
    about="accuracy over a plane through the weights, and how wide the optimum in it is",
    options=Options,
    varies=("protocols",),
    treat=treat,
    show=show,
    measure="killick.studies.plane:measure",
    passes=count_passes,
    sizes={
        "small": Size(
            "shapes-compare",
            # Radii of so small a network differ between directions as much as between seeds.
            options={"points": 9, "draws": 3, "pictures": 3 * _KINDS, "statistics": 150},
            evaluation={**_SHOWN, "limit": 200},
        ),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 100, "data.validation": 0, "epochs": 1},
            {"points": 3, "pictures": 60, "statistics": 50, "corruptions": ["fog", "contrast"]},
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 60, "corruptions": ("fog", "contrast")},
        ),
        "paper": Size("cifar100-resnet18", seeds=(0, 1, 2), evaluation=_SHOWN),
    },
    unsaid=(
        "whether BatchNorm's statistics follow the weights. The released code of Li et al. (2018),"
        " which it says it follows, keeps them; here both ways are measured.",
        "how many corrupted pictures; taken: 9,500, 100 of each corruption and severity.",
        "how many networks and directions; taken: 3 seeds, one pair of directions.",
    ),
)
