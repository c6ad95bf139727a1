"""`killick evaluate`."""

import argparse
import inspect
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from killick.cli.arguments import (
    ACCEPTANCE,
    FLAG,
    FOLDER,
    NAMES,
    NUMBER,
    add_shared,
    read_names,
    warn,
)
from killick.cli.parser import Parser
from killick.errors import OptionError

HELP = "accuracy, robustness, calibration and OOD detection of any model"
USAGE = "killick evaluate MODEL [--data DATA] [--suite SUITES] [options]"
EXAMPLES = """\
examples:
  killick evaluate runs/shapes-small-masked-label-seed0
  killick evaluate runs/mine --suite clean,corruptions,cbar,calibration,ood,references --limit 1000
  killick evaluate runs/mine --ood textures=images:dtd/images --shift other=imagefolder:others
  killick evaluate runs/mine --suite corruptions --corruption-files CIFAR-10-C --baseline runs/plain
  killick evaluate timm:resnet50 --checkpoint net.pth --data imagenet:/imagenet \\
      --suite clean,shift --shift imagenet-r=imagefolder:/imagenet-r
  torchrun --nproc-per-node 8 -m killick evaluate runs/mine --data imagenet:/imagenet

Rows are added to rows.csv and rows.jsonl in the output folder. Rows of the same weights and
settings are not computed again, so an interrupted evaluation can be resumed. killick list suites
and killick list metrics explain what is measured.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a Killick folder or run, an exported file, or timm:NAME")
    add("--data", metavar="DATA", help="test data (default: that of the training run)")
    add("--suite", **NAMES, help="some, or all (default: clean,corruptions,calibration,ood)")
    group = parser.add_argument_group("data")
    add = group.add_argument
    add_shared(group, "--ood", "--shift")
    add("--synthetic", **NAMES, help="built-in OOD sets (default: noise,blobs,scrambled), or none")
    add_shared(group, "--corruptions", "--severities", "--corruption-files", "--cbar-files")
    add("--class-map", metavar="FILE", type=Path, help="for --shift: JSON, their classes to ours")
    add("--validation", metavar="DATA", help="to fit temperature and threshold (the run's own)")
    add("--limit", **NUMBER, help="at most N images of each set")
    add("--seed", **NUMBER, default=0, help="of subsets and corruptions (0)")
    add_shared(group, "--table", "--frost", "--root")
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--references", **NUMBER, default=5, help="of an anchored model, for mean and spread (5)")
    add("--checkpoint", metavar="FILE", type=Path, help="weights of a network by name")
    add("--size", **NUMBER, help="height and width of the network's input")
    add("--resize", **NUMBER, help="shorter side before the center crop")
    add("--mean", metavar="R,G,B", type=read_names, help="of each channel, 0 to 1")
    add("--std", metavar="R,G,B", type=read_names, help="of each channel, 0 to 1")
    add("--batch", **NUMBER, help="images of a forward pass")
    add("--precision", choices=["float32", "bfloat16"], default="float32", help="(float32)")
    add("--workers", **NUMBER, help="processes that read files")
    add_shared(group, "--trust", "--device")
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--output", **FOLDER, help="default: the run, or evaluations/NAME")
    add("--name", metavar="NAME", help="name of the model in rows")
    add("--baseline", metavar="ROWS", help="for mCE: alexnet, or an evaluated run")
    add("--accept", **ACCEPTANCE, default=0.95, help="share of validation images accepted (0.95)")
    add("--store-threshold", **FLAG, help="store the OOD threshold in the model's folder")
    add(
        "--no-predictions",
        action="store_false",
        dest="predictions",
        help="do not keep per-image predictions, which reports need for some figures",
    )
    add("--again", **FLAG, help="recompute rows that are there already")
    add_shared(group, "--logger", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Evaluate, and print the summary."""
    from killick.cli.summaries import show_summary
    from killick.evaluation.class_mapping import read_class_map
    from killick.evaluation.evaluation_settings import DEFAULT_SUITES, EVALUATION_SUITES
    from killick.evaluation.evaluator import evaluate
    from killick.storage.exported_file import is_export
    from killick.training.loggers import find_loggers, send_results

    keywords = {
        name: value
        for name, value in vars(options).items()
        if name in inspect.signature(evaluate).parameters and value is not None
    }
    keywords["suites"] = options.suite or DEFAULT_SUITES
    if options.suite == ("all",):
        keywords["suites"] = tuple(s for s in EVALUATION_SUITES if s != "shift" or options.shift)
    if options.synthetic == ("none",):
        keywords["synthetic"] = ()
    if options.class_map is not None:
        keywords["class_map"] = read_class_map(options.class_map)
    if options.mean is not None or options.std is not None:
        keywords["normalize"] = _normalization(options)
    folder = options.output or _default_folder(options.model, options.checkpoint)
    if options.store_threshold and (
        is_export(Path(options.model)) or not os.path.isdir(options.model)
    ):
        raise OptionError(
            f"--store-threshold requires a Killick folder, not {options.model}. Store it with the"
            " model that was exported, or save the model first: killick.save."
        )
    find_loggers(options.logger)
    try:
        rows = evaluate(**keywords, folder=folder)
    except KeyboardInterrupt:
        again = shlex.join(["killick", *options.words])
        print(
            f"killick: interrupted; rows so far are in {folder}. Resume: {again}", file=sys.stderr
        )
        return 130
    if os.environ.get("RANK", "0") != "0":
        return 0
    if options.store_threshold:
        _store_threshold(options.model, rows, options.acceptance, options.quiet)
    send_results(folder, options.logger, rows=rows, tell=warn)
    if not options.quiet:
        show_summary(rows)
        print(f"{len(rows):,} rows are in {folder / 'rows.csv'}")
        print(f"For a report: killick report {shlex.quote(str(folder))}")
    return 0


def _default_folder(model: str, checkpoint: Path | None) -> Path:
    """The run of the model; else a folder named by the model and its weights."""
    folder = Path(model)
    run = folder.parent if folder.name == "model" else folder
    if (run / "recipe.yaml").is_file():
        return run
    if folder.is_dir():
        name = folder.absolute().name
    elif folder.is_file():  # an export
        name = folder.absolute().parent.name if folder.stem == "model" else folder.stem
    else:
        name = model.replace(":", "-").replace("/", "-")
    return Path("evaluations") / (name if checkpoint is None else f"{name}-{checkpoint.stem}")


def _store_threshold(
    model: str, rows: list[dict[str, Any]], acceptance: float, quiet: bool
) -> None:
    from killick.core.image_model import Threshold
    from killick.storage.loading import load, locate_model
    from killick.storage.saving import save

    row = next(row for row in rows if row["metric"] == "threshold")
    folder = locate_model(model)
    loaded = load(folder)
    loaded.threshold = Threshold(float(row["value"]), acceptance, 1, str(row["fitted_on"]))
    save(loaded, folder)
    if not quiet:
        print(f"{row['estimator']}, energy {row['value']:.4f}, is stored in {folder}")


def _normalization(options: argparse.Namespace) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        mean, std = (tuple(float(word) for word in part) for part in (options.mean, options.std))
    except (TypeError, ValueError):
        raise OptionError(
            "--mean and --std require each other, and take numbers such as 0.5,0.5,0.5."
        ) from None
    return mean, std
