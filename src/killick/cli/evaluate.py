"""`killick evaluate`."""

import argparse
import inspect
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from killick.cli.arguments import ACCEPTANCE, FLAG, FOLDER, NAMES, NUMBER, add_shared, warn
from killick.cli.network_options import MODELS, add_network, read_network
from killick.cli.parser import Parser
from killick.errors import OptionError
from killick.evaluation.evaluation_suites import DEFAULT_SUITES, EVALUATION_SUITES, check_options

if TYPE_CHECKING:
    from killick.results.rows import Row

HELP = "accuracy, robustness, calibration and OOD detection of any model"
USAGE = "killick evaluate MODEL ... [--data DATA] [--suite SUITES] [options]"
EXAMPLES = """\
examples:
  killick evaluate runs/small-shapes-long-masked-label-seed0
  killick evaluate runs/mine --suite clean,corruptions,cbar,calibration,ood,references --limit 1000
  killick evaluate runs/mine --ood textures=images:dtd/images --shift other=imagefolder:others
  killick evaluate runs/plain runs/mine timm:resnet18 --checkpoint net.pth --data imagefolder:photos
  killick evaluate runs/mine --suite corruptions --corruption-files CIFAR-10-C --baseline runs/plain
  killick evaluate timm:resnet50 --pretrained --data imagenet:/imagenet
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
    add("models", metavar="MODEL", nargs="+", help=f"{MODELS}; or an exported file")
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
    add_shared(group, "--table", "--frost", "--root", "--download")
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--references", **NUMBER, help="of an anchored model, for mean and spread (5)")
    inferences = ["marginal", "transductive", "mc-dropout", "tta"]
    text = (
        "transductive: the reference with the likeliest residual for each image; mc-dropout: mean"
        " of draws; tta: mean of shifted and mirrored views (marginal)"
    )
    add("--draws", **NUMBER, default=30, help="of --inference mc-dropout (30)")
    add("--inference", choices=inferences, default="marginal", help=text)
    add_network(group)
    add("--batch", "--batch-size", **NUMBER, help="images of a forward pass")
    add("--precision", choices=["float32", "bfloat16"], default="float32", help="(float32)")
    add("--workers", **NUMBER, help="processes that read files")
    add_shared(group, "--trust", "--device", "--threads")
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--output", **FOLDER, help="default: the run, or evaluations/NAME; of several: report")
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
    """Evaluate, and print the summary; of several models, write a report too."""
    _read_options(options)
    from killick.cli.summaries import show_summary
    from killick.evaluation.threshold import store_threshold
    from killick.runtime.devices import set_threads
    from killick.training.loggers import find_loggers, send_results

    set_threads(options.threads)
    find_loggers(options.logger)
    first = os.environ.get("RANK", "0") == "0"
    folders = [_find_folder(model, options) for model in options.models]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise OptionError("two of the models have the same name, and would share a folder of rows.")
    found: dict[Path, list[Row]] = {}
    for model, folder in zip(options.models, folders, strict=True):
        try:
            rows = _evaluate(model, folder, options)
        except KeyboardInterrupt:
            again = shlex.join(["killick", *options.words])
            print(
                f"killick: interrupted; rows so far are in {folder}. Resume: {again}",
                file=sys.stderr,
            )
            return 130
        found[folder] = rows
        if first:
            send_results(folder, options.logger, rows=rows, tell=warn)
        if first and options.store_threshold:
            threshold = store_threshold(model, rows, options.acceptance)
            if not options.quiet:
                print(f"The OOD threshold, energy {threshold.energy:.4f}, is stored in {model}")
                print(f"It was {threshold.describe()}.")
        if first and not options.quiet:
            show_summary(rows)
            print(f"{len(rows):,} rows are in {folder / 'rows.csv'}")
    if first and len(folders) > 1:
        from killick.report.report_data import make_report_data
        from killick.report.writer import write_report
        from killick.results.run_folder import read_run

        runs = [replace(read_run(folder), rows=rows) for folder, rows in found.items()]
        command = shlex.join(["killick", *options.words])
        data = make_report_data(runs)
        page = write_report(runs, options.output or Path("report"), command=command, data=data)
        for line in data.comparison.notes:
            warn(line)
        if not options.quiet:
            print(f"The report is in {page}")
    elif first and not options.quiet:
        print(f"For a report: killick report {shlex.quote(str(folders[0]))}")
    return 0


def _evaluate(model: str, folder: Path, options: argparse.Namespace) -> "list[Row]":
    from killick.evaluation.class_mapping import read_class_map
    from killick.evaluation.evaluator import evaluate
    from killick.nets.custom import is_network_name

    keywords = {
        name: value
        for name, value in vars(options).items()
        if name in inspect.signature(evaluate).parameters and value is not None
    }
    if options.class_map is not None:
        keywords["class_map"] = read_class_map(options.class_map)
    if len(options.models) > 1 and not is_network_name(model):  # it has its own
        keywords = {
            k: v for k, v in keywords.items() if k not in ("checkpoint", "pretrained", "normalize")
        }
    rows: list[Row] = evaluate(model, **keywords, folder=folder)
    return rows


def _find_folder(model: str, options: argparse.Namespace) -> Path:
    """Where the rows of a model are kept."""
    named = ":" in model
    checkpoint = options.checkpoint if named or len(options.models) == 1 else None
    usual = _default_folder(model, checkpoint)
    if options.output is None:
        return usual
    output: Path = options.output
    return output / usual.name if len(options.models) > 1 else output


def _read_options(options: argparse.Namespace) -> None:
    """Complete the options as `killick.evaluate` takes them, and check what needs no torch."""
    options.suites = options.suite or DEFAULT_SUITES
    if options.suite == ("all",):
        options.suites = tuple(s for s in EVALUATION_SUITES if s != "shift" or options.shift)
    if options.synthetic == ("none",):
        options.synthetic = ()
    if options.synthetic is None:
        del options.synthetic
    options.normalize = read_network(options).get("normalize")
    for name in ("checkpoint", "class_map"):
        file: Path | None = getattr(options, name)
        if file is not None and not file.exists():
            raise OptionError(f"--{name.replace('_', '-')} {file}: no such file.")
    check_options(vars(options))
    several = len(options.models) > 1
    if several and options.name is not None:
        raise OptionError(f"--name is for one model, found {len(options.models)}.")
    if (
        several
        and (options.checkpoint or options.pretrained)
        and sum(":" in model for model in options.models) != 1
    ):
        raise OptionError("--checkpoint is for one network by name, such as timm:resnet18.")
    if options.store_threshold and options.inference != "marginal":
        raise OptionError("--store-threshold is for --inference marginal.")
    for model in options.models if options.store_threshold else ():
        if not os.path.isdir(model) or (Path(model) / "model.json").exists():
            raise OptionError(
                f"--store-threshold requires a Killick folder, not {model}. Store it with the model"
                " that was exported, or save the model first: killick.save."
            )


def _default_folder(model: str, checkpoint: Path | None) -> Path:
    """The run of the model; else a folder named by the model and its weights."""
    from killick.evaluation.residual_banks import find_run

    if (run := find_run(model)) is not None:
        return run
    folder = Path(model)
    if folder.is_dir():
        name = folder.absolute().name
    elif folder.is_file():  # an export
        name = folder.absolute().parent.name if folder.stem == "model" else folder.stem
    else:
        name = model.replace(":", "-").replace("/", "-")
    return Path("evaluations") / (name if checkpoint is None else f"{name}-{checkpoint.stem}")
