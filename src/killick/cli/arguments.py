"""Options that several commands share, and how their values are read."""

import argparse
import sys
from pathlib import Path
from typing import Any

from killick.cli.parser import Parser


def read_names(text: str) -> tuple[str, ...]:
    """`a,b` as names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def read_whole_numbers(text: str) -> tuple[int, ...]:
    """`1,3,5` as whole numbers, such as severities or seeds."""
    words = read_names(text)
    if not words or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"takes whole numbers such as 1,3,5, not {text!r}")
    return tuple(int(word) for word in words)


def warn(line: str) -> None:
    """Print a line for the user that is no result."""
    print(f"killick: {line}", file=sys.stderr)


class NamedSets(argparse.Action):
    """Collects `NAME=DATA`, which may be repeated, by name."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        """Add a set; `argparse` calls this for each option."""
        name, _, data = values.partition("=")
        sets = getattr(namespace, self.dest) or {}
        if not (name and data):
            raise argparse.ArgumentError(self, f"takes NAME=DATA, not {values!r}")
        if name in sets:
            raise argparse.ArgumentError(self, f"{name!r} is given twice; use another name")
        setattr(namespace, self.dest, {**sets, name: data})


ACCEPTANCE: dict[str, Any] = {"dest": "acceptance", "metavar": "SHARE", "type": float}
FLAG: dict[str, Any] = {"action": "store_true"}
FOLDER: dict[str, Any] = {"metavar": "FOLDER", "type": Path}
NAMES: dict[str, Any] = {"metavar": "NAMES", "type": read_names}
NUMBER: dict[str, Any] = {"metavar": "N", "type": int}
REFERENCE_KINDS: dict[str, Any] = {
    "choices": ["stored", "mean", "synthetic"],
    "default": "stored",
    "help": "stored: usually training images; the others contain none",
}
SETS: dict[str, Any] = {"metavar": "NAME=DATA", "action": NamedSets}
SEVERITIES: dict[str, Any] = {"metavar": "1,...,5", "type": read_whole_numbers}
SEEDS: dict[str, Any] = {"metavar": "0,1,...", "type": read_whole_numbers}
SHARED: dict[str, dict[str, Any]] = {
    "--device": {"metavar": "DEVICE", "default": "auto", "help": "auto, cpu, cuda, cuda:1 or mps"},
    "--threads": {**NUMBER, "help": "on a CPU (default: $OMP_NUM_THREADS, else free cores)"},
    "--logger": {
        **NAMES,
        "default": (),
        "help": "send results to mlflow, trackio, wandb, ...: to the run of the training, if it was"
        " logged there",
    },
    "--quiet": {**FLAG, "help": "print errors only"},
    "--root": {
        "metavar": "FOLDER",
        "help": "folder of downloaded data (default: $KILLICK_DATA or ./data)",
    },
    "--download": {**FLAG, "help": "download cifar10, cifar100 or wds:URL if missing"},
    "--table": {
        "choices": ["cifar", "tiny", "imagenet"],
        "help": "constants of the corruptions (default: cifar up to 48 px, tiny, of"
        " Tiny-ImageNet-C, up to 96 px, imagenet above)",
    },
    "--frost": {
        "metavar": "FOLDER_OR_PACKAGE",
        "help": "the original photographs of frost (default: procedural ice)",
    },
    "--trust": {
        **FLAG,
        "help": "open an exported .pt2 file, which can run code; other models do not need it",
    },
    "--ood": {**SETS, "help": "an OOD set; images:PATH needs no classes; may be repeated"},
    "--shift": {**SETS, "help": "a shifted set with the model's classes; may be repeated"},
    "--corruptions": {**NAMES, "help": "see killick list corruptions (default: all of the suite)"},
    "--severities": {**SEVERITIES, "help": "some of them (default: all)"},
    "--corruption-files": {
        "metavar": "FOLDER",
        "help": "of CIFAR-10-C, ImageNet-C or the same layout",
    },
    "--cbar-files": {
        "metavar": "FOLDER",
        "help": "of CIFAR-10-C-bar, ImageNet-C-bar or the same layout",
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


def name_folder(data: str, *words: str) -> str:
    """The default name of a folder: words, and the name of the data.

    Example:
        >>> name_folder("pack:files/cifar10.npz", "small")
        'small-cifar10'
    """
    kind, _, place = data.partition(":")
    name = "-".join(word for word in (*words, Path(place).stem or kind) if word)
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
