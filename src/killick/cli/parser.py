"""The argument parser of the command line: errors in one line, with the likely spelling."""

import argparse
import difflib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from killick.errors import OptionError, suggest


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `OptionError` and suggests the likely spelling.

    `filler` is called before the parser first parses or prints help. It adds what takes long to
    know, such as the options of one study or a list of settings.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        keywords.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        keywords.setdefault("allow_abbrev", False)
        super().__init__(*arguments, **keywords)
        self.filler: Callable[[Parser], None] | None = None
        self.set_defaults(parser=self)  # the innermost one stays: that of a command or a study

    def fill(self) -> None:
        """Add what takes long to know, once."""
        filler, self.filler = self.filler, None
        if filler is not None:
            filler(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in `argparse`, with everything filled in."""
        self.fill()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """As in `argparse`, with everything filled in."""
        self.fill()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise what `argparse` would print below the usage."""
        raise OptionError(f"{message.removeprefix('argument ')}. See {self.prog} --help.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = suggest(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"no such {str(action.metavar).lower()}: {value}{hint}")
        name = "/".join(action.option_strings) or str(action.metavar)
        self.error(f"{name}: {value!r} is not one of {', '.join(choices)}{hint}")

    @property
    def options(self) -> list[str]:
        """All known options, such as `--help`."""
        self.fill()
        return [option for action in self._actions for option in action.option_strings]

    def refuse(self, words: Sequence[str]) -> None:
        """Raise for the first of the words that were not understood."""
        if not words:
            return
        unknown = next((word for word in words if word.startswith("-")), words[0])
        if not unknown.startswith("-"):
            self.error(f"unexpected argument: {unknown!r}")
        name = unknown.partition("=")[0]
        self.error(f"no such option: {name}{suggest(name, self.options)}")

    def refuse_near_misses(self, words: Iterable[str], settings: Iterable[str]) -> None:
        """Raise for a misspelled option, but not for words that are nearer to a recipe's settings."""
        known = [f"--{setting}" for setting in settings]
        for word in words:
            name = word.partition("=")[0]
            nearest = difflib.get_close_matches(name, [*known, *self.options], n=1)
            if name.startswith("--") and nearest and nearest[0] in self.options:
                self.error(f"no such option: {name} (did you mean {nearest[0]}?)")


def describe(names: dict[str, str], column: int, width: int) -> str:
    """A line for each name, its meaning wrapped beside it."""
    lines = []
    for name, about in names.items():
        first, *more = textwrap.wrap(about, width - column) or [""]
        if len(name) > column - 4:
            first, more = "", [first, *more]
        lines += [f"  {name:{column - 2}}{first}".rstrip(), *(" " * column + line for line in more)]
    return "\n".join(lines)
