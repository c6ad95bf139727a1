"""Tables 1, 2 and 6: networks x protocols, clean and under two kinds of corruptions."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, cross_arms
from killick.training.recipe_files import load_recipe, shipped

if TYPE_CHECKING:
    from killick.report.figures import Figure
    from killick.report.statistics import Estimate
    from killick.report.tables import TextTable
    from killick.studies.findings import Findings, Results

# What of a recipe belongs to the network; all networks share the rest.
_OWN = ("network", "augment", "optimizer", "schedule", "average", "epochs", "batch")
COLUMNS = ("clean", *(f"c{s}" for s in range(1, 6)), *(f"cbar{s}" for s in range(1, 6)))


@dataclass(frozen=True)
class Options:
    """What is varied."""

    networks: list[str] = setting(
        ["cifar100-resnet18", "cifar100-wrn40-2"],
        "as library:name, or recipes, whose network, augmentation and budget are taken",
    )
    protocols: list[str] = setting(list(PROTOCOLS), "arms")


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """Every network with every protocol; settings of the command line apply to all of them."""
    levels = {}
    for name in options.networks:
        own = _settings_of(name)
        levels[name.rpartition(":")[2]] = {k: v for k, v in own.items() if k not in settings}
    return cross_arms("network", levels, options.protocols)


def _settings_of(name: str) -> dict[str, Any]:
    """The settings for a network, from its name or from a recipe."""
    if ":" in name:
        return {"network.name": name, "network.arguments": {}}
    if name not in shipped():
        raise OptionError(
            f"--networks needs library:name or one of the recipes {', '.join(shipped())}, found"
            f" {name!r}."
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


def find(results: "Results") -> "Findings":
    """Accuracy by severity for each network and protocol, beside the paper's."""
    from killick.report.statistics import by_severity
    from killick.studies.findings import Findings

    found: dict[str, dict[str, Estimate]] = {arm: {} for arm in results.factors}
    for suite, letter in (("corruptions", "c"), ("cbar", "cbar")):
        for name, numbers in by_severity(results.report.comparison, suite).items():
            found[name] |= {f"{letter}{s}" if s else "clean": n for s, n in numbers.items()}
    parts = []
    for network in results.levels("network"):
        arm, base = (results.arm(protocol=p, network=network) for p in ("masked-label", "standard"))
        clean, corrupted = (
            results.compare(arm, base, key) for key in ("clean_top1", "corrupted_top1")
        )
        parts.append(f"{network} clean {clean}, corrupted {corrupted}")
    headline = f"masked-label − standard, accuracy, %: {'; '.join(parts)}."
    figures = tuple(draw_network(results, found, each) for each in results.levels("network"))
    return Findings(headline, figures, (tabulate(results, found),))


def tabulate(results: "Results", found: "Mapping[str, Mapping[str, Estimate]]") -> "TextTable":
    """A row for each network and protocol, here and in the paper."""
    from killick.report.statistics import mean_title
    from killick.report.tables import TextTable
    from killick.studies.findings import NONE, format_mean

    rows = []
    for arm, own in results.factors.items():
        values = [
            format_mean(found[arm][column].values.values()) if column in found[arm] else NONE
            for column in COLUMNS
        ]
        rows.append((f"{own['network']}, {own['protocol']}", "here", *values, NONE, NONE))
    columns = (*COLUMNS, "r", "sketch")
    for line in read_published():
        name = f"{line['network']}, {line['protocol']}"
        rows.append((name, f"paper, {line['data']}", *(line[column] for column in columns)))
    common, other = (mean_title(results.report.comparison, s) for s in ("corruptions", "cbar"))
    return TextTable(
        "study-networks",
        "Accuracy by network, protocol and severity, %",
        ("network, protocol", "source", *columns),
        tuple(rows),
        f"c: common corruptions ({common or 'none'}); cbar: C-bar ({other or 'none'}); r, sketch:"
        " ImageNet-R, ImageNet-Sketch. Mean ± standard deviation over seeds. The paper's standard"
        " ImageNet networks are torchvision's.",
    )


def read_published() -> list[dict[str, str]]:
    """The rows of the paper's tables."""
    file = resources.files("killick.studies") / "published" / "generalization.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def draw_network(
    results: "Results", found: "Mapping[str, Mapping[str, Estimate]]", network: str
) -> "Figure":
    """Accuracy over severity, a panel for each kind of corruption."""
    from killick.report.figures import Figure
    from killick.studies.plots import draw_lines

    stem = f"study-{''.join(c if c.isalnum() else '-' for c in network.lower())}"
    panels, records = [], []
    for letter, title in (("c", "common corruptions"), ("cbar", "C-bar")):
        columns = ["clean", *(f"{letter}{severity}" for severity in range(1, 6))]
        lines: dict[str, dict[Any, list[float]]] = {}
        for protocol in results.levels("protocol"):
            arm = results.arm(protocol=protocol, network=network)
            numbers = {} if arm is None else found[arm]
            lines[protocol] = {
                severity: [100 * value for value in numbers[column].values.values()]
                for severity, column in enumerate(columns)
                if column in numbers
            }
            records += [
                (network, protocol, title, severity, number, value)
                for severity, values in lines[protocol].items()
                for number, value in enumerate(values)
            ]
        levels = sorted({level for line in lines.values() for level in line})
        name, heading = f"{stem}-{letter}", f"{network}: {title}"
        panels.append(draw_lines(results, lines, levels, name, heading, "accuracy, %", "severity"))
    names = ("network", "protocol", "corruptions", "severity", "number of the seed", "top1")
    return Figure(stem, "Severity 0 is clean.", tuple(panels), names, tuple(records))


_SMALL = ["shapes-compare", "shapes-wide"]
STUDY = Study(
    name="generalization",
    item="Tables 1, 2 and 6",
    title="Do anchored networks of any kind hold up better?",
    about="clean, C and C-bar accuracy by severity, networks x protocols",
    options=Options,
    varies=("networks", "protocols"),
    arms=make_arms,
    findings=find,
    suites=("clean", "corruptions", "cbar"),
    sizes={
        "small": Size(options={"networks": _SMALL}, seeds=(0,), evaluation={"limit": 200}),
        "smoke": Size(
            options={"networks": _SMALL, "protocols": ["standard", "masked-label"]},
            evaluation={"corruptions": ("fog", "sparkles")},
        ),
        "paper": Size(
            remark="Table 1 also has --recipe cifar10-resnet18 --networks cifar10-resnet18."
            " Tables 2 and 6: --recipe imagenet-swinv2-t --networks imagenet-swinv2-t,"
            "imagenet-swinv2-s,imagenet-vit-b16,imagenet-swinv2-b (untested)."
        ),
    },
)
STUDIES.register(STUDY.name, STUDY)
