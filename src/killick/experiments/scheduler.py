"""Having cells run: by whom, how many at once, and with whom watching. Read `work`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from killick.errors import OptionError, check_option
from killick.experiments.job_progress import Watch
from killick.experiments.job_runner import PROGRESS, Result
from killick.experiments.jobs import Job
from killick.experiments.local_jobs import Engine, LocalJobs

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Worked:
    """What became of some cells.

    Attributes:
        failed: A line for each that failed.
        unfinished: A line for each that did not fail and is not finished.
        interrupted: Whether somebody interrupted it.
    """

    failed: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    interrupted: bool = False


def check_work(
    output: Path,
    jobs: int | None,
    engine: str,
    cpus: int | None = None,
    gpus: float | None = None,
    address: str | None = None,
) -> None:
    """Refuse what cannot be run before anything is made."""
    check_option("the engine", engine, ENGINES)
    if engine == "local":
        for option, given in (("cpus", cpus), ("gpus", gpus), ("address", address)):
            if given is not None:
                raise OptionError(
                    f"expected --{option} with --engine ray, found it without. On this machine"
                    " --jobs says how many cells share it."
                )
    if jobs is not None and jobs < 1:
        raise OptionError(f"expected at least 1 job, found {jobs}.")
    if output.exists() and not output.is_dir():
        raise OptionError(f"expected a folder to write to, found a file at {output}.")


def work(
    cells: Sequence[Job],
    output: Path,
    *,
    jobs: int | None = None,
    engine: str = "local",
    cpus: int | None = None,
    gpus: float | None = None,
    address: str | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    quiet: bool = False,
) -> Worked:
    """Run the cells that are not finished; the arguments are those of `compare`."""
    todo = [cell for cell in cells if not cell.finished]
    results: dict[Path, Result] = {}
    interrupted = False
    if todo:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise OptionError(
                f"expected a folder to write to, found none at {output}: {problem.strerror}."
            ) from None
        places = find_devices(device)
        threads = 1
        if engine == "local":
            # By all cells, also finished ones: rounding depends on the number of threads, and a
            # cell that is gone on with alone should end as it would have ended beside others.
            planned = min(jobs or usual_jobs(places), len(cells))
            threads, jobs = max(1, count_cores() // planned), min(planned, len(todo))
        with Watch(todo, jobs=jobs, quiet=quiet) as watch:
            if len(todo) < len(cells):
                watch.say(f"{len(cells) - len(todo)} of {len(cells)} cells are finished already")
            at_once = f", {jobs} at a time" if jobs is not None else ""
            count = "1 cell" if len(todo) == 1 else f"{len(todo)} cells"
            watch.say(f"{count} to train and evaluate{at_once}, into {output}")
            if engine == "local":
                assert jobs is not None
                running: Engine = LocalJobs(
                    todo,
                    jobs=jobs,
                    threads=threads,
                    devices=places,
                    command=list(command),
                    logs=output.absolute() / "logs",
                )
            else:
                from killick.experiments.ray_jobs import RayTasks

                running = RayTasks(
                    todo,
                    jobs=jobs,
                    cpus=1 if cpus is None else cpus,
                    gpus=gpus,
                    address=address,
                    command=list(command),
                    device=device,
                )
            interrupted = _follow(running, todo, watch, results)
    failed = [cell for cell in cells if results.get(cell.folder, {}).get("status") == "failed"]
    return Worked(
        [f"{cell.title}: {results[cell.folder]['problem']}" for cell in failed],
        [
            f"{cell.title}: not finished"
            for cell in cells
            if cell not in failed and not cell.finished
        ],
        interrupted,
    )


def _follow(
    engine: Engine, cells: Sequence[Job], watch: Watch, results: dict[Path, Result]
) -> bool:
    """Watch until all cells ended; True if somebody interrupted."""
    for cell in cells:
        (cell.folder / PROGRESS).unlink(missing_ok=True)
    try:
        while len(results) < len(cells):
            for cell, result in engine.collect(0.5):
                results[cell.folder] = result
                watch.end(cell, result)
            watch.look()
    except KeyboardInterrupt:
        watch.say("interrupted: cells that run are being saved (once more to end them at once)")
        engine.stop()
        results.update({cell.folder: result for cell, result in engine.collect(0.1)})
        return True
    finally:
        engine.close()
    return any(result["status"] == "interrupted" for result in results.values())


def find_devices(device: str) -> list[str]:
    """The devices that cells take in turn."""
    if device != "auto" or not torch.cuda.is_available():
        return [device]
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def usual_jobs(places: Sequence[str]) -> int:
    """One for each GPU; without, one for each core: small networks waste several."""
    if places[0].startswith("cuda"):
        return len(places)
    return count_cores()


def count_cores() -> int:
    """Those that this process may use."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return found or 1
