"""Jobs in this process, one after another: with a network or data that only it has."""

from collections import deque
from collections.abc import Sequence

from killick.experiments.execution import Execution
from killick.experiments.job_runner import run_job
from killick.experiments.jobs import Job, JobResult


class JobsHere:
    """Runs a job each time results are collected."""

    def __init__(self, jobs: Sequence[Job], execution: Execution) -> None:
        self._waiting, self._execution = deque(jobs), execution

    def collect(self, seconds: float) -> list[tuple[Job, JobResult]]:
        """Run the next job; after an interrupt the others are not begun."""
        if not self._waiting:
            return []
        job, how = self._waiting.popleft(), self._execution
        result = run_job(job, device=how.device, command=how.command)
        if result["status"] != "interrupted":
            return [(job, result)]
        left = [job, *self._waiting]
        self._waiting.clear()
        return [(each, {"status": "interrupted"}) for each in left]

    def stop(self) -> None:
        """Begin no other job."""
        self._waiting.clear()

    def close(self) -> None:
        """Nothing is left to end."""
