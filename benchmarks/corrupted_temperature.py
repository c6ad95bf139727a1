"""A temperature fitted under corruption: is it as good for calibration as training that masks references?

    python benchmarks/corrupted_temperature.py studies/regularizers/*-seed* --results tempered.csv

One fitted on clean images is no fair control for methods that are calibrated under corruption. Here
each run has three: none, one fitted on its validation images, and one fitted on all corruptions of
these together. Calibration is measured on test images, as they are and corrupted: a line for each
temperature, written after every run. Runs with lines already, and those without validation images or
a recipe of their own (ensembles), are skipped.
"""

import argparse
import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from killick.corruptions.suites import SEVERITIES, list_corruptions
from killick.data.splits import limit_images
from killick.metrics.accuracy import nll
from killick.metrics.smooth_calibration import smooth_ece
from killick.metrics.temperature import fit_temperature
from killick.results.run_folder import read_job
from killick.studies.trained_job import TrainedJob, corrupt_images, open_job

Line = dict[str, float | int | str]


def fit(logits: Sequence[Tensor], labels: Tensor) -> dict[str, float]:
    """Temperatures by what they are fitted on; the first logits are of clean images."""
    clean, *corrupted = logits
    return {
        "nothing": 1.0,
        "clean": fit_temperature(clean, labels),
        "corrupted": fit_temperature(torch.cat(corrupted), labels.repeat(len(corrupted))),
    }


def measure(logits: Sequence[Tensor], labels: Tensor, temperature: float) -> dict[str, float]:
    """Calibration on clean images, and the mean over corruptions and severities."""
    each = []
    for scaled in (found / temperature for found in logits):
        confidence, prediction = scaled.softmax(1).max(1)
        each.append((smooth_ece(confidence, prediction == labels), nll(scaled, labels)))
    (clean_error, clean_nll), *corrupted = each
    errors, likelihoods = zip(*corrupted, strict=True)
    return {
        "smooth ECE, clean": clean_error,
        "NLL, clean": clean_nll,
        "smooth ECE, corrupted": statistics.fmean(errors),
        "NLL, corrupted": statistics.fmean(likelihoods),
    }


@torch.inference_mode()
def predict(job: TrainedJob, images: Tensor, tests: Sequence[tuple[str, int]]) -> list[Tensor]:
    """Logits of the images as they are, then under each corruption and severity."""
    sets = [images, *(corrupt_images(images, name, severity) for name, severity in tests)]
    return [torch.cat([job.model(part) for part in each.split(500)]) for each in sets]


def measure_run(
    folder: Path, tests: Sequence[tuple[str, int]], limit: int | None, device: str
) -> list[Line]:
    """A line for each temperature of a run."""
    job, about = open_job(folder, device), read_job(folder)
    held = job.parts.validation
    if held is None:
        return []
    held = limit_images(held, limit)
    temperatures = fit(predict(job, job.load_images(held), tests), held.labels.to(device))
    images, labels = job.load_test(limit)
    logits = predict(job, images, tests)
    name: Line = {"run": folder.name, "arm": str(about["arm"]), "seed": int(about["seed"])}
    return [
        {
            **name,
            "fitted_on": on,
            "temperature": round(temperature, 5),
            **{key: round(v, 5) for key, v in measure(logits, labels, temperature).items()},
        }
        for on, temperature in temperatures.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure the runs that have no lines yet."""
    parser = argparse.ArgumentParser(description="Temperatures fitted under corruption.")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of a comparison or study")
    parser.add_argument("--results", type=Path, required=True, help="CSV file, which is added to")
    parser.add_argument("--corruptions", help="comma-separated; default: those of C")
    parser.add_argument("--severities", default=",".join(map(str, SEVERITIES)))
    parser.add_argument("--limit", type=int, help="images of each set")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    names = (options.corruptions or ",".join(list_corruptions("c", "cifar"))).split(",")
    tests = [(name, int(severity)) for name in names for severity in options.severities.split(",")]
    lines: list[Line] = []
    if options.results.exists():
        with open(options.results, newline="", encoding="utf-8") as file:
            lines = [dict(line) for line in csv.DictReader(file)]
    done = {line["run"] for line in lines}
    for folder in options.runs:
        if folder.name in done or not (folder / "recipe.yaml").exists():
            continue
        if not read_job(folder).get("finished"):
            continue
        lines += measure_run(folder, tests, options.limit, options.device)
        with open(options.results, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(lines)
        print(*lines[-3:], sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
