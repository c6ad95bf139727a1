"""The method on real images, all of it again: CIFAR-10 on a GPU, by Killick's own commands.

    python benchmarks/evidence.py --data pack:cifar10.npz --ood-pack ood.npz --work evidence

- The first grid: six arms, three seeds, ResNet-18, 60 epochs each, evaluated on corruptions C and
  C-bar, calibration, OOD images and a shifted test set; seed 0 from five references.
- The second: what masking whole batches towards uniform does to BatchNorm, handled or not; a share
  of masked batches that falls; a small ViT and a ConvNeXt. One seed.
- One cell of the first grid again, same seed: what a GPU does by itself.
- `killick study finetune`: a finished network, tuned for a sixth of its epochs, masked or as it was.
  5,000 training images are set aside, so that a temperature can be fitted.
- Variants of the best arm, trained without the last 5,000 images and tested on those: whether
  something is better, without a look at the test set. Chosen is, by a rule set before they ran, the
  one with the lowest negative log-likelihood under corruption, which pays for accuracy and for
  honest confidence; unless it loses more than half a point on clean images.
- The chosen one on all images, three seeds; it and the best arm once more with images set aside
  to fit a temperature on; and more seeds of BatchNorm left alone.
- For each model of a grid that reads pairs, what a faded reference does to it (`gate.py`).

Every cell is trained, evaluated and measured, and leaves its rows; weights are removed, but for the
study's. A finished cell is not run again, so the grids may be spread over several sittings:
`--grids`, `--arms` and `--seeds` choose a part. Afterwards

    python benchmarks/evidence.py --work evidence --write

puts rows, tables and figures into `results/cifar10/` (`evidence_results.py`), and
`docs/evidence_tables.py` renews the tables of the pages. A cell takes about three minutes on an
H200, all of them over two hours, less with `--jobs 3` under NVIDIA's MPS. `--ood-pack` is a pack
with the splits textures, scenes, characters (other things) and shift (the same classes from
elsewhere).
"""

import argparse
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from killick.cli import main as killick_command
from killick.data.sources import load_sets
from killick.results.run_folder import read_job

OOD_SETS = ("textures", "scenes", "characters")
SUITES = "clean,corruptions,cbar,calibration,ood,shift"
HELD_SUITES = "clean,corruptions,cbar,calibration"
WEIGHTS = ("model", "checkpoint.pt", "checkpoint-before.pt", "first", "tensorboard")
UNIFORM = "protocol=masked,target=uniform"
CHOSEN = (  # of the variants
    "more-masked-running:protocol=masked,target=label,first=0.5,alpha=0.5"
    ",protocol.batchnorm=running"
)
LABEL_RUNNING = "label-running:protocol=masked,target=label,protocol.batchnorm=running"


@dataclass(frozen=True)
class Grid:
    """A comparison: `killick compare` with these options.

    Attributes:
        name: Of its folder.
        recipe: Of all arms.
        arms: As `--arm` takes them.
        seeds: Of each.
        references: That models are asked from.
        held: Whether the last training images take the place of the test set.
        aside: How many training images are set aside, to fit a temperature on.
    """

    name: str
    recipe: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    references: int = 1
    held: bool = False
    aside: int = 0


HELD = 5000
FIRST = (
    *("standard", "anchored", "masked-label", "masked-uniform:protocol.scope=sample"),
    *("finetuned", "continued:protocol=standard,first=0.5"),
)
GRIDS = (
    Grid("first-references", "cifar10-resnet18", FIRST, (0,), references=5),
    Grid("first", "cifar10-resnet18", FIRST, (1, 2)),
    Grid("again", "cifar10-resnet18", ("standard",), (2,)),
    Grid(
        "second",
        "cifar10-resnet18",
        (
            f"uniform-batch:{UNIFORM}",
            f"uniform-batch-running:{UNIFORM},protocol.batchnorm=running",
            LABEL_RUNNING,
            "label-falling:protocol=masked,target=label,alpha=0.5,protocol.alpha_end=0",
        ),
        (0,),
    ),
    Grid(
        "vit",
        "cifar10-vit",
        ("standard", "masked-label", f"uniform-batch:{UNIFORM}"),
        (0,),
    ),
    Grid("convnext", "cifar10-convnext", ("standard", "masked-label"), (0,)),
    Grid("running", "cifar10-resnet18", (LABEL_RUNNING,), (1, 2)),
    Grid(
        "choosing",
        "cifar10-resnet18",
        (
            "finetuned",
            "running:protocol=masked,target=label,first=0.5,protocol.batchnorm=running",
            "more-masked:protocol=masked,target=label,first=0.5,alpha=0.5",
            CHOSEN,
            "by-sample:protocol=masked,target=label,first=0.5,protocol.scope=sample",
            "augmented:protocol=masked,target=label,first=0.5,protocol.references=augmented",
        ),
        (0, 1, 2),
        held=True,
    ),
    Grid("chosen", "cifar10-resnet18", (CHOSEN,), (0, 1, 2)),
    Grid("tempered", "cifar10-resnet18", ("finetuned", CHOSEN), (0, 1, 2), aside=HELD),
)
FINISHED = "finished"  # the study's folder


def command(grid: Grid, options: argparse.Namespace) -> list[str]:
    """The words after `killick` that run a grid."""
    data = f"pack:{options.work / 'held.npz'}" if grid.held else options.data
    words = ["compare", "--recipe", grid.recipe, "--data", data, "--epochs", str(options.epochs)]
    if grid.aside:
        words += ["--data.validation", str(grid.aside)]
    for arm in grid.arms:
        words += ["--arm", arm]
    words += ["--seeds", ",".join(map(str, grid.seeds))]
    words += ["--suite", HELD_SUITES] if grid.held else test_words(options, grid.references)
    words += ["--references", str(grid.references)]
    words += run_words(options, grid.name)
    if "standard" not in grid.arms:
        words += ["--baseline", grid.arms[0].partition(":")[0]]
    return words


def study_command(options: argparse.Namespace) -> list[str]:
    """The words after `killick` for networks that are finished before they are tuned."""
    words = ["study", "finetune", "--size", "paper", "--recipe", "cifar10-resnet18"]
    words += ["--data", options.data, "--data.validation", str(HELD)]  # to fit a temperature on
    words += ["--base-epochs", str(options.epochs), "--tuning-epochs", str(options.epochs // 6)]
    words += ["--tuning-lr", "0.01", "--soup", "1.0", "--greedy", "false"]
    words += ["--seeds", options.seeds or "0,1,2", *test_words(options, 1), "--references", "1"]
    return words + run_words(options, FINISHED)


def test_words(options: argparse.Namespace, references: int) -> list[str]:
    """What models are tested on, among it OOD and shifted images."""
    words = ["--suite", SUITES + (",references" if references > 1 else "")]
    for name in OOD_SETS:
        words += ["--ood", f"{name}=pack:{options.ood_pack}#{name}"]
    return [*words, "--shift", f"shift=pack:{options.ood_pack}#shift"]


def run_words(options: argparse.Namespace, folder: str) -> list[str]:
    """Where cells go, and on what they run."""
    words = ["--output", str(options.work / folder), "--device", options.device]
    if options.jobs:
        words += ["--jobs", str(options.jobs)]
    if options.limit:
        words += ["--limit", str(options.limit)]
    return words


def run_grid(grid: Grid, options: argparse.Namespace) -> int:
    """Train, evaluate and measure the cells of a grid; what is left of each are its rows."""
    if grid.held:
        hold_back(options.data, options.work / "held.npz")
    words = command(grid, options)
    print("killick", shlex.join(words), flush=True)
    code = killick_command(words)
    finished = [
        path.parent
        for path in sorted((options.work / grid.name).glob("*/job.json"))
        if read_job(path.parent).get("finished") and (path.parent / "model").exists()
    ]
    if finished and not grid.held:
        from gate import measure_gate

        test = load_sets(words[words.index("--data") + 1]).test
        assert test is not None
        for run in finished:
            measure_gate(run, test, options.device)
    for run in finished if not options.keep else ():
        for name in WEIGHTS:
            _remove(run / name)
    return code


def hold_back(data: str, file: Path) -> None:
    """A pack whose test set are the last training images of another, as they are encoded."""
    kind, _, where = data.partition(":")
    if kind != "pack":
        sys.exit(f"evidence.py: expected --data pack:FILE.npz to hold images back, found {data}.")
    state = Path(where).stat()
    source = np.array([state.st_size, state.st_mtime_ns])
    if file.exists():
        with np.load(file, allow_pickle=False) as held:
            if "source" in held and (held["source"] == source).all():
                return
    with np.load(where, allow_pickle=False) as pack:
        offsets, labels = pack["train_offsets"], pack["train_labels"]
        cut = len(labels) - HELD
        if cut <= 0:
            sys.exit(
                f"evidence.py: expected more than {HELD} training images, found {len(labels)}."
            )
        arrays = {"class_names": pack["class_names"], "source": source}
        for name, part in (("train", slice(0, cut)), ("test", slice(cut, len(labels)))):
            start, stop = int(offsets[part.start]), int(offsets[part.stop])
            arrays[f"{name}_bytes"] = pack["train_bytes"][start:stop]
            arrays[f"{name}_offsets"] = offsets[part.start : part.stop + 1] - start
            arrays[f"{name}_labels"] = labels[part]
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".part.npz")
    np.savez(beside, **arrays)
    beside.replace(file)


def choose(options: argparse.Namespace) -> list[Grid]:
    """The parts of the grids that were asked for."""
    chosen = []
    for grid in GRIDS:
        if options.grids and grid.name not in options.grids:
            continue
        arms = tuple(
            arm
            for arm in grid.arms
            if not options.arms or arm.partition(":")[0] in options.arms.split(",")
        )
        seeds = tuple(
            seed
            for seed in grid.seeds
            if not options.seeds or str(seed) in options.seeds.split(",")
        )
        if arms and seeds:
            chosen.append(replace(grid, arms=arms, seeds=seeds))
    return chosen


def studies(options: argparse.Namespace) -> bool:
    """Whether the study of finished networks was asked for; it has arms of its own."""
    return FINISHED in (options.grids or ([] if options.arms else [FINISHED]))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_options() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="CIFAR-10, as killick takes it")
    parser.add_argument("--ood-pack", help="a pack: textures, scenes, characters, shift")
    parser.add_argument("--work", type=Path, required=True, help="folder of the cells")
    names = [*(grid.name for grid in GRIDS), FINISHED]
    parser.add_argument("--grids", nargs="*", choices=names, help="which; default: all")
    parser.add_argument("--arms", help="only these, comma-separated")
    parser.add_argument("--seeds", help="only these, comma-separated")
    parser.add_argument("--epochs", type=int, default=60, help="of every cell (60)")
    parser.add_argument("--limit", type=int, help="images of each set, to try the script")
    parser.add_argument("--jobs", type=int, help="cells at once")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--keep", action="store_true", help="weights too")
    parser.add_argument("--write", action="store_true", help="nothing is run: write the results")
    return parser.parse_args()


def check(options: argparse.Namespace) -> None:
    """Refuse what would only be found out after hours."""
    known = {arm.partition(":")[0] for grid in GRIDS for arm in grid.arms}
    unknown = set((options.arms or "").split(",")) - known - {""}
    if unknown:
        sys.exit(f"evidence.py: no arm {sorted(unknown)[0]!r}. Arms: {', '.join(sorted(known))}.")
    if not options.data:
        sys.exit("evidence.py: expected --data, as in --data pack:cifar10.npz; or --write.")
    kind, _, where = options.data.partition(":")
    grids = choose(options)
    if kind == "pack" and not Path(where).is_file():
        sys.exit(f"evidence.py: expected a pack at {where}, found none. Check --data.")
    if kind != "pack" and any(grid.held for grid in grids):
        sys.exit(
            "evidence.py: expected --data pack:FILE.npz for the grid choosing, found"
            f" {options.data}. Or name others: --grids first-references first."
        )
    tested = studies(options) or any(not grid.held for grid in grids)
    if tested and not Path(options.ood_pack or "").is_file():
        sys.exit(
            "evidence.py: expected a pack of OOD images, --ood-pack FILE.npz, found"
            f" {options.ood_pack or 'none'}."
        )


def main() -> int:
    """Run grids, or a part of them; or write down what they found."""
    options = read_options()
    if options.write:
        from evidence_results import write_results

        write_results(options.work)
        return 0
    check(options)
    codes = [run_grid(grid, options) for grid in choose(options)]
    if studies(options):
        words = study_command(options)
        print("killick", shlex.join(words), flush=True)
        codes.append(killick_command(words))
    if not codes:
        sys.exit("evidence.py: no grid has these arms and seeds: see --help for the grids.")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
