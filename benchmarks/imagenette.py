"""The method on Imagenette, ten classes of ImageNet: at 224 px on a GPU, or at 64 px on a CPU.

    python benchmarks/imagenette.py --data imagenette --work grid
    python benchmarks/imagenette.py --data imagenette --work grid --size 64 --device cpu

`--data` is a folder with `train` and `test`. By Killick's own commands:

1. ResNet-18, seeds 0 to 2: standard; masked towards the label; half standard, then masked.
2. At once: the finished standard networks tuned for 10 epochs, with masks and without; two classes
   held out of training, seed 0, which are an OOD set then; ViT-S/16 and ResNet-50, seed 0.

At 64 px only the ResNet-18 is trained: standard, masked, and the finished networks tuned as long with
masks and without, seeds 0 to 2, all in bfloat16; 1,000 test images; rows in `results/imagenette-64px/`.

Each run is evaluated on clean images, C and C-bar at severities 1, 3 and 5, calibration with and without a
temperature (fitted on 500 training images set aside), and OOD images. `results/imagenette/runs.csv`
has what people ask of each run, `corruptions.csv` its accuracy for each corruption. They are written
when a run ends, and what is in them is not run again. `--tiny` tries it.
"""

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from paired_timing import RESULTS
from regularizers import finished, read, write

from killick.results.rows import Row
from killick.results.run_folder import Run, read_run

RECIPE = "imagenette-resnet18"
SUITES = "clean,corruptions,cbar,calibration,ood"
SCRATCH = ("standard", "masked-label", "finetuned")
SMALL = ("standard", "masked-label", "masked-tuning", "standard-tuning")
# As in cifar10-vit; set before any run.
VIT = (
    *("--network", "timm:vit_small_patch16_224", "--optimizer.name", "adamw"),
    *("--optimizer.lr", "0.001", "--optimizer.weight_decay", "0.05", "--optimizer.clip", "1.0"),
    *("--optimizer.decay", "matrices", "--schedule.warmup", "0.1", "--schedule.final", "0.01"),
)
KEY = ("part", "arm", "seed")
MADE = ("noise", "blobs", "scrambled")


class Grid:
    """The parts, and the files of their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.tiny = options, options.tiny
        self.runs, self.corruptions = (
            options.results / name for name in ("runs.csv", "corruptions.csv")
        )
        self._started: list[tuple[str, Path, subprocess.Popen[bytes]]] = []

    def compare(
        self,
        part: str,
        arms: Sequence[str],
        seeds: Sequence[int],
        epochs: int,
        data: Path,
        *more: str,
    ) -> Path:
        """Begin to train and evaluate arms, unless all have results; the folder of the runs."""
        name = "-".join([*part.replace(",", "").split(), *map(str, seeds)])
        folder: Path = self.options.work / name
        done = {(line["part"], line["arm"], line["seed"]) for line in read(self.runs)}
        names = [arm.partition(":")[0] for arm in arms]
        if all((part, name, str(seed)) in done for name in names for seed in seeds):
            return folder
        words = ["compare", "--recipe", RECIPE, "--data", f"imagefolder:{data}"]
        words += [word for arm in arms for word in ("--arm", arm)]
        words += ["--seeds", ",".join(map(str, seeds)), "--epochs", str(2 if self.tiny else epochs)]
        words += ["--suite", SUITES, "--output", str(folder), "--device", self.options.device]
        words += ["--evaluation-precision", "bfloat16", "--severities", "1,3,5"]
        words += ["--references", "1", "--jobs", str(len(arms) * len(seeds)), *more]
        if self.tiny:
            words += ["--data.size", "32", "--data.validation", "20", "--batch", "8"]
            words += ["--limit", "10", "--corruptions", "fog,blue_noise_sample"]
        print("killick", shlex.join(words), flush=True)
        process = subprocess.Popen([sys.executable, "-m", "killick", *words])
        self._started.append((part, folder, process))
        return folder

    def wait(self) -> None:
        """Keep the results of what has begun until it ends."""
        while self._started:
            time.sleep(2 if self.tiny else 10)
            ended = [each for each in self._started if each[2].poll() is not None]
            for part, folder, _ in self._started:
                self.keep(part, map(read_run, finished(folder)))
            self._started = [each for each in self._started if each not in ended]
            if any(process.returncode for _, _, process in ended):
                sys.exit(1)

    def keep(self, part: str, runs: Iterable[Run]) -> None:
        """Add the results of runs to the files, in the place of older ones."""
        lines, details = read(self.runs), read(self.corruptions)
        for run in runs:
            about = {"part": part, "arm": run.job["arm"], "seed": str(run.job["seed"])}
            lines, details = (
                [line for line in each if any(line[key] != about[key] for key in KEY)]
                for each in (lines, details)
            )
            rows = [row for row in run.rows if row["inference"] in ("single", "")]
            lines.append(about | {"network": run.recipe["network"]["name"]} | summarize(rows))
            details += [about | found for found in by_corruption(rows)]
        if lines:
            write(self.runs, lines)
            write(self.corruptions, details)

    def run(self) -> None:
        """All parts in their order, as many at once as fit."""
        data, seeds = self.options.data, (0,) if self.tiny else (0, 1, 2)
        if self.options.size != 224:
            size = ("--data.size", str(self.options.size), "--precision", "bfloat16")
            part = f"resnet18, {self.options.size} px"
            self.compare(part, SMALL, seeds, 40, data, *size, "--limit", "1000", "--jobs", "2")
            self.wait()
            return
        folder = self.compare("resnet18", SCRATCH, seeds, 40, data)
        self.wait()
        rate = ("--optimizer.lr", "0.01")
        for seed in seeds:
            start = next(iter(folder.glob(f"standard-seed{seed}-*")), None)
            if start is not None:
                arms = [f"{arm}:from={start}" for arm in SCRATCH[:2]]
                self.compare("resnet18, 10 epochs more", arms, [seed], 10, data, *rate)
        if not self.tiny:
            eight, two = hold_out(data, self.options.work / "held-out")
            ood = ("--ood", f"held-out classes=imagefolder:{two}")
            self.compare("resnet18, eight classes", SCRATCH[:2], [0], 40, eight, *ood)
            self.compare("vit-s", SCRATCH[:2], [0], 40, data, *VIT)
            self.compare("resnet50", SCRATCH[:2], [0], 40, data, "--network", "timm:resnet50")
        self.wait()


def hold_out(data: Path, work: Path) -> tuple[Path, Path]:
    """Folders with all but the last two classes, and with the test images of these two."""
    if work.exists():
        shutil.rmtree(work)
    classes = sorted(os.listdir(data / "train"))
    for kind in ("train", "test"):
        for name in classes[:-2]:
            shutil.copytree(data / kind / name, work / "eight" / kind / name)
    for name in classes[-2:]:
        shutil.copytree(data / "test" / name, work / "two" / name)
    return work / "eight", work / "two"


def summarize(rows: Sequence[Row]) -> dict[str, str]:
    """What people ask of a run first; means over corruptions and severities."""

    def mean(suite: str, metric: str, scaling: str = "", **where: object) -> str:
        found = {  # the last of each set: training has written the accuracy on clean images, too
            (row["set"], row["corruption"], row["severity"]): float(row["value"])
            for row in rows
            if (row["suite"], row["metric"], row["scaling"]) == (suite, metric, scaling)
            and row["mean_of"] == ""
            and row["score"] in ("", "energy")
            and all(row[key] == value for key, value in where.items())
        }
        return f"{statistics.fmean(found.values()):.4f}" if found else ""

    tempered = "temperature"
    found = {
        "clean": mean("clean", "top1"),
        "corrupted": mean("corruptions", "top1"),
        "severity 5": mean("corruptions", "top1", severity=5),
        "C-bar": mean("cbar", "top1"),
        "smooth ECE, clean": mean("clean", "smooth_ece"),
        "smooth ECE, corrupted": mean("corruptions", "smooth_ece"),
        "smooth ECE, corrupted, temperature": mean("corruptions", "smooth_ece", tempered),
        "NLL, corrupted": mean("corruptions", "nll"),
        "NLL, corrupted, temperature": mean("corruptions", "nll", tempered),
        "temperature": mean("clean", tempered),
    }
    sets = (*MADE, "held-out classes")
    return found | {f"OOD AUROC, {name}": mean("ood", "auroc", set=name) for name in sets}


def by_corruption(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Accuracy and calibration for each corruption and severity."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row["suite"] not in ("corruptions", "cbar") or row["mean_of"] or row["scaling"]:
            continue
        if row["metric"] in ("top1", "smooth_ece"):
            place = (str(row["corruption"]), str(row["severity"]))
            line = found.setdefault(place, {"corruption": place[0], "severity": place[1]})
            line[row["metric"]] = f"{float(row['value']):.4f}"
    return list(found.values())


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with train and test")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--results", type=Path, help="default: results/imagenette, -64px at 64 px")
    parser.add_argument("--size", type=int, default=224, help="of the images (224)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--tiny", action="store_true", help="try it")
    options = parser.parse_args(arguments)
    if options.results is None:
        folder = "imagenette" if options.size == 224 else f"imagenette-{options.size}px"
        options.results = RESULTS / folder
    Grid(options).run()


if __name__ == "__main__":
    main()
