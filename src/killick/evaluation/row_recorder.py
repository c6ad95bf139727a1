"""The rows of an evaluation: existing and new ones, and the folder they are saved in."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from killick.errors import OptionError
from killick.evaluation.classifier import Classifier
from killick.evaluation.corruption_means import Errors, summarize_corruptions
from killick.evaluation.evaluation_settings import EvaluationSettings
from killick.evaluation.metric_values import (
    Fitted,
    Measure,
    compute_interval,
    compute_measure,
    plan_measures,
    value_columns,
)
from killick.evaluation.outputs import Outputs, Values
from killick.evaluation.test_sets import TestSet
from killick.metrics import METRICS
from killick.results.predictions import (
    FOLDER,
    Predictions,
    encode,
    file_of,
    read_about,
    write_predictions,
)
from killick.results.rows import Row, identify, make_row, merge, read_rows, write_rows
from killick.runtime.atomic_files import locked, make_folder

_SECONDS_BETWEEN_WRITES = 2.0
_PER_IMAGE = ("prediction", "confidence", "energy", "label", "nll", "brier", "spread")


class RowRecorder:
    """The rows of one evaluation.

    A row is known by its key: what was measured, with which weights, on which images. The keys of
    all rows of a test set are known before it is run, so a set is done if all of them are there.
    `common` are the columns that all rows have, `fitting` is the validation set, if there is one.
    """

    def __init__(
        self,
        classifier: Classifier,
        settings: EvaluationSettings,
        common: dict[str, Any],
        sets: Sequence[TestSet],
        *,
        fitting: TestSet | None,
        baseline: tuple[str, Errors] | None,
        folder: Path | None,
        writes: bool,
    ) -> None:
        self._classifier, self._settings, self._common = classifier, settings, common
        self._baseline, self._fitted_on = baseline, ""
        if fitting is not None:
            self._fitted_on = f"{fitting.set} ({fitting.count}, {fitting.images[:6]})"
        self._write_to = folder if writes else None
        self._predictions_in = folder if settings.predictions else None
        self._images: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for test in sets:
            self._images[_origin({**common, **test.columns()})].add(test.images)
        self._planned = {_key(row) for test in sets for _, row in self._plan(test)}
        self._old: list[Row] = []
        self._new: list[Row] = []
        self._means: set[tuple[str, ...]] = set()
        self._wrote = 0.0
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise OptionError(f"{folder} is a file. Name a folder for the rows.")
            if writes:
                place = folder / FOLDER if settings.predictions else folder
                make_folder(place)
            self._old = read_rows(folder)
        self._there = set() if settings.again else {_key(row) for row in self._old}

    def has(self, test: TestSet) -> bool:
        """Whether all rows of a test set are there already, and its predictions."""
        if self._predictions_in is not None:
            about = read_about(file_of(self._predictions_in, self._about(test)))
            if about.get("weights") != self._common["weights"]:
                return False
        # The AUROC of errors is undefined where there are none.
        rows = [row for measure, row in self._plan(test) if measure.metric != "error_auroc"]
        return all(_key(row) in self._there for row in rows)

    def add(self, test: TestSet, outputs: Outputs, inside: Outputs | None, fitted: Fitted) -> str:
        """Make the rows of a test set, and keep them; the result in a few words."""
        found: list[Row] = []
        for measure, row in self._plan(test):
            if members := compute_measure(measure, outputs, inside, fitted):
                interval = compute_interval(measure, outputs, self._settings.seed)
                found.append({**row, "count": outputs.count, **value_columns(members, interval)})
        if self._predictions_in is not None and self._write_to is not None:
            write_predictions(self._write_to, self._predictions(test, outputs))
        self._new += found
        # All are written at once, so not after every set where sets take no time.
        if time.monotonic() - self._wrote > _SECONDS_BETWEEN_WRITES:
            self.write(table=False)
            self._wrote = time.monotonic()
        metric = METRICS.find("auroc" if test.suite == "ood" else "top1")
        value = next(float(row["value"]) for row in found if row["metric"] == metric.key)
        return f"{test.title}: {metric.short or metric.title} {metric.format(value, unit=True)}"

    def has_suite(self, test: TestSet) -> bool:
        """Whether rows of a suite that is measured as a whole are there already."""
        about = {**self._common, **test.columns()}
        names = ("model", "suite", "weights", "images", "view", "limit", "evaluation_seed")
        wanted = [str("" if about[name] is None else about[name]) for name in names]
        found = [row for row in self._old if [str(row[name]) for name in names] == wanted]
        if self._settings.again or not found:
            return False
        self._planned |= set(map(_key, found))
        return True

    def add_rows(self, test: TestSet, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep rows of a suite that is measured as a whole; each adds its own columns."""
        about = {**self._common, **test.columns()}
        made = [make_row(**{**about, **row}) for row in rows]
        self._planned |= set(map(_key, made))
        self._new += made

    def finish(self) -> list[Row]:
        """Add the means over corruptions; the rows of this evaluation, and of no other."""
        mine = [row for row in self._merged(self._old) if _key(row) in self._planned]
        means = summarize_corruptions(mine, self._baseline)
        self._means = {_scope(row) for row in means}
        self._new += means
        self.write()
        return [*mine, *means]

    def write(self, *, table: bool = True) -> None:
        """Add the new rows to `rows.jsonl`, and with `table` write `rows.csv`."""
        if self._write_to is not None:
            with locked(self._write_to):  # others may have written meanwhile
                if rows := self._merged(read_rows(self._write_to)):
                    write_rows(self._write_to, rows, table=table)

    def _merged(self, old: list[Row]) -> list[Row]:
        """The new rows among old ones that still hold."""
        return merge([row for row in old if self._holds(row)], self._new)

    def _holds(self, row: Row) -> bool:
        """Whether a row is neither about images that have changed, nor a superseded mean."""
        if row["mean_of"] == "chosen" and _scope(row) in self._means:
            return False
        now = self._images.get(_origin(row))
        return now is None or row["images"] in ("", *now)

    def _inferences(self) -> list[tuple[str, int | str]]:
        classifier = self._classifier
        if classifier.references is None or classifier.exported is not None:
            return [("single", "")]
        if classifier.candidates:
            return [("single", classifier.candidates)]
        several = [("marginal", classifier.outputs)] if classifier.outputs > 1 else []
        return [("single", 1), *several]

    def _plan(self, test: TestSet) -> list[tuple[Measure, Row]]:
        """All that is measured on a test set, with the rows without their numbers."""
        about, fitted_on = {**self._common, **test.columns()}, self._fitted_on
        own, cost = self._classifier.inference, self._classifier.cost
        chosen = {} if own == "single" else {"inference": own}
        costs = {"single": cost, "marginal": cost and cost * self._classifier.outputs}
        return [
            (
                measure,
                make_row(
                    **{**about, "k": k, "inference_cost": costs[inference], **asdict(measure)}
                    | chosen
                ),
            )
            for inference, k in self._inferences()
            for measure in plan_measures(
                test, inference, self._classifier, self._settings, fitted_on
            )
        ]

    def _about(self, test: TestSet) -> dict[str, Any]:
        """The columns of a file of predictions."""
        about = {**self._common, **test.columns(), "k": self._inferences()[-1][1]}
        return {name: "" if value is None else value for name, value in about.items()}

    def _predictions(self, test: TestSet, outputs: Outputs) -> Predictions:
        names = self._classifier.class_names if test.alignment is None else test.alignment.kept
        return Predictions(
            about={**self._about(test), "count": outputs.count},
            single=_first(outputs.values["single"]),
            marginal=_first(outputs.values.get("marginal", {})),
            thumbnails={number: encode(image.numpy()) for number, image in outputs.images.items()},
            class_names=names or (),
        )


def _first(values: Values) -> dict[str, Any]:
    """Per-image values of the first reference, for the file of predictions."""
    kept = {name: values[name][0].numpy() for name in _PER_IMAGE if name in values}
    if "top1" in values:
        kept["correct"] = values["top1"][0].bool().numpy()
    return kept


def _key(row: Row) -> tuple[str, ...]:
    """What a row measures, with which weights, on which images."""
    return (*identify(row), str(row["weights"]), str(row["images"]))


def _origin(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What has images of its own: a set, or a corruption of one that is read from files."""
    names = ("model", "data", "limit", "evaluation_seed", "suite", "set", "source")
    which = str(row["corruption"]) if row["source"] == "files" else ""
    return (*(str("" if row[name] is None else row[name]) for name in names), which)


def _scope(row: Row) -> tuple[str, ...]:
    """What a mean is about, whatever corruptions were chosen for it."""
    return identify({**row, "corruption": "", "severity": "", "source": "", "table": ""})
