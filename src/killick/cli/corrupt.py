"""`killick corrupt`."""

import argparse
from pathlib import Path
from typing import Any

from killick.cli.arguments import add_shared, read_names, read_numbers
from killick.errors import OptionError

EXAMPLES = """\
examples:
  killick corrupt --sheet sheet.png                     all corruptions of some shapes
  killick corrupt cat.jpg --sheet sheet.png --corruptions fog,snow --severities 1,2,3,4,5
  killick corrupt cat.jpg dog.jpg --corruptions fog --severities 3 --output corrupted/
  killick corrupt --data cifar10 --output CIFAR-10-C/   the whole test set, as .npy files
"""


_PASSED = ("data", "corruptions", "table", "frost", "limit", "seed", "root", "device", "quiet")


def add(commands: Any, name: str) -> None:
    """Add this command to the parser of `killick`."""
    parser = commands.add_parser(
        name,
        help="write corrupted copies of images or of a test set, or a contact sheet",
        description="Corrupt images, or draw a contact sheet of corruptions.",
        epilog=EXAMPLES,
        usage="killick corrupt [IMAGES ...] [--data DATA] [--sheet FILE] [--output FOLDER]",
    )
    add_argument = parser.add_argument
    add_argument("images", nargs="*", metavar="IMAGES", type=Path, help="files to corrupt")
    add_argument("--data", metavar="DATA", help="this test set instead; see killick list data")
    add_argument("--sheet", metavar="FILE.png", type=Path, help="write a contact sheet")
    add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        help="write corrupted copies: PNG files, or for --data arrays laid out as CIFAR-10-C",
    )
    add_argument(
        "--corruptions",
        metavar="NAMES",
        type=read_names,
        help="comma-separated, see killick list corruptions; or c or cbar (default: all)",
    )
    add_argument(
        "--severities",
        metavar="1,...,5",
        type=read_names,
        help="default: 1,3,5 on sheets, all five of copies",
    )
    add_argument("--limit", metavar="N", type=int, help="at most N images")
    add_argument("--seed", metavar="N", type=int, default=0, help="of everything random (0)")
    add_shared(parser, "--table", "--frost", "--root", "--device", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the sheet, the copies, or both."""
    if options.sheet is None and options.output is None:
        raise OptionError("killick corrupt requires --sheet FILE.png or --output FOLDER.")
    if options.output is not None and not options.images and options.data is None:
        raise OptionError("--output requires images or --data, such as --data shapes.")
    from killick.evaluation.corrupted_copies import CorruptedCopies

    copies = CorruptedCopies(
        options.images,
        severities=read_numbers("--severities", options.severities),
        **{name: getattr(options, name) for name in _PASSED},
    )
    done = [] if options.sheet is None else [copies.write_sheet(options.sheet)]
    done += [] if options.output is None else [copies.write(options.output)]
    if not options.quiet:
        print("\n".join(done))
    return 0
