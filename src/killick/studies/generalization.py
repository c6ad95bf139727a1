"""Tables 1, 2 and 6: networks x protocols, clean and under two kinds of corruptions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from killick.errors import OptionError, check_option
from killick.experiments.arms import ARMS
from killick.settings import setting
from killick.studies.findings import NONE, Findings, Results, format_mean, make_table
from killick.studies.paper_tables import ERRORS, error_columns, read_published
from killick.studies.plots import Plot, draw_figure
from killick.studies.set_names import find_paper_name
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, cross_arms
from killick.training.recipe_files import load_recipe, shipped

# What of a recipe belongs to the network; all networks share the rest.
_OWN = ("network", "augment", "optimizer", "schedule", "average", "epochs", "batch")
_OWN_OF_DATA = ("size", "resize", "interpolation", "squash", "repeats")
_COLUMNS = (
    *("network, protocol", "source", "clean"),
    *(f"{letter}{severity}" for letter in ("c", "cbar") for severity in range(1, 6)),
    *("R", "Sketch"),
)
_TITLES = {"r": "R", "sketch": "Sketch", "smooth_ece": ERRORS[0], "smooth_ece_std": ERRORS[1]}
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
    """Accuracy by severity and shifted set for each network and protocol, beside the paper's."""
    suites = {name: _SUITES[name] for name in results.plan.evaluation["suites"] if name in _SUITES}
    found = {suite: results.by_severity(suite) for suite in suites}
    shifted = results.by_shifted_set()
    rows = []
    for arm, own in results.factors.items():
        row = {"network, protocol": f"{own['network']}, {own['protocol']}", "source": "here"}
        row["clean"] = results.format(arm, "clean_top1")
        for suite, letter in suites.items():
            line = found[suite][arm]
            row |= {
                f"{letter}{severity}": format_mean(line[severity]) for severity in line if severity
            }
        own_sets = {find_paper_name(n): format_mean(each) for n, each in shifted[arm].items()}
        rows.append({**own_sets, **row, **error_columns(results, arm)})
    for paper in read_published():
        row = {"network, protocol": f"{paper.pop('network')}, {paper.pop('protocol')}"}
        row["source"] = f"paper, {paper.pop('data')}"
        theirs = {_TITLES.get(key, key): value for key, value in paper.items() if value}
        rows.append(row | {k: v for k, v in theirs.items() if k in (*_COLUMNS, *ERRORS)})
    others = [name for row in rows for name in row if name not in (*_COLUMNS, *ERRORS)]
    columns = [*_COLUMNS, *others, *ERRORS]
    rows[0] = dict.fromkeys(columns, NONE) | rows[0]  # the order of all columns
    table = make_table(
        "study-networks-table",
        "Accuracy by network, protocol and severity, %; calibration",
        rows,
        "c: common corruptions; cbar: C-bar; R, Sketch: ImageNet-R, ImageNet-Sketch; smooth ECE over"
        " corrupted and shifted sets. The paper's standard ImageNet networks are torchvision's.",
    )
    plots = []
    for title, arms in _group_arms(results).items():
        for suite, letter in suites.items():
            curves = {label: found[suite][arm] for label, arm in arms.items()}
            name = f"{title}, {letter}" if title else letter
            plots.append(Plot(name, curves, "accuracy, %", "severity; 0: clean"))
    figures = (draw_figure("study-networks", plots),)
    return Findings(_compare_arms(results), figures, (table,))


def _group_arms(results: Results) -> dict[str, dict[str, str]]:
    """What is drawn together: the protocols of each network; or all models that were given."""
    if results.plan.models:
        return {"": {arm: arm for arm in results.factors}}
    groups: dict[str, dict[str, str]] = {}
    for arm, own in results.factors.items():
        groups.setdefault(own["network"], {})[own["protocol"]] = arm
    return groups


def _compare_arms(results: Results) -> str:
    """The headline."""
    metric = "corrupted_top1"
    if results.plan.models:
        base = results.report.comparison.baseline
        if base is None:
            (arm,) = results.factors
            return f"{arm}: corrupted accuracy {results.format(arm, metric)} %."
        others = [arm for arm in results.factors if arm != base.name]
        gaps = [f"{arm} {results.compare(arm, base.name, metric)}" for arm in others]
        return f"Corrupted accuracy minus that of {base.name}, %: {'; '.join(gaps)}."
    gaps = []
    for network, arms in _group_arms(results).items():
        gap = results.compare(arms.get("masked-label"), arms.get("standard"), metric)
        gaps.append(f"{network} {gap}")
    return f"masked-label − standard, corrupted accuracy, %: {'; '.join(gaps)}."


_SMALL = ["shapes-compare", "shapes-wide"]
STUDY = Study(
    name="generalization",
    item="Tables 1, 2 and 6",
    title="Do anchored networks of any kind hold up better?",
    about="clean, C, C-bar and shifted accuracy, and calibration, networks x protocols",
    options=Options,
    arms=make_arms,
    findings=find,
    suites=("clean", "corruptions", "cbar", "calibration"),
    sets={"shift": ("R", "Sketch")},
    models=True,
    sizes={
        "small": Size(options={"networks": _SMALL}, seeds=(0,), evaluation={"limit": 200}),
        "smoke": Size(
            options={"networks": _SMALL, "protocols": ["standard", "masked-label"]},
            evaluation={"corruptions": ("fog", "sparkles")},
        ),
        "paper": Size(
            remark="Table 1 also has --recipe cifar10-resnet18 --networks cifar10-resnet18."
            " Tables 2 and 6: --recipe imagenet-swinv2-t --networks imagenet-swinv2-t,"
            "imagenet-swinv2-s,imagenet-vit-b16,imagenet-swinv2-b (untested), with --shift"
            " R=imagefolder:FOLDER (likewise Sketch; beyond the paper A, V2)."
        ),
    },
)
STUDIES.register(STUDY.name, STUDY)
