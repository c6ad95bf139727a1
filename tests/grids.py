"""Small comparisons, shared by the tests of experiments."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from runs import small

from killick.experiments.arms import parse_arms
from killick.experiments.job_runner import run_job
from killick.experiments.jobs import Job, JobResult, make_jobs
from killick.results.rows import Row, read_rows

DEVICE = "cpu"  # of jobs that run in this process
# Seconds: one corruption, few images, two references.
EVALUATION = {
    "suites": ["clean", "corruptions", "calibration"],
    "corruptions": ["fog"],
    "severities": [3],
    "references": 2,
    "workers": 0,
}


def write_recipe(image_folder: Path, folder: Path, **changes) -> Path:
    """A recipe of seconds, as a file."""
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(asdict(small(image_folder, data__workers=0, **changes))))
    return file


def jobs_of(recipe: Path, output: Path, *arms: str, seeds=(0,), evaluation=EVALUATION, **settings):
    """The jobs of a comparison."""
    return make_jobs(recipe, settings, parse_arms(arms), seeds, output, evaluation)


def results_of(jobs: list[Job]) -> dict[str, list[Row]]:
    """The rows of each job."""
    return {
        job.title: sorted(read_rows(job.folder), key=lambda row: sorted(map(str, row.items())))
        for job in jobs
    }


def wait_for(condition: Callable[[], Any], seconds: float = 150.0) -> Any:
    """What the condition returns, once that is true."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def collect_all(engine: Any, count: int) -> dict[str, JobResult]:
    """How the jobs of an engine ended, by title."""
    ended: dict[str, JobResult] = {}

    def all_there() -> bool:
        ended.update({job.title: result for job, result in engine.collect(0.2)})
        return len(ended) == count

    wait_for(all_there)
    assert engine.collect(0) == []
    engine.close()
    return ended


class HereJobs:
    """In the place of `LocalJobs`: runs jobs in this process, which saves starting others."""

    def __init__(self, jobs: list[Job], **options) -> None:
        self._waiting = deque(jobs)
        self._command = options["command"]

    def collect(self, seconds: float):
        """Run the next job."""
        job = self._waiting.popleft()
        return [(job, run_job(job, device=DEVICE, command=self._command))]

    def stop(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
