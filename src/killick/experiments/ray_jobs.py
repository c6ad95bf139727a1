"""Cells on a Ray cluster: Ray places them, and tries again what a lost machine took along."""

import importlib
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from killick import __version__
from killick.errors import InstallError, OptionError, check_option
from killick.experiments.job_runner import Result
from killick.experiments.jobs import Job
from killick.experiments.local_jobs import SECONDS_TO_SAVE, Ended

RETRIES = 3  # of a cell whose process or machine was lost; one that failed is not tried again
# Network file systems show a new file late, but not as late as this.
_SECONDS_TO_SEE_MARKER = 20.0
_OBJECT_BYTES = 100 * 2**20  # of a cluster that is ours; results are a few bytes each

_log = logging.getLogger("killick")


class RayTasks:
    """A task of Ray for each cell; which machine runs it when is left to Ray.

    A process that has called `ray.init` is used as it is. Otherwise the cluster at `address` is
    joined, or that of RAY_ADDRESS, or one that was started on this machine, or else one is started
    here, which ends with the engine.

    Every machine needs this version of Killick, and the cells' folder at the same path.

    Args:
        cells: To run.
        jobs: At most so many at once; None leaves it to what the cluster has.
        cpus: Cores for each cell.
        gpus: GPUs for each cell, also a share of one; None is 1 where the cluster has some.
        address: Of a cluster, as for `ray.init`.
        command: For the cells' records.
        device: "auto", "cpu" or "cuda"; which GPU it is, Ray decides.
    """

    def __init__(
        self,
        cells: Sequence[Job],
        *,
        jobs: int | None,
        cpus: int,
        gpus: float | None,
        address: str | None,
        command: list[str],
        device: str = "auto",
    ) -> None:
        _check_options(cpus, gpus, device)
        self._ray = _import_ray()
        self._closing = ExitStack()
        self._ended: Ended = []
        self._running: dict[Any, Job] = {}
        self._waiting = deque(cells)
        self._jobs = jobs or len(cells)
        self._stopping = False
        try:
            ours = _join(self._ray, address, self._closing)
            share = _share_of_gpu(self._ray, gpus, device)
            _check_room(self._ray, cpus, share, ours)
            self._markers = {
                folder: _mark(folder, self._closing) for folder in {c.folder.parent for c in cells}
            }
            self._asked = {
                "version": __version__,
                "seconds": _SECONDS_TO_SEE_MARKER,
                "place": os.getcwd(),
                "threads": cpus,
                "device": "cuda" if share else "cpu",
                "command": command,
            }
            self._task = _make_task(self._ray, cpus, share)
            self._submit()
        except BaseException:
            self._closing.close()
            raise

    def collect(self, seconds: float) -> Ended:
        """Which cells ended meanwhile; waits for some at most so long."""
        if self._running:
            self._gather(1, seconds)
            self._submit()
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        """Interrupt what runs, and return when it has saved; what waits is not begun."""
        self._stopping = True
        try:
            for task in self._running:
                self._ray.cancel(task)  # what a task sees is Ctrl-C
            if self._running:
                self._gather(len(self._running), SECONDS_TO_SAVE)
        finally:  # also when somebody cannot wait: the last checkpoints are there
            self.close()

    def close(self) -> None:
        """End what runs still, and leave the cluster."""
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._running.clear()
        self._closing.close()

    def _submit(self) -> None:
        while self._waiting and len(self._running) < self._jobs:
            cell = self._waiting.popleft()
            marker = str(self._markers[cell.folder.parent])
            asked = {**self._asked, "cell": cell.to_json(), "marker": marker}
            self._running[self._task.remote(asked)] = cell

    def _gather(self, count: int, seconds: float) -> None:
        """Wait for so many tasks at most so long; note all that ended."""
        tasks = list(self._running)
        self._ray.wait(tasks, num_returns=count, timeout=seconds)
        for task in self._ray.wait(tasks, num_returns=len(tasks), timeout=0)[0]:
            self._ended.append((self._running[task], self._result(task)))
            del self._running[task]

    def _result(self, task: Any) -> Result:
        try:
            return dict(self._ray.get(task))
        except self._ray.exceptions.RayError as problem:
            if self._stopping:
                return {"status": "interrupted"}
            return {"status": "failed", "problem": _in_a_line(problem)}


def _make_task(ray: Any, cpus: int, gpus: float) -> Any:
    """What a machine of the cluster does for a cell."""

    # Ray sends a function that is inside another as it is, not by its name: so it can tell of a
    # machine that has no Killick, or another one. It must not use names of this module.
    def run_on_node(asked: dict[str, Any]) -> dict[str, Any]:
        import os
        import socket
        import time

        def failed(problem: str) -> dict[str, Any]:
            return {"status": "failed", "problem": f"on the machine {host}, {problem}"}

        host = socket.gethostname()
        try:
            import killick

            if killick.__version__ != asked["version"]:
                return failed(
                    f"expected killick {asked['version']} as here, found {killick.__version__}. Install"
                    " the same on all machines of the cluster."
                )
            from killick.experiments.job_runner import run_job
            from killick.experiments.jobs import Job
        except ImportError as problem:
            return failed(
                f"expected killick {asked['version']} as here, found none that works ({problem})."
                " Install it on all machines of the cluster."
            )
        until = time.monotonic() + asked["seconds"]
        while not os.path.exists(asked["marker"]):
            if time.monotonic() > until:
                return failed(
                    f"expected the folder {os.path.dirname(asked['marker'])} as it is here, found"
                    " another or none: results and checkpoints are kept there, so --output must be"
                    " on storage that all machines of the cluster share, at the same path."
                )
            time.sleep(0.2)
        if os.path.isdir(asked["place"]):
            os.chdir(asked["place"])  # data may be given by a relative path
        result = run_job(
            Job.from_json(asked["cell"]),
            threads=asked["threads"],
            device=asked["device"],
            command=asked["command"],
        )
        if result["status"] == "interrupted":
            # By `stop`, or because its machine is being taken away: only then Ray tries again.
            raise InterruptedError("it was interrupted")
        return result

    return ray.remote(
        num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=[InterruptedError]
    )(run_on_node)


def _import_ray() -> Any:
    try:
        # Ray tells of lost machines at length, on standard output; it reads this when imported.
        with _environment("RAY_DEDUP_LOGS_SKIP_REGEX", "."):
            return importlib.import_module("ray")
    except ImportError as problem:
        raise InstallError(
            f"expected the library ray for the engine ray, found none ({problem}). Install it:"
            " pip install 'killick[ray]'."
        ) from problem


def _check_options(cpus: int, gpus: float | None, device: str) -> None:
    check_option("the device, of which Ray chooses the number,", device, ("auto", "cpu", "cuda"))
    if cpus < 1:
        raise OptionError(f"expected at least 1 core for a cell, found {cpus}.")
    if gpus is not None and not 0 <= gpus <= 1:
        raise OptionError(f"expected from 0 to 1 GPU for a cell, which uses one, found {gpus}.")
    if gpus is not None and device != "auto" and (gpus > 0) != (device == "cuda"):
        raise OptionError(f"expected GPUs for cuda and none for cpu, found {gpus} for {device}.")


def _join(ray: Any, address: str | None, closing: ExitStack) -> bool:
    """Be part of a cluster; True if it was started for this, and gets no more machines."""
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    closing.callback(ray.shutdown)
    try:
        if address in (None, "local"):
            try:
                with _environment("RAY_USAGE_STATS_ENABLED", "0"):
                    ray.init(
                        address,
                        include_dashboard=False,
                        object_store_memory=_OBJECT_BYTES,
                        **quiet,
                    )
                return True
            except ValueError:  # there is one here already, whose memory is not ours to choose
                pass
        ray.init(address, **quiet)
        return False
    except Exception as problem:  # Ray has many kinds, also plain ones
        raise OptionError(
            f"expected a Ray cluster {'on this machine' if address is None else f'at {address}'},"
            f" found none to join ({_first_line(problem)}). Start one with ray start --head, give"
            " its --address HOST:PORT, or --address local for one of this machine alone."
        ) from problem


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable that is set meanwhile; what the user has set stays."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _share_of_gpu(ray: Any, gpus: float | None, device: str) -> float:
    if gpus is not None:
        return gpus
    if device == "auto":
        return 1.0 if ray.cluster_resources().get("GPU", 0) else 0.0
    return 1.0 if device == "cuda" else 0.0


def _check_room(ray: Any, cpus: int, gpus: float, ours: bool) -> None:
    """Ray waits in silence for a machine that is large enough; here it is said."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(each.get("CPU", 0) >= cpus and each.get("GPU", 0) >= gpus for each in found):
        return
    there = "; ".join(f"{each.get('CPU', 0):g} and {each.get('GPU', 0):g}" for each in found)
    wanted = f"expected a machine with {cpus} cores and {gpus:g} GPUs for a cell, found {there}"
    if ours:
        raise OptionError(f"{wanted}. Ask for less: --cpus, --gpus.")
    _log.warning("%s; cells wait until the cluster has one.", wanted)


def _mark(folder: Path, closing: ExitStack) -> Path:
    """A file that machines find if the folder is shared."""
    marker = folder / f".shared-{uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as problem:
        raise OptionError(f"cannot write into {folder}: {problem.strerror}.") from problem
    closing.callback(marker.unlink, missing_ok=True)
    return marker


def _in_a_line(problem: Exception) -> str:
    """Why Ray has no result."""
    kind, cause = type(problem).__name__, getattr(problem, "cause", None)
    if isinstance(cause, BaseException):  # raised by the task
        return f"{_first_line(cause)}, and so it was each time Ray tried it."
    if kind == "TaskCancelledError":
        return "somebody cancelled it in Ray."
    if kind in ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "LocalRayletDiedError"):
        return (
            f"its process or machine was lost, and so it was each time Ray tried again ({kind}; out"
            " of memory? More --cpus or --gpus leave room for fewer cells at once)."
        )
    return f"Ray could not run it: {kind}: {_first_line(problem)}"


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__
