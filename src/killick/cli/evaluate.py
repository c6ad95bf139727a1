"""`killick evaluate`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from killick.cli.arguments import name_sets, read_names, read_numbers, read_pair
from killick.cli.listing import SUITES, describe
from killick.errors import OptionError

EXAMPLES = """\
examples:
  killick evaluate runs/shapes-small-masked-label-seed0
  killick evaluate runs/mine --suite clean,corruptions,cbar,calibration,ood,references --limit 1000
  killick evaluate runs/mine --ood textures=pictures:dtd/images --shift other=imagefolder:others
  killick evaluate runs/mine --suite corruptions --corruption-files CIFAR-10-C --baseline runs/plain
  killick evaluate exports/mine --data imagefolder:pictures
  killick evaluate timm:resnet50 --checkpoint net.pth --data imagenet:/imagenet --suite clean,shift \\
      --shift imagenet-r=imagefolder:/imagenet-r
  torchrun --nproc-per-node 8 -m killick evaluate runs/mine --data imagenet:/imagenet
"""
KEPT = """
Rows are added to rows.csv and rows.jsonl in the output folder. What is there already, from the same
weights and settings, is not computed again: an interrupted evaluation goes on where it stopped.
"""


def add(commands: Any, name: str) -> None:
    """Tell the parser of `killick` about this command."""
    parser = commands.add_parser(
        name,
        help="accuracy, robustness, calibration, OOD detection of any model",
        description="Tell how good and how trustworthy a classifier is.",
        epilog=f"{EXAMPLES}\nsuites:\n{describe(SUITES, 16, 96)}\n{KEPT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="killick evaluate MODEL [--data DATA] [--suite SUITES] [options]",
    )
    add_argument = parser.add_argument
    add_argument(
        "model",
        metavar="MODEL",
        help="a Killick folder or run, a file of killick export, or timm:NAME / torchvision:NAME (with"
        " --checkpoint)",
    )
    add_argument(
        "--data",
        metavar="DATA",
        help="default: what the model was trained on; see killick list data",
    )
    add_argument(
        "--suite",
        metavar="SUITES",
        type=read_names,
        help="comma-separated, or all; default: clean,corruptions,calibration,ood",
    )
    sets = parser.add_argument_group("what it is shown")
    add_argument = sets.add_argument
    add_argument(
        "--ood",
        metavar="NAME=DATA",
        action="append",
        type=read_pair,
        default=[],
        help="other pictures, to be told from the data; pictures:PATH needs no classes",
    )
    add_argument(
        "--shift",
        metavar="NAME=DATA",
        action="append",
        type=read_pair,
        default=[],
        help="other pictures of the model's classes",
    )
    add_argument(
        "--synthetic",
        metavar="NAMES",
        type=read_names,
        help="built-in OOD sets: noise,blobs,scrambled (all, by default) or none",
    )
    add_argument(
        "--corruptions",
        metavar="NAMES",
        type=read_names,
        help="comma-separated, as in killick list corruptions; default: all of the suite's",
    )
    add_argument(
        "--severities",
        metavar="1,...,5",
        type=read_names,
        help="comma-separated; default: all five",
    )
    add_argument(
        "--table",
        choices=["cifar", "imagenet"],
        help="whose constants corruptions have; default: cifar up to 64 px, imagenet above",
    )
    add_argument(
        "--corruption-files",
        metavar="FOLDER",
        help="read corruptions instead of making them: CIFAR-10-C, ImageNet-C, or alike",
    )
    add_argument("--cbar-files", metavar="FOLDER", help="likewise: CIFAR-10-C-bar, ImageNet-C-bar")
    add_argument(
        "--frost",
        metavar="FOLDER_OR_PACKAGE",
        help="the original photographs of frost; default: procedural ice",
    )
    add_argument(
        "--class-map", metavar="FILE", type=Path, help="for --shift: JSON, their classes to ours"
    )
    add_argument(
        "--validation",
        metavar="DATA",
        help="to fit temperature and threshold on; default: what the run set aside",
    )
    add_argument("--limit", metavar="N", type=int, help="at most so many pictures of each set")
    add_argument("--seed", metavar="N", type=int, default=0, help="of subsets and corruptions (0)")
    add_argument(
        "--root", metavar="FOLDER", help="where cifar10 and cifar100 are; $KILLICK_DATA or ./data"
    )
    asked = parser.add_argument_group("how it is asked")
    add_argument = asked.add_argument
    add_argument(
        "--references",
        metavar="R",
        type=int,
        default=5,
        help="ask an anchored model from so many references, for the spread (5); costs as many"
        " passes",
    )
    add_argument("--checkpoint", metavar="FILE", type=Path, help="weights of a network by name")
    add_argument("--size", metavar="N", type=int, help="height and width the network sees")
    add_argument(
        "--resize", metavar="N", type=int, help="the shorter side, before the middle is cut out"
    )
    add_argument(
        "--mean", metavar="R,G,B", type=read_names, help="subtracted from images in 0 to 1"
    )
    add_argument("--std", metavar="R,G,B", type=read_names, help="that they are divided by then")
    add_argument("--batch", metavar="N", type=int, help="images of a forward pass")
    add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        default="float32",
        help="of the forward pass (float32)",
    )
    add_argument("--workers", metavar="N", type=int, help="processes that read files")
    add_argument(
        "--trust",
        action="store_true",
        help="open an exported .pt2 file, which can run code then; not needed for other models",
    )
    add_argument("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:1")
    kept = parser.add_argument_group("what becomes of it")
    add_argument = kept.add_argument
    add_argument(
        "--output", metavar="FOLDER", type=Path, help="default: the run, or evaluations/NAME"
    )
    add_argument("--name", metavar="NAME", help="what rows call the model")
    add_argument("--baseline", metavar="ROWS", help="for mCE: alexnet, or an evaluated run")
    add_argument(
        "--accept",
        metavar="SHARE",
        type=float,
        default=0.95,
        help="of the data that the threshold lets pass (0.95)",
    )
    add_argument(
        "--store-threshold",
        action="store_true",
        help="keep the OOD threshold in the model's folder, for killick.predict",
    )
    add_argument(
        "--no-answers",
        action="store_true",
        help="do not keep what was answered to each image (answers/), which reports draw from",
    )
    add_argument("--again", action="store_true", help="compute also what is there already")
    add_argument("--quiet", action="store_true", help="show nothing but errors")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Evaluate, and show the summary."""
    if rest:
        raise OptionError(f"expected options of killick evaluate, found {' '.join(rest)}.")
    from killick.cli.summaries import show_summary
    from killick.data.synthetic_ood import SYNTHETIC
    from killick.evaluation.class_mapping import read_class_map
    from killick.evaluation.evaluator import evaluate
    from killick.evaluation.plan import DEFAULT_SUITES

    suites = options.suite or DEFAULT_SUITES
    if suites == ("all",):
        suites = tuple(s for s in SUITES if s != "shift" or options.shift)
    if (options.mean is None) != (options.std is None):
        raise OptionError("expected --mean and --std together, found one of them.")
    synthetic = tuple(SYNTHETIC) if options.synthetic is None else options.synthetic
    folder = options.output or _default_folder(options.model, options.checkpoint)
    if options.store_threshold:
        _check_storable(options.model)
    try:
        rows = evaluate(
            options.model,
            options.data,
            suites,
            ood=name_sets("--ood", options.ood),
            shift=name_sets("--shift", options.shift),
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
            answers=not options.no_answers,
            trust=options.trust,
            quiet=options.quiet,
        )
    except KeyboardInterrupt:
        again = shlex.join(["killick", *options.words])
        told = f"killick: interrupted; what was seen is in {folder}. Go on with: {again}"
        print(told, file=sys.stderr)
        return 130
    if options.store_threshold and _is_first():
        _store_threshold(options.model, rows, options.accept, options.quiet)
    if not options.quiet and _is_first():
        show_summary(rows)
        print(f"{len(rows):,} rows of this evaluation are in {folder / 'rows.csv'}")
        print(f"A page about them: killick report {shlex.quote(str(folder))}")
    return 0


def _default_folder(model: str, checkpoint: Path | None = None) -> Path:
    """The run that the model belongs to; else a folder named after it, and after its weights.

    Rows of other weights would take the place of those that are there.
    """
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

    if is_export(Path(model)):
        raise OptionError(
            f"expected a Killick folder to store the threshold in, found the export {model}. Store it"
            " with the model it was made from, and export that again."
        )
    if not Path(model).is_dir():
        raise OptionError(
            f"expected a Killick folder to store the threshold in, found {model}. Save the model"
            " first: killick.save."
        )


def _store_threshold(
    model: str, rows: list[dict[str, Any]], acceptance: float, quiet: bool
) -> None:
    from killick.core.image_model import Threshold
    from killick.storage.model_folder import load, save

    row = next(row for row in rows if row["metric"] == "threshold")
    folder = Path(model)
    folder = folder / "model" if (folder / "model" / "config.json").is_file() else folder
    loaded = load(folder)
    rule = str(row["estimator"])
    fitted_on = rule.split(" % of ", 1)[1]
    loaded.threshold = Threshold(float(row["value"]), acceptance, 1, fitted_on)
    save(loaded, folder)
    if not quiet:
        print(f"{rule}, energy {row['value']:.4f}, is stored in {folder}")


def _is_first() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def _normalization(options: argparse.Namespace) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        mean, std = (tuple(float(word) for word in part) for part in (options.mean, options.std))
    except ValueError:
        raise OptionError(
            "expected three numbers each for --mean and --std, as in 0.5,0.5,0.5, found"
            f" {','.join(options.mean)!r} and {','.join(options.std)!r}."
        ) from None
    return mean, std
