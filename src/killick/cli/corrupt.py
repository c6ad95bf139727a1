"""`killick corrupt`."""

import argparse
from pathlib import Path

from killick.cli.arguments import FOLDER, NAMES, NUMBER, SEVERITIES, add_shared
from killick.cli.parser import Parser
from killick.errors import OptionError

HELP = "write corrupted copies of images or of a test set, or a contact sheet"
USAGE = "killick corrupt [IMAGES ...] [--data DATA] [--sheet FILE] [--output FOLDER]"
EXAMPLES = """\
examples:
  killick corrupt --sheet sheet.png                     all corruptions of some shapes
  killick corrupt cat.jpg --sheet sheet.png --corruptions fog,snow --severities 1,2,3,4,5
  killick corrupt cat.jpg dog.jpg --corruptions fog --severities 3 --output corrupted/
  killick corrupt --data cifar10 --output CIFAR-10-C/   the whole test set, as .npy files
"""
_PASSED = (
    *("data", "corruptions", "severities", "table", "frost"),
    *("limit", "seed", "root", "device", "quiet"),
)


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("images", nargs="*", metavar="IMAGES", type=Path, help="files to corrupt")
    add("--data", metavar="DATA", help="this test set instead; see killick list data")
    add("--sheet", metavar="FILE.png", type=Path, help="write a contact sheet")
    add("--output", **FOLDER, help="write PNG files, or for --data arrays laid out as CIFAR-10-C")
    add("--corruptions", **NAMES, help="see killick list corruptions; or c or cbar (default: all)")
    add("--severities", **SEVERITIES, help="default: 1,3,5 on sheets, all five of copies")
    add("--limit", **NUMBER, help="at most N images")
    add("--seed", **NUMBER, default=0, help="random seed (0)")
    add_shared(parser, "--table", "--frost", "--root", "--device", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the sheet, the copies, or both."""
    if options.sheet is None and options.output is None:
        raise OptionError("killick corrupt requires --sheet FILE.png or --output FOLDER.")
    if options.output is not None and not options.images and options.data is None:
        raise OptionError("--output requires images or --data, such as --data shapes.")
    from killick.evaluation.corrupted_copies import CorruptedCopies

    copies = CorruptedCopies(options.images, **{name: getattr(options, name) for name in _PASSED})
    done = [] if options.sheet is None else [copies.write_sheet(options.sheet)]
    done += [] if options.output is None else [copies.write(options.output)]
    if not options.quiet:
        print("\n".join(done))
    return 0
