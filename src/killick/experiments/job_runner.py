"""Runs one job: trains, evaluates and measures what its folder does not hold yet."""

import json
import os
import pkgutil
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from killick.data.sources import read_once
from killick.deploy.ensemble_builder import make_ensemble
from killick.errors import KillickError, find_reason
from killick.evaluation.evaluator import evaluate
from killick.evaluation.metric_values import TEST_SET
from killick.evaluation.threshold import store_threshold
from killick.experiments.jobs import Job, JobResult, Phase
from killick.results.measurements import Measured
from killick.results.rows import Row
from killick.results.run_folder import JOB, read_job
from killick.runtime.atomic_files import locked, write_atomic
from killick.runtime.processes import choose_device
from killick.runtime.progress import Display, DisplayFactory
from killick.storage.loading import read_config
from killick.training.checkpoint import BEFORE, LAST
from killick.training.loop import train

PROGRESS = "progress.json"
PROBLEM = "problem.txt"
_SECONDS_BETWEEN_WRITES = 0.5


def run_job(
    job: Job, *, threads: int | None = None, device: str = "auto", command: Sequence[str] = ()
) -> JobResult:
    """Train, evaluate and measure a job; errors are returned, not raised.

    `threads` are those of torch on a CPU; `command` is recorded in the run folder, to repeat it.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    began = time.monotonic()
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        with locked(job.folder, ".running"):
            if not job.finished and not _run(job, device, command):
                return {"status": "interrupted"}
        return {"status": "finished", "seconds": round(time.monotonic() - began, 1)}
    except KeyboardInterrupt:
        return {"status": "interrupted"}
    except KillickError as problem:
        return _failed(job, str(problem))
    except OSError as problem:
        return _failed(job, f"{problem.filename or job.folder}: {problem.strerror or problem}.")
    except Exception as problem:  # a bug, or no memory: other jobs go on
        line = f"{type(problem).__name__}: {find_reason(problem)}"
        return _failed(job, line, traceback.format_exc())


@read_once()
def _run(job: Job, device: str, command: Sequence[str]) -> bool:
    """Do what is left of a job; False if it was interrupted."""
    (job.folder / PROBLEM).unlink(missing_ok=True)
    before = read_job(job.folder)
    seconds = {"train": 0.0, "evaluate": 0.0, **before.get("seconds", {})}
    progress = _ProgressFile(job.folder, len(job.phases) + 1 + (job.measure is not None))

    def save(finished: bool) -> None:
        if not finished and before.get("finished"):  # earlier results stay valid
            return
        values = {
            "arm": job.arm,
            "seed": job.seed,
            "finished": finished,
            "evaluation_digest": job.evaluation_digest,
            "evaluation": job.evaluation_columns,
            "seconds": {name: round(value, 1) for name, value in seconds.items()},
            "command": list(command),
        }
        write_atomic(job.folder / JOB, json.dumps(values, indent=2) + "\n")

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        since = time.monotonic()
        yield
        seconds[name] = seconds.get(name, 0.0) + time.monotonic() - since

    save(finished=False)
    for number, phase in enumerate(job.phases):
        several = f" {number + 1}/{len(job.phases)}" if len(job.phases) > 1 else ""
        with timed("train"):
            done = _train(job, phase, progress.next_stage(f"training{several}"), device)
        save(finished=False)
        if not done:
            return False
    model = job.folder / "model"
    if job.members and not (model / "config.json").exists():
        make_ensemble(job.members, model)
    with timed("evaluate"):
        rows = evaluate(
            job.run or str(job.folder),
            **job.evaluation,
            device=device,
            folder=job.folder,
            show=progress.next_stage("evaluating"),
        )
        if job.run is None:
            _keep_threshold(model, rows, job.evaluation.get("acceptance", 0.95))
    if job.measure is not None:
        with timed("measure"):
            _measure(job, device, progress.next_stage("measuring"))
    save(finished=True)
    (job.folder / PROGRESS).unlink(missing_ok=True)
    return True


def _keep_threshold(model: Path, rows: Sequence[Row], acceptance: float) -> None:
    """Store the OOD threshold with a model that has none, if it was fitted on validation images."""
    fitted_on = {row["fitted_on"] for row in rows if row["metric"] == "threshold"}
    if fitted_on - {TEST_SET} and read_config(model).get("threshold") is None:
        store_threshold(model, rows, acceptance)


def rename_job(job: Job) -> None:
    """Record the present name of the arm in the folder of a finished job."""
    there = read_job(job.folder)
    if there.get("arm") != job.arm:
        write_atomic(job.folder / JOB, json.dumps({**there, "arm": job.arm}, indent=2) + "\n")


def _measure(job: Job, device: str, show: DisplayFactory) -> None:
    """Call the job's function as `measure(folder, options, kept, *, device, show)`."""
    assert job.measure is not None
    measure = pkgutil.resolve_name(job.measure)
    kept = Measured(job.folder, {"measure": job.measure, **job.options})
    measure(job.folder, job.options, kept, device=choose_device(device), show=show)


def _train(job: Job, phase: Phase, show: DisplayFactory, device: str) -> bool:
    """Train a phase, resume it, or use it as it is; False if it was interrupted."""
    folder = phase.folder
    folder.mkdir(parents=True, exist_ok=True)
    # Several jobs may start from it; the job's own folder is locked already.
    with nullcontext() if folder == job.folder else locked(folder, ".running"):
        if job.place is not None and not (folder / JOB).exists():  # reports leave it out
            write_atomic(folder / JOB, json.dumps({"finished": False}) + "\n")
        if (folder / "model" / "config.json").exists():
            return True
        if (folder / LAST).exists() or (folder / BEFORE).exists():
            return train(phase.recipe, folder, resume=True, device=device, show=show).finished
        return train(phase.recipe, folder, start=phase.start, device=device, show=show).finished


def _failed(job: Job, problem: str, trace: str | None = None) -> JobResult:
    with suppress(OSError, KillickError):  # the disk may be full
        (job.folder / PROGRESS).unlink(missing_ok=True)
        write_atomic(job.folder / PROBLEM, (trace or problem) + "\n")
    return {"status": "failed", "problem": problem}


class _ProgressFile(Display):
    """Writes how far a job is to `progress.json`, for a scheduler on any machine."""

    def __init__(self, folder: Path, stages: int) -> None:
        self._path, self._stages = folder / PROGRESS, stages
        self._number, self._stage = -1, ""
        self._total, self._text, self._written = 1, "", 0.0

    def next_stage(self, name: str) -> DisplayFactory:
        """The display for the next of the stages."""
        self._number, self._stage = self._number + 1, name
        return self._begin

    @contextmanager
    def _begin(self, title: str, total: int, done: int, unit: str) -> Iterator[Display]:
        self._total, self._written = max(1, total), 0.0
        self.update(done, "")
        yield self

    def advance(self, done: int) -> None:
        """Set how much is done."""
        self.update(done, self._text)

    def update(self, done: int, text: str, *, line: bool = False) -> None:
        """Set how much is done, and a short status."""
        self._text, now = text, time.monotonic()
        if now - self._written < _SECONDS_BETWEEN_WRITES:
            return
        self._written = now
        fraction = (self._number + done / self._total) / self._stages
        values = {"stage": self._stage, "fraction": fraction, "text": text, "process": os.getpid()}
        with suppress(KillickError):  # a full disk is reported by what matters
            write_atomic(self._path, json.dumps(values))
