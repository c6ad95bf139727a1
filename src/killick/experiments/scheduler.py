"""Runs jobs: where, how many at once, and with what progress display. Read `run_jobs`."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from killick.data.data_settings import EMBEDDED
from killick.data.sources import load_whole, read_once
from killick.data.training_sets import cut_sets
from killick.errors import DataError
from killick.evaluation.class_mapping import Alignment
from killick.experiments.execution import Execution
from killick.experiments.job_runner import PROGRESS, rename_job
from killick.experiments.jobs import Job, JobResult
from killick.experiments.jobs_here import JobsHere
from killick.experiments.local_jobs import LOG, LocalJobs, remove_empty
from killick.experiments.ray_jobs import RayJobs
from killick.results.rows import read_rows
from killick.runtime.atomic_files import make_folder
from killick.runtime.devices import count_cores, count_free_cores
from killick.runtime.progress import TerminalDisplay
from killick.runtime.signals import Interrupts

Engine = LocalJobs | RayJobs | JobsHere


class Failure(NamedTuple):
    """What failed, and why in a line."""

    title: str
    problem: str

    def __str__(self) -> str:
        return f"{self.title}: {self.problem}"


@dataclass(frozen=True)
class JobsOutcome:
    """What became of some jobs."""

    finished: list[Job] = field(default_factory=list)  # none while those of other parts are not
    failed: list[Failure] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)  # titles
    interrupted: bool = False  # by the user

    @property
    def missing(self) -> list[str]:
        """A line for each job that the report lacks."""
        return [*map(str, self.failed), *(f"{title}: not finished" for title in self.unfinished)]


class JobsDisplay(TerminalDisplay):
    """One bar for all jobs and one for each that runs; lines where there is no terminal."""

    def __init__(self, jobs: Sequence[Job], console: Console | None = None) -> None:
        super().__init__("jobs", len(jobs), console=console, unit="job")
        self._left, self._count = list(jobs), len(jobs)
        self._problems = set[str]()

    def end(self, job: Job, result: JobResult) -> None:
        """Report how a job ended."""
        self._left.remove(job)
        self.update_part(job.title, None)
        text: str = result["status"]
        if text == "finished":
            text = f"{_summarize(job)} ({result.get('seconds', 0):.0f} s)"
        elif text == "failed":
            problem = str(result.get("problem"))
            text += " for the same reason" if problem in self._problems else f": {problem}"
            self._problems.add(problem)
        self.message(f"{self._count - len(self._left)}/{self._count} {job.title}: {text}")

    def refresh(self) -> None:
        """Show what running jobs have written about their progress."""
        done, running = float(self._count - len(self._left)), []
        for job in self._left:
            found = _read_progress(job.folder)
            if found:
                done += found["fraction"]
                self.update_part(job.title, found["fraction"], found["text"] or found["stage"])
                running.append(f"{job.title} {found['stage']} {100 * found['fraction']:.0f} %")
        status = f"{self._count - len(self._left)}/{self._count}"
        self.update(done, status if self.is_live else "; ".join(running[:3]))


def run_jobs(jobs: Sequence[Job], output: Path, execution: Execution) -> JobsOutcome:
    """Run the jobs of this part that are not finished; the outcome is that of all jobs."""
    mine = execution.select(jobs)
    todo = [job for job in mine if not job.finished]
    results: dict[Path, JobResult] = {}
    interrupted = False
    if todo:
        if execution.engine != "ray":  # other machines may have data that this one lacks
            check_data(todo)
        make_folder(output)
        for job in todo:
            (job.folder / PROGRESS).unlink(missing_ok=True)
        with JobsDisplay(todo, Console(highlight=False, quiet=execution.quiet)) as display:
            engine, where = _make_engine(todo, len(jobs), execution)
            display.message(f"running {len(todo)} of {len(mine)} jobs in {output}{where}")
            interrupted = _follow(engine, todo, display, results)
    finished = [job for job in jobs if job.finished]
    failed = [
        Failure(job.title, result["problem"])
        for job in todo
        if (result := results.get(job.folder, {})).get("status") == "failed"
    ]
    known = {*(failure.title for failure in failed), *(job.title for job in finished)}
    unfinished = [job.title for job in jobs if job.title not in known]
    if execution.part is not None and len(finished) < len(jobs):
        finished = []
    for job in finished:
        rename_job(job)
        # What a killed process could leave.
        (job.folder / PROGRESS).unlink(missing_ok=True)
        remove_empty(job.folder / LOG)
    return JobsOutcome(finished, failed, unfinished, interrupted)


@read_once()
def check_data(jobs: Sequence[Job]) -> None:
    """Refuse data that would fail in every job: no test set, or shifted sets of other classes."""
    evaluation = jobs[0].evaluation
    given = {kind: dict(evaluation.get(kind) or {}) for kind in ("ood", "shift")}
    found = {
        (kind, name): load_whole(data) if isinstance(data, str) else data
        for kind, sets in given.items()
        for name, data in sets.items()
    }
    shifted = {
        name: images.class_names for (kind, name), images in found.items() if kind == "shift"
    }
    recipes = (phase.recipe for job in jobs for phase in job.phases)
    for recipe in {repr(recipe.data): recipe for recipe in recipes}.values():
        if recipe.data.name in EMBEDDED and not shifted:
            continue
        parts = cut_sets(recipe.data, recipe.seed)
        if parts.test is None and "data" not in evaluation:
            raise DataError(
                f"{recipe.data.name} has no test set, which the evaluation after training needs."
                " Give it a folder 'test' beside 'train', or more images of each class."
            )
        ours = parts.train.class_names
        for name, theirs in shifted.items():
            Alignment(name, theirs, ours, len(ours), evaluation.get("class_map"))


def _make_engine(todo: Sequence[Job], planned: int, execution: Execution) -> tuple[Engine, str]:
    """What runs the jobs, and how many at once in words."""
    if execution.engine == "here":
        return JobsHere(todo, execution), ""
    if execution.engine == "ray":
        return RayJobs(todo, execution), ""
    devices, usual = [execution.device], count_cores()
    if execution.device == "auto" and torch.cuda.is_available():
        devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if devices[0].startswith("cuda"):
        usual = len(devices)
    # Rounding depends on the number of threads, so it is that of all jobs, also when some are
    # finished or in another part: a job gives the same numbers alone and beside the others.
    at_once = min(execution.jobs or usual, planned)
    threads = max(1, count_cores() // at_once)
    if "OMP_NUM_THREADS" in os.environ:
        threads = torch.get_num_threads()
    if execution.jobs is None and not devices[0].startswith("cuda"):
        at_once = min(at_once, max(1, count_free_cores() // threads))
    jobs = LocalJobs(
        todo, at_once=at_once, threads=threads, devices=devices, command=execution.command
    )
    each = "1 thread" if threads == 1 else f"{threads} threads"
    return jobs, f", {at_once} at once, {each} each"


def _follow(
    engine: Engine,
    todo: Sequence[Job],
    display: JobsDisplay,
    results: dict[Path, JobResult],
) -> bool:
    """Collect results until all jobs ended; True if the user interrupted them."""
    try:
        with Interrupts() as interrupts:
            while len(results) < len(todo) and not interrupts.asked:
                for job, result in engine.collect(0.5):
                    results[job.folder] = result
                    display.end(job, result)
                display.refresh()
            if interrupts.asked:
                display.message("interrupted: saving the running jobs (Ctrl-C again to end now)")
                engine.stop()
                results.update({job.folder: result for job, result in engine.collect(0)})
    except KeyboardInterrupt:
        return True
    finally:
        engine.close()
    return interrupts.asked or any(each["status"] == "interrupted" for each in results.values())


def _summarize(job: Job) -> str:
    """The clean accuracy of a finished job."""
    wanted = {"suite": "clean", "metric": "top1", "inference": "single", **job.evaluation_columns}
    for row in read_rows(job.folder):
        if row["images"] and all(row[name] == value for name, value in wanted.items()):
            return f"clean accuracy {100 * float(row['value']):.1f} %"
    return "finished"


def _read_progress(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
