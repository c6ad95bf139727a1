"""Chooses one evaluation of each run: a folder may hold several, with other limits or seeds.

Numbers are compared only if they were measured alike, so one evaluation of each run is used, the
same kind for all runs where they have it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from killick.report.conditions import condition_of
from killick.results.predictions import Predictions
from killick.results.rows import Row
from killick.results.run_folder import Run

# An evaluation: the data, how many of its images, the seed, the precision.
EVALUATION = ("data", "limit", "evaluation_seed", "precision")
# One evaluation may have several numbers for one condition; they differ in these columns.
_VARIANT = ("suite", "inference", "table", "view", "k")
_CONDITION = (
    *("suite", "set", "corruption", "severity", "inference", "reference", "scaling", "score"),
    "metric",
)
_TEST_SET = ("suite", "set", "corruption", "severity")
_IMAGES = ("source", "table", "view", "images", *EVALUATION)
Key = tuple[str, ...]


def split_models(run: Run) -> list[Run]:
    """One run per model in the rows; recipe, log and predictions belong to the folder's own."""
    names = list(dict.fromkeys(str(row["model"]) for row in run.rows))
    if len(names) <= 1:
        return [run]
    parts = []
    for name in names:
        rows = [row for row in run.rows if row["model"] == name]
        parts.append(replace(run, rows=rows) if name == run.name else Run(name, run.folder, rows))
    return parts


def choose_evaluations(runs: Sequence[Run]) -> list[Run]:
    """The runs, each with the rows of one evaluation: the one with most rows in all of them.

    A run without it keeps the evaluation that it has most rows of.
    """
    sizes: Counter[Key] = Counter()
    variants: Counter[Key] = Counter()
    for run in runs:
        for row in run.rows:
            variants[_variant_of(row)] += 1
            if condition_of(row) is not None:
                sizes[evaluation_of(row)] += 1
    return [replace(run, rows=_choose_rows(run.rows, sizes, variants)) for run in runs]


def evaluation_of(row: Row) -> Key:
    """By which rows of one evaluation are known."""
    return _columns(row, EVALUATION)


def describe_evaluation(key: Key) -> str:
    """An evaluation in words."""
    data, limit, seed, precision = key
    return f"{data}, {limit or 'all'} images, seed {seed or 0}, {precision or 'float32'}"


def predictions_of(run: Run) -> list[Predictions]:
    """The predictions that belong to the rows of a run with one evaluation."""
    shown: dict[Key, set[Key]] = {}
    references = {str(row["k"]) for row in run.rows if row["inference"] == "marginal"}
    for row in run.rows:
        if condition_of(row) is not None:
            shown.setdefault(_columns(row, _TEST_SET), set()).add(_columns(row, _IMAGES))
    found: dict[Key, Predictions] = {}
    for each in run.predictions:
        place, k = _columns(each.about, _TEST_SET), str(each.about.get("k", ""))
        known = _columns(each.about, _IMAGES) in shown.get(place, ())
        if known and (not references or k in references):
            found[place] = each
    return list(found.values())


def _choose_rows(rows: Iterable[Row], sizes: Counter[Key], variants: Counter[Key]) -> list[Row]:
    rows = list(rows)
    keys = dict.fromkeys(evaluation_of(row) for row in rows)
    best = max(keys, key=lambda key: sizes[key], default=None)
    kept: dict[Key, Row] = {}

    def rank(row: Row) -> tuple[int, Key]:
        """The most common variant is best; ties are broken alike for all rows."""
        return variants[_variant_of(row)], _variant_of(row)

    for row in rows:
        if evaluation_of(row) == best:
            condition = _columns(row, _CONDITION)
            if condition not in kept or rank(row) >= rank(kept[condition]):
                kept[condition] = row
    return list(kept.values())


def _variant_of(row: Row) -> Key:
    source = str(row["source"])
    return (source, *_columns(row, _VARIANT))


def _columns(row: Mapping[str, Any], names: Iterable[str]) -> Key:
    return tuple(str(row.get(name, "")) for name in names)
