"""Options shared by the commands that train and evaluate many models."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.cli.arguments import FLAG, NAMES, NUMBER, add_shared
from killick.errors import OptionError
from killick.evaluation.evaluation_suites import check_options

if TYPE_CHECKING:
    from killick.experiments.experiment import ComparisonResult
    from killick.experiments.jobs import Job
    from killick.studies.study_runner import StudyRun

_MOST_TITLES = 3  # of jobs that failed for the same reason
_SHARED_EVALUATION = (
    *("--corruptions", "--severities", "--ood", "--shift"),
    *("--corruption-files", "--cbar-files"),
)
_EXECUTION = ("jobs", "engine", "cpus", "gpus", "address", "device", "part", "quiet")


def add_evaluation(
    parser: argparse.ArgumentParser, *, suites: str, limit: str, references: str
) -> None:
    """Add the options of evaluation, with what they are by default."""
    group = parser.add_argument_group("evaluation, as in killick evaluate")
    add = group.add_argument
    add("--suite", **NAMES, dest="suites", help=f"comma-separated; default: {suites}")
    add("--limit", **NUMBER, help=f"at most N images of each set; default: {limit}")
    add("--references", **NUMBER, help=f"references of anchored models ({references})")
    kinds = ["float32", "bfloat16"]  # --precision is that of the training
    add("--evaluation-precision", dest="precision", choices=kinds, help="(float32)")
    add_shared(group, *_SHARED_EVALUATION)


def read_evaluation(options: argparse.Namespace) -> dict[str, Any]:
    """The given options of evaluation, as arguments of `killick.evaluate`."""
    names = ("references", "limit", "suites", "precision", *_SHARED_EVALUATION)
    found = {n: getattr(options, n) for n in (n.strip("-").replace("-", "_") for n in names)}
    given = {name: value for name, value in found.items() if value not in (None, ())}
    check_options(given)
    return given


def read_shared_settings(words: list[str]) -> dict[str, Any]:
    """The settings of a recipe that all jobs share."""
    from killick.cli.train import parse_overrides

    settings = parse_overrides(words)
    if "seed" in settings:
        raise OptionError("this command takes --seeds 0,1,..., not --seed.")
    return settings


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Add the options of where jobs run."""
    add = parser.add_argument_group("where it runs").add_argument
    add("--jobs", **NUMBER, help="jobs at once; default: one per free core or GPU")
    add(
        "--part",
        metavar="I/N",
        type=_read_part,
        help="every N-th job, from the I-th on; in Slurm arrays: --part $SLURM_ARRAY_TASK_ID/8",
    )
    add("--engine", choices=["local", "ray"], default="local", help="ray: a Ray cluster (local)")
    add("--cpus", **NUMBER, help="with ray: cores per job (1)")
    add("--gpus", metavar="SHARE", type=float, help="with ray: GPUs per job, as 0.25 (1)")
    add("--address", metavar="ADDRESS", help="with ray: of the cluster; default: the one found")
    add("--dry-run", **FLAG, help="list the jobs and stop")
    add_shared(parser, "--device", "--quiet")


def read_execution(options: argparse.Namespace) -> dict[str, Any]:
    """These options, as arguments of `compare` and `run_study`."""
    return {
        "command": ["killick", *options.words],
        **{name: getattr(options, name) for name in _EXECUTION},
    }


def show_jobs(jobs: "Sequence[Job]", output: Path, options: argparse.Namespace) -> None:
    """Print the jobs that would run."""
    from killick.experiments.execution import Execution
    from killick.results.run_folder import read_job

    execution = Execution(**read_execution(options))
    execution.check(output)
    jobs = execution.select(jobs)
    for job in jobs:
        state = "finished" if job.finished else "begun" if read_job(job.folder) else "new"
        epochs = " + ".join(str(phase.recipe.epochs) for phase in job.phases)
        print(f"{state:9} {job.title:28} {epochs or 'no'} epochs  {job.folder}")
    left = sum(not job.finished for job in jobs)
    print(f"{len(jobs)} jobs, {left} to run; report: {output / 'report.html'}")


def print_outcome(
    found: "ComparisonResult | StudyRun", output: Path, options: argparse.Namespace
) -> int:
    """Print where the report is, what failed, and how to resume; return the exit code."""
    if found.report is not None and not options.quiet:
        print(f"The report is in {found.report}")
    elif options.part and not options.quiet:
        print(f"The part that finishes last writes the report in {output}")
    titles: dict[str, list[str]] = {}
    for title, problem in found.failed:
        titles.setdefault(problem, []).append(title)
    for problem, jobs in titles.items():  # those with the same problem in one line
        more = f" and {len(jobs) - _MOST_TITLES} more" if len(jobs) > _MOST_TITLES else ""
        shown = "; ".join(jobs[:_MOST_TITLES])
        print(f"killick: failed: {shown}{more}: {problem}", file=sys.stderr)
    if found.interrupted:
        command = shlex.join(["killick", *options.words])
        print(f"killick: interrupted. Resume with: {command}", file=sys.stderr)
        return 130
    return 1 if found.failed else 0


def _read_part(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected I/N, as 1/8, found {text!r}")
    return int(number), int(count)
