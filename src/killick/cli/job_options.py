"""Options that all commands share which train and evaluate many models."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from killick.cli.arguments import name_sets, read_names, read_numbers, read_pair

SHOWN = 3  # titles of cells that failed alike
PLACE = ("jobs", "engine", "cpus", "gpus", "address", "device", "quiet")


def add_evaluation(
    parser: argparse.ArgumentParser, *, suites: str, limit: str, references: str
) -> None:
    """What is evaluated; `suites`, `limit` and `references` say what they are by default."""
    add_argument = parser.add_argument_group("evaluation, as in killick evaluate").add_argument
    add_argument(
        "--suite",
        metavar="SUITES",
        type=read_names,
        help=f"comma-separated; default: {suites}",
    )
    add_argument(
        "--limit",
        metavar="N",
        type=int,
        help=f"at most so many pictures of each set; default: {limit}",
    )
    add_argument(
        "--references", metavar="K", type=int, help=f"asked of anchored models ({references})"
    )
    add_argument(
        "--corruptions", metavar="NAMES", type=read_names, help="only these, comma-separated"
    )
    add_argument("--severities", metavar="1,...,5", type=read_names, help="only these")
    for name, about in (("--ood", "other pictures"), ("--shift", "same classes, to rows.csv")):
        add_argument(
            name, metavar="NAME=DATA", action="append", type=read_pair, default=[], help=about
        )
    add_argument(
        "--corruption-files", metavar="FOLDER", help="published files instead of made corruptions"
    )
    add_argument("--cbar-files", metavar="FOLDER", help="likewise, of C-bar")


def tell_failed(lines: Iterable[str]) -> None:
    """What failed, `title: problem`, to stderr; those with the same problem in one line."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        title, _, problem = line.partition(": ")
        alike.setdefault(problem, []).append(title)
    for problem, titles in alike.items():
        shown = "; ".join(titles[:SHOWN])
        more = f" and {len(titles) - SHOWN} more" if len(titles) > SHOWN else ""
        print(f"killick: failed: {shown}{more}: {problem}", file=sys.stderr)


def read_evaluation(options: argparse.Namespace) -> dict[str, Any]:
    """Options of `killick.evaluate`, as plain values; what is not asked for is left out."""
    found: dict[str, Any] = {
        "references": options.references,
        "limit": options.limit,
        "suites": options.suite,
        "corruptions": options.corruptions,
        "severities": read_numbers("--severities", options.severities),
        "ood": name_sets("--ood", options.ood),
        "shift": name_sets("--shift", options.shift),
        "corruption_files": options.corruption_files,
        "cbar_files": options.cbar_files,
    }
    return {name: value for name, value in found.items() if value not in (None, (), {})}


def add_place(parser: argparse.ArgumentParser) -> None:
    """Where it runs, and what is shown of that."""
    add_argument = parser.add_argument_group("where it runs").add_argument
    add_argument(
        "--jobs",
        metavar="N",
        type=int,
        help="cells at once; default: one for each core, or for each GPU (which takes several)",
    )
    add_argument(
        "--engine", choices=["local", "ray"], default="local", help="ray: a Ray cluster (local)"
    )
    add_argument("--cpus", metavar="N", type=int, help="with ray: cores for a cell (1)")
    add_argument(
        "--gpus", metavar="SHARE", type=float, help="with ray: GPUs for a cell, as 0.25; default: 1"
    )
    add_argument(
        "--address", metavar="ADDRESS", help="with ray: of the cluster; default: the one found"
    )
    add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    add_argument("--dry-run", action="store_true", help="list the jobs and stop")
    add_argument("--quiet", action="store_true", help="show nothing but errors")


def read_place(options: argparse.Namespace) -> dict[str, Any]:
    """The same, as arguments of `compare` and `run_study`."""
    return {name: getattr(options, name) for name in PLACE}


def show_jobs(jobs: Any, report: Path, options: argparse.Namespace) -> None:
    """Print the jobs that would run."""
    from killick.experiments.scheduler import check_work
    from killick.results.run_folder import read_job

    place = (options.jobs, options.engine, options.cpus, options.gpus, options.address)
    check_work(report.parent, *place)
    for job in jobs:
        state = "finished" if job.finished else "begun" if read_job(job.folder) else "new"
        epochs = " + ".join(str(phase.recipe.epochs) for phase in job.phases)
        print(f"{state:9} {job.title:28} {epochs} epochs  {job.folder}")
    left = sum(not job.finished for job in jobs)
    print(f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}, {left} to run; report: {report}")
