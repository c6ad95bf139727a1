"""The results of a study: numbers of its arms, and what was measured of its cells beside."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from killick.errors import DataError
from killick.report.figures import Style
from killick.report.intervals import Interval
from killick.report.report_data import ReportData, make_report_data
from killick.report.statistics import Estimate, between
from killick.results.measurements import Record, read_measured
from killick.results.run_folder import Run
from killick.studies.study import Plan

# The same protocol is drawn alike in all studies.
_STYLES = {
    "standard": Style("arm-0", "-", "o"),
    "anchored": Style("arm-1", (0, (6, 2)), "s"),
    "masked-label": Style("arm-2", "-", "^"),
    "masked-uniform": Style("arm-3", (0, (2, 1.5)), "D"),
    "finetuned": Style("arm-4", (0, (7, 2, 1.5, 2)), "v"),
}
_OTHER = Style("arm-5", (0, (2, 1.5)), "P")


@dataclass(frozen=True)
class Results:
    """What a study found.

    Attributes:
        plan: What was asked for.
        scene: All finished arms, as a report has them.
        factors: Where each arm stands in what is varied, by its name.
        measured: The records of all cells, with their arm, seed and factors.
    """

    plan: Plan
    scene: ReportData
    factors: Mapping[str, Mapping[str, Any]]
    measured: tuple[Record, ...]

    def arm(self, **factors: Any) -> str | None:
        """The name of the first finished arm with these factors; None if there is none."""
        return next(iter(self.arms(**factors)), None)

    def arms(self, **factors: Any) -> list[str]:
        """The names of the finished arms with these factors, in the order of the plan."""
        return [
            name
            for name, own in self.factors.items()
            if all(_fits(own, key, value) for key, value in factors.items())
        ]

    def levels(self, factor: str) -> list[Any]:
        """The values of a factor among finished arms, in the order of the plan."""
        return list(dict.fromkeys(own[factor] for own in self.factors.values() if factor in own))

    def number(self, arm: str | None, measure: str) -> Estimate | None:
        """A measure of an arm, by its key in `killick.report.statistics`; None if there is none."""
        return None if arm is None else self.scene.table.get(arm, {}).get(measure)

    def values(self, arm: str | None, measure: str) -> dict[int, float]:
        """A measure of an arm for each seed."""
        number = self.number(arm, measure)
        return {} if number is None else number.values

    def difference(self, arm: str | None, base: str | None, measure: str) -> Interval | None:
        """What a measure of an arm is above that of another; None where it cannot be had."""
        if arm is None or base is None:
            return None
        return between(self.scene.comparison, arm, base, measure)

    def records(self, **known: Any) -> list[Record]:
        """The records with these values."""
        return [
            record
            for record in self.measured
            if all(key in record and record[key] == value for key, value in known.items())
        ]

    def style(self, protocol: str) -> Style:
        """How a protocol is drawn."""
        return _STYLES.get(protocol, _OTHER)

    @property
    def classes(self) -> int:
        """Of the data, as the models that were trained on them have it."""
        for run in self.scene.comparison.runs.values():
            config = json.loads((run.folder / "model" / "config.json").read_text(encoding="utf-8"))
            if isinstance(config.get("class_names"), list):
                return len(config["class_names"])
        raise DataError("expected a finished model that knows its classes, found none.")

    @property
    def pictures(self) -> int:
        """Of the clean test set that the models were shown."""
        rows = (row for run in self.scene.comparison.runs.values() for row in run.rows)
        return next(int(row["count"]) for row in rows if row["suite"] == "clean")

    @property
    def seeds(self) -> int:
        """Of the arm that has most."""
        return max(len(arm.seeds) for arm in self.scene.comparison.arms)


def make_results(plan: Plan, runs: Sequence[Run]) -> Results:
    """The results in finished runs; each says in `job.json` which arm it is."""
    planned = {each.arm.name: dict(each.factors) for each in plan.treatments}
    extra = {
        str(run.job["arm"]): dict(run.job["factors"])
        for run in runs
        if isinstance(run.job.get("factors"), dict)
    }
    names = {str(run.job.get("arm")) for run in runs}
    factors = {name: own for name, own in {**planned, **extra}.items() if name in names}
    measured = [
        {**factors.get(str(run.job["arm"]), {}), **record, **_whose(run)}
        for run in runs
        for record in read_measured(run.folder, plan.measuring)
    ]
    return Results(plan, make_report_data(runs), factors, tuple(measured))


def _fits(own: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether an arm stands there; one may stand for another protocol also."""
    if key == "protocol" and "also" in own and own["also"] == value:
        return True
    return key in own and own[key] == value


def _whose(run: Run) -> Record:
    return {"arm": str(run.job["arm"]), "seed": int(run.job["seed"])}
