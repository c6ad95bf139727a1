"""Who runs the cells: processes of this machine here, or a cluster (`on_ray`)."""

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from killick.experiments.job_runner import Result
from killick.experiments.jobs import Job

Ended = list[tuple[Job, Result]]
SECONDS_TO_SAVE = 60  # after an interrupt, before a process is killed


class Engine(Protocol):
    """Runs cells, in whatever order."""

    def collect(self, seconds: float) -> Ended:
        """Which cells ended meanwhile; waits for some at most so long."""
        ...

    def stop(self) -> None:
        """Interrupt what runs, and return when it has saved; what waits is not begun."""
        ...

    def close(self) -> None:
        """Leave nothing behind, once all cells ended."""
        ...


class LocalJobs:
    """Some processes, each running one cell after another.

    A process that dies takes its cell along, not the others: it is replaced. One whose parent is
    gone stops by itself, at the end of its standard input.

    Args:
        cells: To run.
        jobs: Processes.
        threads: Of torch in each, on a CPU.
        devices: Taken in turn by the processes.
        command: For the cells' records.
        logs: A folder for what processes print; those that print nothing leave nothing.
    """

    def __init__(
        self,
        cells: Sequence[Job],
        *,
        jobs: int,
        threads: int,
        devices: Sequence[str],
        command: list[str],
        logs: Path,
    ) -> None:
        self._waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for cell in cells:
            self._waiting.put(cell)
        self._ended: queue.SimpleQueue[tuple[Job, Result]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._logs, self._threads, self._command = logs, threads, command
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._lock = threading.Lock()
        self._serving = [
            threading.Thread(
                target=self._serve, args=(slot, devices[slot % len(devices)]), daemon=True
            )
            for slot in range(min(jobs, len(cells)))
        ]
        for thread in self._serving:
            thread.start()

    def collect(self, seconds: float) -> Ended:
        """Which cells ended meanwhile; waits for some at most so long."""
        ended = []
        try:
            ended.append(self._ended.get(timeout=seconds))
            while True:
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            return ended

    def stop(self) -> None:
        """Interrupt what runs, and return when it has saved; what waits is not begun."""
        with self._lock:
            self._stopping.set()
            running = list(self._processes.values())
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        until = time.monotonic() + SECONDS_TO_SAVE
        try:
            for thread in self._serving:
                thread.join(max(0.0, until - time.monotonic()))
        finally:  # also when somebody cannot wait: the last checkpoints are there
            for process in running:
                if process.poll() is None:
                    process.kill()

    def close(self) -> None:
        """Wait for the processes to end; remove the folder of their logs if it is empty."""
        for thread in self._serving:
            thread.join(SECONDS_TO_SAVE)
        with contextlib.suppress(OSError):
            self._logs.rmdir()

    def _serve(self, slot: int, device: str) -> None:
        """One process after another, until no cell waits."""
        log = self._logs / f"process-{slot}.txt"
        process: subprocess.Popen[str] | None = None
        try:
            while not self._stopping.is_set():
                try:
                    cell = self._waiting.get_nowait()
                except queue.Empty:
                    return
                if process is None:
                    try:
                        process = self._start(slot, log)
                    except OSError as problem:
                        told = f"cannot start a process: {problem.filename}: {problem.strerror}."
                        self._ended.put((cell, {"status": "failed", "problem": told}))
                        continue
                    if process is None:
                        return
                result = _ask(process, cell, self._threads, device, self._command)
                if result is None:
                    code, process = _end(process), None
                    result = {"status": "interrupted"}
                    if not self._stopping.is_set():
                        result = {"status": "failed", "problem": _death(code, log)}
                self._ended.put((cell, result))
        finally:
            if process is not None:
                _end(process)
            if log.exists() and log.stat().st_size == 0:
                log.unlink(missing_ok=True)

    def _start(self, slot: int, log: Path) -> "subprocess.Popen[str] | None":
        self._logs.mkdir(parents=True, exist_ok=True)
        with self._lock, open(log, "a") as output:
            if self._stopping.is_set():
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "killick.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent, who tells them
            )
            self._processes[slot] = process
            return process


def _ask(
    process: "subprocess.Popen[str]", cell: Job, threads: int, device: str, command: list[str]
) -> Result | None:
    """Have a process run a cell; None if it died."""
    assert process.stdin is not None
    assert process.stdout is not None
    asked = {"cell": cell.to_json(), "threads": threads, "device": device, "command": command}
    try:
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        return dict(json.loads(line)) if line else None
    except (OSError, ValueError):
        return None


def _end(process: "subprocess.Popen[str]") -> int:
    """Let a process end, as it does when it is told no more; its exit code."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):  # it may be gone
            pipe.close()
    return process.wait()


def _death(code: int, log: Path) -> str:
    how = f"exit code {code}"
    if code < 0:
        how = signal.Signals(-code).name
    hint = " (out of memory? Try fewer --jobs)" if code == -signal.SIGKILL else ""
    printed = log.exists() and log.stat().st_size > 0
    where = f"; what it printed is in {log}" if printed else ""
    return f"its process died with {how}{hint}{where}."
