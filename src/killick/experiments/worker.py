"""A process of `LocalJobs`: cells come in on standard input, results go out; lines of JSON."""

import json
import os
import queue
import signal
import threading

from killick.experiments.job_runner import run_job
from killick.experiments.jobs import Job


def main() -> None:
    """Run cells until standard input ends."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not come between the results
    commands = os.dup(0)
    # Python's own object for it is locked while it is read, and processes that are forked meanwhile
    # (those that read pictures) would wait for that lock for ever.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_read, args=(commands, asked, busy), daemon=True).start()
    while (line := _next(asked)) is not None:
        busy.set()
        task = json.loads(line)
        result = run_job(
            Job.from_json(task["cell"]),
            threads=task["threads"],
            device=task["device"],
            command=task["command"],
        )
        busy.clear()
        results.write(json.dumps(result) + "\n")
        results.flush()
        if result["status"] == "interrupted":
            return


def _read(commands: int, asked: "queue.SimpleQueue[str | None]", busy: threading.Event) -> None:
    """Lines as they come; at the end, which is the parent's, what runs is interrupted."""
    begun = b""
    while more := os.read(commands, 2**16):
        *lines, begun = (begun + more).split(b"\n")
        for line in lines:
            asked.put(line.decode())
    asked.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGINT)


def _next(asked: "queue.SimpleQueue[str | None]") -> str | None:
    try:
        return asked.get()
    except KeyboardInterrupt:
        return None


if __name__ == "__main__":
    main()
