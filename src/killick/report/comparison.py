"""A comparison: runs as arms and seeds, a baseline, and notes about how they can be compared."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from killick.errors import DataError, check_option
from killick.report.bootstrap import BootstrapDraws, Resampled, resample
from killick.report.conditions import MARGINAL, Condition, condition_of
from killick.report.evaluations import (
    choose_evaluations,
    predictions_of,
    split_models,
)
from killick.report.run_groups import ArmRuns, group_runs, seed_of
from killick.results.run_folder import Run

RunKey = tuple[str, int]  # arm, seed
Value = TypeVar("Value")


@dataclass(frozen=True)
class Comparison:
    """Arms side by side."""

    arms: tuple[ArmRuns, ...]  # the baseline first, then in the order in which they came
    baseline: ArmRuns | None  # differences are to this one; None with one arm
    data: str  # the data set on which all were evaluated
    notes: tuple[str, ...] = ()  # runs that are left out, unequal seeds or test sets

    @cached_property
    def runs(self) -> dict[RunKey, Run]:
        """By arm and seed, each with the rows of one evaluation."""
        return {(arm.name, seed_of(run)): run for arm in self.arms for run in arm.runs}

    @cached_property
    def values(self) -> dict[RunKey, dict[Condition, float]]:
        """The numbers of each run.

        A model without references has one inference, whose numbers count for both where others have
        references.
        """
        found = {}
        for key, run in self.runs.items():
            values = {c: float(row["value"]) for row in run.rows if (c := condition_of(row))}
            found[key] = _with_marginal(values) if key in self._without_references else values
        return found

    @cached_property
    def resampled(self) -> dict[RunKey, dict[Condition, Resampled]]:
        """The numbers of each run in resampled test sets; empty without predictions."""
        draws = BootstrapDraws()
        found = {}
        for key, run in self.runs.items():
            values = resample(predictions_of(run), draws, self.values[key])
            found[key] = _with_marginal(values) if key in self._without_references else values
        return found

    @cached_property
    def _without_references(self) -> set[RunKey]:
        """The models without references, where others have them."""
        found = {key for key, run in self.runs.items() if not any(row["k"] for row in run.rows)}
        return found if len(found) < len(self.runs) else set()


def make_comparison(runs: Sequence[Run], baseline: str | None = None) -> Comparison:
    """Runs as arms; the baseline is named by its arm or one of its folders.

    By default it is standard training from scratch, else a standard network of unknown
    history, else the first arm.
    """
    notes: list[str] = []
    parts = _with_results([part for run in runs for part in split_models(run)], notes)
    data, chosen = _choose_data(choose_evaluations(parts), notes)
    arms = [_one_per_seed(arm, notes) for arm in group_runs(chosen)]
    base = _choose_baseline(arms, baseline)
    arms.sort(key=lambda arm: arm is not base)  # stable: the others stay as they came
    first, *others = (run for arm in arms for run in arm.runs)
    for run in others:
        notes += _differing_images(run, first)
    if len({arm.seeds for arm in arms}) > 1:
        notes.append("Unequal seeds: differences are over the seeds that both arms have.")
    found = base if len(arms) > 1 else None
    return Comparison(tuple(arms), found, data, tuple(notes))


def _differing_images(run: Run, first: Run) -> list[str]:
    """How the test images of a run differ from those of the first one."""
    ours, theirs = (
        next((row for row in each.rows if row["suite"] == "clean"), each.rows[0])
        for each in (run, first)
    )
    count, other = ours["count"], theirs["count"]
    found = []
    if count != other:
        found.append(f"{run.name} was evaluated on {count} images, {first.name} on {other}.")
    elif ours["view"] == theirs["view"] and ours["images"] != theirs["images"]:
        found.append(f"{run.name} was evaluated on other images than {first.name}.")
    tables, others = ({row["table"] for row in each.rows} - {"", None} for each in (run, first))
    if tables and others and tables != others:
        found.append(
            f"{run.name} has corruptions with the constants {', '.join(sorted(tables))},"
            f" {first.name} with {', '.join(sorted(others))}."
        )
    return found


def _with_marginal(values: dict[Condition, Value]) -> dict[Condition, Value]:
    return values | {c._replace(inference=MARGINAL): value for c, value in values.items()}


def _with_results(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    kept = []
    for run in runs:
        if run.job.get("finished") is False:
            notes.append(f"{run.name} is left out: not finished.")
        elif not any(condition_of(row) for row in run.rows):
            notes.append(f"{run.name} is left out: no results yet.")
        else:
            kept.append(run)
    if not kept:
        found = " ".join(notes) or "No runs."
        raise DataError(f"no runs with results to report. {found} Evaluate them first.")
    return kept


def _choose_data(runs: Sequence[Run], notes: list[str]) -> tuple[str, list[Run]]:
    """The data set with most rows, and the runs that were evaluated on it."""
    sizes = Counter(str(row["data"]) for run in runs for row in run.rows)
    data = sizes.most_common(1)[0][0]
    for run in runs:
        if run.rows[0]["data"] != data:
            where = run.rows[0]["data"]
            notes.append(f"{run.name} is left out: evaluated on {where}, not on {data}.")
    return data, [run for run in runs if run.rows[0]["data"] == data]


def _one_per_seed(arm: ArmRuns, notes: list[str]) -> ArmRuns:
    """An arm with one run for each seed, the last one."""
    runs: dict[int, Run] = {}
    for run in arm.runs:
        if old := runs.get(seed_of(run)):
            notes.append(f"{old.name} is left out: {run.name} has the same arm and seed.")
        runs[seed_of(run)] = run
    return replace(arm, runs=tuple(runs.values()))


def _choose_baseline(arms: Sequence[ArmRuns], name: str | None) -> ArmRuns:
    if name is None:
        plain = [arm for arm in arms if arm.protocol == "standard" and not arm.start]
        # Of several, the one with least beside it, such as regularizers.
        return min(plain or arms, key=lambda arm: (not arm.from_scratch, len(arm.components)))
    by_name = {arm.name: arm for arm in arms}
    by_name = by_name | {run.name: arm for arm in arms for run in arm.runs} | by_name
    short = name if name in by_name else Path(name).name
    check_option("the baseline", short, by_name)
    return by_name[short]
