"""`kedge evaluate`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from kedge.cli.showing import show_summary
from kedge.errors import OptionError

EXAMPLES = """\
examples:
  kedge evaluate runs/shapes-small-masked-label-seed0
  kedge evaluate runs/mine --suite clean,corruptions,cbar,calibration,ood,references --limit 1000
  kedge evaluate runs/mine --ood textures=pictures:dtd/images --shift other=imagefolder:others
  kedge evaluate runs/mine --suite corruptions --corruption-files CIFAR-10-C --baseline runs/plain
  kedge evaluate timm:resnet50 --checkpoint net.pth --data imagenet:/imagenet --suite clean,shift \\
      --shift imagenet-r=imagefolder:/imagenet-r
  torchrun --nproc-per-node 8 -m kedge evaluate runs/mine --data imagenet:/imagenet

suites:
  clean         the test set: top-1, top-5, NLL, Brier, risk against coverage
  corruptions   the 19 of ImageNet-C at five severities, made on the device (or read from files)
  cbar          C-bar's ten, likewise
  calibration   calibration errors of every set looked at, also after temperature scaling
  ood           telling other pictures from the data: AUROC, AUPR, FPR at 95 %, by four scores,
                and three more for anchored models
  shift         other sets with the model's classes (ImageNet-R, -A, -V2, Sketch, ...)
  references    what the choice of the reference decides (anchored models)

Rows are added to rows.csv and rows.jsonl in the output folder. What is there already, from the same
weights and settings, is not computed again: an interrupted evaluation goes on where it stopped.
"""


def add(commands: Any, name: str) -> None:
    """Tell the parser of `kedge` about this command."""
    parser = commands.add_parser(
        name,
        help="accuracy, robustness, calibration and OOD detection of any classifier",
        description="Tell how good and how trustworthy a classifier is.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="kedge evaluate MODEL [--data DATA] [--suite SUITES] [options]",
    )
    add_argument = parser.add_argument
    add_argument("model", help="a Kedge folder or run, or timm:NAME / torchvision:NAME")
    add_argument("--data", help="default: what the model was trained on; see kedge list data")
    add_argument(
        "--suite",
        metavar="SUITES",
        type=_names,
        help="comma-separated, or all; default: clean,corruptions,calibration,ood",
    )
    sets = parser.add_argument_group("what it is shown")
    add_argument = sets.add_argument
    add_argument(
        "--ood",
        metavar="NAME=DATA",
        action="append",
        type=_pair,
        default=[],
        help="other pictures, to be told from the data; pictures:PATH needs no classes",
    )
    add_argument(
        "--shift",
        metavar="NAME=DATA",
        action="append",
        type=_pair,
        default=[],
        help="other pictures of the model's classes",
    )
    add_argument(
        "--synthetic",
        metavar="NAMES",
        type=_names,
        help="built-in OOD sets: noise,blobs,scrambled (all, by default) or none",
    )
    add_argument("--corruptions", metavar="NAMES", type=_names, help="only these")
    add_argument("--severities", metavar="1,...,5", type=_names, help="only these")
    add_argument("--table", choices=["cifar", "imagenet"], help="constants; default: by size")
    add_argument("--corruption-files", metavar="FOLDER", help="CIFAR-10-C, ImageNet-C, or alike")
    add_argument("--cbar-files", metavar="FOLDER", help="CIFAR-10-C-bar, ImageNet-C-bar")
    add_argument(
        "--frost",
        metavar="FOLDER_OR_PACKAGE",
        help="the original photographs of frost; default: procedural ice",
    )
    add_argument(
        "--class-map", metavar="FILE", type=Path, help="for --shift: JSON, their classes to ours"
    )
    add_argument("--validation", metavar="DATA", help="to fit temperature and threshold on")
    add_argument("--limit", metavar="N", type=int, help="at most so many pictures of each set")
    add_argument("--seed", type=int, default=0, help="of subsets and corruptions")
    add_argument("--root", metavar="FOLDER", help="where CIFAR is")
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
    add_argument("--size", type=int, help="of the images")
    add_argument("--resize", type=int, help="the shorter side, before the middle is cut out")
    add_argument("--mean", metavar="R,G,B", type=_names, help="normalisation, 0 to 1")
    add_argument("--std", metavar="R,G,B", type=_names, help="likewise")
    add_argument("--batch", type=int, help="images of a forward pass")
    add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    add_argument("--workers", type=int, help="processes that read files")
    add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    kept = parser.add_argument_group("what becomes of it")
    add_argument = kept.add_argument
    add_argument(
        "--output", metavar="FOLDER", type=Path, help="default: the run, or evaluations/NAME"
    )
    add_argument("--name", help="what rows call the model")
    add_argument("--baseline", metavar="ROWS", help="for mCE: alexnet, or an evaluated run")
    add_argument("--accept", metavar="SHARE", type=float, default=0.95, help="of the threshold")
    add_argument(
        "--store-threshold",
        action="store_true",
        help="keep the OOD threshold in the model's folder, for kedge.predict",
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
        raise OptionError(f"expected options of kedge evaluate, found {' '.join(rest)}.")
    from kedge.data.synthetic import SYNTHETIC
    from kedge.evaluation.classes import read_class_map
    from kedge.evaluation.plan import DEFAULT_SUITES, SUITES
    from kedge.evaluation.running import evaluate

    suites = options.suite or DEFAULT_SUITES
    if suites == ("all",):
        suites = tuple(s for s in SUITES if s != "shift" or options.shift)
    if (options.mean is None) != (options.std is None):
        raise OptionError("expected --mean and --std together, found one of them.")
    synthetic = tuple(SYNTHETIC) if options.synthetic is None else options.synthetic
    folder = options.output or _default_folder(options.model)
    if options.store_threshold:
        _check_storable(options.model)
    try:
        rows = evaluate(
            options.model,
            options.data,
            suites,
            ood=_unique("--ood", options.ood),
            shift=_unique("--shift", options.shift),
            corruption_files=options.corruption_files,
            cbar_files=options.cbar_files,
            corruptions=options.corruptions,
            severities=_numbers("--severities", options.severities) or (1, 2, 3, 4, 5),
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
            normalise=None if options.mean is None else _normalisation(options),
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
            quiet=options.quiet,
        )
    except KeyboardInterrupt:
        again = shlex.join(["kedge", *sys.argv[1:]])
        print(f"kedge: interrupted; what was seen is in {folder}. Go on with: {again}")
        return 130
    if options.store_threshold and _is_first():
        _store_threshold(options.model, rows, options.accept, options.quiet)
    if not options.quiet and _is_first():
        show_summary(rows)
        print(f"{len(rows):,} rows are in {folder / 'rows.csv'}")
    return 0


def _default_folder(model: str) -> Path:
    """The run that the model belongs to; else a folder named after it."""
    folder = Path(model)
    if (folder / "recipe.yaml").is_file():
        return folder
    if folder.name == "model" and (folder.parent / "recipe.yaml").is_file():
        return folder.parent
    name = folder.absolute().name if folder.is_dir() else model.replace(":", "-").replace("/", "-")
    return Path("evaluations") / name


def _check_storable(model: str) -> None:
    if not Path(model).is_dir():
        raise OptionError(
            f"expected a Kedge folder to store the threshold in, found {model}. Save the model"
            " first: kedge.save."
        )


def _store_threshold(
    model: str, rows: list[dict[str, Any]], acceptance: float, quiet: bool
) -> None:
    from kedge.image_model import Threshold
    from kedge.storage import load, save

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


def _unique(option: str, pairs: list[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, data in pairs:
        if name in found:
            raise OptionError(f"expected another name for each {option}, found {name!r} twice.")
        found[name] = data
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(option: str, words: tuple[str, ...] | None) -> tuple[int, ...] | None:
    if words is None:
        return None
    if not all(word.isdecimal() for word in words):
        raise OptionError(f"expected {option} such as 1,3,5, found {','.join(words)!r}.")
    return tuple(int(word) for word in words)


def _normalisation(options: argparse.Namespace) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        mean, std = (tuple(float(word) for word in part) for part in (options.mean, options.std))
    except ValueError:
        raise OptionError(
            "expected three numbers each for --mean and --std, as in 0.5,0.5,0.5, found"
            f" {','.join(options.mean)!r} and {','.join(options.std)!r}."
        ) from None
    return mean, std


def _pair(text: str) -> tuple[str, str]:
    name, equals, data = text.partition("=")
    if not (name and equals and data):
        raise argparse.ArgumentTypeError(f"expected NAME=DATA, found {text!r}")
    return name, data
