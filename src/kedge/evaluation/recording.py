"""Rows as they come: what is there already, what is new, and the folder that keeps them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kedge import metrics
from kedge.errors import CheckpointError, OptionError
from kedge.evaluation.measures import (
    DETECTION,
    DISTANCE,
    MARGINAL_SCORES,
    SCORES,
    SMOOTH,
    Measure,
    measure_accuracy,
    measure_calibration,
    measure_detection,
    measure_references,
)
from kedge.evaluation.outcomes import Outcomes, Values
from kedge.evaluation.plan import Choices, Unit
from kedge.evaluation.subject import Subject
from kedge.evaluation.summary import Errors, summarise
from kedge.rows import MODEL, Row, make_row, merge, read_rows, write_rows

_SETTINGS = (*MODEL[:3], "limit", "evaluation_seed", "precision", "weights")
_UNIT = ("suite", "set", "source", "table", "corruption", "severity", "view", "pictures")


class Recording:
    """The rows of one evaluation.

    Args:
        subject: Who is evaluated.
        choices: What is looked at.
        common: Columns that all rows have.
        fitting: The validation set, if there is one.
        acceptance: Share of in-distribution data that the threshold accepts.
        baseline: For mCE.
        folder: Where rows are kept, if anywhere.
        writes: Whether this process is the one that writes.
        again: Forget what is there already.
    """

    def __init__(
        self,
        subject: Subject,
        choices: Choices,
        common: dict[str, Any],
        *,
        fitting: Unit | None,
        acceptance: float,
        baseline: tuple[str, Errors] | None,
        folder: Path | None,
        writes: bool,
        again: bool,
    ) -> None:
        self._subject, self._choices, self._common = subject, choices, common
        self._acceptance, self._baseline = acceptance, baseline
        self._fitted_on = (
            None if fitting is None else f"{fitting.set} ({fitting.count}, {fitting.pictures[:6]})"
        )
        self._folder, self._writes = folder, writes
        self.calibrates = "calibration" in choices.suites
        self._examines = "references" in choices.suites
        self._threshold: float | None = None
        self._rows: list[Row] = []
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise OptionError(f"expected a folder for the rows, found a file at {folder}.")
            self._rows = read_rows(folder)
            if writes:
                _make(folder)
        self._there: set[tuple[str, ...]] = set()
        if not again:
            self._there = {_mark(row) for row in self._rows if self._is_mine(row)}

    def forget_changed(self, units: Iterable[Unit]) -> None:
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
        return all(
            (*about, inference, str(k), *mark) in self._there
            for inference, k in self._inferences()
            for mark in self._wanted(unit, inference)
        )

    def fitted(self, energies: Tensor) -> None:
        """Take the threshold from the energies of the validation set."""
        self._threshold = float(metrics.threshold(energies, self._acceptance))

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
                    measures.append(Measure("temperature", [temperatures[number]]))
            about = {**self._common, **unit.columns(), "count": outcomes.count}
            found += [
                make_row(**about, inference=inference, k=k, **measure.columns())
                for measure in measures
            ]
        self._keep(found)
        return _headline(unit, found)

    def finish(self) -> list[Row]:
        """Add the summaries; all rows of this evaluation's settings."""
        self._keep(summarise(filter(self._is_mine, self._rows), self._baseline))
        self.write_table()
        return [row for row in self._rows if self._is_mine(row)]

    def write_table(self) -> None:
        """Bring `rows.csv` up to date, which is not done after every unit."""
        if self._folder is not None and self._writes and self._rows:
            write_rows(self._folder, self._rows)

    def _inferences(self) -> list[tuple[str, int | str]]:
        if self._subject.references is None:
            return [("single", "")]
        if self._subject.members == 1:
            return [("single", 1)]
        return [("single", 1), ("marginal", self._subject.members)]

    def _wanted(self, unit: Unit, inference: str) -> list[tuple[str, str, str]]:
        """Metric, scaling and estimator by which it is known that all of a kind is there."""
        wanted = []
        if unit.suite == "ood":
            wanted.append(("auroc", "", DETECTION))
        else:
            wanted.append(("top1", "", ""))
            if self.calibrates:
                wanted.append(("smooth_ece", "", SMOOTH))
            if self.calibrates and self._fitted_on is not None:
                wanted.append(("nll", "temperature", f"fitted on {self._fitted_on}"))
        if unit.suite in ("clean", "ood") and inference == "single":
            wanted.append(("accepted", "", self._rule()))
        if unit.suite == "clean" and inference == "marginal" and self._examines:
            wanted.append(("disagreement", "", ""))
        return wanted

    def _labelled(
        self, unit: Unit, outcomes: Outcomes, values: Values, inference: str, scaled: bool
    ) -> list[Measure]:
        assert unit.alignment is not None
        found = list(measure_accuracy(values, len(unit.alignment.kept)))
        if self.calibrates:
            interval = None
            if unit.suite in ("clean", "shift"):
                interval = torch.Generator().manual_seed(self._choices.seed)
            found += measure_calibration(values, interval)
            if scaled:
                found += measure_calibration(values, fitted_on=self._fitted_on)
        if unit.suite == "clean":
            found += self._accepted(values, inference)
            if self._threshold is not None and inference == "single":
                found.append(Measure("threshold", [self._threshold], self._rule(), score="energy"))
            if inference == "marginal" and self._examines:
                found += measure_references(outcomes.single, values)
        return found

    def _outside(self, values: Values, inside: Values, inference: str) -> list[Measure]:
        own = (DISTANCE,) if inference == "single" else MARGINAL_SCORES
        scores = (*SCORES, *(score for score in own if score in values))
        found = list(measure_detection(inside, values, scores))
        return found + self._accepted(values, inference)

    def _accepted(self, values: Values, inference: str) -> list[Measure]:
        """The share under the threshold, and on the clean set the threshold itself."""
        if self._threshold is None or inference != "single":
            return []
        shares = (values["energy"] <= self._threshold).double().mean(1).tolist()
        return [Measure("accepted", shares, self._rule(), score="energy")]

    def _rule(self) -> str:
        source = self._fitted_on or "the test set itself"
        return f"threshold at {100 * self._acceptance:g} % of {source}"

    def _keep(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        if not rows:
            return
        self._rows = merge(self._rows, rows)
        if self._folder is not None and self._writes:
            write_rows(self._folder, self._rows, table=False)

    def _is_mine(self, row: Row) -> bool:
        return all(
            str(row[name]) == str("" if self._common.get(name) is None else self._common[name])
            for name in _SETTINGS
        )


def _place(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """The set that a unit or a row is about, made here or read from files."""
    return (columns["suite"], columns["set"], str(columns["source"]).split(",")[0])


def _mark(row: Row) -> tuple[str, ...]:
    names = (*_UNIT, "inference", "k", "metric", "scaling", "estimator")
    return tuple(str(row[name]) for name in names)


def _headline(unit: Unit, rows: list[Row]) -> str:
    wanted = "auroc" if unit.suite == "ood" else "top1"
    value = next(float(row["value"]) for row in rows if row["metric"] == wanted)
    return f"{unit.title}: {'AUROC ' if wanted == 'auroc' else ''}{100 * value:.1f} %"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CheckpointError(f"cannot make {folder}: {problem.strerror}.") from None
