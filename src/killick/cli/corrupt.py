"""`killick corrupt`."""

import argparse
from pathlib import Path
from typing import Any

from killick.errors import OptionError

EXAMPLES = """\
examples:
  killick corrupt --sheet sheet.png                      some shapes, all corruptions, severity 1 3 5
  killick corrupt cat.jpg --sheet sheet.png --corruptions fog,snow --severities 1,2,3,4,5
  killick corrupt cat.jpg dog.jpg --corruptions fog --severities 3 --output corrupted/
  killick corrupt --data cifar10 --output CIFAR-10-C/    the whole test set, as .npy files
"""


def add(commands: Any, name: str) -> None:
    """Tell the parser of `killick` about this command."""
    parser = commands.add_parser(
        name,
        help="corrupted copies of pictures or of a set; a contact sheet",
        description="Corrupt pictures, or show what corruptions look like.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="killick corrupt [PICTURES ...] [--data DATA] [--sheet FILE] [--output FOLDER]",
    )
    parser.add_argument(
        "pictures", nargs="*", metavar="PICTURES", type=Path, help="files to corrupt"
    )
    parser.add_argument(
        "--data", metavar="DATA", help="instead of files, this test set; see killick list data"
    )
    parser.add_argument("--sheet", metavar="FILE.png", type=Path, help="write a contact sheet")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        help="write corrupted copies: PNG files, or for --data arrays laid out as CIFAR-10-C",
    )
    parser.add_argument(
        "--corruptions",
        metavar="NAMES",
        help="comma-separated, as in killick list corruptions, or c or cbar; default: all",
    )
    parser.add_argument(
        "--severities", metavar="1,..,5", help="default: 1,3,5 on sheets, all five of copies"
    )
    parser.add_argument(
        "--table",
        choices=["cifar", "imagenet"],
        help="whose constants; default: cifar up to 64 px, imagenet above",
    )
    parser.add_argument(
        "--frost",
        metavar="FOLDER_OR_PACKAGE",
        help="the original photographs of frost; default: procedural ice",
    )
    parser.add_argument("--limit", metavar="N", type=int, help="at most so many pictures")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of everything random (0)")
    parser.add_argument(
        "--root", metavar="FOLDER", help="where cifar10 and cifar100 are; $KILLICK_DATA or ./data"
    )
    parser.add_argument(
        "--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:1"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing but errors")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the sheet, the copies, or both."""
    if rest:
        raise OptionError(f"expected options of killick corrupt, found {' '.join(rest)}.")
    if options.sheet is None and options.output is None:
        raise OptionError(
            "expected --sheet FILE.png or --output FOLDER, found neither: say what to write."
        )
    if options.output is not None and not options.pictures and options.data is None:
        raise OptionError(
            "expected pictures or --data DATA to write copies of, found neither. A whole set:"
            " --data shapes."
        )
    from killick.evaluation.corrupted_copies import Copies

    copies = Copies(
        options.pictures,
        options.data,
        corruptions=options.corruptions,
        severities=options.severities,
        table=options.table,
        frost=options.frost,
        limit=options.limit,
        seed=options.seed,
        root=options.root,
        device=options.device,
        quiet=options.quiet,
    )
    done = [] if options.sheet is None else [copies.write_sheet(options.sheet)]
    done += [] if options.output is None else [copies.write(options.output)]
    if not options.quiet:
        print("\n".join(done))
    return 0
