"""A comparison: runs as arms and seeds, a baseline, and notes about how they can be compared."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from killick.errors import DataError, check_option
from killick.report.bootstrap import BootstrapDraws, Resampled, resample
from killick.report.conditions import Condition, condition_of, values_in
from killick.report.evaluations import (
    choose_evaluations,
    describe_evaluation,
    evaluation_of,
    predictions_of,
    split_models,
)
from killick.report.run_groups import ArmRuns, group_runs, seed_of
from killick.results.run_folder import Run

RunKey = tuple[str, int]  # arm, seed


@dataclass(frozen=True)
class Comparison:
    """Arms side by side."""

    arms: tuple[ArmRuns, ...]  # the baseline first, then in the order in which they came
    baseline: ArmRuns | None  # differences are to this one; None with one arm
    data: str  # the data set on which all were evaluated
    notes: tuple[str, ...] = ()  # limits of the comparison, such as unequal seeds or test sets
    left_out: tuple[str, ...] = ()  # a line for each run without comparable results

    @cached_property
    def runs(self) -> dict[RunKey, Run]:
        """By arm and seed, each with the rows of one evaluation."""
        return {(arm.name, seed_of(run)): run for arm in self.arms for run in arm.runs}

    @cached_property
    def values(self) -> dict[RunKey, dict[Condition, float]]:
        """The numbers of each run."""
        return {key: values_in(run.rows) for key, run in self.runs.items()}

    @cached_property
    def resampled(self) -> dict[RunKey, Resampled]:
        """The numbers of each run in resampled test sets; empty without predictions."""
        draws = BootstrapDraws()
        return {
            key: resample(predictions_of(run), draws, self.values[key])
            for key, run in self.runs.items()
        }

    def has_references(self, run: RunKey) -> bool:
        """Whether a model was evaluated with references; others have one inference alone."""
        return run in self._with_references

    @cached_property
    def _with_references(self) -> frozenset[RunKey]:
        return frozenset(
            key for key, run in self.runs.items() if any(str(row["k"]) for row in run.rows)
        )


def make_comparison(runs: Sequence[Run], baseline: str | None = None) -> Comparison:
    """Runs as arms.

    Args:
        runs: Any, also from other machines.
        baseline: The name of an arm, or of the folder of one of its runs. By default that of
            standard training from scratch; the first if there is none.

    Raises:
        DataError: If there are no results in them.
        OptionError: If there is no such arm.
    """
    notes: list[str] = []
    left_out: list[str] = []
    parts = _with_results([part for run in runs for part in split_models(run)], left_out)
    data, parts = _choose_data(parts, left_out)
    chosen = choose_evaluations(parts)
    _note_evaluations(chosen, notes)
    arms = [_one_per_seed(arm, notes) for arm in group_runs(chosen)]
    base = _choose_baseline(arms, baseline)
    arms.sort(key=lambda arm: arm is not base)  # stable: the others stay as they came
    if len({arm.seeds for arm in arms}) > 1:
        words = "; ".join(f"{arm.name} {', '.join(map(str, arm.seeds))}" for arm in arms)
        notes.append(f"Unequal seeds ({words}): differences are over the seeds that both have.")
    found = base if len(arms) > 1 else None
    return Comparison(tuple(arms), found, data, tuple(notes), tuple(left_out))


def _with_results(runs: Iterable[Run], left_out: list[str]) -> list[Run]:
    kept = []
    for run in runs:
        if run.job.get("finished") is False:
            left_out.append(f"{run.name} is left out: not finished.")
        elif not any(condition_of(row) is not None for row in run.rows):
            left_out.append(f"{run.name} is left out: no results yet.")
        else:
            kept.append(run)
    if not kept:
        found = " ".join(left_out) or "No runs."
        raise DataError(f"no runs with results to report. {found} Evaluate them first.")
    return kept


def _choose_data(runs: Sequence[Run], left_out: list[str]) -> tuple[str, list[Run]]:
    """The data set with most rows, and the runs that were evaluated on it."""
    sizes = Counter(str(row["data"]) for run in runs for row in run.rows if condition_of(row))
    data = max(sizes, key=lambda name: sizes[name])
    kept = []
    for run in runs:
        rows = [row for row in run.rows if row["data"] == data]
        if any(condition_of(row) for row in rows):
            kept.append(replace(run, rows=rows))
        else:
            others = ", ".join(sorted({str(row["data"]) for row in run.rows}))
            left_out.append(f"{run.name} is left out: evaluated on {others}, not on {data}.")
    return data, kept


def _note_evaluations(runs: Sequence[Run], notes: list[str]) -> None:
    keys = [evaluation_of(run.rows[0]) for run in runs]
    usual = Counter(keys).most_common(1)[0][0]
    for run, key in zip(runs, keys, strict=True):
        if key != usual:
            notes.append(
                f"{run.name} was evaluated on other images ({describe_evaluation(key)}) than the"
                f" others ({describe_evaluation(usual)})."
            )


def _one_per_seed(arm: ArmRuns, notes: list[str]) -> ArmRuns:
    """An arm with one run for each seed: the one evaluated last."""
    runs: dict[int, Run] = {}
    for run in sorted(arm.runs, key=_evaluated_at):
        if (old := runs.get(seed_of(run))) is not None:
            notes.append(
                f"{arm.name} has two runs of seed {seed_of(run)}: {run.name}, evaluated last, is"
                f" used, {old.name} is not."
            )
        runs[seed_of(run)] = run
    return replace(arm, runs=tuple(runs[seed] for seed in sorted(runs)))


def _evaluated_at(run: Run) -> float:
    """When the rows of a run were written; 0 if unknown."""
    files = [run.folder / name for name in ("rows.jsonl", "rows.csv")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _choose_baseline(arms: Sequence[ArmRuns], name: str | None) -> ArmRuns:
    if name is not None:
        by_folder = [arm for arm in arms if any(run.name == Path(name).name for run in arm.runs)]
        named = [arm for arm in arms if arm.name == name] or by_folder
        if not named:
            check_option("the baseline", name, [arm.name for arm in arms])
        return named[0]
    plain = (arm for arm in arms if arm.protocol == "standard" and arm.from_scratch)
    return next(plain, arms[0])
