"""Options shared by the commands that train and evaluate many models."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.cli.arguments import add_shared, read_names, read_numbers, read_pair

if TYPE_CHECKING:
    from killick.experiments.experiment import ComparisonResult
    from killick.experiments.jobs import Job
    from killick.studies.study_runner import StudyRun

_MOST_TITLES = 3  # of jobs that failed for the same reason
_EXECUTION = ("jobs", "engine", "cpus", "gpus", "address", "device", "part", "quiet")


def add_evaluation(
    parser: argparse.ArgumentParser, *, suites: str, limit: str, references: str
) -> None:
    """Add the options of evaluation, with what they are by default."""
    add_argument = parser.add_argument_group("evaluation, as in killick evaluate").add_argument
    add_argument(
        "--suite", metavar="SUITES", type=read_names, help=f"comma-separated; default: {suites}"
    )
    add_argument(
        "--limit", metavar="N", type=int, help=f"at most N images of each set; default: {limit}"
    )
    add_argument(
        "--references", metavar="K", type=int, help=f"references of anchored models ({references})"
    )
    add_argument(
        "--corruptions", metavar="NAMES", type=read_names, help="only these, comma-separated"
    )
    add_argument("--severities", metavar="1,...,5", type=read_names, help="only these")
    for name, about in (("--ood", "an OOD set"), ("--shift", "a shifted set, same classes")):
        add_argument(
            name, metavar="NAME=DATA", action="append", type=read_pair, default=[], help=about
        )
    add_argument(
        "--corruption-files", metavar="FOLDER", help="published files instead of made corruptions"
    )
    add_argument("--cbar-files", metavar="FOLDER", help="the same for C-bar")


def read_evaluation(options: argparse.Namespace) -> dict[str, Any]:
    """The given options of evaluation, as arguments of `killick.evaluate`."""
    found: dict[str, Any] = {
        "references": options.references,
        "limit": options.limit,
        "suites": options.suite,
        "corruptions": options.corruptions,
        "severities": read_numbers("--severities", options.severities),
        "ood": dict(options.ood),
        "shift": dict(options.shift),
        "corruption_files": options.corruption_files,
        "cbar_files": options.cbar_files,
    }
    return {name: value for name, value in found.items() if value not in (None, (), {})}


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Add the options of where jobs run."""
    add_argument = parser.add_argument_group("where it runs").add_argument
    add_argument("--jobs", metavar="N", type=int, help="jobs at once; default: one per core or GPU")
    add_argument(
        "--part",
        metavar="I/N",
        type=_read_part,
        help="run only every N-th job, from the I-th on; for Slurm arrays:"
        " --part $SLURM_ARRAY_TASK_ID/8",
    )
    add_argument(
        "--engine", choices=["local", "ray"], default="local", help="ray: a Ray cluster (local)"
    )
    add_argument("--cpus", metavar="N", type=int, help="with ray: cores per job (1)")
    add_argument(
        "--gpus", metavar="SHARE", type=float, help="with ray: GPUs per job, as 0.25; default: 1"
    )
    add_argument(
        "--address", metavar="ADDRESS", help="with ray: of the cluster; default: the one found"
    )
    add_argument("--dry-run", action="store_true", help="list the jobs and stop")
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
        print(f"{state:9} {job.title:28} {epochs} epochs  {job.folder}")
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
