"""`killick convert`."""

import argparse
import shlex
from pathlib import Path

from killick.cli.arguments import FLAG, NUMBER, add_shared, warn
from killick.cli.network_options import MODELS, add_network, read_network
from killick.cli.parser import Parser

HELP = "anchor a trained network exactly and save it, without training"
USAGE = "killick convert SOURCE OUT [--network NAME] [--checkpoint FILE] [--format llnl] [options]"
EXAMPLES = """\
examples:
  killick convert timm:resnet50 anchored --pretrained
  killick convert net.pth anchored --network timm:resnet50 --data imagefolder:images
  killick convert ckpt-199.pth anchored --format llnl --data cifar10

The anchored model predicts what the network predicted. Fine-tune it with masked references: killick
train --from anchored. Checkpoints of LLNL/anchoring, the code of the paper's authors, hold networks
that were trained on pairs, and are kept as they are; they need references: --data.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help=f"{MODELS}; or a file with weights")
    add("output", metavar="OUT", type=Path, help="folder of the anchored model")
    add("--network", metavar="NAME", help="of a file with weights: timm:NAME, killick:NAME, ...")
    add("--format", choices=["auto", "llnl"], default="auto", help="llnl: of LLNL/anchoring (auto)")
    add("--pairs", **FLAG, help="the network itself is written for pairs: twice the channels")
    add("--data", metavar="DATA", help="training data, to store references of")
    add("--references", **NUMBER, default=10, help="how many (10)")
    add_shared(parser, "--root", "--quiet")
    add_network(parser.add_argument_group("a network by name"))


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Convert, and print what was saved."""
    from killick.data.preprocessing import view_for
    from killick.deploy.converter import convert

    model = convert(
        options.source,
        options.output,
        network=options.network,
        format=options.format,
        pairs=options.pairs,
        data=options.data,
        root=options.root,
        references=options.references,
        say=None if options.quiet else warn,
        **read_network(options),
    )
    if not options.quiet:
        assert model.normalize is not None
        view, normalize = view_for(model).described, model.normalize
        print(f"{options.output}  images of {view}, mean {normalize.mean}, std {normalize.std}")
        print(f"  references  {len(model.references)}: {model.reference_policy or 'none'}")
        print(f"Train it on: killick train --from {shlex.quote(str(options.output))} --data DATA")
    return 0
