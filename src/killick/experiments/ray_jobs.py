"""Jobs on a Ray cluster: Ray places them, and retries those whose machine or process was lost."""

import logging
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from killick import __version__
from killick.errors import OptionError, check_option, find_reason, import_library
from killick.experiments.execution import Execution
from killick.experiments.jobs import Job, JobResult
from killick.experiments.local_jobs import SECONDS_TO_SAVE

RETRIES = 3  # of a lost job; one that failed by itself is not retried
_RAY_VARIABLES = {
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as later versions do; else it warns
}
_SECONDS_TO_SEE_FOLDER = 20.0  # network file systems show new folders late

_log = logging.getLogger("killick")


class RayJobs:
    """Runs each job as a Ray task.

    Uses the cluster that this process has joined; else joins that of `address`, of RAY_ADDRESS or
    of this machine; else starts one here. All machines need this version of Killick, and the jobs'
    folder at the same path. Ray chooses which GPU.
    """

    def __init__(self, jobs: Sequence[Job], execution: Execution) -> None:
        cpus, gpus, device = execution.cpus or 1, execution.gpus, execution.device
        check_option("the device, which Ray numbers itself,", device, ("auto", "cpu", "cuda"))
        if cpus < 1 or not 0 <= (gpus or 0) <= 1:
            raise OptionError("a job uses at least 1 of --cpus, and from 0 to 1 of --gpus.")
        self._ray = import_ray()
        self._waiting, self._running = deque(jobs), dict[Any, Job]()
        self._at_once = execution.jobs or len(jobs)
        self._stopping = False
        self._joined = _join(self._ray, execution.address)
        if gpus is None:
            some = device == "auto" and self._ray.cluster_resources().get("GPU", 0)
            gpus = 1.0 if some or device == "cuda" else 0.0
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(each.get("CPU", 0) >= cpus and each.get("GPU", 0) >= gpus for each in nodes):
            _log.warning("no machine has %d cores and %g GPUs; jobs wait for one.", cpus, gpus)
        device = "cuda" if gpus else "cpu"
        self._arguments = {
            "version": __version__,
            "working_folder": os.getcwd(),
            "seconds": _SECONDS_TO_SEE_FOLDER,
            "options": {"threads": cpus, "device": device, "command": list(execution.command)},
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
            cause = getattr(problem, "cause", None) or problem  # raised by the task
            hint = f"tried {RETRIES + 1} times; out of memory? Raise --cpus or --gpus"
            line = f"Ray lost it: {type(cause).__name__}: {find_reason(cause)} ({hint})."
            return {"status": "failed", "problem": line}


def import_ray() -> Any:
    """Ray, quiet and without usage statistics unless the user asks for them."""
    for name, value in _RAY_VARIABLES.items():
        os.environ.setdefault(name, value)
    return import_library("ray", "ray", "--engine ray")


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
        if result["status"] == "interrupted":  # its machine goes away: retried, unless stopped
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
            f"no Ray cluster {where} ({find_reason(problem)}). Start one with ray start --head, or"
            " use --address local for one of this machine alone."
        ) from problem
    return True
