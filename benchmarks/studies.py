"""All studies at their small size, one after the other: what they find, and how long they take.

    python benchmarks/studies.py                    # an hour on two cores
    python benchmarks/studies.py alpha inference    # some

For each, `study.csv` goes to `results/studies/`, and the seconds to `times.csv` there.
"""

import argparse
import csv
import os
import shutil
import tempfile
import time
from pathlib import Path

from killick.studies import find_study, study_names
from killick.studies.study import make_plan
from killick.studies.study_runner import plan_jobs, run_study

RESULTS = Path(__file__).parent / "results" / "studies"


def main() -> None:
    """Run some studies, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*study_names(), []], help="which; default: all"
    )
    parser.add_argument("--work", type=Path, help="where their folders are; default: elsewhere")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="studies-"))
    for name in options.names or study_names():
        plan = make_plan(find_study(name))
        jobs = plan_jobs(plan, work / name)
        since = time.monotonic()
        ran = run_study(plan, work / name, command=["killick", "study", name])
        seconds = time.monotonic() - since
        assert not ran.failed, ran.failed
        shutil.copy(work / name / "study.csv", RESULTS / f"{name}.csv")
        _note_time(name, len(jobs), seconds)
        print(f"{name}: {seconds:.0f} s")


def _note_time(name: str, cells: int, seconds: float) -> None:
    """Put a line into `times.csv`, in the place of an older one."""
    path = RESULTS / "times.csv"
    lines = {}
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            lines = {line["study"]: line for line in csv.DictReader(file)}
    cores = len(os.sched_getaffinity(0))
    lines[name] = {
        "study": name,
        "cells": str(cells),
        "cores": str(cores),
        "seconds": f"{seconds:.0f}",
    }
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["study", "cells", "cores", "seconds"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines[each] for each in study_names() if each in lines)


if __name__ == "__main__":
    main()
