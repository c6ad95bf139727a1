"""Tables 1, 2 and 6: networks x protocols, clean and under corruptions of two kinds."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from kedge.errors import OptionError
from kedge.studies.study import PROTOCOLS, Size, Study, Treatment, cross
from kedge.training.recipe import setting
from kedge.training.recipe_files import load_recipe, shipped

if TYPE_CHECKING:
    from kedge.report.numbers import Number
    from kedge.report.tables import TextTable
    from kedge.studies.results import Results
    from kedge.studies.shown import Shown

COLUMNS = ("clean", *(f"c{s}" for s in range(1, 6)), *(f"cbar{s}" for s in range(1, 6)))
# What of a recipe is the network's own: the rest is shared by all of them.
_OWN = ("network", "augment", "optimiser", "schedule", "average", "epochs", "batch")


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
    from kedge.studies.shown import Shown

    found = _collect(results)
    figures = tuple(_draw(results, found, network) for network in results.levels("network"))
    tables = (_tabulate(results, found), _tabulate_paper())
    return Shown(_tell(results), figures, tables)


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


def _collect(results: "Results") -> "dict[str, dict[str, Number]]":
    """The accuracies of each arm by column."""
    from kedge.report.numbers import by_severity

    found: dict[str, dict[str, Number]] = {arm: {} for arm in results.factors}
    for suite, letter in (("corruptions", "c"), ("cbar", "cbar")):
        for arm, numbers in by_severity(results.scene.comparison, suite).items():
            found[arm] |= {f"{letter}{s}" if s else "clean": n for s, n in numbers.items()}
    return found


def _tabulate(results: "Results", found: "dict[str, dict[str, Number]]") -> "TextTable":
    from kedge.report.numbers import mean_title
    from kedge.report.tables import TextTable
    from kedge.studies.drawing import NONE, mean_and_spread

    rows = []
    for name, own in results.factors.items():
        numbers = found[name]
        cells = [
            mean_and_spread(numbers[column].values.values()) if column in numbers else NONE
            for column in COLUMNS
        ]
        rows.append((f"{own['network']}, {own['protocol']}", *cells))
    common, other = (mean_title(results.scene.comparison, s) for s in ("corruptions", "cbar"))
    says = (
        "Accuracy in %, mean ± standard deviation over seeds: clean, under common corruptions (c,"
    )
    says += f" {common or 'none'}) and those of C-bar (cbar, {other or 'none'}), by severity."
    title = "Accuracy by network, protocol and severity"
    return TextTable("study-networks", title, ("network, protocol", *COLUMNS), tuple(rows), says)


def _tabulate_paper() -> "TextTable":
    from kedge.report.tables import TextTable

    columns = (*COLUMNS, "r", "sketch")
    rows = [
        (f"{line['data']}, {line['network']}, {line['protocol']}", *(line[c] for c in columns))
        for line in read_published()
    ]
    says = "ImageNet's standard networks are torchvision's released ones, which the authors did not"
    says += " train; r and sketch are ImageNet-R and -Sketch (here: --suite shift --shift)."
    title = "The same in the paper (Tables 1, 2 and 6)"
    return TextTable("study-networks-paper", title, ("in the paper", *columns), tuple(rows), says)


def read_published() -> list[dict[str, str]]:
    """The lines of the paper's tables."""
    file = resources.files("kedge.studies") / "published" / "generalization.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def _draw(results: "Results", found: "dict[str, dict[str, Number]]", network: str) -> Any:
    """Accuracy over severity, a panel for each kind of corruption."""
    from kedge.report.drawing import Figure
    from kedge.studies.drawing import draw_lines

    protocols = results.levels("protocol")
    panels, records = [], []
    for letter, title in (("c", "common corruptions"), ("cbar", "C-bar")):
        columns = ["clean", *(f"{letter}{severity}" for severity in range(1, 6))]
        lines: dict[str, dict[Any, list[float]]] = {}
        for protocol in protocols:
            arm = results.arm(protocol=protocol, network=network)
            numbers = {} if arm is None else found[arm]
            lines[protocol] = {
                place: [100 * value for value in numbers[column].values.values()]
                for place, column in enumerate(columns)
                if column in numbers
            }
            records += [
                (network, protocol, title, place, number, value)
                for place, values in lines[protocol].items()
                for number, value in enumerate(values)
            ]
        levels = sorted({level for line in lines.values() for level in line})
        name = f"study-{''.join(c if c.isalnum() else '-' for c in network.lower())}-{letter}"
        heading = f"{network}: {title}"
        panels.append(draw_lines(results, lines, levels, name, heading, "accuracy, %", "severity"))
    columns_of = ("network", "protocol", "corruptions", "severity", "number of the seed", "top1")
    says = f"{network}: accuracy over severity; 0 is clean."
    return Figure(
        panels[0].name.removesuffix("-c"), says, tuple(panels), columns_of, tuple(records)
    )


def _tell(results: "Results") -> str:
    """What masking did for each network."""
    from kedge.studies.drawing import judge, tell_difference

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
