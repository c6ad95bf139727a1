"""`killick evaluate`."""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from killick.cli.arguments import add_shared, read_names, read_numbers, read_pair
from killick.errors import OptionError

EXAMPLES = """\
examples:
  killick evaluate runs/shapes-small-masked-label-seed0
  killick evaluate runs/mine --suite clean,corruptions,cbar,calibration,ood,references --limit 1000
  killick evaluate runs/mine --ood textures=images:dtd/images --shift other=imagefolder:others
  killick evaluate runs/mine --suite corruptions --corruption-files CIFAR-10-C --baseline runs/plain
  killick evaluate exports/mine --data imagefolder:images
  killick evaluate timm:resnet50 --checkpoint net.pth --data imagenet:/imagenet \\
      --suite clean,shift --shift imagenet-r=imagefolder:/imagenet-r
  torchrun --nproc-per-node 8 -m killick evaluate runs/mine --data imagenet:/imagenet

Rows are added to rows.csv and rows.jsonl in the output folder. Rows of the same weights and
settings are not computed again, so an interrupted evaluation can be resumed. killick list suites
and killick list metrics explain what is measured.
"""


def add(commands: Any, name: str) -> None:
    """Add this command to the parser of `killick`."""
    parser = commands.add_parser(
        name,
        help="accuracy, robustness, calibration and OOD detection of any model",
        description="Evaluate a classifier.",
        epilog=EXAMPLES,
        usage="killick evaluate MODEL [--data DATA] [--suite SUITES] [options]",
    )
    add_argument = parser.add_argument
    add_argument(
        "model",
        metavar="MODEL",
        help="a Killick folder or run, an exported file, or timm:NAME / torchvision:NAME with"
        " --checkpoint",
    )
    add_argument("--data", metavar="DATA", help="test data (default: that of the training run)")
    add_argument(
        "--suite",
        metavar="SUITES",
        type=read_names,
        help="comma-separated, or all (default: clean,corruptions,calibration,ood)",
    )
    group = parser.add_argument_group("data")
    add_argument = group.add_argument
    sets = {"metavar": "NAME=DATA", "action": "append", "type": read_pair, "default": []}
    add_argument("--ood", **sets, help="an OOD set; images:PATH needs no classes; may be repeated")
    add_argument("--shift", **sets, help="a shifted set with the model's classes; may be repeated")
    add_argument(
        "--synthetic",
        metavar="NAMES",
        type=read_names,
        help="built-in OOD sets: noise,blobs,scrambled (default: all) or none",
    )
    add_argument(
        "--corruptions",
        metavar="NAMES",
        type=read_names,
        help="comma-separated, see killick list corruptions (default: all of the suite)",
    )
    add_argument(
        "--severities",
        metavar="1,...,5",
        type=read_names,
        help="comma-separated (default: all five)",
    )
    add_argument(
        "--corruption-files",
        metavar="FOLDER",
        help="read corrupted images instead of generating them: CIFAR-10-C, ImageNet-C or alike",
    )
    add_argument("--cbar-files", metavar="FOLDER", help="likewise: CIFAR-10-C-bar, ImageNet-C-bar")
    add_argument(
        "--class-map", metavar="FILE", type=Path, help="for --shift: JSON, their classes to ours"
    )
    add_argument(
        "--validation",
        metavar="DATA",
        help="data to fit temperature and threshold on (default: the run's validation split)",
    )
    add_argument("--limit", metavar="N", type=int, help="at most N images of each set")
    add_argument("--seed", metavar="N", type=int, default=0, help="of subsets and corruptions (0)")
    add_shared(group, "--table", "--frost", "--root")
    group = parser.add_argument_group("model")
    add_argument = group.add_argument
    add_argument(
        "--references",
        metavar="R",
        type=int,
        default=5,
        help="references an anchored model predicts from, for mean and spread (5); R passes",
    )
    add_argument("--checkpoint", metavar="FILE", type=Path, help="weights of a network by name")
    add_argument("--size", metavar="N", type=int, help="height and width of the network's input")
    add_argument("--resize", metavar="N", type=int, help="shorter side before the center crop")
    add_argument("--mean", metavar="R,G,B", type=read_names, help="of each channel, 0 to 1")
    add_argument("--std", metavar="R,G,B", type=read_names, help="of each channel, 0 to 1")
    add_argument("--batch", metavar="N", type=int, help="images of a forward pass")
    add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        default="float32",
        help="of the forward pass (float32)",
    )
    add_argument("--workers", metavar="N", type=int, help="processes that read files")
    add_shared(group, "--trust", "--device")
    group = parser.add_argument_group("output")
    add_argument = group.add_argument
    add_argument(
        "--output", metavar="FOLDER", type=Path, help="default: the run, or evaluations/NAME"
    )
    add_argument("--name", metavar="NAME", help="name of the model in rows")
    add_argument("--baseline", metavar="ROWS", help="for mCE: alexnet, or an evaluated run")
    add_argument(
        "--accept",
        metavar="SHARE",
        type=float,
        default=0.95,
        help="share of validation images below the OOD threshold (0.95)",
    )
    add_argument(
        "--store-threshold",
        action="store_true",
        help="store the OOD threshold in the model's folder, for killick.predict",
    )
    add_argument(
        "--no-predictions",
        "--no-answers",
        action="store_true",
        help="do not keep per-image predictions, which reports need for some figures",
    )
    add_argument("--again", action="store_true", help="recompute rows that are there already")
    add_shared(group, "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Evaluate, and print the summary."""
    from killick.cli.summaries import show_summary
    from killick.data.synthetic_ood import SYNTHETIC
    from killick.evaluation.class_mapping import read_class_map
    from killick.evaluation.evaluation_settings import DEFAULT_SUITES, EVALUATION_SUITES
    from killick.evaluation.evaluator import evaluate

    suites = options.suite or DEFAULT_SUITES
    if suites == ("all",):
        suites = tuple(s for s in EVALUATION_SUITES if s != "shift" or options.shift)
    if (options.mean is None) != (options.std is None):
        raise OptionError("--mean and --std require each other.")
    synthetic = tuple(SYNTHETIC) if options.synthetic is None else options.synthetic
    folder = options.output or _default_folder(options.model, options.checkpoint)
    if options.store_threshold:
        _check_storable(options.model)
    try:
        rows = evaluate(
            options.model,
            options.data,
            suites,
            ood=dict(options.ood),
            shift=dict(options.shift),
            corruption_files=options.corruption_files,
            cbar_files=options.cbar_files,
            corruptions=options.corruptions,
            severities=read_numbers("--severities", options.severities) or (1, 2, 3, 4, 5),
            synthetic=() if synthetic == ("none",) else synthetic,
            table=options.table,
            frost=options.frost,
            references=options.references,
            limit=options.limit,
            seed=options.seed,
            validation=options.validation,
            baseline=options.baseline,
            acceptance=options.accept,
            class_map=None if options.class_map is None else read_class_map(options.class_map),
            name=options.name,
            checkpoint=options.checkpoint,
            normalize=None if options.mean is None else _normalization(options),
            size=options.size,
            resize=options.resize,
            root=options.root,
            batch=options.batch,
            precision=options.precision,
            workers=options.workers,
            device=options.device,
            folder=folder,
            again=options.again,
            predictions=not options.no_predictions,
            trust=options.trust,
            quiet=options.quiet,
        )
    except KeyboardInterrupt:
        again = shlex.join(["killick", *options.words])
        print(
            f"killick: interrupted; rows so far are in {folder}. Resume: {again}", file=sys.stderr
        )
        return 130
    if options.store_threshold and _is_first():
        _store_threshold(options.model, rows, options.accept, options.quiet)
    if not options.quiet and _is_first():
        show_summary(rows)
        print(f"{len(rows):,} rows are in {folder / 'rows.csv'}")
        print(f"For a report: killick report {shlex.quote(str(folder))}")
    return 0


def _default_folder(model: str, checkpoint: Path | None = None) -> Path:
    """The run of the model; else a folder named by the model and its weights."""
    folder = Path(model)
    if (folder / "recipe.yaml").is_file():
        return folder
    if folder.name == "model" and (folder.parent / "recipe.yaml").is_file():
        return folder.parent
    if folder.is_file() and folder.suffix:  # an export
        folder = folder.parent if folder.stem == "model" else folder.with_suffix("")
        return Path("evaluations") / folder.absolute().name
    name = folder.absolute().name if folder.is_dir() else model.replace(":", "-").replace("/", "-")
    weights = "" if checkpoint is None else f"-{Path(checkpoint).stem}"
    return Path("evaluations") / f"{name}{weights}"


def _check_storable(model: str) -> None:
    from killick.storage.exported_file import is_export

    if is_export(Path(model)) or not Path(model).is_dir():
        raise OptionError(
            f"--store-threshold requires a Killick folder, not {model}. Store it with the model"
            " that was exported, or save the model first: killick.save."
        )


def _store_threshold(
    model: str, rows: list[dict[str, Any]], acceptance: float, quiet: bool
) -> None:
    from killick.core.image_model import Threshold
    from killick.storage.loading import load
    from killick.storage.saving import save

    row = next(row for row in rows if row["metric"] == "threshold")
    folder = Path(model)
    folder = folder / "model" if (folder / "model" / "config.json").is_file() else folder
    loaded = load(folder)
    loaded.threshold = Threshold(float(row["value"]), acceptance, 1, str(row["fitted_on"]))
    save(loaded, folder)
    if not quiet:
        print(f"{row['estimator']}, energy {row['value']:.4f}, is stored in {folder}")


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _normalization(options: argparse.Namespace) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        mean, std = (tuple(float(word) for word in part) for part in (options.mean, options.std))
    except ValueError:
        raise OptionError(
            "--mean and --std take numbers such as 0.5,0.5,0.5, not"
            f" {','.join(options.mean)!r} and {','.join(options.std)!r}."
        ) from None
    return mean, std
