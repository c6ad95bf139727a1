"""Threads on a busy machine: images per second with threads by free cores, and with all cores.

    python benchmarks/busy_threads.py [--busy 4] [--repeats 3]

Other processes keep the cores busy while `killick train` runs a few epochs on the embedded shapes,
in turn with the default threads and with one for each core. Writes
benchmarks/results/busy-threads.csv.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "busy-threads.csv"
TRAIN = ["train", "--recipe", "shapes-small", "--epochs", "2", "--data.limit", "2000", "--quiet"]


def measure(threads: list[str]) -> float:
    """Images per second of the second epoch."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "killick", *TRAIN, "--output", folder, *threads]
        plain = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        subprocess.run(command, check=True, env=plain)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    entries = [entry for entry in map(json.loads, lines) if entry["kind"] == "train"]
    return float(entries[-1]["images_per_second"])


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--busy", type=int, default=4, help="processes that keep the cores busy")
parser.add_argument("--repeats", type=int, default=3)
options = parser.parse_args()
arms = {"free cores (default)": [], "all cores": ["--threads", str(os.cpu_count())]}
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
try:
    found = {name: list[float]() for name in arms}
    for _ in range(options.repeats):
        for name, threads in arms.items():
            found[name].append(measure(threads))
finally:
    for process in busy:
        process.kill()
with RESULTS.open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("threads", "cores", "busy", "images_per_second", "lowest", "highest"))
    for name, speeds in found.items():
        row = (name, os.cpu_count(), options.busy, statistics.median(speeds))
        writer.writerow((*row, min(speeds), max(speeds)))
        print(*row, min(speeds), max(speeds))
