"""`killick export`."""

import argparse
import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from killick.cli.arguments import ACCEPTANCE, FOLDER, NUMBER, REFERENCE_KINDS, add_shared, warn
from killick.cli.network_options import MODELS, add_network, read_network
from killick.cli.parser import Parser

if TYPE_CHECKING:
    from killick.storage.exported_file import Exported

HELP = "write a model as an ONNX or torch.export file that runs without Killick"
USAGE = "killick export MODEL [--format onnx|torch] [--precision P] [--output FOLDER] [...]"
EXAMPLES = """\
examples:
  killick export runs/mine                             ONNX, one reference folded in
  killick export timm:resnet50 --pretrained           weights of timm
  killick export runs/mine --references 5             averages over five references
  killick export runs/mine --precision int8 --output phone/
  killick export runs/mine --reference-kind mean      contains no training image
  killick export my-model --data imagefolder:a --validation imagefolder:b --accept 0.99

The folder has the file, model.json (metadata, agreement with the model), examples.npz and check.py,
which compares them on the target machine: python check.py. ONNX files need numpy and onnxruntime
there, nothing else. A .pt2 file can run code when torch loads it.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODELS)
    add("--format", choices=["onnx", "torch"], default="onnx", help="of the file (onnx)")
    precisions = ["float32", "float16", "bfloat16", "int8"]
    add("--precision", choices=precisions, default="float32", help="(float32); int8: ONNX only")
    add("--output", **FOLDER, help="default: exports/NAME...; an old export is replaced")
    add("--references", **NUMBER, default=1, help="to average over, of an anchored model (1)")
    add("--reference-kind", **REFERENCE_KINDS)
    add("--accept", **ACCEPTANCE, help="share of validation images accepted (as stored, or 0.95)")
    add("--opset", **NUMBER, help="version of ONNX's operators (18)")
    add("--name", metavar="NAME", help="name of the model in the file")
    group = parser.add_argument_group("data")
    add = group.add_argument
    add("--data", metavar="DATA", help="to measure and calibrate on (the training data)")
    add("--validation", metavar="DATA", help="to fit the threshold on (the run's own)")
    add("--limit", **NUMBER, default=1000, help="images of each (1000)")
    add("--calibration", **NUMBER, default=256, help="images for int8 (256)")
    add_shared(group, "--root")
    add_network(parser.add_argument_group("a network by name"))
    add_shared(parser, "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Export, and print what was measured."""
    from killick.deploy.exporter import export

    network = read_network(options)
    taken = inspect.signature(export).parameters.keys() - {"model", "references", *network}
    exported = export(
        options.model,
        options.output or _default_folder(options),
        **{name: value for name, value in vars(options).items() if name in taken},
        k=options.references,
        references=options.reference_kind,
        **network,
        say=None if options.quiet else warn,
    )
    if not options.quiet:
        print("\n".join(_describe(exported)))
    return 0


def _default_folder(options: argparse.Namespace) -> Path:
    """Named after the model and what is special about the export."""
    from killick.deploy.exporter import name_of

    words = (options.precision, f"k{options.references}", options.reference_kind)
    special = [word for word in words if word not in ("float32", "k1", "stored")]
    return Path("exports") / "-".join([name_of(options.model), options.format, *special])


def _describe(exported: "Exported") -> list[str]:
    from killick.data.preprocessing import PlainView
    from killick.deploy.parity import format_agreement

    about = exported.about
    view = PlainView(about.image_shape[-1], about.resize, about.interpolation, about.squash)
    shape = ", ".join(["any number", *map(str, about.image_shape)])
    size = exported.path.stat().st_size / 1e6
    examples = about.measured["examples"]
    lines = [
        f"{exported.path}  {about.precision}, {size:.3g} MB",
        f"  takes       images: {about.takes} ({shape})",
        f"  shown       {view.described}",
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
