"""How many epochs does it take to tune a finished network with masked references?

    python benchmarks/tuning_epochs.py pack:cifar10.npz --work tuning      # half an hour of one core

A standard network is trained to the end (60 epochs on 5,000 images of CIFAR-10), then tuned for 1, 2, 5,
10 or 20 epochs at a tenth of the learning rate, with masked references and without: equal budgets,
three seeds. Size, learning rate and epochs were set before any tuned network was evaluated; data
and network were chosen on the standard network alone, so that half an hour of one core is enough.

Every network is evaluated on 500 test images under 19 corruptions at five severities. `epochs.csv`
has accuracy and calibration of each; `reliability.csv` accuracy against confidence in 15 bins of equal
width, over all corrupted images. The same command goes on where it stopped;
`python docs/evidence_figures.py` draws the figures.
"""

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paired_timing import RESULTS

from killick.experiments.arms import ARMS, Arm
from killick.experiments.experiment import compare
from killick.experiments.jobs import Job
from killick.metrics import reliability
from killick.results.predictions import prediction_files, read_predictions
from killick.results.run_folder import read_run

FOLDER = RESULTS / "tuning"
SEEDS, EPOCHS = (0, 1, 2), (1, 2, 5, 10, 20)
FINISHED = Arm("finished", ARMS["standard"].settings)
LR = 0.01  # a tenth of the recipe's
SETTINGS: dict[str, Any] = {
    "network.name": "killick:resnet_small",
    "network.arguments": {"width": 32, "stride": 2},
    "data.limit": 5000,
    "epochs": 60,
}
TINY: dict[str, Any] = {
    "network.name": "killick:resnet_small",
    "network.arguments": {"stride": 2},
    "data.limit": 256,
    "epochs": 1,
    "batch": 64,
}
MEASURES: dict[str, dict[str, str]] = {
    "clean": {"suite": "clean", "metric": "top1"},
    "corrupted": {"mean_of": "c", "severity": "all", "metric": "top1"},
    "severity 5": {"mean_of": "c", "severity": "5", "metric": "top1"},
    "smooth ECE": {"suite": "clean", "metric": "smooth_ece"},
    "smooth ECE, corrupted": {"mean_of": "c", "severity": "all", "metric": "smooth_ece"},
}


def make_arms(epochs: Iterable[int] = EPOCHS) -> list[Arm]:
    """The finished network, then each budget with masks and without."""
    arms = [FINISHED]
    for count in epochs:
        for protocol in ("standard", "masked-label"):
            settings = {**ARMS[protocol].settings, "epochs": count, "optimizer.lr": LR}
            if protocol != "standard":
                settings["protocol.stem"] = "exact"
            arms.append(Arm(f"{protocol}-{count}", settings, after=FINISHED))
    return arms


def measure(job: Job) -> dict[str, object]:
    """The line of one network in `epochs.csv`."""
    limit = job.evaluation["limit"]  # without one: the accuracy after training, on all test images
    rows = [row for row in read_run(job.folder).rows if row["limit"] == limit]
    return about(job) | {name: round(pick(rows, MEASURES[name]), 5) for name in MEASURES}


def about(job: Job) -> dict[str, object]:
    """Which network it is."""
    training, _, epochs = job.arm.rpartition("-")
    return {"tuning": training or "none", "epochs": epochs if training else 0, "seed": job.seed}


def pick(rows: Sequence[dict[str, Any]], wanted: dict[str, str]) -> float:
    """The value of the one row that is wanted, without a temperature."""
    wanted = {"inference": "single", "scaling": "", **wanted}
    (value,) = [row["value"] for row in rows if all(str(row[key]) == wanted[key] for key in wanted)]
    return float(value)


def bin_confidence(job: Job) -> list[dict[str, object]]:
    """The lines of one network in `reliability.csv`, over all of its corrupted images."""
    found = [read_predictions(path) for path in prediction_files(job.folder)]
    found = [each for each in found if each.about["suite"] == "corruptions"]
    confidence, correct = (
        torch.from_numpy(np.concatenate([each.single[key] for each in found]))
        for key in ("confidence", "correct")
    )
    bins = reliability(confidence, correct)
    columns = zip(bins.edges[:-1], bins.confidence, bins.accuracy, bins.count, strict=True)
    return [
        about(job)
        | {
            "bin from": round(float(edge), 4),
            "images": int(count),
            "confidence": round(float(mean), 5),
            "accuracy": round(float(accuracy), 5),
        }
        for edge, mean, accuracy, count in columns
        if count
    ]


def write_table(path: Path, lines: Sequence[dict[str, object]]) -> None:
    """Lines as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main() -> None:
    """Train and evaluate all networks, and write both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", help="CIFAR-10, as pack:cifar10.npz or cifar10")
    parser.add_argument("--work", type=Path, default=Path("tuning"), help="run folders")
    parser.add_argument("--results", type=Path, default=FOLDER)
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    options = parser.parse_args()
    compared = compare(
        "cifar10-resnet18",
        settings={**(TINY if options.tiny else SETTINGS), "data.name": options.data},
        arms=make_arms((1, 2) if options.tiny else EPOCHS),
        seeds=SEEDS[:1] if options.tiny else SEEDS,
        output=options.work,
        baseline="finished",
        evaluation={
            "suites": ["clean", "corruptions", "calibration"],
            "limit": 20 if options.tiny else 500,
            "references": 1,
        },
        engine="here",
        device="cpu",
    )
    if compared.failed or compared.interrupted:
        raise SystemExit("not all networks are there; the same command goes on.")
    write_table(options.results / "epochs.csv", [measure(job) for job in compared.jobs])
    lines = [line for job in compared.jobs for line in bin_confidence(job)]
    write_table(options.results / "reliability.csv", lines)


if __name__ == "__main__":
    main()
