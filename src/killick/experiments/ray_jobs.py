"""Jobs on a Ray cluster: Ray places them, and retries those whose machine or process was lost."""

import importlib
import logging
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from killick import __version__
from killick.errors import InstallError, OptionError, check_option
from killick.experiments.jobs import Job, JobResult
from killick.experiments.local_jobs import SECONDS_TO_SAVE

RETRIES = 3  # of a lost job; one that failed by itself is not retried
_SECONDS_TO_SEE_FOLDER = 20.0  # network file systems show new folders late

_log = logging.getLogger("killick")


class RayJobs:
    """Runs each job as a Ray task.

    Uses the cluster that this process has joined; else joins that of `address`, of RAY_ADDRESS or
    of this machine; else starts one here. All machines need this version of Killick, and the jobs'
    folder at the same path.

    Args:
        jobs: To run.
        at_once: At most so many tasks at a time; None leaves it to Ray.
        cpus: Cores for each job.
        gpus: GPUs for each job, also a share of one; None is 1 where the cluster has some.
        address: Of a cluster, as for `ray.init`.
        command: For the jobs' records.
        device: "auto", "cpu" or "cuda"; Ray chooses which GPU.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        at_once: int | None,
        cpus: int,
        gpus: float | None,
        address: str | None,
        command: Sequence[str],
        device: str = "auto",
    ) -> None:
        check_option("the device, which Ray numbers itself,", device, ("auto", "cpu", "cuda"))
        if cpus < 1:
            raise OptionError(f"--cpus must be at least 1, found {cpus}.")
        if gpus is not None and not 0 <= gpus <= 1:
            raise OptionError(f"--gpus must be from 0 to 1, found {gpus}: a job uses one GPU.")
        if gpus is not None and device != "auto" and (gpus > 0) != (device == "cuda"):
            raise OptionError(f"--gpus {gpus} contradicts --device {device}.")
        self._ray = import_ray()
        self._waiting, self._running = deque(jobs), dict[Any, Job]()
        self._at_once = at_once or len(jobs)
        self._stopping = False
        self._joined = _join(self._ray, address)
        if gpus is None:
            some = device == "auto" and self._ray.cluster_resources().get("GPU", 0)
            gpus = 1.0 if some or device == "cuda" else 0.0
        _warn_if_too_large(self._ray, cpus, gpus)
        self._arguments = {
            "version": __version__,
            "working_folder": os.getcwd(),
            "seconds": _SECONDS_TO_SEE_FOLDER,
            "options": {
                "threads": cpus,
                "device": "cuda" if gpus else "cpu",
                "command": list(command),
            },
        }
        self._task = _make_task(self._ray, cpus, gpus)

    def collect(self, seconds: float) -> list[tuple[Job, JobResult]]:
        """Submit jobs as there is room; return those that ended, after `seconds` at most."""
        while self._waiting and len(self._running) < self._at_once and not self._stopping:
            job = self._waiting.popleft()
            task = self._task.remote({**self._arguments, "job": job.to_json()})
            self._running[task] = job
        tasks = list(self._running)
        if not tasks:
            return []
        self._ray.wait(tasks, timeout=seconds)
        ended, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        return [(self._running.pop(task), self._result(task)) for task in ended]

    def stop(self) -> None:
        """Interrupt what runs and wait until it has saved; start nothing more."""
        self._stopping = True
        tasks = list(self._running)
        for task in tasks:
            self._ray.cancel(task)  # raises KeyboardInterrupt in the task
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=SECONDS_TO_SAVE)

    def close(self) -> None:
        """End what still runs, and leave the cluster."""
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._running.clear()
        if self._joined:
            self._ray.shutdown()
            self._joined = False

    def _result(self, task: Any) -> JobResult:
        try:
            result: JobResult = self._ray.get(task)
            return result
        except self._ray.exceptions.RayError as problem:
            if self._stopping:
                return {"status": "interrupted"}
            kind, line = type(problem).__name__, _first_line(problem)
            cause = getattr(problem, "cause", None)
            if isinstance(cause, BaseException):  # raised by the task
                kind, line = type(cause).__name__, _first_line(cause)
            hint = f"tried {RETRIES + 1} times; out of memory? Raise --cpus or --gpus"
            return {"status": "failed", "problem": f"Ray lost it: {kind}: {line} ({hint})."}


def import_ray() -> Any:
    """Ray, quiet and without usage statistics unless the user asks for them."""
    for name, value in (("RAY_DEDUP_LOGS_SKIP_REGEX", "."), ("RAY_USAGE_STATS_ENABLED", "0")):
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as problem:
        raise InstallError(
            f"--engine ray requires Ray ({problem}): pip install 'killick[ray]'."
        ) from problem


def _make_task(ray: Any, cpus: int, gpus: float) -> Any:
    # Ray pickles a nested function by value, so it can report a machine without Killick, or with
    # another version. It must not use names of this module.
    def run_on_node(arguments: dict[str, Any]) -> dict[str, Any]:
        import os
        import socket
        import time

        def failed(problem: str) -> dict[str, Any]:
            return {"status": "failed", "problem": f"on {socket.gethostname()}: {problem}"}

        wanted = arguments["version"]
        try:
            import killick

            found = killick.__version__
            from killick.experiments.job_runner import run_job
            from killick.experiments.jobs import Job
        except ImportError as problem:
            found = f"none ({problem})"
        if found != wanted:
            return failed(f"found killick {found}; install {wanted} on all machines.")
        job = Job.from_json(arguments["job"])
        until = time.monotonic() + arguments["seconds"]
        while not job.folder.parent.is_dir():
            if time.monotonic() > until:
                return failed(
                    f"no folder {job.folder.parent}; --output must be on storage that all machines"
                    " share, at the same path."
                )
            time.sleep(0.2)
        if os.path.isdir(arguments["working_folder"]):
            os.chdir(arguments["working_folder"])  # data may be given by a relative path
        result = run_job(job, **arguments["options"])
        if (
            result["status"] == "interrupted"
        ):  # by `stop`, or as its machine goes away: then retried
            raise InterruptedError("it was interrupted")
        return dict(result)

    return ray.remote(
        num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=[InterruptedError]
    )(run_on_node)


def _join(ray: Any, address: str | None) -> bool:
    """Join or start a cluster; False if this process is part of one already."""
    if ray.is_initialized():
        return False
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as problem:  # of many kinds
        where = "on this machine" if address is None else f"at {address}"
        raise OptionError(
            f"no Ray cluster {where} ({_first_line(problem)}). Start one with ray start --head, or"
            " use --address local for one of this machine alone."
        ) from problem
    return True


def _warn_if_too_large(ray: Any, cpus: int, gpus: float) -> None:
    """Ray waits silently for a machine that is large enough."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(each.get("CPU", 0) >= cpus and each.get("GPU", 0) >= gpus for each in nodes):
        _log.warning("no machine has %d cores and %g GPUs; jobs wait for one.", cpus, gpus)


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__).rstrip(".")
