"""Training on a busy machine: threads by free cores against a fixed number. Claim: the best of both.

As many processes as asked for keep cores busy while `killick train` runs on the embedded shapes, in
turns with each choice of threads. The images per second are those of the run's last epoch.

    python benchmarks/busy_threads.py --busy 0 1 2
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BUSY = "while True: pass"
RESULTS = Path(__file__).parent / "results" / "busy-threads-cpu.csv"
CHOICES = {"by free cores": [], "1 thread": ["--threads", "1"], "all cores": ["--threads"]}


def measure(options: list[str]) -> tuple[float, int]:
    """Images per second of a short run, and the threads it took."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["--data.limit", "400", "--epochs", "2", "--protocol", "standard", "--quiet"]
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        subprocess.run(
            [sys.executable, "-m", "killick", "train", *words, *options, "--output", str(run)],
            check=True,
            env=environment,
        )
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        speeds = [line["images_per_second"] for line in lines if line["kind"] == "train"]
        return speeds[-1], json.loads((run / "environment.json").read_text())["threads"]


def main() -> None:
    """Measure in turns and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for busy in options.busy:
        processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
        try:
            for number in range(options.rounds):
                for name, words in CHOICES.items():
                    given = [*words, str(os.cpu_count())] if words == ["--threads"] else words
                    speed, threads = measure(given)
                    rows.append([busy, os.cpu_count(), name, number, threads, speed])
                    print(*rows[-1], sep=", ", flush=True)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    with open(RESULTS, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["busy_processes", "cores", "choice", "round", "threads", "images_per_second"]
        )
        writer.writerows(rows)


if __name__ == "__main__":
    main()
