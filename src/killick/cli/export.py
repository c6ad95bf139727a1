"""`killick export`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError

if TYPE_CHECKING:
    from killick.storage.exported_file import Exported

EXAMPLES = """\
examples:
  killick export runs/mine                                  ONNX, one reference folded in
  killick export runs/mine --k 5                            averages over five, and tells their spread
  killick export runs/mine --precision int8 --output phone/
  killick export runs/mine --references mean                no training image leaves
  killick export my-model --data imagefolder:pictures --validation imagefolder:others --accept 0.99
  killick export runs/mine --format torch --precision bfloat16
"""
LAYOUT = """
The folder has the file, model.json (what it is, how it compares with the model), examples.npz and
check.py, which compares them on the machine where it is to run: python check.py. ONNX files need
numpy and onnxruntime there, nothing else. A .pt2 file can run code when torch loads it.
"""


def add(commands: Any, name: str) -> None:
    """Tell the parser of `killick` about this command."""
    parser = commands.add_parser(
        name,
        help="a model as an ONNX or torch.export file that runs without Killick",
        description="Write a model as one file: images in; logits, probabilities, energy, spread"
        " and a yes or no out.",
        epilog=EXAMPLES + LAYOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="killick export MODEL [--format onnx|torch] [--precision P] [--output FOLDER] [...]",
    )
    add_argument = parser.add_argument
    add_argument("model", metavar="MODEL", help="a Killick folder or run, or a name on the hub")
    add_argument("--format", choices=["onnx", "torch"], default="onnx", help="of the file (onnx)")
    add_argument(
        "--precision",
        choices=["float32", "float16", "bfloat16", "int8"],
        default="float32",
        help="float32; half the size; or a quarter (int8, ONNX alone)",
    )
    add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        help="default: exports/NAME, with what is special; an export that is there is replaced",
    )
    inside = parser.add_argument_group("what is inside")
    add_argument = inside.add_argument
    add_argument(
        "--k", metavar="K", type=int, default=1, help="references to average over (1); K passes"
    )
    add_argument(
        "--references",
        choices=["stored", "mean", "synthetic"],
        default="stored",
        help="stored (training images, as a rule), or made from all of the training set",
    )
    add_argument(
        "--accept",
        metavar="SHARE",
        type=float,
        help="of validation pictures that are in distribution; default: the threshold that is"
        " stored, else 0.95",
    )
    add_argument("--opset", metavar="N", type=int, help="version of ONNX's operators (18)")
    add_argument("--name", metavar="NAME", help="what the file calls the model")
    shown = parser.add_argument_group("what it is shown")
    add_argument = shown.add_argument
    add_argument(
        "--data",
        metavar="DATA",
        help="to measure and calibrate on; default: what it was trained on; see killick list data",
    )
    add_argument(
        "--validation",
        metavar="DATA",
        help="to fit the threshold on; default: what the run set aside",
    )
    add_argument(
        "--limit",
        metavar="N",
        type=int,
        default=1000,
        help="at most so many pictures to fit and to measure on (1000)",
    )
    add_argument(
        "--calibration",
        metavar="N",
        type=int,
        default=256,
        help="training pictures that int8 takes its ranges from (256)",
    )
    add_argument(
        "--root", metavar="FOLDER", help="where cifar10 and cifar100 are; $KILLICK_DATA or ./data"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing but errors")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Export, and tell what it is worth."""
    if rest:
        raise OptionError(f"expected options of killick export, found {' '.join(rest)}.")
    from killick.deploy.exporter import export

    def say(sentence: str) -> None:
        if not options.quiet:
            print(sentence, file=sys.stderr)

    folder = options.output or _default_folder(options)
    exported = export(
        options.model,
        folder,
        format=options.format,
        k=options.k,
        precision=options.precision,
        references=options.references,
        acceptance=options.accept,
        data=options.data,
        validation=options.validation,
        limit=options.limit,
        calibration=options.calibration,
        opset=options.opset,
        name=options.name,
        root=options.root,
        say=say,
    )
    if not options.quiet:
        print("\n".join(_describe(exported)))
    return 0


def _default_folder(options: argparse.Namespace) -> Path:
    """Named after the model and what is special about the export."""
    whole = Path(options.model).absolute()
    name = whole.parent.name if whole.name == "model" else whole.name
    special = [options.format]
    special += [options.precision] if options.precision != "float32" else []
    special += [f"k{options.k}"] if options.k != 1 else []
    special += [options.references] if options.references != "stored" else []
    return Path("exports") / "-".join([name, *special])


def _describe(exported: "Exported") -> list[str]:
    about = exported.about
    shape = ", ".join(["any number", *map(str, about.image_shape)])
    size = exported.path.stat().st_size
    megabytes = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"
    examples = about.measured["examples"]
    lines = [
        f"{exported.path}  {about.precision}, {megabytes}",
        f"  takes       images: {about.takes} ({shape})",
        f"  returns     {', '.join(about.outputs)}",
        f"  references  {about.references}",
    ]
    if about.threshold is not None:
        lines.append(
            f"  threshold   energy {about.threshold.energy:.4f}, which accepts"
            f" {about.threshold.acceptance:.0%} of {about.threshold.fitted_on}"
        )
    lines.append(
        f"  examples    {examples['count']}: probabilities differ from the model's by at most"
        f" {examples['probabilities']:.1e}"
    )
    if pictures := about.measured.get("pictures"):
        told = [f"{pictures['same_label']:.1%} get the model's label"]
        if "accuracy" in pictures:
            told.append(
                f"accuracy {pictures['accuracy']:.1%} (the model: {pictures['model_accuracy']:.1%})"
            )
        if "accepted" in pictures:
            told.append(f"{pictures['accepted']:.1%} in distribution")
        lines.append(f"  pictures    {pictures['count']:,} of {pictures['set']}: {', '.join(told)}")
    script = shlex.quote(str(exported.path.parent / "check.py"))
    lines.append(f"On the machine where it is to run, with the folder: python {script}")
    return lines
