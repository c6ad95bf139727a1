"""A comparison, from arms and seeds to a report. Read `compare` top to bottom."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from killick.errors import DataError, check_option
from killick.evaluation.evaluation_settings import make_settings
from killick.experiments.arms import Arm, parse_arms
from killick.experiments.job_runner import rename_job
from killick.experiments.jobs import Job, make_jobs
from killick.experiments.scheduler import Execution, Failure, run_jobs
from killick.results.run_folder import read_run

RECIPE = "shapes-compare"


@dataclass(frozen=True)
class ComparisonResult:
    """What became of a comparison.

    Attributes:
        report: The page; None if no job is finished, or if other parts are not.
        jobs: All of them.
        failed: Those that failed, with title and problem.
        interrupted: Whether the user interrupted it; the same call resumes.
    """

    report: Path | None
    jobs: list[Job]
    failed: list[Failure] = field(default_factory=list)
    interrupted: bool = False


def compare(
    recipe: str | Path = RECIPE,
    *,
    settings: Mapping[str, Any] | None = None,
    arms: Sequence[str | Arm] = (),
    seeds: Sequence[int] = (0, 1),
    output: str | Path = "comparison",
    evaluation: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    jobs: int | None = None,
    engine: str = "local",
    cpus: int | None = None,
    gpus: float | None = None,
    address: str | None = None,
    device: str = "auto",
    part: tuple[int, int] | None = None,
    title: str | None = None,
    command: Sequence[str] = (),
    quiet: bool = False,
) -> ComparisonResult:
    """Train and evaluate arms with several seeds, and write a report.

    Each arm with a seed is a job, with a run folder of its own in `output`. A finished job is never
    run again, an interrupted one is resumed, and one that fails is reported while others go on.

    Args:
        recipe: Shared by all arms, by name or file.
        settings: Shared by all arms too, by dotted name.
        arms: Arms or their texts, see `parse_arm`; by default all built-in ones.
        seeds: Of each arm.
        output: A folder.
        evaluation: Options of `killick.evaluate`.
        baseline: The arm that others are compared with; by default the standard one.
        jobs: How many run at once on this machine; by default one for each core, or for each GPU.
        engine: "local", or "ray": on a Ray cluster, over a folder that all its machines share.
        cpus: With Ray: cores for each job; by default 1.
        gpus: With Ray: GPUs for each job, also a share of one; by default 1 where there are some.
        address: With Ray: of the cluster; by default the one that is found, else this machine.
        device: "auto", "cpu", "cuda" or "cuda:1".
        part: `(i, n)` runs every n-th job, beginning with the i-th, as a task of a Slurm array does;
            the part that finishes last writes the report.
        title: Of the report.
        command: Recorded, to repeat it.
        quiet: Show nothing.
    """
    output = Path(output)
    execution = Execution(jobs, engine, cpus, gpus, address, device, part, command, quiet)
    execution.check(output)
    chosen = parse_arms(arms)
    check_baseline(baseline, chosen)
    planned = make_jobs(recipe, settings or {}, chosen, seeds, output, evaluation or {})
    check_jobs(planned)
    outcome = run_jobs(planned, output, execution)
    finished = [job for job in planned if job.finished]
    if not finished or (part is not None and len(finished) < len(planned)):
        return ComparisonResult(None, planned, outcome.failed, outcome.interrupted)
    from killick.report.writer import write_report  # imports matplotlib

    for job in finished:
        rename_job(job)
    report = write_report(
        [read_run(job.folder) for job in finished],
        output,
        baseline=baseline,
        title=title,
        command=shlex.join(command) or None,
        failed=outcome.missing,
    )
    return ComparisonResult(report, planned, outcome.failed, outcome.interrupted)


def check_baseline(baseline: str | None, arms: Sequence[Arm]) -> None:
    """Refuse a baseline that is none of the arms."""
    if baseline is not None:
        check_option("the baseline", baseline, [arm.name for arm in arms])


def check_jobs(jobs: Sequence[Job]) -> None:
    """Refuse what would only be found after training: bad evaluation options, missing data."""
    evaluation = jobs[0].evaluation
    make_settings(evaluation)
    used = {phase.recipe.data.name for job in jobs for phase in job.phases}
    used |= {*dict(evaluation.get("ood", {})).values(), *dict(evaluation.get("shift", {})).values()}
    check_places(sorted(used))


def check_places(names: Sequence[str]) -> None:
    """Refuse names of data whose path does not exist."""
    for data in names:
        kind, _, place = data.partition(":")
        path = Path(place.partition("#")[0])
        if kind in ("imagefolder", "imagenet", "pictures", "pack") and not path.exists():
            raise DataError(f"no data at {path} for {data}.")
