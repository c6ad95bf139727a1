"""Tables 1, 2 and 6: networks x protocols, clean and under corruptions of two kinds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.study import PROTOCOLS, Size, Study, Treatment, cross
from killick.training.recipe_files import load_recipe, shipped

if TYPE_CHECKING:
    from killick.studies.results import Results
    from killick.studies.shown import Shown

# What of a recipe is the network's own: the rest is shared by all of them.
_OWN = ("network", "augment", "optimizer", "schedule", "average", "epochs", "batch")


@dataclass(frozen=True)
class Options:
    """What is varied."""

    networks: list[str] = setting(
        ["cifar100-resnet18", "cifar100-wrn40-2"],
        "as library:name, or recipes, whose network, augmentation and budget are taken",
    )
    protocols: list[str] = setting(list(PROTOCOLS), "arms")


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """Every network with every protocol; what the command line sets holds for all of them."""
    levels = {}
    for name in options.networks:
        own = _settings_of(name)
        levels[name.rpartition(":")[2]] = {k: v for k, v in own.items() if k not in settings}
    return cross("network", levels, options.protocols)


def show(results: "Results") -> "Shown":
    """The tables as the paper has them, and accuracy over severity for each network."""
    from killick.studies.severities import collect, draw_network, tabulate, tabulate_paper
    from killick.studies.shown import Shown

    found = collect(results)
    figures = tuple(draw_network(results, found, each) for each in results.levels("network"))
    return Shown(_tell(results), figures, (tabulate(results, found), tabulate_paper()))


def _settings_of(name: str) -> dict[str, Any]:
    """A network by name, or what a recipe says of its own."""
    if ":" in name:
        return {"network.name": name, "network.arguments": {}}
    if name not in shipped():
        raise OptionError(
            f"expected a network as library:name, or one of the recipes {', '.join(shipped())},"
            f" found {name!r}."
        )
    values = asdict(load_recipe(name, {"protocol.name": "standard"}))
    found = {f"data.{key}": values["data"][key] for key in ("size", "resize", "interpolation")}
    for group in _OWN:
        value = values[group]
        found |= (
            {f"{group}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {group: value}
        )
    return found


def _tell(results: "Results") -> str:
    """What masking did for each network."""
    from killick.studies.drawing import judge, tell_difference

    sentences = []
    for network in results.levels("network"):
        arm, base = (results.arm(protocol=p, network=network) for p in ("masked-label", "standard"))
        parts = []
        for measure, words in (("clean_top1", "clean"), ("corrupted_top1", "corrupted")):
            gain = results.difference(arm, base, measure)
            parts.append(f"{words} {tell_difference(gain)} points, {judge(gain)}")
        sentences.append(f"{network}, masked-label against standard: {'; '.join(parts)}.")
    return " ".join(sentences)


_SHOWN = {"suites": ("clean", "corruptions", "cbar"), "references": 1}
STUDY = Study(
    name="generalization",
    item="Tables 1, 2 and 6",
    title="Do anchored networks of any kind hold up better?",
    about="clean, C and C-bar accuracy by severity, networks x protocols",
    options=Options,
    varies=("networks", "protocols"),
    treat=treat,
    show=show,
    sizes={
        "small": Size(
            "shapes-compare",
            options={"networks": ["shapes-compare", "shapes-wide"]},
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 200},
        ),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 60, "data.validation": 0, "epochs": 1},
            {
                "networks": ["shapes-compare", "shapes-wide"],
                "protocols": ["standard", "masked-label"],
            },
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 60, "corruptions": ("fog", "sparkles")},
        ),
        "paper": Size(
            "cifar100-resnet18",
            evaluation=_SHOWN,
            seeds=(0, 1, 2),
            remark="Table 1 also has --recipe cifar10-resnet18 --networks cifar10-resnet18. Tables"
            " 2 and 6: --recipe imagenet-swinv2-t --networks imagenet-swinv2-t,imagenet-swinv2-s,"
            "imagenet-vit-b16,imagenet-swinv2-b, unproven for want of ImageNet.",
        ),
    },
    unsaid=("how many seeds; taken: 3.", "the dropout of WRN-40-2; taken: 0.3, as in the code."),
)
