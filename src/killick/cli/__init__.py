"""The command line: one file per command, which parses, calls and prints.

In: words. Out: calls of the other rooms, and their results on the terminal. May import every room;
nothing imports torch, reads a recipe or imports a study before a command runs, so that help comes
at once.
"""

import argparse
import errno
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

import killick
from killick.cli.arguments import add_shared, take_plugins
from killick.cli.parser import Parser, describe
from killick.errors import KillickError
from killick.registry import enable_plugin
from killick.runtime.signals import ENDING, handle

NAMES = (
    *("compare", "train", "evaluate", "report", "predict", "export", "publish", "study"),
    *("play", "federate", "convert", "ensemble", "probe", "corrupt", "check", "list"),
    "completion",
)
_FILES = {"list": "listing", "study": "study_command"}  # names that are taken
COMMANDS = {name: import_module(f"killick.cli.{_FILES.get(name, name)}") for name in NAMES}
# These take every setting of a recipe as an option, beside their own.
WITH_SETTINGS = ("compare", "federate", "train", "study")

ABOUT = "Killick trains, evaluates, compares and deploys anchored vision models."
EPILOG = """\
examples:
  killick                           what to do first
  killick train --help              options of one command
  killick list recipes              what can be trained by name

exit codes:
  0    done
  1    some of the work failed and the rest is done; or a bug, with its traceback
  2    a mistake in the command, explained in one line on stderr
  130  interrupted; results so far are kept, and the same command resumes where it can
"""
FIRST_STEPS = {
    "killick compare": "compare three ways to train on embedded images: some minutes on a"
    " laptop, offline; writes report.html",
    "killick train": "train one anchored model on embedded images: a minute or two",
    "killick evaluate timm:resnet18 --checkpoint MINE.pth --data FOLDER": "measure robustness and"
    " calibration of your own classifier: minutes",
    "killick export RUN": "write a trained model as an ONNX file: seconds",
    "killick list": "recipes, data, networks, corruptions, metrics, ...",
}
WIDTH = 80
# Errors that are no bugs: no permission, no room, a name that is too long.
_OF_THE_SYSTEM = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EMFILE, errno.ENFILE),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    A user's mistake is one line and exit code 2; a bug keeps its traceback.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:  # no process that is started imports from the current folder
        os.environ["PYTHONSAFEPATH"] = "1"
        for stream in (sys.stdout, sys.stderr):  # file names may hold what a terminal cannot show
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
    if "mps" in words or "--device=mps" in words:  # read when torch is imported
        os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
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
        _discard_output()
        return 141  # as a shell reports a command whose pipe was closed: `killick list | head`
    except OSError as problem:
        if problem.errno not in _OF_THE_SYSTEM:
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        where = problem.filename or "a file or the output"
        print(f"killick: cannot read or write {where}: {problem.strerror}.", file=sys.stderr)
        return 2


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM (batch systems, containers) and SIGHUP (a closed terminal) like Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handle(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_parser() -> tuple[Parser, "argparse._SubParsersAction[Any]"]:
    """The parser of `killick`, and its commands by name."""
    parser = Parser(
        prog="killick", description=ABOUT, epilog=EPILOG, usage="killick COMMAND [options]"
    )
    version = f"killick {killick.__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version")
    commands = parser.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", prog="killick"
    )
    for name, module in COMMANDS.items():
        about = f"{module.HELP[0].upper()}{module.HELP[1:]}."
        command = commands.add_parser(
            name, help=module.HELP, description=about, usage=module.USAGE, epilog=module.EXAMPLES
        )
        module.add(command)
        add_shared(command, "--plugin")
    return parser, commands


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The parsed options of a command, and the words that are settings of a recipe."""
    plugins, words = take_plugins(list(words))
    for package in plugins:
        enable_plugin(package)
    known, rest = make_parser()[0].parse_known_args(words)
    if known.command not in WITH_SETTINGS or getattr(known, "study", "") is None:
        known.parser.refuse(rest)
    if known.command is None:
        known.parser.error("expected a command")
    if rest:
        from killick.training.recipe_files import SHORT, settings

        known.parser.refuse_near_misses(rest, [*settings(), *SHORT])
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
    """What `killick` alone prints: first steps and all commands."""
    about = {name: module.HELP for name, module in COMMANDS.items()}
    return (
        f"{ABOUT}\n\nTry first:\n{describe(FIRST_STEPS, 6, WIDTH)}\n\n"
        f"Commands:\n{describe(about, 14, WIDTH)}\n\n"
        "Help: killick COMMAND --help. Tab completion: killick completion --help."
    )


def _is_output_closed() -> bool:
    """Whether nobody reads the output any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard_output() -> None:
    """Let what is left of the output go nowhere, so that Python does not fail on it at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
