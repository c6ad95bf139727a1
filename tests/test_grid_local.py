"""Jobs in subprocesses: beside each other, killed, stopped, and without a parent."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from grids import EVALUATION, collect_all, jobs_of, results_of, wait_for, write_recipe

from killick.experiments.job_runner import PROGRESS, run_job
from killick.experiments.jobs import Job
from killick.experiments.local_jobs import LOG, LocalJobs

LONG = "long:epochs=100000,protocol=standard"


@pytest.fixture
def recipe(image_folder, tmp_path) -> Path:
    return write_recipe(image_folder, tmp_path, epochs=1)


def local(jobs: list[Job], at_once: int = 2) -> LocalJobs:
    return LocalJobs(jobs, at_once=at_once, threads=1, devices=["cpu"], command=["killick"])


def training_process(job: Job) -> int | None:
    """The process of a job that has trained some steps."""
    try:
        found = json.loads((job.folder / PROGRESS).read_text())
    except OSError:
        return None
    return found["process"] if found["fraction"] > 0 else None


def test_a_job_has_the_rows_of_this_process_and_stopping_saves(recipe, tmp_path):
    """Images are read by workers, which must not inherit a locked standard input."""
    evaluation = {**EVALUATION, "workers": 1}
    settings = {"data.workers": 1, "data.resident": "never"}
    arms = ("standard", LONG, "waiting:lr=0.3")
    jobs = jobs_of(recipe, tmp_path / "a", *arms, evaluation=evaluation, **settings)
    good, stopped, waiting = jobs
    engine = local(jobs, at_once=1)
    ended = {}

    def good_ended():
        ended.update({job.title: result for job, result in engine.collect(0.2)})
        return good.title in ended and training_process(stopped)

    wait_for(good_ended)
    engine.stop()
    ended.update({job.title: result for job, result in engine.collect(0)})
    assert ended[good.title]["status"] == "finished"
    assert not (good.folder / LOG).exists()  # it printed nothing
    assert ended[stopped.title]["status"] == "interrupted"
    assert (stopped.folder / "checkpoint-before.pt").exists()  # the first one, before the last
    assert not waiting.folder.exists()
    (alone,) = jobs_of(recipe, tmp_path / "b", "standard", evaluation=evaluation, **settings)
    run_job(alone, threads=1)
    assert results_of([good]) == results_of([alone])


@pytest.mark.slow
def test_a_killed_job_stops_no_other(recipe, tmp_path):
    killed, good = jobs = jobs_of(recipe, tmp_path, LONG, "standard")
    engine = local(jobs, at_once=1)
    engine.collect(0)
    os.kill(wait_for(lambda: training_process(killed)), signal.SIGKILL)
    ended = collect_all(engine, 2)
    assert "SIGKILL" in ended[killed.title]["problem"]
    assert ended[good.title]["status"] == "finished"


@pytest.mark.slow
def test_a_process_without_its_parent_saves_and_ends(recipe, tmp_path):
    (long,) = jobs_of(recipe, tmp_path, LONG)
    process = subprocess.Popen(
        [sys.executable, "-m", "killick.experiments.local_jobs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    task = {"job": long.to_json(), "threads": 1, "device": "cpu", "command": []}
    process.stdin.write(json.dumps(task) + "\n")
    process.stdin.flush()
    wait_for(lambda: (long.folder / "metrics.jsonl").exists())
    output, _ = process.communicate(timeout=60)  # closes its input
    assert json.loads(output) == {"status": "interrupted"}
    assert process.returncode == 0


def test_a_process_that_cannot_be_started_is_a_failed_job(recipe, tmp_path):
    (job,) = jobs_of(recipe, tmp_path, "standard")
    job.folder.touch()  # no folder can be made there
    ended = collect_all(local([job]), 1)
    assert "cannot start" in ended[job.title]["problem"]
