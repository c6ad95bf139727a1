"""How the budget of `shapes-compare` was fixed, and what it decides.

    python benchmarks/budget.py --jobs 14        # minutes on a GPU

Two runs take less than a minute of a core: 3,500 images for 12 epochs, the first choice, and
1,500 for 40, of 1.4 times its cost. Masked networks have more to learn: they lose in the first,
where no arm has converged, and win in the second and in all longer ones. The recipe is the second:
the standard network, which the rule looks at, has learned its training set by heart. That rule was
found after looking at all arms.
"""

import argparse
import csv
import tempfile
from pathlib import Path

from killick.experiments.arms import parse_arms
from killick.experiments.jobs import Job, make_jobs
from killick.experiments.local_jobs import LocalJobs
from killick.results.rows import Row
from killick.results.run_folder import read_run

RESULTS = Path(__file__).parent / "results"
BUDGETS = [(1500, 12), (1500, 40), (1500, 120), (3500, 12), (3500, 40), (3500, 120)]
ARMS = ("standard", "anchored", "masked-label")
SEEDS = (0, 1, 2)
COLUMNS: dict[str, dict[str, object]] = {
    "clean": {"suite": "clean", "metric": "top1"},
    "corrupted": {"mean_of": "c", "severity": "all", "metric": "top1"},
    "severity 5": {"mean_of": "c", "severity": 5, "metric": "top1"},
    "smooth ECE": {"suite": "clean", "metric": "smooth_ece", "scaling": ""},
    "smooth ECE, corrupted": {
        "mean_of": "c",
        "severity": "all",
        "metric": "smooth_ece",
        "scaling": "",
    },
}


def main() -> None:
    """Train and evaluate all budgets, and write a table."""
    parser = argparse.ArgumentParser(description="How the budget of shapes-compare was fixed.")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, help="run folders; kept, and gone on with")
    parser.add_argument("--results", type=Path, default=RESULTS / "shapes-compare-budget.csv")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run(options.output or Path(scratch), options)


def run(output: Path, options: argparse.Namespace) -> None:
    """All cells side by side; the table grows as they end."""
    budgets: dict[Path, tuple[int, int]] = {}
    cells: list[Job] = []
    for images, epochs in sorted(BUDGETS, key=lambda budget: -budget[0] * budget[1]):
        settings = {
            "data.limit": images,  # beside 500 for validation
            "epochs": epochs,
            "precision": "float32",
            "execution": "eager",  # many small runs share a GPU: compiling each would take longer
        }
        asked = {"limit": 1000, "references": 1}
        made = make_jobs("shapes-compare", settings, parse_arms(ARMS), SEEDS, output, asked)
        budgets |= {cell.folder: (images, epochs) for cell in made}
        cells += made
    todo = [cell for cell in cells if not cell.finished]
    jobs = LocalJobs(
        todo,
        at_once=options.jobs,
        threads=1,
        devices=[options.device],
        command=["python", "benchmarks/budget.py"],
    )
    left = len(todo)
    while left:
        for cell, result in jobs.collect(5):
            left -= 1
            print(*budgets[cell.folder], cell.title, result, flush=True)
            write_table(cells, budgets, options.results)
    jobs.close()
    write_table(cells, budgets, options.results)


def write_table(cells: list[Job], budgets: dict[Path, tuple[int, int]], path: Path) -> None:
    """A line for each cell that is finished."""
    lines = []
    for cell in cells:
        if not cell.finished:
            continue
        found = read_run(cell.folder)
        trained = [e["accuracy"] for e in found.metrics if e["kind"] == "train"]
        detected = [
            row["value"]
            for row in found.rows
            if row["metric"] == "auroc" and row["score"] == "energy" and row["k"] in ("", 1)
        ]
        images, epochs = budgets[cell.folder]
        lines.append(
            {
                "images": images,
                "epochs": epochs,
                "arm": cell.arm,
                "seed": cell.seed,
                "training accuracy": trained[-2] if len(trained) > 1 else trained[-1],
                **{name: pick(found.rows, wanted) for name, wanted in COLUMNS.items()},
                "OOD AUROC": sum(detected) / len(detected),
            }
        )
    if not lines:
        return
    lines.sort(key=lambda line: (line["images"], line["epochs"], ARMS.index(str(line["arm"]))))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        for line in lines:
            short = {k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}
            writer.writerow(short)


def pick(rows: list[Row], wanted: dict[str, object]) -> float:
    """The value of the one row that is wanted, as an evaluation of 1,000 images has it."""
    (value,) = [
        row["value"]
        for row in rows
        if row["inference"] == "single"
        and row["limit"] == 1000
        and all(row[name] == value for name, value in wanted.items())
    ]
    return float(value)


if __name__ == "__main__":
    main()
