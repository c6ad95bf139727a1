"""Means over the corruptions of a suite, and the mean corruption error relative to a baseline.

A mean is a row of its own, with the suite in its column `mean_of`: "c" (the 19 of ImageNet-C),
"c15" (the 15 of its published mean), "cbar-cifar", "cbar-imagenet", or "chosen" if the corruptions
that were evaluated are no such suite. Means are taken at each severity, and over "all" of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from killick import metrics
from killick.corruptions.suites import SEVERITIES, SUITES
from killick.errors import DataError, OptionError
from killick.evaluation.classifier import Classifier
from killick.evaluation.metric_values import value_columns
from killick.evaluation.test_sets import TestSet
from killick.results.rows import Row, identify, members_of, read_rows

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
    where: str, common: Mapping[str, Any], sets: Iterable[TestSet], classifier: Classifier
) -> tuple[str, Errors]:
    """The errors that mCE is relative to, and the name of the baseline.

    It is "alexnet", or another model with rows in a folder or file, of the same columns `common`.
    """
    first = next((each for each in sets if each.suite == "corruptions"), None)
    if first is None:
        raise OptionError("--baseline requires --suite corruptions.")
    if where == "alexnet":
        if classifier.classes != 1000 or first.table in ("cifar", "tiny"):
            raise OptionError(
                f"--baseline alexnet is for ImageNet-C, 1000 classes; {classifier.name} has"
                f" {classifier.classes}. Name an evaluated run."
            )
        return where, {(name, s): error for name, error in ALEXNET.items() for s in SEVERITIES}
    same = {name: common[name] for name in ("data", "limit", "evaluation_seed")}
    same |= {"table": first.table, "view": first.view, "source": first.source}
    expected = {name: "" if value is None else str(value) for name, value in same.items()}
    rows = [
        row
        for row in read_rows(Path(where))
        if _is_accuracy(row) and all(str(row[name]) == text for name, text in expected.items())
    ]
    if not rows:
        words = ", ".join(f"{name} {value}" for name, value in expected.items() if value)
        raise DataError(
            f"{where} has no rows of the suite corruptions with {words}. Evaluate the baseline"
            " with the same settings first."
        )
    models = sorted({str(row["model"]) for row in rows})
    if len(models) > 1:
        raise DataError(
            f"{where} has rows of several models: {', '.join(models)}. Evaluate the baseline into a"
            " folder of its own."
        )
    errors = {
        (str(row["corruption"]), int(row["severity"])): 1 - float(row["value"]) for row in rows
    }
    if not all((name, severity) in errors for name in SUITES["c15"] for severity in SEVERITIES):
        raise DataError(f"{where} lacks some of the 15 corruptions at five severities.")
    return models[0], errors


def _is_accuracy(row: Row) -> bool:
    about = (row["suite"], row["metric"], row["inference"], row["mean_of"])
    return about == ("corruptions", "top1", "single", "")


def summarize_corruptions(
    rows: Iterable[Row], baseline: tuple[str, Errors] | None = None
) -> list[Row]:
    """The means of one evaluation, from its rows of single corruptions."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["suite"] in ("corruptions", "cbar") and not row["mean_of"]:
            alike = {**row, "corruption": "", "severity": "", "frost": "", "table": ""}
            groups[identify(alike)].append(row)
    return [mean for group in groups.values() for mean in _summarize(group, baseline)]


def _summarize(rows: list[Row], baseline: tuple[str, Errors] | None) -> list[Row]:
    table = {(str(row["corruption"]), int(row["severity"])): row for row in rows}
    names = list(dict.fromkeys(name for name, _ in table))
    severities = sorted({severity for _, severity in table})
    complete = [name for name in names if all((name, s) in table for s in severities)]
    found = []
    for suite, members in _suites(str(rows[0]["suite"]), complete).items():
        for severity in severities if len(members) > 1 else ():
            found.append(_mean([table[name, severity] for name in members], suite, severity))
        if severities == list(SEVERITIES):
            whole = [table[name, severity] for name in members for severity in severities]
            found.append(_mean(whole, suite, "all"))
    if baseline is not None and _is_accuracy(rows[0]):
        found += _relative(table, baseline)
    return found


def _suites(suite: str, names: list[str]) -> dict[str, list[str]]:
    """The suites that means can be taken over, with their corruptions."""
    known = ("cbar-cifar", "cbar-imagenet") if suite == "cbar" else ("c", "c15")
    found = {each: list(SUITES[each]) for each in known if set(SUITES[each]) <= set(names)}
    return found or ({"chosen": names} if names else {})


def _mean(rows: list[Row], suite: str, severity: "int | str") -> Row:
    """The mean over rows, for each reference separately."""
    names = {str(row["corruption"]) for row in rows}
    label = f"mean of {len(names)}{' chosen' if suite == 'chosen' else ''}"
    place = {"corruption": label, "mean_of": suite, "severity": severity, "frost": ""}
    return {**rows[0], **place, **value_columns([sum(c) / len(c) for c in _columns(rows)])}


def _columns(rows: Iterable[Row]) -> list[tuple[float, ...]]:
    """The values of all rows, for each reference that all of them have."""
    return list(zip(*map(members_of, rows), strict=False))


def _relative(table: Mapping[tuple[str, int], Row], baseline: tuple[str, Errors]) -> list[Row]:
    wanted = [(name, severity) for name in SUITES["c15"] for severity in SEVERITIES]
    if not all(place in table for place in wanted):
        return []
    name, theirs = baseline
    rows, members = [table[place] for place in wanted], []
    for column in _columns(rows):
        ours = {place: 1 - value for place, value in zip(wanted, column, strict=True)}
        members.append(float(metrics.mce(ours, {place: theirs[place] for place in wanted})))
    about = {"metric": "mce", "estimator": f"15 corruptions, relative to {name}"}
    return [{**_mean(rows, "c15", "all"), **about, **value_columns(members)}]
