"""The demo three times, with other seeds each time: does it give the same answers?

    python benchmarks/demo_reruns.py --work demo

`killick compare` without other arguments than seeds and folder. `results/demo/seeds-0-4.csv` and
the others are the `summary.csv` of each; `results/demo/time.csv` how long they took. A finished
comparison in the folder is used again and leaves the time as it is. `control-*.csv` have the arm
masked-tuning beside its control, which is tuned as long without masks; the time is without it.
"""

import argparse
import csv
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "demo"
RERUNS = (range(5), range(100, 105), range(200, 205))
FIELDS = ("seeds", "wall seconds", "cpu seconds", "load before")


def main() -> None:
    """Run or reuse the comparisons; copy their summaries."""
    parser = argparse.ArgumentParser(description="The demo, three times with other seeds.")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the comparisons")
    work = parser.parse_args().work
    RESULTS.mkdir(exist_ok=True)
    for seeds in RERUNS:
        name = f"seeds-{seeds[0]}-{seeds[-1]}"
        begun = (work / name).exists()
        load, before = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
        since = time.monotonic()
        compare(seeds, work / name)
        wall, after = time.monotonic() - since, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        shutil.copyfile(work / name / "summary.csv", RESULTS / f"{name}.csv")
        if not begun:
            record_time(dict(zip(FIELDS, (name, round(wall), round(cpu), load), strict=True)))
        compare(
            seeds,
            work / name,
            "--arm",
            "standard-tuning",
            "--arm",
            "masked-tuning",
            "--baseline",
            "standard-tuning",
        )
        shutil.copyfile(work / name / "summary.csv", RESULTS / f"control-{name}.csv")


def compare(seeds: range, output: Path, *words: str) -> None:
    """The demo with these seeds."""
    words = (*words, "--seeds", ",".join(map(str, seeds)), "--output", str(output))
    subprocess.run([sys.executable, "-m", "killick", "compare", *words], check=True)


def record_time(found: dict[str, object]) -> None:
    """Replace the line of these seeds."""
    file, lines = RESULTS / "time.csv", [found]
    if file.exists():
        with open(file, newline="", encoding="utf-8") as kept:
            lines = [row for row in csv.DictReader(kept) if row["seeds"] != found["seeds"]] + lines
    with open(file, "w", newline="", encoding="utf-8") as opened:
        table = csv.DictWriter(opened, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(lines)


if __name__ == "__main__":
    main()
