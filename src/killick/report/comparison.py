"""A comparison: runs as arms and seeds, a baseline, and what a reader must know about them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from killick.errors import DataError, check_option
from killick.report.bootstrap import Draws, Place, Resampled, place_of, resample
from killick.report.evaluations import answers_of as answers_of
from killick.report.evaluations import (
    choose_evaluations,
    describe_evaluation,
    evaluation_of,
    evaluations_in,
    split_models,
)
from killick.report.intervals import ENOUGH_SEEDS
from killick.report.run_groups import Arm as Arm
from killick.report.run_groups import group_runs
from killick.report.run_groups import seed_of as seed_of
from killick.report.table_cells import Cell, cell_of, cells_in
from killick.results.rows import Row
from killick.results.run_folder import Run

RunKey = tuple[str, int]  # of an arm, its seed


@dataclass(frozen=True)
class Comparison:
    """Arms side by side.

    Attributes:
        arms: The baseline first, then in the order in which they came.
        baseline: Differences are to this one; None with one arm.
        data: On which all were evaluated.
        notes: What a reader must know: runs left out, unequal seeds, other test sets, ...
    """

    arms: tuple[Arm, ...]
    baseline: Arm | None
    data: str
    notes: tuple[str, ...]

    @cached_property
    def runs(self) -> dict[RunKey, Run]:
        """By arm and seed, each with the rows of one evaluation."""
        return {(arm.name, seed_of(run)): run for arm in self.arms for run in arm.runs}

    @cached_property
    def values(self) -> dict[RunKey, dict[Cell, float]]:
        """The numbers of each run."""
        return {key: cells_in(run.rows) for key, run in self.runs.items()}

    @cached_property
    def resampled(self) -> dict[RunKey, Resampled]:
        """What the numbers of each run would be in resampled sets; empty without answers."""
        draws = Draws()
        return {
            key: resample(answers_of(run), draws, self.values[key])
            for key, run in self.runs.items()
        }

    def has_references(self, run: RunKey) -> bool:
        """Whether a model was asked from references; one without is asked in one way alone."""
        return run in self._with_references

    @cached_property
    def _with_references(self) -> frozenset[RunKey]:
        return frozenset(
            key for key, run in self.runs.items() if any(str(row["k"]) for row in run.rows)
        )


def rows_of(run: Run) -> list[Row]:
    """The rows of a run's model, of one evaluation.

    Runs of a comparison have one already, which all of them share where they can.
    """
    run = next((part for part in split_models(run) if part.name == run.name), split_models(run)[0])
    return choose_evaluations([run])[0].rows


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
    parts = [part for run in runs for part in split_models(run)]
    parts = _leave_out(parts, notes)
    data, parts = _choose_data(parts, notes)
    chosen = choose_evaluations(parts)
    _note_evaluations(parts, chosen, notes)
    arms = [_one_of_each_seed(arm, notes) for arm in group_runs(chosen)]
    base = _choose_baseline(arms, baseline)
    arms.sort(key=lambda arm: arm is not base)  # stable: the others stay as they came
    _note_seeds(arms, notes)
    if len(arms) > 1:
        _note_answers(arms, base, notes)
    return Comparison(tuple(arms), base if len(arms) > 1 else None, data, tuple(notes))


def _leave_out(runs: Iterable[Run], notes: list[str]) -> list[Run]:
    """Runs with numbers to show."""
    kept = []
    for run in runs:
        if run.job.get("finished") is False:
            notes.append(f"{run.name} is left out: it was not finished.")
        elif not any(cell_of(row) is not None for row in run.rows):
            notes.append(f"{run.name} is left out: it has no results yet.")
        else:
            kept.append(run)
    if not kept:
        found = "; ".join(notes) or "no runs."
        raise DataError(f"expected runs with results, found none: {found} Evaluate them first.")
    return kept


def _choose_data(runs: Sequence[Run], notes: list[str]) -> tuple[str, list[Run]]:
    """The data of which there is most, and the runs that were evaluated on them."""
    sizes = Counter(str(row["data"]) for run in runs for row in run.rows if cell_of(row))
    data = max(sizes, key=lambda name: sizes[name])
    kept = []
    for run in runs:
        rows = [row for row in run.rows if row["data"] == data]
        if any(cell_of(row) for row in rows):
            kept.append(replace(run, rows=rows))
        else:
            others = ", ".join(sorted({str(row["data"]) for row in run.rows}))
            notes.append(f"{run.name} is left out: it was evaluated on {others}, not on {data}.")
    return data, kept


def _note_evaluations(before: Sequence[Run], chosen: Sequence[Run], notes: list[str]) -> None:
    keys = [evaluation_of(run.rows[0]) for run in chosen]
    usual = Counter(keys).most_common(1)[0][0]
    for run, shown, key in zip(before, chosen, keys, strict=True):
        if key != usual:
            notes.append(
                f"{run.name} was evaluated otherwise ({describe_evaluation(key)}) than the others"
                f" ({describe_evaluation(usual)}): differences to it are partly between sets."
            )
        others = [each for each in evaluations_in(run) if each != key]
        if others and shown.rows:
            words = "; ".join(map(describe_evaluation, others))
            notes.append(
                f"{run.name} holds other evaluations too ({words}); shown is"
                f" {describe_evaluation(key)}."
            )


def _one_of_each_seed(arm: Arm, notes: list[str]) -> Arm:
    """An arm with one run for each seed: the one evaluated last."""
    runs: dict[int, Run] = {}
    for run in sorted(arm.runs, key=_when):
        old = runs.get(seed_of(run))
        if old is not None:
            notes.append(
                f"{arm.name} has two runs of seed {seed_of(run)}: {run.name}, evaluated last, is"
                f" shown, {old.name} is not."
            )
        runs[seed_of(run)] = run
    return replace(arm, runs=tuple(runs[seed] for seed in sorted(runs)))


def _when(run: Run) -> float:
    """When the rows of a run were written; files whose time is unknown come first."""
    files = [run.folder / "rows.jsonl", run.folder / "rows.csv"]
    return max((_changed(file) for file in files), default=0.0)


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _choose_baseline(arms: Sequence[Arm], name: str | None) -> Arm:
    if name is not None:
        by_folder = [arm for arm in arms if any(run.name == Path(name).name for run in arm.runs)]
        named = [arm for arm in arms if arm.name == name] or by_folder
        if not named:
            check_option("baseline", name, [arm.name for arm in arms])
        return named[0]
    plain = (arm for arm in arms if arm.protocol == "standard" and arm.from_scratch)
    return next(plain, arms[0])


def _note_seeds(arms: Sequence[Arm], notes: list[str]) -> None:
    if len({arm.seeds for arm in arms}) > 1:
        words = "; ".join(f"{arm.name} {', '.join(map(str, arm.seeds))}" for arm in arms)
        notes.append(f"The arms have unequal seeds ({words}): differences are over those in both.")


def _note_answers(arms: Sequence[Arm], base: Arm, notes: list[str]) -> None:
    """What is known of the interval of differences."""
    theirs = {seed_of(run): run for run in base.runs}
    by_images = False
    for arm in arms:
        common = [run for run in arm.runs if seed_of(run) in theirs]
        if arm is base or len(common) >= ENOUGH_SEEDS:
            continue
        if not common:
            notes.append(f"{arm.name} has no seed in common with {base.name}: no differences.")
            continue
        problems = {_pairing_problem(run, theirs[seed_of(run)]) for run in common} - {""}
        by_images |= not problems
        for problem in sorted(problems):
            notes.append(f"{arm.name} and {base.name} cannot be compared by images: {problem}.")
    if by_images:
        notes.append(
            "Intervals come from resampling the test images: they hold for the models trained"
            " here. Models of other seeds may differ by more; five seeds or more would tell."
        )


def _pairing_problem(run: Run, other: Run) -> str:
    """Why the answers of two runs cannot be paired; empty if they can."""
    ours, theirs = _places(run), _places(other)
    for places, name in ((ours, run.name), (theirs, other.name)):
        if not places:
            return f"{name or 'one of them'} has no answers kept image by image"
    if any(ours[key] != theirs[key] for key in ours.keys() & theirs.keys()):
        return f"{run.name} and {other.name} were shown other images, or asked otherwise"
    return ""


def _places(run: Run) -> dict[tuple[str, ...], Place]:
    names = ("suite", "set", "corruption", "severity")
    return {
        tuple(str(each.about.get(name, "")) for name in names): place_of(each)
        for each in answers_of(run)
    }
