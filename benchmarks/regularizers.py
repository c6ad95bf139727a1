"""Regularizers beside anchoring on CIFAR-10, in five parts: ResNet-18 on a GPU, or small on a CPU.

    python benchmarks/regularizers.py --data pack:cifar10.npz --work grid --ood-pack ood.npz
    python benchmarks/regularizers.py --data pack:cifar10.npz --work grid --size small

1. Each method alone, 20 epochs, one seed, without the last 5,000 training images, evaluated on 2,000 of
   these under five corruptions. The best four have the lowest negative log-likelihood there; the rule
   was set before anything was run.
2. Standard, the best four, and each with masked references, 60 epochs, three seeds, all suites; dropout
   with MC dropout; then for each arm the ensemble of its three seeds.
3. Temperatures fitted under corruption, of the runs of part 2 (`corrupted_temperature.py`).
4. A finished network, tuned for 10 epochs: standard, masked, Mixout, very large dropout.
5. A fifth of the training labels wrong: methods against that, each also with masked references, trained
   as in part 2; test images, and how many of the wrong labels are memorized, in `noise.csv`.

The size small, for two cores, has 5,000 training images, a small ResNet, 500 test images, severities 1, 3
and 5, and wrong labels in part 5 alone. The same command goes on where it stopped. `runs.csv` in `--results`
has a line for each run, with the columns of `killick study regularizers`; it is written after each part.
`--size tiny` tries everything at a size that means nothing.
"""

import argparse
import csv
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import corrupted_temperature
import torch
from evidence import OOD_SETS, hold_back
from paired_timing import RESULTS

from killick.cli import main as killick_command
from killick.report.evaluations import choose_evaluations
from killick.results.measurements import Measured
from killick.results.run_folder import Run, read_job, read_run
from killick.runtime.progress import choose_display
from killick.studies import label_noise
from killick.studies.regularizers import COLUMNS, Column

Line = dict[str, str]

FIVE = "gaussian_noise,motion_blur,fog,pixelate,jpeg_compression"
METHODS = (
    *("gridmask", "progressive_data_dropout", "progressive_learning", "dropout", "dropblock"),
    *("stochastic_depth", "multi_sample_dropout", "nested_dropout", "co_teaching", "acls", "ps_kd"),
    *("elr", "spectral_decoupling", "sam", "gradient_penalty", "swa", "trivialaugment", "augmix"),
    *("label_smoothing", "mixup:mixup=0.2"),
)
ATTENTIVE = "attentive_cutmix"  # its extractor is the run without a method
SUITES = "clean,corruptions,cbar,occlusion,adversarial,calibration,ood,conformal,multiplicity"
TUNING = ("standard", "masked-label", "mixout", "dropout:rate=0.9")
HARDEST = Column("C, severity 5", "corruptions", "top1", severity=5)
NOISY = (
    *("standard", "masked-label", "elr", "elr+masked-label", "co_teaching"),
    *("co_teaching+masked-label", "nested_dropout+co_teaching"),
    "nested_dropout+co_teaching+masked-label",
)
COSTS = ("training_cost", "inference_cost")


@dataclass(frozen=True)
class Size:
    """How much of it is run, and on what."""

    settings: tuple[str, ...] = ("--recipe", "cifar10-resnet18")
    epochs: tuple[int, int, int] = (20, 60, 10)  # of parts 1, 2 and 4
    validation: str = "5000"
    held: tuple[str, ...] = ("--limit", "2000", "--corruptions", FIVE)  # images of part 1
    test: tuple[str, ...] = ()  # images of the others
    seeds: str = "0,1,2"
    methods: tuple[str, ...] = (*METHODS, ATTENTIVE)
    noisy: tuple[str, ...] = NOISY  # arms of part 5
    noisy_seeds: str = "0,1,2"


_SMALL_NET = ("--network", "killick:resnet_small", "--network.arguments", "{stride: 2}")
_FEW = ("--limit", "20", "--severities", "3")
SIZES = {
    "full": Size(),
    "small": Size(
        (*Size.settings, *_SMALL_NET, "--data.limit", "5000"),
        validation="500",
        test=("--limit", "500", "--severities", "1,3,5"),
        methods=METHODS,
        noisy=NOISY[:4],
        noisy_seeds="0,1",
    ),
    "tiny": Size(
        ("--recipe", "shapes-compare", "--data.limit", "300", "--batch", "50"),
        epochs=(1, 1, 1),
        validation="60",
        held=("--limit", "20", "--corruptions", "fog", "--severities", "3"),
        test=_FEW,
        seeds="0,1",
        methods=(METHODS[0], ATTENTIVE),
        noisy=NOISY[:3],
        noisy_seeds="0",
    ),
}


class Grid:
    """The parts, as commands of Killick."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.work, self.size = options, options.work, SIZES[options.size]

    @property
    def split(self) -> list[str]:
        """The images of parts 2, 4 and 5.

        One split for all seeds: an ensemble of them must not have seen its validation images.
        """
        words = ["--data", self.options.data, *self.size.test]
        return [*words, "--data.seed", "0", "--data.validation", self.size.validation]

    def train(self, name: str, epochs: int, *command: str) -> list[Path]:
        """Run a command of Killick that trains, with what all have in common; its run folders."""
        folder = self.work / name
        words = [*command, *self.size.settings, "--epochs", str(epochs), "--seeds"]
        words += [{"alone": "0", "noise": self.size.noisy_seeds}.get(name, self.size.seeds)]
        words += ["--output", str(folder), "--device", self.options.device]
        words += ["--jobs", str(self.options.jobs)] if self.options.jobs else []
        call(words)
        return finished(folder)

    def keep(self, part: str, folders: Sequence[Path]) -> None:
        """Write the lines of a part, in the place of older ones."""
        file: Path = self.options.results / "runs.csv"
        lines = [line for line in read(file) if line["part"] != part]
        lines += [describe(part, run) for run in choose_evaluations(list(map(read_run, folders)))]
        write(file, lines)

    @property
    def ood(self) -> list[str]:
        """The OOD sets beside the built-in ones."""
        pack = self.options.ood_pack
        return [w for n in OOD_SETS for w in ("--ood", f"{n}=pack:{pack}#{n}")] if pack else []

    def part1(self) -> None:
        """Each method alone."""
        held = self.work / "held.npz"
        hold_back(self.options.data, held)
        words = ["--protocols", "standard", "--label-noise", "0", "--data", f"pack:{held}"]
        words += ["--suite", "clean,corruptions,calibration", *self.size.held]

        def train(*methods: str) -> list[Path]:
            study = ["study", "regularizers", "--methods", ",".join(methods)]
            return self.train("alone", self.size.epochs[0], *study, *words)

        train("none")
        (extractor,) = (self.work / "alone").glob("standard-seed0-*")
        extracting = {ATTENTIVE: f"{ATTENTIVE}:extractor={extractor}"}
        self.keep("alone", train("none", *(extracting.get(m, m) for m in self.size.methods)))

    def best(self) -> list[str]:
        """The four methods of part 1 with the lowest NLL under corruption."""
        with open(self.work / "alone" / "figures" / "study-regularizers-table.csv") as file:
            found = {line["regularizer"]: line["NLL, C"] for line in csv.DictReader(file)}
        found.pop("none")
        values = {
            method: float(text.split()[0]) for method, text in found.items() if text[0].isdigit()
        }
        return sorted(values, key=lambda method: values[method])[:4]

    def part2(self) -> None:
        """The best four, with and without masked references, and their ensembles."""
        methods = dict.fromkeys(["none", *self.best(), "dropout", "dropout+mc-dropout"])
        words = [",".join(methods), "--label-noise", "0", "--suite", SUITES, *self.split, *self.ood]
        words = ["study", "regularizers", "--methods", *words]
        folders = self.train("combined", self.size.epochs[1], *words)
        self.keep("combined", folders)
        arms: dict[str, list[Path]] = {}
        for folder in folders:
            if (folder / "recipe.yaml").exists():
                arms.setdefault(str(read_job(folder)["arm"]), []).append(folder)
        for arm, runs in arms.items():
            model = self.work / "ensembles" / arm
            if not model.exists():
                call(["ensemble", *map(str, runs), "--output", str(model), "--quiet"])
            words = ["evaluate", str(model), "--data", self.options.data, *self.ood]
            words += ["--suite", SUITES, *self.size.test]
            call([*words, "--device", self.options.device, "--output", str(model), "--quiet"])
        self.keep("ensembles", [self.work / "ensembles" / arm for arm in arms])

    def part3(self) -> None:
        """Temperatures."""
        runs = finished(self.work / "combined")
        words = [*map(str, runs), "--results", str(self.options.results / "temperatures.csv")]
        words += ["--device", self.options.device]
        words += self.size.test
        corrupted_temperature.main(words)

    def part4(self) -> None:
        """Fine-tuning from the standard network of seed 0."""
        (start,) = (self.work / "combined").glob("standard-seed0-*")
        arms = [f"{arm}{',' if ':' in arm else ':'}from={start}" for arm in TUNING]
        words = [word for arm in arms for word in ("--arm", arm)]
        words += ["--suite", SUITES.removesuffix(",multiplicity"), *self.ood]
        words += [*self.split, "--optimizer.lr", "0.02"]
        self.keep("tuned", self.train("tuned", self.size.epochs[2], "compare", *words))

    def part5(self) -> None:
        """Wrong labels."""
        words = [word for arm in self.size.noisy for word in ("--arm", arm)]
        words += ["--suite", "clean,corruptions,calibration", "--data.label_noise", "0.2"]
        folders = self.train("noise", self.size.epochs[1], "compare", *words, *self.split)
        runs = choose_evaluations(list(map(read_run, folders)))
        device = torch.device(self.options.device)
        lines = [describe("noise", run) | compare_labels(run.folder, device) for run in runs]
        lines = [{name: value for name, value in line.items() if value} for line in lines]
        write(self.options.results / "noise.csv", lines)


def call(words: Sequence[str]) -> None:
    """Run a command of Killick; stop if it fails."""
    print("killick", shlex.join(words), flush=True)
    if code := killick_command(list(words)):
        sys.exit(code)


def finished(folder: Path) -> list[Path]:
    """The run folders of a comparison or study that are finished."""
    jobs = (path.parent for path in sorted(folder.glob("*/job.json")))
    return [each for each in jobs if read_job(each).get("finished")]


def describe(part: str, run: Run) -> Line:
    """The line of a run; an ensemble of all seeds has none."""
    job = run.job or {"arm": f"ensemble+{run.name}", "seed": ""}
    own = [row for row in run.rows if row["inference"] != "marginal"]
    line = {"part": part, "arm": str(job["arm"]), "seed": str(job["seed"])}
    line |= {name: f"{float(own[0][name]):g}" for name in COSTS}
    for column in (*COLUMNS, HARDEST):
        if not column.noisy:
            values = [float(row["value"]) for row in run.rows if column.fits(row)]
            line[column.title] = f"{statistics.fmean(values):.5f}" if values else ""
    return line


def compare_labels(folder: Path, device: torch.device) -> Line:
    """What a run predicts of its training images: those with their true label, those with another."""
    found = Measured(folder, {})
    label_noise.measure(folder, {}, found, device=device, show=choose_display(None, True))
    return {record["metric"]: f"{record['value']:.5f}" for record in found.records}


def read(file: Path) -> list[Line]:
    """The lines of a table; none if it is not there."""
    if not file.exists():
        return []
    with open(file, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def write(file: Path, lines: Sequence[Line]) -> None:
    """A table of lines; what one does not have is empty."""
    columns = dict.fromkeys(name for line in lines for name in line)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", newline="", encoding="utf-8") as opened:
        table = csv.DictWriter(opened, fieldnames=columns, lineterminator="\n")
        table.writeheader()
        table.writerows(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="CIFAR-10 as pack:FILE.npz")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--ood-pack", help="a pack with the splits textures, scenes, characters")
    parser.add_argument("--parts", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--results", type=Path, help="folder; default: results/regularizers/SIZE")
    parser.add_argument("--jobs", type=int, help="jobs at once")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--size", choices=SIZES, default="full")
    options = parser.parse_args(arguments)
    options.results = options.results or RESULTS / "regularizers" / options.size
    grid = Grid(options)
    for part in options.parts:
        getattr(grid, f"part{part}")()


if __name__ == "__main__":
    main()
