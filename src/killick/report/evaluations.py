"""Chooses one evaluation of each run, and finds its predictions.

A folder may hold several evaluations, with other limits or seeds. Numbers are compared only if they
were measured alike, so one evaluation of each run is used, the same kind for all runs where they
have it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from killick.report.conditions import MARGINAL, OOD, condition_of, suite_of, title_of
from killick.report.run_groups import ArmRuns, seed_of
from killick.results.predictions import Array, Predictions
from killick.results.rows import ATTENTION, Row
from killick.results.run_folder import Run

EVALUATION = ("data", "limit", "evaluation_seed", "precision")
# One evaluation may have several numbers for one condition; they differ in these columns.
_VARIANT = ("source", "suite", "inference", "table", "view", "k")
_TEST_SET = ("suite", "set", "corruption", "severity")
_CONDITION = (
    *(*_TEST_SET, "inference", "reference", "scaling", "score", "metric"),
    *ATTENTION,
)
_IMAGES = ("source", "table", "view", "images", *EVALUATION)
Key = tuple[str, ...]


@dataclass(frozen=True)
class LabeledPredictions:
    """The predictions of one run for some test sets, one after another."""

    confidence: Array  # of the predicted class
    correct: Array  # whether the prediction is right
    spread: Array  # over references; empty with one reference
    image: Array  # its number in its test set, the same for all corrupted copies


def split_models(run: Run) -> list[Run]:
    """One run per model in the rows; recipe, log and predictions belong to the folder's own."""
    names = list(dict.fromkeys(str(row["model"]) for row in run.rows))
    rows = {name: [row for row in run.rows if row["model"] == name] for name in names}
    evaluated = {str(row["weights"]) for row in run.rows if row["images"]}
    if len(names) > 1:  # rows of training are superseded by an evaluation under another name
        rows = {
            name: own
            for name, own in rows.items()
            if any(row["images"] for row in own) or str(own[0]["weights"]) not in evaluated
        }
    if len(rows) <= 1:
        return [replace(run, rows=own) for own in rows.values()] or [run]
    return [
        replace(run, rows=own) if name == run.name else Run(name, run.folder, own)
        for name, own in rows.items()
    ]


def choose_evaluations(runs: Sequence[Run]) -> list[Run]:
    """The runs, each with the rows of one evaluation: the one with most rows in all of them.

    A run without it keeps the evaluation that it has most rows of.
    """
    runs = [replace(run, rows=_rows_of_job(run)) for run in runs]
    rows = [row for run in runs for row in run.rows]
    sizes = Counter(evaluation_of(row) for row in rows if condition_of(row) is not None)
    variants = Counter(_columns(row, _VARIANT) for row in rows)

    def rank(row: Row) -> tuple[int, Key]:
        """The most common variant is best; ties are broken alike for all rows."""
        variant = _columns(row, _VARIANT)
        return variants[variant], variant

    chosen = []
    for run in runs:
        best = max(map(evaluation_of, run.rows), key=lambda key: sizes[key])
        kept: dict[Key, Row] = {}
        for row in run.rows:
            if evaluation_of(row) == best:
                condition = _columns(row, _CONDITION)
                kept[condition] = max(row, kept.get(condition, row), key=rank)
        chosen.append(replace(run, rows=list(kept.values())))
    return chosen


def _rows_of_job(run: Run) -> list[Row]:
    """The rows of the evaluation that a comparison asked for last; all where it is not recorded."""
    asked = run.job.get("evaluation") or {}
    own = [row for row in run.rows if all(str(row[name]) == str(asked[name]) for name in asked)]
    return own or run.rows


def evaluation_of(row: Row) -> Key:
    """By which rows of one evaluation are known."""
    return _columns(row, EVALUATION)


def predictions_of(run: Run) -> list[Predictions]:
    """The predictions that belong to the rows of a run with one evaluation."""
    shown: dict[Key, set[Key]] = defaultdict(set)
    references = {str(row["k"]) for row in run.rows if row["inference"] == MARGINAL}
    for row in run.rows:
        if condition_of(row) is not None:
            shown[_columns(row, _TEST_SET)].add(_columns(row, _IMAGES))
    found: dict[Key, Predictions] = {}
    models = {str(row["model"]) for row in run.rows}
    for each in run.predictions:
        if str(each.about.get("model", "")) not in models:
            continue
        place, k = _columns(each.about, _TEST_SET), str(each.about.get("k", ""))
        if _columns(each.about, _IMAGES) in shown[place] and (not references or k in references):
            found[place] = each
    return list(found.values())


def labeled_predictions(
    arm: ArmRuns, suites: tuple[str, ...], inference: str = "single"
) -> list[LabeledPredictions]:
    """All images of some suites, for each seed that has predictions."""
    found = []
    for run in arm.runs:
        sets = [each for each in predictions_of(run) if each.about.get("suite") in suites]
        parts = [part for each in sets if "correct" in (part := getattr(each, inference))]
        if parts:
            spread = [part["spread"] for part in parts if "spread" in part]
            found.append(
                LabeledPredictions(
                    np.concatenate([part["confidence"] for part in parts]).astype(np.float64),
                    np.concatenate([part["correct"] for part in parts]).astype(bool),
                    np.concatenate(spread or [np.zeros(0)]),
                    np.concatenate([np.arange(len(part["correct"])) for part in parts]),
                )
            )
    return found


def energies(arm: ArmRuns) -> dict[int, dict[str, Array]]:
    """The energy of each image by seed and OOD set; first "", the test set, synthetic sets last."""
    found: dict[int, dict[str, Array]] = defaultdict(dict)
    for run in arm.runs:
        sets = [each for each in predictions_of(run) if each.about["suite"] in ("clean", OOD)]
        for each in sorted(sets, key=lambda each: (suite_of(each.about), str(each.about["set"]))):
            suite, name = suite_of(each.about), str(each.about["set"])
            title = "" if suite == "clean" else title_of(suite, name)
            found[seed_of(run)][title] = each.single["energy"].astype(np.float64)
    return {seed: sets for seed, sets in found.items() if "" in sets and len(sets) > 1}


def _columns(row: Mapping[str, Any], names: Iterable[str]) -> Key:
    return tuple(str(row.get(name, "")) for name in names)
