"""A comparison, from arms and seeds to a report. Read `compare` top to bottom."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.data.data_settings import full_name
from killick.errors import DataError, OptionError, check_option
from killick.evaluation.evaluation_suites import check_options
from killick.experiments.arms import Arm, parse_arms
from killick.experiments.execution import Execution
from killick.experiments.jobs import Job, check_settings_used, make_jobs
from killick.results.run_folder import read_run
from killick.training.recipe_files import DEFAULT_RECIPE, refuse_unused

if TYPE_CHECKING:
    from torch import nn

    from killick.data.given_data import Given, Normalization
    from killick.experiments.scheduler import Failure
    from killick.report.report_data import ReportData

# Options of an evaluation that are not names of corruptions or sets: they are checked without torch.
_CHECKED_AT_ONCE = {"suites", "limit", "references", "severities", "precision", "batch"}


@dataclass(frozen=True)
class ComparisonResult:
    """What became of a comparison.

    Attributes:
        report: The page; None if no job is finished, or if other parts are not.
        jobs: All of them.
        failed: Those that failed, with title and problem.
        interrupted: Whether the user interrupted it; the same call resumes.
        data: The numbers of the report; None without one.
    """

    report: Path | None
    jobs: list[Job]
    failed: "list[Failure]" = field(default_factory=list)
    interrupted: bool = False
    data: "ReportData | None" = None


def compare(
    network: "nn.Module | str | os.PathLike[str]" = DEFAULT_RECIPE,
    data: "Given | Mapping[str, Given] | None" = None,
    *,
    recipe: "str | os.PathLike[str] | None" = None,
    settings: Mapping[str, Any] | None = None,
    normalize: "Normalization | None" = None,
    class_names: Sequence[str] | None = None,
    arms: Sequence[str | Arm] = (),
    seeds: Sequence[int] = (0, 1),
    output: str | Path = "comparison",
    evaluation: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    title: str | None = None,
    **execution: Any,
) -> ComparisonResult:
    """Train and evaluate arms with several seeds, and write a report.

    Each arm with a seed is a job, with a run folder of its own in `output`. A finished job is never
    run again, an interrupted one is resumed, and one that fails is reported while others go on.

    Jobs with a network or data that are given in Python run in this process, one after another.

    Args:
        network: A recipe shared by all arms, by name or file; or a network, which all start from.
        data: As for `killick.train`; by default the recipe's.
        recipe: For a network, another recipe than "finetune".
        settings: Shared by all arms too, by dotted name.
        normalize: As for `killick.train`.
        class_names: By default the data's own, or numbers.
        arms: Arms or their texts, see `parse_arm`; by default `DEFAULT_ARMS`.
        seeds: Of each arm.
        output: A folder.
        evaluation: Options of `killick.evaluate`.
        baseline: The arm that others are compared with; by default the standard one.
        title: Of the report.
        execution: Where and how jobs run, as `jobs=4`: the fields of
            `killick.experiments.execution.Execution`.
    """
    # What plans alone need imports no torch, which takes seconds.
    from killick.experiments.scheduler import run_jobs
    from killick.training.given_training import given

    with given(network, data, recipe, settings, normalize, class_names, True) as found:
        if found.in_python:
            execution = _run_here(execution)
        output, how = Path(output), Execution(**execution)
        how.check(output)
        if not isinstance(found.recipe, str | Path):
            raise OptionError("compare takes a recipe by name or file, found a Recipe.")
        planned = plan_comparison(
            found.recipe, found.settings, arms, seeds, output, evaluation or {}, baseline
        )
        outcome = run_jobs(planned, output, how)
    report = numbers = None
    if outcome.finished:
        from killick.report.report_data import make_report_data  # imports matplotlib
        from killick.report.writer import write_report

        runs = [read_run(job.folder) for job in outcome.finished]
        numbers = make_report_data(runs, baseline)
        command = shlex.join(how.command) or None
        report = write_report(
            runs, output, title=title, command=command, failed=outcome.missing, data=numbers
        )
    return ComparisonResult(report, planned, outcome.failed, outcome.interrupted, numbers)


def _run_here(execution: dict[str, Any]) -> dict[str, Any]:
    """How jobs run whose network or data no other process can have."""
    for name in ("engine", "jobs", "part"):
        if execution.get(name) not in (None, 1, "here"):
            raise OptionError(
                f"{name}={execution[name]!r} needs data and networks by name: those given in Python"
                " are in this process alone."
            )
    return {**execution, "engine": "here"}


def plan_comparison(
    recipe: str | Path,
    settings: Mapping[str, Any],
    arms: Sequence[str | Arm],
    seeds: Sequence[int],
    output: Path,
    evaluation: Mapping[str, Any],
    baseline: str | None = None,
) -> list[Job]:
    """The jobs of a comparison, checked before anything is trained; the arguments of `compare`."""
    chosen = parse_arms(arms)
    if baseline is not None:
        check_option("the baseline", baseline, [arm.name for arm in chosen])
    jobs = make_jobs(recipe, settings, chosen, seeds, output, evaluation)
    trained = [arm for arm in chosen if arm.run is None]
    for arm, job in zip(trained, jobs, strict=False):
        refuse_unused(job.phases[-1].recipe, arm.settings, f"the arm {arm.name}")
    check_settings_used(settings, trained, jobs)
    check_jobs(jobs)
    return jobs


def check_jobs(jobs: Sequence[Job]) -> None:
    """Refuse what would only be found after training: bad evaluation options, missing data."""
    evaluation = jobs[0].evaluation
    for job in {job.evaluation_digest: job for job in jobs}.values():
        if set(job.evaluation) <= _CHECKED_AT_ONCE:
            check_options(job.evaluation)
        else:
            from killick.evaluation.evaluation_settings import make_settings  # imports torch

            make_settings(job.evaluation)
    for job in {job.arm: job for job in jobs}.values():
        if job.evaluation.get("inference") == "mc-dropout":
            _check_dropout(job)
    trained = {phase.recipe.data.name for job in jobs for phase in job.phases}
    trained |= {job.evaluation["data"] for job in jobs if "data" in job.evaluation}
    check_places(sorted(trained))
    for option in ("ood", "shift"):
        for name, data in dict(evaluation.get(option, {})).items():
            check_places([data], f"--{option} {name}=")


def _check_dropout(job: Job) -> None:
    """Refuse MC dropout of a network that has none; with trained weights, that is known later."""
    recipe = job.phases[-1].recipe if job.phases else None
    if recipe is None or job.phases[0].start is not None or recipe.network.may_name_weights:
        return
    from killick.evaluation.mc_dropout import find_dropout  # imports torch
    from killick.training.initial_weights import create_net

    if not recipe.network.name.startswith("given:"):
        find_dropout(create_net(recipe, 2), map(asdict, recipe.components))


def check_places(names: Sequence[str], option: str = "--data ") -> None:
    """Refuse names of data whose path does not exist; `option` is how the user gives them."""
    for data in names:
        kind, _, place = full_name(data).partition(":")
        path = Path(place.partition("#")[0])
        if kind in ("imagefolder", "imagenet", "images", "pack", "csv") and not path.exists():
            raise DataError(f"no data at {path} for {data}: write {option}{kind}:PATH.")
