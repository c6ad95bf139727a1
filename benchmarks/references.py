"""What it costs to keep references that are nobody's training images.

    python benchmarks/references.py --preset shapes                          # minutes on two cores
    python benchmarks/references.py --preset cifar --data pack:cifar10.npz   # minutes on a GPU

A network masked towards the label is trained once for each seed, and asked with: ten training
images one by one, and five of them together (the mean of their logits); the mean of all training
images; ten synthetic images, which have the spectrum of all, one by one and five together; and two
controls that know nothing of the data, a black image and a grey one. A standard network stands
beside it.

In the table a value is the mean over seeds, `std` is that over seeds, and `spread`, where ten
references were asked one by one, the standard deviation over these, mean over seeds. Lines are
brought up to date after every seed.
"""

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from paired_timing import RESULTS
from torch import Tensor

import killick
from killick.core.synthetic_references import make_references
from killick.data.image_set import ImageSet
from killick.results.rows import Row, members_of
from killick.training import Recipe, load_recipe, train
from killick.training.checkpoint import LAST
from killick.training.training_data import sets_of

STORED, TOGETHER = 10, 5
TRAINED: dict[str, dict[str, Any]] = {
    "masked-label": {"protocol.name": "masked", "protocol.target": "label"},
    "anchored": {"protocol.name": "anchored"},
    "standard": {"protocol.name": "standard"},
}
SUITES = ("clean", "corruptions", "calibration", "ood")
Found = dict[str, list[float]]  # for each metric, from each reference


@dataclass(frozen=True)
class Preset:
    """How much is trained, and on how many images it is asked."""

    recipe: str
    settings: dict[str, Any]
    limit: int
    seeds: tuple[int, ...] = (0, 1, 2)
    corruptions: tuple[str, ...] | None = None
    data: str | None = None


PRESETS = {
    "shapes": Preset("shapes-compare", {}, limit=250, data="shapes"),
    "cifar": Preset("cifar10-resnet18", {"epochs": 15}, limit=1000),
}
SMOKE = Preset(
    "shapes-compare",
    {"epochs": 1, "data.limit": 350, "data.validation": 50},
    limit=20,
    seeds=(0, 1),
    corruptions=("fog", "contrast"),
    data="shapes",
)
METRICS: dict[str, dict[str, object]] = {
    "clean top1": {"suite": "clean", "metric": "top1"},
    "corrupted top1": {"suite": "corruptions", "severity": "all", "metric": "top1"},
    "corrupted smooth ECE": {"suite": "corruptions", "severity": "all", "metric": "smooth_ece"},
    "OOD AUROC": {"suite": "ood", "score": "energy", "metric": "auroc"},
}


@dataclass
class Table:
    """What was found, as it comes."""

    path: Path
    about: dict[str, object]
    found: dict[tuple[str, str], list[Found]] = field(default_factory=dict)

    def add(self, trained: str, asked: str, found: Found) -> None:
        """One seed of a line."""
        self.found.setdefault((trained, asked), []).append(found)
        shown = (f"{name} {100 * statistics.fmean(values):.2f}" for name, values in found.items())
        print(f"  {trained:13} {asked:26} {', '.join(shown)}", flush=True)

    def write(self) -> None:
        """All lines, over the seeds that are there."""
        lines = [self._line(*names, seeds) for names, seeds in self.found.items()]
        with open(self.path, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)

    def _line(self, trained: str, asked: str, seeds: list[Found]) -> dict[str, object]:
        line: dict[str, object] = {"trained": trained, "references": asked, "seeds": len(seeds)}
        for name in METRICS:
            means = [statistics.fmean(found[name]) for found in seeds]
            line[name] = round(statistics.fmean(means), 4)
            line[f"{name}, std"] = round(statistics.stdev(means), 4) if len(means) > 1 else ""
            several = len(seeds[0][name]) > 1
            spreads = [statistics.stdev(found[name]) for found in seeds] if several else []
            line[f"{name}, spread"] = round(statistics.fmean(spreads), 4) if several else ""
        return {**line, **self.about}


def main() -> None:
    """Train and ask all seeds, one after the other."""
    parser = argparse.ArgumentParser(description="What references that are nobody's cost.")
    parser.add_argument("--preset", choices=PRESETS, default="shapes")
    parser.add_argument("--smoke", action="store_true", help="see that it works, in seconds")
    parser.add_argument("--data", help="instead of the preset's; needed for cifar")
    parser.add_argument(
        "--trained", nargs="+", choices=TRAINED, default=["masked-label", "standard"]
    )
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int, help="images of each set that are asked about")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, help="run folders; kept, and gone on with")
    parser.add_argument("--results", type=Path, help="the table")
    options = parser.parse_args()
    preset = SMOKE if options.smoke else PRESETS[options.preset]
    if options.data is None and preset.data is None:
        parser.error("--preset cifar needs --data pack:cifar10.npz, or --data cifar10")
    with tempfile.TemporaryDirectory() as scratch:
        run(preset, options, options.output or Path(scratch))


def run(preset: Preset, options: argparse.Namespace, output: Path) -> None:
    """All seeds; the table grows after each."""
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {**preset.settings, "data.name": options.data or preset.data}
    settings["protocol.stored"] = STORED
    if options.epochs is not None:
        settings["epochs"] = options.epochs
    limit = options.limit or preset.limit
    about = {
        "recipe": preset.recipe,
        "epochs": load_recipe(preset.recipe, settings).epochs,
        "limit": limit,
        "corruptions": len(preset.corruptions or ()) or 19,
        "device": device_name(device),
        "torch": torch.__version__.split("+")[0],
    }
    table = Table(options.results or default_path(options, device), about)
    began = time.monotonic()
    for seed in options.seeds or preset.seeds:
        parts = sets_of(load_recipe(preset.recipe, {**settings, "seed": seed}))
        assert parts.test is not None
        for name in options.trained:
            plan = load_recipe(preset.recipe, {**settings, **TRAINED[name], "seed": seed})
            folder = output / f"{preset.recipe}-{plan.epochs}-epochs-{name}-seed{seed}"
            model = trained(plan, folder, device)
            seconds = time.monotonic() - began
            print(f"seed {seed}, {name}: trained, {seconds:.0f} s since the start", flush=True)
            ask = Asking(model, parts.test, folder, limit, preset.corruptions)
            if isinstance(model, killick.Anchored):
                pool = parts.train.images().to(device)
                asked = ask_anchored(ask, pool, model.references.clone(), seed)
            else:
                asked = iter([("none", ask("standard").single)])
            for references, found in asked:
                table.add(name, references, found)
            table.write()
            seconds = time.monotonic() - began
            print(f"seed {seed}, {name}: asked, {seconds:.0f} s since the start", flush=True)
    print(f"written to {table.path}")


def trained(plan: Recipe, folder: Path, device: str) -> "killick.Anchored | killick.Standard":
    """The model of a run, which is made if it is not there, and gone on with if it is not whole."""
    if not (folder / "model" / "config.json").exists():
        unfinished = (folder / LAST).exists()
        train(None if unfinished else plan, folder, resume=unfinished, device=device, quiet=True)
        if not (folder / "model" / "config.json").exists():
            raise SystemExit(f"interrupted: {folder} is not trained to its end; --output keeps it.")
    model = killick.load(folder, device=device)
    # What it was trained on would be read again for every evaluation; it is given instead.
    model.provenance = {"facts": model.provenance["facts"]}
    return model


@dataclass(frozen=True)
class Answer:
    """What one evaluation found: from each reference, and from the mean of all."""

    single: Found
    marginal: Found


@dataclass(frozen=True)
class Asking:
    """A model, and what it is asked."""

    model: "killick.Anchored | killick.Standard"
    test: ImageSet
    folder: Path
    limit: int
    corruptions: tuple[str, ...] | None

    def __call__(self, title: str, references: Tensor | None = None) -> Answer:
        """Evaluate, with these references."""
        if references is not None:
            assert isinstance(self.model, killick.Anchored)
            self.model.set_references(references, policy=title)
        rows = killick.evaluate(
            self.model,
            self.test,
            suites=SUITES,
            corruptions=self.corruptions,
            references=1 if references is None else len(references),
            limit=self.limit,
            name=title,
            folder=self.folder / "asked" / title.replace(" ", "-"),
            predictions=False,
            quiet=True,
        )
        return Answer(pick(rows, "single"), pick(rows, "marginal"))


def ask_anchored(
    ask: Asking, pool: Tensor, stored: Tensor, seed: int
) -> Iterator[tuple[str, Found]]:
    """Every kind of reference, and what was found with it; each reference is asked once."""
    (mean, _), (made, _) = (
        make_references("mean", pool),
        make_references("synthetic", pool, k=STORED, seed=seed),
    )
    grey = torch.full_like(mean, 128)
    images = ask("five training images", stored[:TOGETHER])
    synthetic = ask("five synthetic images", made[:TOGETHER])
    left = STORED - TOGETHER
    rest = torch.cat([stored[TOGETHER:], made[TOGETHER:], mean, torch.zeros_like(mean), grey])
    others = ask("all others", rest).single
    yield "training image, each of 10", joined(images.single, part(others, 0, left))
    yield "training images, 5 together", images.marginal
    yield "mean image", part(others, 2 * left, 2 * left + 1)
    yield "synthetic, each of 10", joined(synthetic.single, part(others, left, 2 * left))
    yield "synthetic, 5 together", synthetic.marginal
    yield "black", part(others, 2 * left + 1, 2 * left + 2)
    yield "grey", part(others, 2 * left + 2, 2 * left + 3)


def pick(rows: list[Row], inference: str) -> Found:
    """Each metric from each reference; none where nothing was asked so."""
    found: Found = {}
    for name, wanted in METRICS.items():
        fitting = [
            row
            for row in rows
            if row["inference"] == inference
            and row["scaling"] == ""
            and all(row[column] == value for column, value in wanted.items())
            and (row["suite"] != "corruptions" or is_widest(row, rows))
        ]
        columns = zip(*map(members_of, fitting), strict=True)
        if fitting:  # several only where there are several sets of other images
            found[name] = [statistics.fmean(column) for column in columns]
    return found


def is_widest(row: Row, rows: list[Row]) -> bool:
    """Whether a mean is that over most corruptions: that of 19, where there is one of 15 too."""

    def width(each: Row) -> int:
        words = str(each["corruption"]).split()
        return int(words[2]) if words[:2] == ["mean", "of"] else 0

    return width(row) == max(map(width, rows))


def joined(first: Found, second: Found) -> Found:
    """The references of both."""
    return {name: first[name] + second[name] for name in first}


def part(found: Found, begin: int, end: int) -> Found:
    """Some of the references."""
    return {name: values[begin:end] for name, values in found.items()}


def device_name(device: str) -> str:
    """Of a GPU its own, else cpu."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


def default_path(options: argparse.Namespace, device: str) -> Path:
    """Where the table of a preset is kept; one that was only tried is not."""
    if options.smoke:
        return Path(tempfile.gettempdir()) / "references-smoke.csv"
    return RESULTS / f"references-{options.preset}-{device_name(device).split()[-1].lower()}.csv"


if __name__ == "__main__":
    main()
