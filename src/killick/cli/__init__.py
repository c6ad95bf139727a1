"""The command line: one file for each command, which parses, calls and prints.

Nothing here imports torch before a command runs, so that help comes at once.
"""

import argparse
import os
import select
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

import killick
from killick.cli.parser import Parser, inner_parsers
from killick.errors import KillickError
from killick.training.recipe_files import SHORT, settings

NAMES = (
    *("compare", "train", "evaluate", "report", "predict", "export", "publish", "study"),
    *("corrupt", "check", "list", "completion"),
)
_FILES = {"list": "listing"}  # a module named list would hide the built-in one here
COMMANDS = {name: import_module(f"killick.cli.{_FILES.get(name, name)}") for name in NAMES}
# These take every setting of a recipe as an option, beside their own.
WITH_SETTINGS = ("compare", "train", "study")

ABOUT = "Killick trains, tests, compares and deploys anchored vision models."
EPILOG = """\
examples:
  killick                           what to do first
  killick train --help              all about one command
  killick list recipes              what can be trained by name

exit codes:
  0    done
  1    some of the work failed, and the rest is done; or a bug, with its traceback
  2    a mistake in what was asked for, told in one line on stderr
  130  interrupted; what was done is kept, and the same command goes on where it can
"""
FIRST_STEPS = {
    "killick compare": "five ways to train, side by side on pictures made by Killick: about five"
    " minutes on a laptop, offline; writes report.html",
    "killick train": "one anchored model on the same pictures: less than a minute",
    "killick evaluate timm:resnet18 --checkpoint MINE.pth --data imagefolder:FOLDER": "how"
    " robust and how well calibrated a classifier of yours is: minutes",
    "killick export RUN": "a trained model as an ONNX file that says how sure it is: seconds",
    "killick list": "recipes, data, networks, corruptions, ...: at once",
}
WIDTH = 80


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what it returns is the exit code.

    A user's mistake is one line and exit code 2; a bug keeps its traceback.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            with _terminated_as_interrupted():
                return _run(words)
        finally:
            sys.stdout.flush()
    except KillickError as problem:
        print(f"killick: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("killick: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        return (
            141  # what a shell calls a command that its pipe has ended, as in `killick list | head`
        )


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let a termination, as batch systems and containers send it, be what Ctrl-C is."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: not set from Python


def make_parser() -> tuple[Parser, "argparse._SubParsersAction[Any]"]:
    """The parser of `killick`, and its commands by name."""
    parser = Parser(
        prog="killick",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="killick COMMAND [options]",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"killick {killick.__version__}",
        help="show the version and exit",
    )
    commands = parser.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", prog="killick"
    )
    for name, module in COMMANDS.items():
        module.add(commands, name)
    return parser, commands


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What the words of a command mean, and those of them that are settings of a recipe."""
    parser, commands = make_parser()
    known, rest = parser.parse_known_args(words)
    if known.command is None:
        parser.refuse(rest)
    chosen = commands.choices[known.command]
    if known.command == "study":
        if known.study is None:
            chosen.refuse(rest)
        chosen = inner_parsers(chosen).get(known.study, chosen)
    if known.command in WITH_SETTINGS:
        chosen.refuse_near_misses(rest, [*settings(), *SHORT])
    else:
        chosen.refuse(rest)
    return known, rest


def _run(words: list[str]) -> int:
    if not words:
        print(_welcome())
        return 0
    known, rest = parse(words)
    known.words = words
    code: int = COMMANDS[known.command].run(known, rest)
    return code


def _welcome() -> str:
    """What someone who types `killick` for the first time wants to know."""
    _, commands = make_parser()
    lines = [ABOUT, "", "Try first:"]
    for command, about in FIRST_STEPS.items():
        if command.split()[1] in COMMANDS:
            lines += [f"  {command}", *_indented(about, 6)]
    lines += ["", "Commands:"]
    for each in commands._choices_actions:
        first, *more = textwrap.wrap(each.help or "", WIDTH - 14)
        lines += [f"  {each.dest:12}{first}", *(" " * 14 + line for line in more)]
    lines += ["", "Help: killick COMMAND --help. Tab completes: killick completion --help."]
    return "\n".join(lines)


def _indented(text: str, by: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * by, subsequent_indent=" " * by)


def _is_output_closed() -> bool:
    """Whether nobody reads the output any more; if so, what is left of it goes nowhere."""
    output = sys.stdout.fileno()
    if hasattr(select, "poll"):
        asked = select.poll()
        asked.register(output, 0)
        if not any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0)):
            return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True
