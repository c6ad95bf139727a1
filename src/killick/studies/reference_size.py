"""Fig. 1: does a larger reference set help? Anchored and masked models against its size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.study import Size, Study, Treatment, plain, vary

if TYPE_CHECKING:
    from killick.studies.results import Results
    from killick.studies.shown import Shown

# Read off the paper's plots. The last size is the whole training set. Of anchored training only
# the range is legible.
_SIZES = (5, 50, 500, 2500, 5000, 50000)
ALL = "all"
_READ = "read off the plot, ± 0.1; anchored"
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
        [5, 50, 500, 2500, 5000, 0], "pictures in the reference set, class-balanced; 0: all"
    )
    protocols: list[str] = setting(["anchored", "masked-label"], "arms that have references")


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """One standard arm, and each protocol at each size; a smaller set lies inside each larger."""
    if "standard" in options.protocols:
        raise OptionError("expected protocols with references, found standard, which has none.")
    found = plain(["standard"])
    for size in options.sizes:
        # References to evaluate with come from the same set: from the first pictures of it.
        shared = {"protocol.reference_set": size, "protocol.stored": min(size, 10)} if size else {}
        level = size or ALL
        for protocol in options.protocols:
            arm = vary(protocol, f"references{size or '-all'}", shared)
            found.append(Treatment(arm, {"protocol": protocol, "references": level}))
    return found


def show(results: "Results") -> "Shown":
    """Corrupted accuracy over the size of the set."""
    from killick.studies.drawing import Published, draw_sweep, tabulate_sweep
    from killick.studies.shown import Shown

    published = [
        Published("CIFAR-10-C", _published(CIFAR10), f"{_READ} 76.35 to 76.5"),
        Published("CIFAR-100-C", _published(CIFAR100), f"{_READ} 50.1 to 50.95"),
    ]
    says = " ".join(_tell(results, protocol) for protocol in results.plan.options.protocols)
    figure = draw_sweep(
        results,
        "references",
        "corrupted_top1",
        name="study-references",
        heading="Here",
        along="pictures in the reference set",
        says="In the paper anchored training gains little from more references, and masked"
        " training needs at least hundreds.",
        published=published,
    )
    table = tabulate_sweep(
        results,
        "references",
        "corrupted_top1",
        name="study-references-table",
        title="Corrupted accuracy by size of the reference set",
        published=published,
    )
    return Shown(says, (figure,), (table,))


def _tell(results: "Results", protocol: str) -> str:
    """From the smallest to the largest set, whether that made a difference."""
    from killick.report.formatting import capitalise
    from killick.studies.drawing import judge, spell_level, tell_difference

    levels = results.levels("references")
    arms = [results.arm(protocol=protocol, references=level) for level in levels]
    if len([arm for arm in arms if arm]) < 2:
        return f"{capitalise(protocol)} was trained with too few sizes to compare."
    found = results.difference(arms[-1], arms[0], "corrupted_top1")
    first, last = spell_level(levels[0]), spell_level(levels[-1])
    return (
        f"{capitalise(protocol)}: corrupted accuracy with {last} pictures as references against"
        f" {first}: {tell_difference(found)} points, {judge(found)}."
    )


def _published(lines: Mapping[str, Sequence[float]]) -> dict[tuple[str, Any], float]:
    return {
        (protocol, ALL if size == _SIZES[-1] else size): value
        for protocol, values in lines.items()
        for size, value in zip(_SIZES, values, strict=True)
    }


_SHOWN = {"suites": ("clean", "corruptions"), "references": 1}
STUDY = Study(
    name="reference-size",
    item="Fig. 1",
    title="Does a larger reference set help?",
    about="corrupted accuracy against the size of the reference set, from 5 pictures to all",
    options=Options,
    varies=("sizes", "protocols"),
    treat=treat,
    show=show,
    sizes={
        "small": Size(
            "shapes-compare",
            options={"sizes": [5, 50, 0]},
            evaluation={**_SHOWN, "limit": 400},
        ),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 100, "data.validation": 0, "epochs": 1},
            {"sizes": [5, 0]},
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 60, "corruptions": ("fog", "contrast")},
        ),
        "paper": Size(
            "cifar10-resnet18",
            seeds=(0, 1, 2),
            evaluation=_SHOWN,
            remark="And again with --recipe cifar100-resnet18.",
        ),
    },
    unsaid=(
        "how many seeds; taken: 3.",
        "how the sets are balanced; taken: equally many of each class to within one, and a smaller"
        " set lies inside each larger one.",
    ),
)
