"""Jobs on this machine, one subprocess each: one that dies takes no other with it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from killick.experiments.jobs import Job, JobResult
from killick.runtime.signals import ENDING

LOG = "log.txt"  # what a subprocess prints, in the folder of its job
SECONDS_TO_SAVE = 60  # after an interrupt, before a process is killed


class LocalJobs:
    """Runs jobs in subprocesses, `at_once` at a time, on `devices` in turn.

    `threads` are those of torch in each, on a CPU; `command` is for the jobs' records.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        at_once: int,
        threads: int,
        devices: Sequence[str],
        command: Sequence[str],
    ) -> None:
        self._waiting = deque(jobs)
        self._free = deque(devices[number % len(devices)] for number in range(at_once))
        self._task = {"threads": threads, "command": list(command)}
        self._running: dict[subprocess.Popen[bytes], tuple[Job, str]] = {}
        self._stopping = False

    def collect(self, seconds: float) -> list[tuple[Job, JobResult]]:
        """Start jobs as there is room; return those that ended, after `seconds` at most."""
        until = time.monotonic() + seconds
        while True:
            ended = [self._end(each) for each in list(self._running) if each.poll() is not None]
            while self._waiting and self._free:
                job = self._waiting.popleft()
                try:
                    self._start(job, self._free[0])
                except OSError as problem:
                    line = f"cannot start a process: {problem.filename}: {problem.strerror}."
                    ended.append((job, {"status": "failed", "problem": line}))
                else:
                    self._free.popleft()
            if ended or time.monotonic() >= until:
                return ended
            time.sleep(0.05)

    def stop(self) -> None:
        """Interrupt what runs and wait until it has saved; start nothing more."""
        self._stopping = True
        self._waiting.clear()
        for process in self._running:
            process.send_signal(signal.SIGINT)
        until = time.monotonic() + SECONDS_TO_SAVE
        try:
            for process in self._running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
        finally:  # a second Ctrl-C comes here at once
            self.close()

    def close(self) -> None:
        """End what still runs."""
        for process in self._running:
            process.kill()
            process.wait()

    def _start(self, job: Job, device: str) -> None:
        job.folder.mkdir(parents=True, exist_ok=True)
        with open(job.folder / LOG, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "killick.experiments.local_jobs"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which passes it on
            )
        self._running[process] = job, device
        assert process.stdin is not None
        task = {**self._task, "job": job.to_json(), "device": device}
        with suppress(OSError):  # it died at once, as `collect` will find
            process.stdin.write(json.dumps(task).encode() + b"\n")

    def _end(self, process: "subprocess.Popen[bytes]") -> tuple[Job, JobResult]:
        job, device = self._running.pop(process)
        self._free.append(device)
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)  # its own children may keep the pipe open
        written = process.stdout.read()
        process.stdin.close()
        process.stdout.close()
        log = job.folder / LOG
        printed = not remove_empty(log)
        if written:
            result: JobResult = json.loads(written)
            return job, result
        if self._stopping:
            return job, {"status": "interrupted"}
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        hint = " (out of memory? Try fewer --jobs)" if code == -signal.SIGKILL else ""
        output = f"; its output is in {log}" if printed else ""
        return job, {"status": "failed", "problem": f"its process died with {how}{hint}{output}."}


def remove_empty(log: Path) -> bool:
    """Remove a log in which nothing was printed; False if there is something in it."""
    with suppress(FileNotFoundError):  # another process may have removed it
        if log.stat().st_size:
            return False
        log.unlink()
    return True


def main() -> None:
    """Run the job on standard input; print its result. The end of the input interrupts it."""
    for number in (signal.SIGINT, *ENDING):  # may be ignored, as in a background shell
        signal.signal(number, signal.default_int_handler)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    try:
        task = json.loads(sys.stdin.readline())
        threading.Thread(target=_interrupt_without_parent, daemon=True).start()
        from killick.experiments.job_runner import run_job

        job = Job.from_json(task.pop("job"))
        result = run_job(job, **task)
    except KeyboardInterrupt:
        result = {"status": "interrupted"}
    output.write(json.dumps(result))
    output.close()


def _interrupt_without_parent() -> None:
    os.read(0, 1)  # returns when the parent is gone; not sys.stdin, whose lock forks would inherit
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
