"""`killick probe`."""

import argparse
import inspect
from pathlib import Path

from killick.cli.arguments import FOLDER, NUMBER, add_shared, name_folder
from killick.cli.parser import Parser
from killick.errors import OptionError, check_least

HELP = "train and test a linear probe on the frozen features of a model"
USAGE = "killick probe MODEL --data DATA [--alpha 0.4] [--target label|uniform] [options]"
EXAMPLES = """\
examples:
  killick probe runs/mine --data digits
  killick probe runs/mine --data imagefolder:flowers --alpha 0 --references 8
  killick probe timm:resnet50 --checkpoint net.pth --data imagefolder:flowers

A probe is a linear layer on what the last layer reads. On an anchored model it is trained as in the
paper, with random references, masked in 40 % of the steps, towards the label unless --target says
otherwise. Its learning rate is the best on held-out training images. Rows are added to rows.csv.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a Killick folder or run, or timm:NAME")
    add("--data", metavar="DATA", required=True, help="with a training and a test set")
    add("--alpha", metavar="SHARE", type=float, default=0.4, help="of masked steps (0.4)")
    targets = ["label", "uniform"]
    add("--target", choices=targets, default="label", help="of masked steps (label)")
    add("--references", **NUMBER, default=4, help="of each image, and to test with (4)")
    add("--epochs", **NUMBER, default=60, help="of the probe (60)")
    add("--batch", "--batch-size", **NUMBER, default=128, help="images of a step (128)")
    add("--limit", **NUMBER, help="at most N images of each set")
    add("--seed", **NUMBER, default=0, help="random seed (0)")
    add("--checkpoint", metavar="FILE", type=Path, help="weights of a network by name")
    add("--output", **FOLDER, help="default: probes/, by model and data")
    add_shared(parser, "--root", "--device", "--threads", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Train and test the probe, and print its numbers."""
    for name in ("references", "epochs", "batch", "limit"):
        check_least(f"--{name}", getattr(options, name))
    if not 0 <= options.alpha <= 1:
        raise OptionError(f"--alpha must be between 0 and 1, found {options.alpha:g}.")
    from killick.cli.summaries import show_summary
    from killick.results.rows import merge, read_rows, write_rows
    from killick.runtime.devices import set_threads
    from killick.runtime.progress import choose_display
    from killick.studies.adaptation.own_backbone import probe_model

    set_threads(options.threads)
    taken = inspect.signature(probe_model).parameters.keys() & vars(options).keys()
    given = {name: getattr(options, name) for name in taken}
    rows = probe_model(**given, show=choose_display(None, options.quiet))
    model = str(rows[0]["model"]).removesuffix("-probe")
    folder = options.output or Path("probes") / name_folder(options.data, name_folder(model))
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder, merge(read_rows(folder), rows))
    if not options.quiet:
        show_summary(rows)
        print(f"{len(rows)} rows are in {folder / 'rows.csv'}")
    return 0
