"""Summaries over corruptions, each under a name that says which mean it is.

- `mean of 19`: all common corruptions (the paper's choice); `mean of 15`: without the four extra
  ones (the benchmark's own); `mean of 10`: C-bar's list. For each severity, and over `all`.
- `mean of N chosen`: where others were asked for.
- `mce`: the mean over the 15 of the errors relative to those of a named baseline.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from killick import metrics
from killick.corruptions.suites import PUBLISHED, SEVERITIES, list_corruptions
from killick.errors import DataError, OptionError
from killick.evaluation.classifier import Classifier
from killick.evaluation.metric_values import MetricValue
from killick.evaluation.plan import Unit
from killick.results.rows import Row, identify, make_row, members_of, read_rows

# Mean error over the five severities of ImageNet-C, as its authors published it for AlexNet.
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
Errors = dict[tuple[str, int], float]


def read_baseline(
    where: str, common: Mapping[str, Any], units: Iterable[Unit], classifier: Classifier
) -> tuple[str, Errors]:
    """The errors that mCE is relative to, and their name.

    Args:
        where: "alexnet", for ImageNet; or a folder or file with the rows of another model.
        common: Columns of the evaluation that it is for; the baseline's must be like them.
        units: Of that evaluation.
        classifier: Who is evaluated.
    """
    shown = [unit for unit in units if unit.suite == "corruptions"]
    if not shown:
        raise OptionError("expected the suite corruptions with --baseline, found others alone.")
    if where == "alexnet":
        if classifier.classes != 1000 or shown[0].table == "cifar":
            raise OptionError(
                "expected ImageNet-C (1000 classes, constants of imagenet) for --baseline alexnet,"
                f" found {classifier.classes} classes. Name an evaluated run."
            )
        return where, {(name, s): error for name, error in ALEXNET.items() for s in SEVERITIES}
    alike = {
        **{name: common[name] for name in ("data", "limit", "evaluation_seed")},
        "table": shown[0].table,
        "view": shown[0].view,
    }
    alike = {name: "" if value is None else str(value) for name, value in alike.items()}
    rows = [
        row
        for row in read_rows(Path(where))
        if _is_plain_accuracy(row)
        and all(str(row[name]) == value for name, value in alike.items())
        and str(row["source"]).split(",")[0] == shown[0].source.split(",")[0]
    ]
    if not rows:
        words = ", ".join(f"{name} {value}" for name, value in alike.items() if value)
        raise DataError(
            f"expected rows of the suite corruptions with {words} in {where}, found none. Evaluate"
            " the baseline alike first."
        )
    models = sorted({str(row["model"]) for row in rows})
    if len(models) > 1:
        raise DataError(
            f"expected the rows of one model in {where}, found {', '.join(models)}. Evaluate the"
            " baseline into a folder of its own."
        )
    errors = {
        (str(row["corruption"]), int(row["severity"])): 1 - float(row["value"]) for row in rows
    }
    for name in list_corruptions("c15", "cifar"):
        for severity in SEVERITIES:
            if (name, severity) not in errors:
                raise DataError(
                    f"expected the 15 corruptions at five severities in {where}, found no {name}"
                    f" {severity}. Evaluate the baseline on all of them."
                )
    return str(rows[0]["model"]), errors


def _is_plain_accuracy(row: Row) -> bool:
    single = row["suite"] == "corruptions" and row["metric"] == "top1"
    return single and row["inference"] == "single" and row["corruption"] in PUBLISHED


def summarise(rows: Iterable[Row], baseline: tuple[str, Errors] | None = None) -> list[Row]:
    """The summary rows of one evaluation, from its rows about single corruptions."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["suite"] in ("corruptions", "cbar") and row["corruption"] in PUBLISHED:
            alike = {**row, "corruption": "", "severity": "", "source": "", "estimator": ""}
            groups[identify(alike)].append(row)
    found: list[Row] = []
    for alike_rows in groups.values():
        found += _summarise_group(alike_rows, baseline)
    return found


def _summarise_group(rows: list[Row], baseline: tuple[str, Errors] | None) -> list[Row]:
    cells = {(str(row["corruption"]), int(row["severity"])): row for row in rows}
    names = list(dict.fromkeys(name for name, _ in cells))
    severities = sorted({severity for _, severity in cells})
    complete = [name for name in names if all((name, s) in cells for s in severities)]
    found = []
    for title, members in _means(str(rows[0]["suite"]), complete):
        for severity in severities:
            found.append(_mean([cells[name, severity] for name in members], title, severity))
        if severities == list(SEVERITIES):
            whole = [cells[name, severity] for name in members for severity in severities]
            found.append(_mean(whole, title, "all"))
    if baseline is not None and _is_plain_accuracy(rows[0]):
        found += _relative(cells, baseline)
    return found


def _means(suite: str, names: list[str]) -> list[tuple[str, list[str]]]:
    """Which means can be taken over the corruptions that are there."""
    if suite == "cbar":
        lists = [list_corruptions("cbar", table) for table in ("cifar", "imagenet")]
    else:
        lists = [list_corruptions(kind, "cifar") for kind in ("c", "c15")]
    means = [
        (f"mean of {len(wanted)}", list(wanted)) for wanted in lists if set(wanted) <= set(names)
    ]
    if not means and len(names) > 1:
        means = [(f"mean of {len(names)} chosen", names)]
    return means


def _mean(rows: list[Row], title: str, severity: "int | str") -> Row:
    """The mean over rows, for each reference apart."""
    members = [sum(column) / len(column) for column in _columns(rows)]
    measure = MetricValue(
        rows[0]["metric"],
        members,
        rows[0]["estimator"],
        rows[0]["scaling"],
        rows[0]["score"],
    )
    sources = {str(row["source"]).split(",")[0] for row in rows}
    about = {
        **rows[0],
        "corruption": title,
        "severity": severity,
        "source": " and ".join(sorted(sources)),
        "count": int(rows[0]["count"]),
    }
    return make_row(**{**about, **measure.columns()})


def _columns(rows: Iterable[Row]) -> list[tuple[float, ...]]:
    """The values of all rows from each reference that every one of them was asked from."""
    return list(zip(*map(members_of, rows), strict=False))


def _relative(cells: Mapping[tuple[str, int], Row], baseline: tuple[str, Errors]) -> list[Row]:
    names = list_corruptions("c15", "cifar")
    wanted = [(name, severity) for name in names for severity in SEVERITIES]
    if not all(cell in cells for cell in wanted):
        return []
    name, theirs = baseline
    members = []
    for column in _columns([cells[cell] for cell in wanted]):
        ours = {cell: 1 - value for cell, value in zip(wanted, column, strict=True)}
        members.append(float(metrics.mce(ours, {cell: theirs[cell] for cell in wanted})))
    measure = MetricValue("mce", members, f"15 corruptions, relative to {name}")
    about = {**cells[wanted[0]], "corruption": "mean of 15", "severity": "all"}
    return [make_row(**{**about, **measure.columns()})]
