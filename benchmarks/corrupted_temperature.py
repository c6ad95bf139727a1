"""A temperature that was fitted under corruption: does it give what the chosen settings give?

    python benchmarks/corrupted_temperature.py --data pack:cifar10.npz --work tempered

The settings of docs/evidence.md that are best calibrated under corruption were chosen under
corruption, on images held back. A temperature fitted on clean images is no fair control for
that; one that is fitted on corrupted images is. Each arm is trained as in the grid `tempered` of
`evidence.py`, 5,000 training images set aside. Two temperatures are fitted on those: on them as
they are, and on all of C made of them, five severities, all logits together. The test set is then
judged with each, and with none: a line each in `results/cifar10/corrupted-temperature.csv`, which
grows after every model. Finished models are not trained again.

Nine models, about two minutes each on an H200; less with `--jobs 3` under NVIDIA's MPS.
"""

import argparse
import csv
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from evidence import CHOSEN, HELD
from paired_timing import RESULTS
from torch import Tensor

import killick
from killick.cli import main as killick_command
from killick.corruptions.suites import SEVERITIES, list_corruptions
from killick.data.image_set import ImageSet
from killick.evaluation.classifier import Classifier, open_classifier
from killick.metrics.accuracy import nll
from killick.metrics.smooth_calibration import smooth_ece
from killick.metrics.temperature import fit_temperature
from killick.results.run_folder import read_job
from killick.training import load_recipe
from killick.training.training_data import sets_of

FILE = RESULTS / "cifar10" / "corrupted-temperature.csv"
ARMS = ("standard", "finetuned", CHOSEN)
BATCH = 2000
Judged = dict[str, float | int | str]


@torch.inference_mode()
def answers(
    classifier: Classifier, images: Tensor, corruptions: Sequence[str], seed: int
) -> Iterator[Tensor]:
    """Logits of the images as they are, then of each corruption at each severity."""
    generator = torch.Generator(images.device).manual_seed(seed)
    for name, severity in [("", 0), *((n, s) for n in corruptions for s in SEVERITIES)]:
        parts = []
        for part in images.split(BATCH):
            if name:
                part = killick.corrupt(part, name, severity, generator=generator)
            parts.append(classifier.logits(part)[0])
        yield torch.cat(parts)


def fit(found: Sequence[Tensor], labels: Tensor) -> dict[str, float]:
    """Temperatures by what they are fitted on: nothing, images as they are, corrupted ones."""
    corrupted = torch.cat(list(found[1:]))
    return {
        "nothing": 1.0,
        "clean": fit_temperature(found[0], labels),
        "corrupted": fit_temperature(corrupted, labels.repeat(len(found) - 1)),
    }


def judge(found: Sequence[Tensor], labels: Tensor, temperature: float) -> dict[str, float]:
    """Calibration of the images as they are, and the mean over corruptions and severities."""
    each = []
    for logits in found:
        confidence, answer = (logits / temperature).softmax(1).max(1)
        error = smooth_ece(confidence, answer == labels)
        each.append((error, nll(logits / temperature, labels)))
    (clean_error, clean_nll), *corrupted = each
    errors, likelihoods = zip(*corrupted, strict=True)
    return {
        "smooth ECE, clean": clean_error,
        "NLL, clean": clean_nll,
        "smooth ECE, corrupted": statistics.fmean(errors),
        "NLL, corrupted": statistics.fmean(likelihoods),
    }


def measure(run: Path, corruptions: Sequence[str], device: str, limit: int | None) -> list[Judged]:
    """A line for each temperature of one model."""
    recipe = load_recipe(run / "recipe.yaml")
    parts, cell = sets_of(recipe), read_job(run)
    classifier = open_classifier(run / "model", references=1, device=device)

    def ask(images: ImageSet | None, seed: int) -> tuple[list[Tensor], Tensor]:
        assert images is not None
        images = images.part(torch.arange(min(limit or len(images), len(images))))
        pixels, labels = images.images().to(device), images.labels.to(device)
        return list(answers(classifier, pixels, corruptions, seed)), labels

    temperatures = fit(*ask(parts.validation, seed=1))
    found, labels = ask(parts.test, seed=0)
    about: Judged = {"arm": str(cell["arm"]), "seed": int(cell["seed"]), "epochs": recipe.epochs}
    return [
        {
            **about,
            "fitted_on": on,
            "temperature": round(temperature, 5),
            **{name: round(v, 5) for name, v in judge(found, labels, temperature).items()},
        }
        for on, temperature in temperatures.items()
    ]


def measure_all(
    runs: Sequence[Path], corruptions: Sequence[str], device: str, limit: int | None, jobs: int
) -> Iterator[list[Judged]]:
    """The lines of each model, in the order of the models; `jobs` of them are asked at once."""
    one = partial(measure, corruptions=corruptions, device=device, limit=limit)
    if jobs == 1:
        yield from map(one, runs)
        return
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=fresh) as pool:
        yield from pool.map(one, runs)


def write(path: Path, lines: Sequence[Judged]) -> None:
    """All lines so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(lines)


def main(arguments: list[str] | None = None) -> int:
    """Train what is not trained yet, and measure all."""
    parser = argparse.ArgumentParser(description="A temperature fitted under corruption.")
    parser.add_argument("--data", required=True, help="CIFAR-10, as killick takes it")
    parser.add_argument("--work", type=Path, required=True, help="folder of the models")
    parser.add_argument("--recipe", default="cifar10-resnet18")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--aside", type=int, default=HELD, help="training images to fit on")
    parser.add_argument("--arms", help="only these, comma-separated")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--corruptions", help="comma-separated; default: the 19 of C")
    parser.add_argument("--limit", type=int, help="images of each set, to try the script")
    parser.add_argument("--jobs", type=int, help="models that are trained, and asked, at once")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--results", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    corruptions = (options.corruptions or "").split(",")
    corruptions = corruptions if corruptions != [""] else list(list_corruptions("c", "cifar"))
    words = ["compare", "--recipe", options.recipe, "--data", options.data, "--suite", "clean"]
    words += ["--data.validation", str(options.aside), "--epochs", str(options.epochs)]
    for arm in ARMS:
        if not options.arms or arm.partition(":")[0] in options.arms.split(","):
            words += ["--arm", arm]
    words += ["--seeds", options.seeds, "--references", "1", "--device", options.device]
    words += ["--baseline", options.arms.split(",")[0]] if options.arms else []
    words += ["--output", str(options.work)]
    words += ["--jobs", str(options.jobs)] if options.jobs else []
    code = killick_command(words)
    lines: list[Judged] = []
    runs = [path.parent for path in sorted(options.work.glob("*/job.json"))]
    runs = [run for run in runs if read_job(run).get("finished")]
    jobs = options.jobs or 1
    for found in measure_all(runs, corruptions, options.device, options.limit, jobs):
        lines += found
        write(options.results, lines)
        print(*found, sep="\n", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
