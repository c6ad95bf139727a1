"""The command line: one file for each command, which parses, calls and prints."""

import argparse
import sys
from collections.abc import Sequence

import kedge
from kedge.cli import corruption, evaluation, listing, training
from kedge.errors import KedgeError

COMMANDS = {
    "train": training,
    "evaluate": evaluation,
    "corrupt": corruption,
    "list": listing,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what it returns is the exit code.

    A user's mistake is one line and exit code 2; a bug keeps its traceback.
    """
    parser = argparse.ArgumentParser(
        prog="kedge",
        description="Train and evaluate anchored vision models.",
        epilog="`kedge COMMAND --help` tells more.",
    )
    parser.add_argument("--version", action="version", version=f"kedge {kedge.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        module.add(commands, name)
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help()
        return 0
    known, rest = parser.parse_known_args(arguments)
    try:
        code: int = COMMANDS[known.command].run(known, rest)
        return code
    except KedgeError as problem:
        sys.stdout.flush()
        print(f"kedge: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kedge: interrupted", file=sys.stderr)
        return 130
