"""Rows as they come: what is there already, what is new, and the folder that keeps them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.errors import CheckpointError, OptionError
from killick.evaluation.classifier import Classifier
from killick.evaluation.corruption_means import Errors, summarise
from killick.evaluation.metric_values import (
    MEMBER_SCORES,
    RESIDUAL,
    MetricValue,
    compare_references,
    compute_detection,
    compute_metrics,
    compute_scaled,
    metrics_for,
)
from killick.evaluation.outputs import Outcomes, Values
from killick.evaluation.plan import Choices, Unit
from killick.evaluation.prediction_files import make_answers
from killick.metrics import METRICS, SCORES, threshold
from killick.results.predictions import FOLDER, file_of, read_about, write_answers
from killick.results.rows import MODEL, Row, identify, make_row, merge, read_rows, write_rows
from killick.runtime.atomic_files import locked

_SECONDS_BETWEEN_WRITES = 2.0
_SETTINGS = (*MODEL[:3], "limit", "evaluation_seed", "precision", "weights")
_UNIT = ("suite", "set", "source", "table", "corruption", "severity", "view", "pictures")


class Recording:
    """The rows of one evaluation.

    Args:
        classifier: Who is evaluated.
        choices: What is looked at.
        common: Columns that all rows have.
        units: All that this evaluation looks at.
        fitting: The validation set, if there is one.
        acceptance: Share of in-distribution data that the threshold accepts.
        baseline: For mCE.
        folder: Where rows are kept, if anywhere.
        writes: Whether this process is the one that writes.
        again: Forget what is there already.
        answers: Whether to keep what was answered to each image, beside the rows.
    """

    def __init__(
        self,
        classifier: Classifier,
        choices: Choices,
        common: dict[str, Any],
        units: Sequence[Unit],
        *,
        fitting: Unit | None,
        acceptance: float,
        baseline: tuple[str, Errors] | None,
        folder: Path | None,
        writes: bool,
        again: bool,
        answers: bool = False,
    ) -> None:
        self._classifier, self._choices, self._common = classifier, choices, common
        self._acceptance, self._baseline = acceptance, baseline
        self._fitted_on = (
            None if fitting is None else f"{fitting.set} ({fitting.count}, {fitting.pictures[:6]})"
        )
        self._folder, self._writes = folder, writes
        self._answers_in = folder if answers else None
        self.calibrates = "calibration" in choices.suites
        self._examines = "references" in choices.suites
        self._threshold: float | None = None
        self._rows: list[Row] = []
        self._stamp = 0
        self._wrote = 0.0
        self._units = {_mark_unit(unit.columns()) for unit in units}
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise OptionError(f"expected a folder for the rows, found a file at {folder}.")
            if writes:
                _make(folder / FOLDER if answers else folder)
            self._rows = read_rows(folder)
            self._stamp = _stamp(folder)
        self._known = {identify(row) for row in self._rows}
        self._forget_changed(units)
        self._there: set[tuple[str, ...]] = set()
        if not again:
            self._there = {_mark(row) for row in self._rows if self._is_mine(row)}

    def _forget_changed(self, units: Iterable[Unit]) -> None:
        """Drop the rows about sets whose pictures are others now, under the same name."""
        now: dict[tuple[str, ...], set[str]] = {}
        for unit in units:
            now.setdefault(_place(unit.columns()), set()).add(unit.pictures)

        def holds(row: Row) -> bool:
            pictures = row["pictures"]
            return pictures == "" or pictures in now.get(_place(row), {pictures})

        self._rows = [row for row in self._rows if not self._is_mine(row) or holds(row)]

    def has(self, unit: Unit) -> bool:
        """Whether all that is asked about a unit is there already."""
        about = tuple(str(value) for value in unit.columns().values())
        return self._has_answers(unit) and all(
            (*about, inference, str(k), *mark) in self._there
            for inference, k in self._inferences()
            for mark in self._wanted(unit, inference)
        )

    def _has_answers(self, unit: Unit) -> bool:
        if self._answers_in is None:
            return True
        about = {**self._common, **unit.columns(), "k": self._inferences()[-1][1]}
        found = read_about(file_of(self._answers_in, about))
        return bool(found.get("weights") == self._common["weights"])

    def fitted(self, energies: Tensor) -> None:
        """Take the threshold from the energies of the validation set."""
        self._threshold = float(threshold(energies, self._acceptance))

    def add(
        self,
        unit: Unit,
        outcomes: Outcomes,
        inside: Outcomes | None,
        temperatures: tuple[float, float] | None,
    ) -> str:
        """Make the rows of a unit, and keep them.

        Args:
            unit: What was shown.
            outcomes: What was seen.
            inside: The outcomes of the clean test set, which others are told from.
            temperatures: That were applied, if any.

        Returns:
            The result in a few words.
        """
        if unit.suite == "clean" and self._threshold is None:
            self.fitted(outcomes.single["energy"][0])
        found: list[Row] = []
        for number, (inference, k) in enumerate(self._inferences()):
            values = outcomes.single if inference == "single" else outcomes.marginal
            assert values is not None
            if unit.suite == "ood":
                assert inside is not None
                theirs = inside.single if inference == "single" else inside.marginal
                assert theirs is not None
                measures = self._outside(values, theirs, inference)
            else:
                measures = self._labelled(
                    unit, outcomes, values, inference, temperatures is not None
                )
                if temperatures is not None and unit.suite == "clean" and self.calibrates:
                    measures.append(MetricValue("temperature", [temperatures[number]]))
            about = {**self._common, **unit.columns(), "count": outcomes.count}
            asked = {"inference": inference, "k": k}
            found += [make_row(**about, **asked, **each.columns()) for each in measures]
            if unit.suite == "clean" and inference == "marginal" and self._examines:
                about["suite"] = "references"
                compared = compare_references(outcomes.single, values)
                found += [make_row(**about, **asked, **each.columns()) for each in compared]
        if self._answers_in is not None and self._writes:
            k, names = self._inferences()[-1][1], self._classifier.class_names
            write_answers(self._answers_in, make_answers(unit, outcomes, self._common, k, names))
        self._keep(found)
        return _headline(unit, found)

    def finish(self) -> list[Row]:
        """Add the summaries; the rows of this evaluation, and of no other."""
        mine = [row for row in self._rows if self._belongs(row)]
        means = summarise(mine, self._baseline)
        stale = {_scope(row) for row in means}
        self._rows = [
            row
            for row in self._rows
            if not (str(row["corruption"]).endswith("chosen") and _scope(row) in stale)
        ]
        self._keep(means)
        self.write_table()
        return [*mine, *means]

    def write_table(self) -> None:
        """Bring `rows.csv` up to date, which is not done after every unit."""
        if self._folder is not None and self._writes and self._rows:
            self._write(table=True)

    def _inferences(self) -> list[tuple[str, int | str]]:
        if self._classifier.references is None:
            return [("single", "")]
        if self._classifier.outputs == 1:
            return [("single", 1)]
        return [("single", 1), ("marginal", self._classifier.outputs)]

    def _wanted(self, unit: Unit, inference: str) -> list[tuple[str, str, str]]:
        """Metric, scaling and estimator of the rows by which a finished unit is known."""
        wanted = []
        if unit.suite == "ood":
            wanted += [(m.key, "", m.estimator) for _, m in METRICS.items() if m.input == "scores"]
        else:
            assert unit.alignment is not None
            suites, classes = self._choices.suites, len(unit.alignment.kept)
            wanted += [(m.key, "", m.estimator) for m in metrics_for(suites, classes)]
            if self.calibrates and self._fitted_on is not None:
                wanted.append(("nll", "temperature", f"fitted on {self._fitted_on}"))
        if unit.suite in ("clean", "ood") and inference == "single":
            wanted.append(("accepted", "", self._rule()))
        if unit.suite == "clean" and inference == "marginal" and self._examines:
            wanted.append(("disagreement", "", ""))
        return wanted

    def _labelled(
        self, unit: Unit, outcomes: Outcomes, values: Values, inference: str, scaled: bool
    ) -> list[MetricValue]:
        assert unit.alignment is not None
        suites, classes = self._choices.suites, len(unit.alignment.kept)
        interval = None
        if unit.suite in ("clean", "shift"):
            interval = torch.Generator().manual_seed(self._choices.seed)
        found = list(compute_metrics(values, metrics_for(suites, classes), interval))
        if scaled and self.calibrates:
            assert self._fitted_on is not None
            scaled_metrics = metrics_for(suites, classes, scaled=True)
            found += compute_scaled(values, scaled_metrics, self._fitted_on)
        if unit.suite == "clean":
            found += self._accepted(values, inference)
            if self._threshold is not None and inference == "single":
                rule = self._rule()
                found.append(MetricValue("threshold", [self._threshold], rule, score="energy"))
        return found

    def _outside(self, values: Values, inside: Values, inference: str) -> list[MetricValue]:
        own = (RESIDUAL,) if inference == "single" else MEMBER_SCORES
        scores = [key for key, score in SCORES.items() if score.input == "logits"]
        scores += [score for score in own if score in values]
        found = list(compute_detection(inside, values, scores))
        return found + self._accepted(values, inference)

    def _accepted(self, values: Values, inference: str) -> list[MetricValue]:
        """The share under the threshold, and on the clean set the threshold itself."""
        if self._threshold is None or inference != "single":
            return []
        shares = (values["energy"] <= self._threshold).double().mean(1).tolist()
        return [MetricValue("accepted", shares, self._rule(), score="energy")]

    def _rule(self) -> str:
        source = self._fitted_on or "the test set itself"
        return f"threshold at {100 * self._acceptance:g} % of {source}"

    def _keep(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        if not rows:
            return
        self._rows = merge(self._rows, rows)
        # All are written at once, so not after every unit where units take no time.
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
        """Whether a row is what this evaluation would write, not one with other options."""
        if not self._is_mine(row) or _mark_unit(row) not in self._units:
            return False
        if (row["inference"], row["k"]) not in self._inferences():
            return False
        if row["metric"] in ("accepted", "threshold"):
            return bool(row["estimator"] == self._rule())
        fitted = row["scaling"] != ""
        return not fitted or str(row["estimator"]).endswith(f"fitted on {self._fitted_on}")

    def _is_mine(self, row: Row) -> bool:
        return all(
            str(row[name]) == str("" if self._common.get(name) is None else self._common[name])
            for name in _SETTINGS
        )


def _place(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """What has pictures of its own: a set, or a corruption of one that is read from files."""
    source = str(columns["source"]).split(",")[0]
    which = str(columns["corruption"]) if source == "files" else ""
    return (columns["suite"], columns["set"], source, which)


def _scope(row: Row) -> tuple[str, ...]:
    """What a mean is about, whatever corruptions were chosen for it."""
    return identify({**row, "corruption": "", "severity": "", "source": "", "table": ""})


def _mark_unit(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """What was shown. References are compared on the clean set."""
    suite = "clean" if columns["suite"] == "references" else str(columns["suite"])
    return (suite, *(str(columns[name]) for name in _UNIT[1:]))


def _stamp(folder: Path) -> int:
    file = folder / "rows.jsonl"
    return file.stat().st_mtime_ns if file.exists() else 0


def _mark(row: Row) -> tuple[str, ...]:
    names = ("inference", "k", "metric", "scaling", "estimator")
    return (*_mark_unit(row), *(str(row[name]) for name in names))


def _headline(unit: Unit, rows: list[Row]) -> str:
    wanted = "auroc" if unit.suite == "ood" else "top1"
    value = next(float(row["value"]) for row in rows if row["metric"] == wanted)
    return f"{unit.title}: {'AUROC ' if wanted == 'auroc' else ''}{100 * value:.1f} %"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CheckpointError(f"cannot make {folder}: {problem.strerror}.") from None
