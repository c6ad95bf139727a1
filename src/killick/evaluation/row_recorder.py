"""The rows of an evaluation: what is there already, what is new, and the folder that keeps them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.errors import CheckpointError, OptionError
from killick.evaluation.classifier import Classifier
from killick.evaluation.corruption_means import Errors, summarize_corruptions
from killick.evaluation.evaluation_settings import EvaluationSettings
from killick.evaluation.metric_values import (
    MEMBER_SCORES,
    RESIDUAL,
    MetricValue,
    compare_references,
    compute_detection,
    compute_metrics,
    metrics_for,
)
from killick.evaluation.outputs import Outputs, Values
from killick.evaluation.test_sets import COLUMNS as SHOWN
from killick.evaluation.test_sets import TestSet
from killick.metrics import METRICS, SCORES, threshold
from killick.results.predictions import (
    FOLDER,
    Predictions,
    encode,
    file_of,
    read_about,
    write_predictions,
)
from killick.results.rows import MODEL, Row, identify, make_row, merge, read_rows, write_rows
from killick.runtime.atomic_files import locked

_SECONDS_BETWEEN_WRITES = 2.0
_SETTINGS = (*MODEL[:3], "limit", "evaluation_seed", "precision", "weights")
_MARKS = ("inference", "k", "metric", "scaling", "fitted_on", "estimator", "score")
_PER_IMAGE = ("prediction", "confidence", "energy", "label", "nll", "brier", "spread")


class RowRecorder:
    """The rows of one evaluation.

    Args:
        classifier: That is evaluated.
        settings: Of the evaluation.
        common: Columns that all rows have.
        sets: All test sets of this evaluation.
        fitting: The validation set, if there is one.
        acceptance: Share of in-distribution images that the threshold accepts.
        baseline: For mCE.
        folder: Where rows are kept, if anywhere.
        writes: Whether this process is the one that writes.
        again: Compute again what is there already.
        predictions: Whether to keep the prediction of each image beside the rows.
    """

    def __init__(
        self,
        classifier: Classifier,
        settings: EvaluationSettings,
        common: dict[str, Any],
        sets: Sequence[TestSet],
        *,
        fitting: TestSet | None,
        acceptance: float,
        baseline: tuple[str, Errors] | None,
        folder: Path | None,
        writes: bool,
        again: bool,
        predictions: bool = False,
    ) -> None:
        self._classifier, self._settings, self._common = classifier, settings, common
        self._baseline = baseline
        self._acceptance, self._rule = acceptance, f"threshold at {100 * acceptance:g} %"
        self._fitted_on = ""
        if fitting is not None:
            self._fitted_on = f"{fitting.set} ({fitting.count}, {fitting.images[:6]})"
        self._folder, self._writes = folder, writes
        self._predictions_in = folder if predictions else None
        self.calibrates = "calibration" in settings.suites
        self._compares = "references" in settings.suites
        self._threshold: float | None = None
        self._rows: list[Row] = []
        self._stamp = 0
        self._wrote = 0.0
        self._sets = {_mark_set(each.columns()) for each in sets}
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise OptionError(f"{folder} is a file. Name a folder for the rows.")
            if writes:
                _make(folder / FOLDER if predictions else folder)
            self._rows = read_rows(folder)
            self._stamp = _stamp(folder)
        self._known = {identify(row) for row in self._rows}
        self._drop_changed(sets)
        self._there: set[tuple[str, ...]] = set()
        if not again:
            self._there = {_mark(row) for row in self._rows if self._is_mine(row)}

    def _drop_changed(self, sets: Iterable[TestSet]) -> None:
        """Drop the rows of sets whose images have changed."""
        now: dict[tuple[str, ...], set[str]] = {}
        for each in sets:
            now.setdefault(_origin(each.columns()), set()).add(each.images)

        def holds(row: Row) -> bool:
            images = row["images"]
            return images == "" or images in now.get(_origin(row), {images})

        self._rows = [row for row in self._rows if not self._is_mine(row) or holds(row)]

    def has(self, test: TestSet) -> bool:
        """Whether all rows of a test set are there already."""
        about = _mark_set(test.columns())
        return self._has_predictions(test) and all(
            (*about, inference, str(k), *mark) in self._there
            for inference, k in self._inferences()
            for mark in self._wanted(test, inference)
        )

    def _has_predictions(self, test: TestSet) -> bool:
        if self._predictions_in is None:
            return True
        about = {**self._common, **test.columns(), "k": self._inferences()[-1][1]}
        found = read_about(file_of(self._predictions_in, about))
        return bool(found.get("weights") == self._common["weights"])

    def set_threshold(self, energies: Tensor) -> None:
        """Take the threshold from the energies of the validation set."""
        self._threshold = float(threshold(energies, self._acceptance))

    def add(
        self,
        test: TestSet,
        outputs: Outputs,
        inside: Outputs | None,
        temperatures: tuple[float, float] | None,
    ) -> str:
        """Make the rows of a test set, and keep them.

        Args:
            test: The set.
            outputs: Of the classifier.
            inside: The outputs for the clean test set, for OOD detection.
            temperatures: That were applied, if any.

        Returns:
            The result in a few words.
        """
        if test.suite == "clean" and self._threshold is None:
            self.set_threshold(outputs.single["energy"][0])
        found: list[Row] = []
        for number, (inference, k) in enumerate(self._inferences()):
            values = outputs.values(inference)
            if test.suite == "ood":
                assert inside is not None
                made = self._detection(values, inside.values(inference), inference)
            else:
                made = self._labeled(test, values, inference, temperatures is not None)
                if temperatures is not None and test.suite == "clean" and self.calibrates:
                    made.append(MetricValue("temperature", [temperatures[number]]))
            about = {**self._common, **test.columns(), "count": outputs.count}
            about |= {"inference": inference, "k": k}
            found += [make_row(**about, **each.columns()) for each in made]
            if self._compares and inference == "marginal" and test.suite == "clean":
                about["suite"] = "references"
                compared = compare_references(outputs.single, values)
                found += [make_row(**about, **each.columns()) for each in compared]
        if self._predictions_in is not None and self._writes:
            write_predictions(self._predictions_in, self._predictions(test, outputs))
        self._keep(found)
        metric = METRICS.find("auroc" if test.suite == "ood" else "top1")
        value = next(float(row["value"]) for row in found if row["metric"] == metric.key)
        return f"{test.title}: {metric.short or metric.title} {metric.format(value, unit=True)}"

    def finish(self) -> list[Row]:
        """Add the means over corruptions; the rows of this evaluation, and of no other."""
        mine = [row for row in self._rows if self._belongs(row)]
        means = summarize_corruptions(mine, self._baseline)
        stale = {_scope(row) for row in means}
        self._rows = [
            row for row in self._rows if row["mean_of"] != "chosen" or _scope(row) not in stale
        ]
        self._keep(means)
        self.write_table()
        return [*mine, *means]

    def write_table(self) -> None:
        """Write `rows.csv`, which is not done after every set."""
        if self._folder is not None and self._writes and self._rows:
            self._write(table=True)

    def _inferences(self) -> list[tuple[str, int | str]]:
        classifier = self._classifier
        if classifier.references is None or classifier.exported is not None:
            return [("single", "")]
        if classifier.outputs == 1:
            return [("single", 1)]
        return [("single", 1), ("marginal", classifier.outputs)]

    def _wanted(self, test: TestSet, inference: str) -> list[tuple[str, ...]]:
        """The last of `_MARKS` of the rows by which a finished set is known."""
        wanted: list[tuple[str, ...]] = []
        if test.suite == "ood":
            metrics = [metric for _, metric in METRICS.items() if metric.input == "scores"]
            scores = [key for key, score in SCORES.items() if score.input == "logits"]
            wanted += [(m.key, "", "", m.estimator, score) for m in metrics for score in scores]
        else:
            assert test.alignment is not None
            chosen = (self._settings.suites, len(test.alignment.kept))
            wanted += [(m.key, "", "", m.estimator, "") for m in metrics_for(*chosen)]
            if self.calibrates and self._fitted_on:
                scaled = metrics_for(*chosen, scaled=True)
                fitted = self._fitted_on
                wanted += [(m.key, "temperature", fitted, m.estimator, "") for m in scaled]
        if test.suite in ("clean", "ood") and inference == "single":
            wanted.append(("accepted", "", self._threshold_set, self._rule, "energy"))
        if test.suite == "clean" and inference == "marginal" and self._compares:
            wanted.append(("disagreement", "", "", "", ""))
        return wanted

    @property
    def _threshold_set(self) -> str:
        return self._fitted_on or "the test set"

    def _labeled(
        self, test: TestSet, values: Values, inference: str, scaled: bool
    ) -> list[MetricValue]:
        assert test.alignment is not None
        suites, classes = self._settings.suites, len(test.alignment.kept)
        interval = None
        if test.suite in ("clean", "shift"):
            interval = torch.Generator().manual_seed(self._settings.seed)
        found = list(compute_metrics(values, metrics_for(suites, classes), interval))
        if scaled and self.calibrates:
            metrics = metrics_for(suites, classes, scaled=True)
            found += compute_metrics(values, metrics, fitted_on=self._fitted_on)
        if test.suite == "clean" and self._threshold is not None and inference == "single":
            found += self._accepted(values)
            about = (self._rule, "", self._threshold_set, "energy")
            found.append(MetricValue("threshold", [self._threshold], *about))
        return found

    def _detection(self, values: Values, inside: Values, inference: str) -> list[MetricValue]:
        own = (RESIDUAL,) if inference == "single" else MEMBER_SCORES
        scores = [key for key, score in SCORES.items() if score.input == "logits"]
        scores += [score for score in own if score in values]
        found = list(compute_detection(inside, values, scores))
        return found + (self._accepted(values) if inference == "single" else [])

    def _accepted(self, values: Values) -> list[MetricValue]:
        """The share of images at or below the threshold."""
        if self._threshold is None:
            return []
        shares = (values["energy"] <= self._threshold).double().mean(1).tolist()
        return [MetricValue("accepted", shares, self._rule, "", self._threshold_set, "energy")]

    def _predictions(self, test: TestSet, outputs: Outputs) -> Predictions:
        names = self._classifier.class_names if test.alignment is None else test.alignment.kept
        k = self._inferences()[-1][1]
        about = {**self._common, **test.columns(), "k": k, "count": outputs.count}
        return Predictions(
            about={name: "" if value is None else value for name, value in about.items()},
            single=_first(outputs.single),
            marginal={} if outputs.marginal is None else _first(outputs.marginal),
            thumbnails={number: encode(image.numpy()) for number, image in outputs.images.items()},
            class_names=names or (),
        )

    def _keep(self, rows: list[Row]) -> None:
        if not rows:
            return
        self._rows = merge(self._rows, rows)
        # All are written at once, so not after every set where sets take no time.
        due = time.monotonic() - self._wrote > _SECONDS_BETWEEN_WRITES
        if due and self._folder is not None and self._writes:
            self._write(table=False)
            self._wrote = time.monotonic()

    def _write(self, *, table: bool) -> None:
        """Write all rows, together with those that another process wrote meanwhile."""
        assert self._folder is not None
        with locked(self._folder):
            if _stamp(self._folder) != self._stamp:
                own = {identify(row) for row in self._rows} | self._known
                others = [row for row in read_rows(self._folder) if identify(row) not in own]
                self._rows = merge(others, self._rows)
            write_rows(self._folder, self._rows, table=table)
            self._stamp = _stamp(self._folder)

    def _belongs(self, row: Row) -> bool:
        """Whether a row is what this evaluation would write, not one with other settings."""
        if not self._is_mine(row) or _mark_set(row) not in self._sets:
            return False
        if (row["inference"], row["k"]) not in self._inferences():
            return False
        if row["metric"] in ("accepted", "threshold"):
            return bool((row["estimator"], row["fitted_on"]) == (self._rule, self._threshold_set))
        return row["scaling"] == "" or bool(row["fitted_on"] == self._fitted_on)

    def _is_mine(self, row: Row) -> bool:
        return all(
            str(row[name]) == str("" if self._common.get(name) is None else self._common[name])
            for name in _SETTINGS
        )


def _first(values: Values) -> dict[str, Any]:
    """Per-image values of the first reference, for the file of predictions."""
    kept = {name: values[name][0].numpy() for name in _PER_IMAGE if name in values}
    if "top1" in values:
        kept["correct"] = values["top1"][0].bool().numpy()
    return kept


def _origin(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """What has images of its own: a set, or a corruption of one that is read from files."""
    which = str(columns["corruption"]) if columns["source"] == "files" else ""
    return (columns["suite"], columns["set"], columns["source"], which)


def _scope(row: Row) -> tuple[str, ...]:
    """What a mean is about, whatever corruptions were chosen for it."""
    return identify({**row, "corruption": "", "severity": "", "source": "", "table": ""})


def _mark_set(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """The test set of a row. References are compared on the clean set."""
    suite = "clean" if columns["suite"] == "references" else str(columns["suite"])
    return (suite, *(str(columns[name]) for name in SHOWN[1:]))


def _mark(row: Row) -> tuple[str, ...]:
    return (*_mark_set(row), *(str(row[name]) for name in _MARKS))


def _stamp(folder: Path) -> int:
    file = folder / "rows.jsonl"
    return file.stat().st_mtime_ns if file.exists() else 0


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CheckpointError(f"cannot make {folder}: {problem.strerror}.") from None
