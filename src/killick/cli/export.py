"""`killick export`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.cli.arguments import add_shared

if TYPE_CHECKING:
    from killick.storage.exported_file import Exported

# Those that `killick.export` takes under the same name.
OPTIONS = (
    *("format", "k", "precision", "references", "acceptance", "data", "validation"),
    *("limit", "calibration", "opset", "name", "root"),
)
EXAMPLES = """\
examples:
  killick export runs/mine                             ONNX, one reference folded in
  killick export runs/mine --k 5                       averages over five references
  killick export runs/mine --precision int8 --output phone/
  killick export runs/mine --references mean           contains no training image
  killick export my-model --data imagefolder:a --validation imagefolder:b --accept 0.99
  killick export runs/mine --format torch --precision bfloat16

The folder has the file, model.json (metadata, agreement with the model), examples.npz and check.py,
which compares them on the target machine: python check.py. ONNX files need numpy and onnxruntime
there, nothing else. A .pt2 file can run code when torch loads it.
"""


def add(commands: Any, name: str) -> None:
    """Add this command to the parser of `killick`."""
    parser = commands.add_parser(
        name,
        help="write a model as an ONNX or torch.export file that runs without Killick",
        description="Write a model as one file: images in; logits, probabilities, energy, standard"
        " deviation\nover references and in-distribution decision out.",
        epilog=EXAMPLES,
        usage="killick export MODEL [--format onnx|torch] [--precision P] [--output FOLDER] [...]",
    )
    add_argument = parser.add_argument
    add_argument("model", metavar="MODEL", help="a Killick folder or run, or a name on the hub")
    add_argument("--format", choices=["onnx", "torch"], default="onnx", help="of the file (onnx)")
    add_argument(
        "--precision",
        choices=["float32", "float16", "bfloat16", "int8"],
        default="float32",
        help="of the weights (float32); int8 with ONNX only",
    )
    add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        help="default: exports/NAME with the options that differ; an old export is replaced",
    )
    add_argument("--k", metavar="K", type=int, default=1, help="references to average over (1)")
    add_argument(
        "--references",
        choices=["stored", "mean", "synthetic"],
        default="stored",
        help="stored: usually training images; the others show none of them",
    )
    add_argument(
        "--accept",
        dest="acceptance",
        metavar="SHARE",
        type=float,
        help="share of validation images below the OOD threshold (default: the stored threshold,"
        " else 0.95)",
    )
    add_argument("--opset", metavar="N", type=int, help="version of ONNX's operators (18)")
    add_argument("--name", metavar="NAME", help="name of the model in the file")
    group = parser.add_argument_group("data")
    add_argument = group.add_argument
    add_argument("--data", metavar="DATA", help="to measure and calibrate on (the training data)")
    add_argument("--validation", metavar="DATA", help="to fit the threshold on (the run's own)")
    add_argument("--limit", metavar="N", type=int, default=1000, help="images of each (1000)")
    add_argument("--calibration", metavar="N", type=int, default=256, help="images for int8 (256)")
    add_shared(group, "--root")
    add_shared(parser, "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Export, and print what was measured."""
    from killick.deploy.exporter import export

    def say(sentence: str) -> None:
        if not options.quiet:
            print(sentence, file=sys.stderr)

    exported = export(
        options.model,
        options.output or _default_folder(options),
        **{name: getattr(options, name) for name in OPTIONS},
        say=say,
    )
    if not options.quiet:
        print("\n".join(_describe(exported)))
    return 0


def _default_folder(options: argparse.Namespace) -> Path:
    """Named after the model and what is special about the export."""
    from killick.deploy.exporter import name_of

    special = [options.format]
    special += [options.precision] if options.precision != "float32" else []
    special += [f"k{options.k}"] if options.k != 1 else []
    special += [options.references] if options.references != "stored" else []
    return Path("exports") / "-".join([name_of(options.model), *special])


def _describe(exported: "Exported") -> list[str]:
    from killick.deploy.parity import format_agreement

    about = exported.about
    shape = ", ".join(["any number", *map(str, about.image_shape)])
    size = exported.path.stat().st_size / 1e6
    examples = about.measured["examples"]
    lines = [
        f"{exported.path}  {about.precision}, {size:.3g} MB",
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
    if images := about.measured.get("images"):
        lines.append(f"  images      {format_agreement(images)}")
    script = shlex.quote(str(exported.path.parent / "check.py"))
    lines.append(f"On the machine where it is to run, with the folder: python {script}")
    return lines
