"""The parser of the command line: whatever it does not understand it tells in one line."""

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from killick.errors import OptionError

_NUMBERS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `OptionError`, and offers what was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Raise what `argparse` would print below two lines of usage."""
        raise OptionError(f"{_say_plainly(message)}. See {self.prog} --help.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Where a value is one of a few; `argparse` calls it."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = suggest(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):
            what = "a command" if self.prog == "killick" else str(action.metavar)
            self.error(f"expected {what}, found {value}{hint}")
        self.error(f"{_name(action)}: expected {_either(choices)}, found {value!r}{hint}")

    @property
    def options(self) -> list[str]:
        """All it knows, such as `--help`."""
        return [option for action in self._actions for option in action.option_strings]

    def refuse(self, words: Sequence[str]) -> None:
        """Tell the first of the words that were not understood."""
        if not words:
            return
        unknown = next((word for word in words if word.startswith("-")), words[0])
        if not unknown.startswith("-"):
            self.error(f"expected nothing more, found {unknown!r}")
        name = unknown.partition("=")[0]
        self._refuse_option(name, suggest(name, self.options))

    def refuse_near_misses(self, words: Iterable[str], settings: Iterable[str]) -> None:
        """Tell an option with a slip in it, where unknown ones may be settings of a recipe.

        Args:
            words: That were not understood.
            settings: All there are, without dashes; what is nearer to one of them is left alone.
        """
        known = [f"--{setting}" for setting in settings]
        for word in words:
            name = word.partition("=")[0]
            nearest = difflib.get_close_matches(name, [*known, *self.options], n=1)
            if name.startswith("--") and nearest and nearest[0] in self.options:
                self._refuse_option(name, f" (did you mean {nearest[0]}?)")

    def _refuse_option(self, name: str, hint: str) -> NoReturn:
        self.error(f"expected an option of {self.prog}, found {name}{hint}")


def inner_parsers(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The parsers of a command's own commands, by name; none if it has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def suggest(word: str, known: Sequence[str]) -> str:
    """` (did you mean …?)`, or nothing where nothing is near.

    Example:
        >>> suggest("evalute", ["train", "evaluate"])
        ' (did you mean evaluate?)'
        >>> suggest("boil", ["train", "evaluate"])
        ''
    """
    near = difflib.get_close_matches(word.lower(), known, n=1)
    begun = [each for each in known if each.startswith(word.lower())] if word.strip("-") else []
    found = [*begun, *near][:1]
    return f" (did you mean {found[0]}?)" if found else ""


def _name(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else str(action.metavar or "it")


def _either(choices: Sequence[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)


def _say_plainly(message: str) -> str:
    """What `argparse` says, in the words of Killick's other errors."""
    message = message.removeprefix("argument ")
    missing = re.fullmatch(r"the following arguments are required: (.+)", message)
    if missing:
        return f"expected {missing[1]}, found nothing"
    wrong = re.fullmatch(r"(\S+): invalid (int|float) value: (.+)", message, re.DOTALL)
    if wrong:
        return f"{wrong[1]}: expected {_NUMBERS[wrong[2]]}, found {wrong[3]}"
    return message.replace("expected one argument", "expected a value, found none")
