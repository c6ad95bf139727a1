"""`killick ensemble`."""

import argparse
import shlex
from pathlib import Path

from killick.cli.arguments import add_shared
from killick.cli.parser import Parser

HELP = "make one model of several: the mean of their probabilities"
USAGE = "killick ensemble RUN RUN [RUN ...] --output FOLDER"
EXAMPLES = """\
examples:
  killick ensemble runs/a runs/b runs/c --output ensemble

The ensemble is an ordinary model, which can be evaluated, exported and predicted with. It costs as
much as all of its members. Anchored members see their first reference.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run or model folders")
    parser.add_argument("--output", metavar="FOLDER", type=Path, required=True, help="of the model")
    add_shared(parser, "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Make the ensemble, and print where it is."""
    from killick.deploy.ensemble_builder import make_ensemble

    model = make_ensemble(options.runs, options.output)
    if not options.quiet:
        print(f"{options.output}  {len(options.runs)} members")
        evaluate = f"killick evaluate {shlex.quote(str(options.output))}"
        if "recipe" not in model.provenance:
            evaluate += " --data DATA"
            print(
                "Its members are not known to share training and validation images: without --validation DATA"
                " it has no temperature scaling and no conformal sets. Runs with the same"
                " --data.seed 0 share them."
            )
        print(f"Evaluate it: {evaluate}")
    return 0
