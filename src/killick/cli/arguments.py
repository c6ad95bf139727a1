"""Options that several commands share, and how their values are read."""

import argparse
from typing import Any

from killick.cli.parser import Parser
from killick.errors import OptionError

SHARED: dict[str, dict[str, Any]] = {
    "--device": {"metavar": "DEVICE", "default": "auto", "help": "auto, cpu, cuda or cuda:1"},
    "--quiet": {"action": "store_true", "help": "print errors only"},
    "--root": {
        "metavar": "FOLDER",
        "help": "folder of cifar10 and cifar100 (default: $KILLICK_DATA or ./data)",
    },
    "--table": {
        "choices": ["cifar", "imagenet"],
        "help": "constants of the corruptions (default: cifar up to 64 px, imagenet above)",
    },
    "--frost": {
        "metavar": "FOLDER_OR_PACKAGE",
        "help": "the original photographs of frost (default: procedural ice)",
    },
    "--trust": {
        "action": "store_true",
        "help": "open an exported .pt2 file, which can run code; other models do not need it",
    },
    "--plugin": {
        "metavar": "PACKAGE",
        "action": "append",
        "help": "use what this installed package registers; may be repeated",
    },
}


def add_shared(parser: Any, *options: str) -> None:
    """Add options that mean the same in every command."""
    for option in options:
        parser.add_argument(option, **SHARED[option])


def take_plugins(words: list[str]) -> tuple[list[str], list[str]]:
    """Split `--plugin PACKAGE` off the words: the packages, and the other words.

    Packages must be enabled before the words are parsed: they may register a study.

    Example:
        >>> take_plugins(["study", "--plugin", "mine", "x", "--plugin=other"])
        (['mine', 'other'], ['study', 'x'])
    """
    parser = Parser(add_help=False)
    parser.add_argument("--plugin", action="append", default=[])
    known, rest = parser.parse_known_args(words)
    return known.plugin, rest


def read_names(text: str) -> tuple[str, ...]:
    """`a,b` as names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def read_numbers(option: str, words: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Names that are whole numbers, such as severities or seeds."""
    if words is None:
        return None
    if not words or not all(word.isdecimal() for word in words):
        raise OptionError(f"{option} takes whole numbers such as 1,3,5, not {','.join(words)!r}.")
    return tuple(int(word) for word in words)


def read_pair(text: str) -> tuple[str, str]:
    """`NAME=DATA`."""
    name, equals, data = text.partition("=")
    if not (name and equals and data):
        raise argparse.ArgumentTypeError(f"takes NAME=DATA, not {text!r}")
    return name, data
