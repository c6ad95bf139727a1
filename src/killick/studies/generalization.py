"""Tables 1, 2 and 6: networks x protocols, clean and under two kinds of corruptions."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import product
from typing import Any

from killick.errors import OptionError, check_option
from killick.experiments.arms import ARMS
from killick.settings import setting
from killick.studies.findings import Findings, Results, format_mean, make_table
from killick.studies.plots import Plot, draw_figure
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, cross_arms
from killick.training.recipe_files import load_recipe, shipped

# What of a recipe belongs to the network; all networks share the rest.
_OWN = ("network", "augment", "optimizer", "schedule", "average", "epochs", "batch")
_OWN_OF_DATA = ("size", "resize", "interpolation", "squash", "repeats")
_SUITES = {"corruptions": "c", "cbar": "cbar"}


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
    arms = []
    for name, protocol in product(options.networks, options.protocols):
        own = {k: v for k, v in _settings_of(name, protocol).items() if k not in settings}
        arms += cross_arms("network", {name.rpartition(":")[2]: own}, [protocol])
    return arms


def _settings_of(name: str, protocol: str) -> dict[str, Any]:
    """The settings for a network, from its name or from a recipe, which may have some for standard."""
    if ":" in name:
        return {"network.name": name, "network.arguments": {}}
    if name not in shipped():
        raise OptionError(
            f"--networks needs library:name or one of the recipes {', '.join(shipped())}, found"
            f" {name!r}."
        )
    check_option("a protocol", protocol, ARMS)
    values = asdict(load_recipe(name, ARMS[protocol].settings))
    found = {f"data.{key}": values["data"][key] for key in _OWN_OF_DATA}
    for group in _OWN:
        value = values[group]
        found |= (
            {f"{group}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {group: value}
        )
    return found


def find(results: Results) -> Findings:
    """Accuracy by severity for each network and protocol, beside the paper's."""
    suites = {name: _SUITES[name] for name in results.plan.evaluation["suites"] if name in _SUITES}
    found = {suite: results.by_severity(suite) for suite in suites}
    rows = []
    for arm, own in results.factors.items():
        row = {"network, protocol": f"{own['network']}, {own['protocol']}", "source": "here"}
        row["clean"] = results.format(arm, "clean_top1")
        for suite, letter in suites.items():
            line = found[suite][arm]
            row |= {
                f"{letter}{severity}": format_mean(line[severity]) for severity in line if severity
            }
        rows.append(row)
    for paper in read_published():
        row = {"network, protocol": f"{paper.pop('network')}, {paper.pop('protocol')}"}
        row["source"] = f"paper, {paper.pop('data')}"
        rows.append(row | {column: value for column, value in paper.items() if value})
    plots, gaps = [], []
    for network in results.levels("network"):
        arms = {p: results.arm(protocol=p, network=network) for p in results.levels("protocol")}
        for suite, letter in suites.items():
            curves = {p: found[suite][arm] for p, arm in arms.items() if arm is not None}
            plots.append(Plot(f"{network}, {letter}", curves, "accuracy, %", "severity; 0: clean"))
        gap = results.compare(arms.get("masked-label"), arms.get("standard"), "corrupted_top1")
        gaps.append(f"{network} {gap}")
    table = make_table(
        "study-networks-table",
        "Accuracy by network, protocol and severity, %",
        rows,
        "c: common corruptions; cbar: C-bar; r, sketch: ImageNet-R, ImageNet-Sketch. The paper's"
        " standard ImageNet networks are torchvision's.",
    )
    return Findings(
        f"masked-label − standard, corrupted accuracy, %: {'; '.join(gaps)}.",
        (draw_figure("study-networks", plots),),
        (table,),
    )


def read_published() -> list[dict[str, str]]:
    """The rows of the paper's tables."""
    file = resources.files("killick.studies") / "published" / "generalization.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


_SMALL = ["shapes-compare", "shapes-wide"]
STUDY = Study(
    name="generalization",
    item="Tables 1, 2 and 6",
    title="Do anchored networks of any kind hold up better?",
    about="clean, C and C-bar accuracy by severity, networks x protocols",
    options=Options,
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
