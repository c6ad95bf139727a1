"""Every error a user can meet: each is a `KillickError` and also a built-in error.

A message says what is wrong, the value found, and the fix.
"""

import difflib
import importlib
import re
import reprlib
from collections.abc import Iterable
from typing import Any


class KillickError(Exception):
    """The base of all errors in what Killick was given; catch this to catch all of them."""


class ShapeError(KillickError, ValueError):
    """Images, references or labels of a wrong shape."""


class DtypeError(KillickError, TypeError):
    """Floats where uint8 images were meant, or the other way round."""


class OptionError(KillickError, ValueError):
    """An option that does not exist, or a number out of its range."""


class StemError(KillickError, ValueError):
    """A network that cannot be anchored or folded."""


class ReferencesError(KillickError, ValueError):
    """References that are missing, too few or not finite."""


class StorageError(KillickError, ValueError):
    """A saved model that cannot be written, read or trusted."""


class FileError(KillickError, ValueError):
    """A file that cannot be read, is not a plain one, or asks for too much memory."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(path, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot read {self.args[0]}: {self.reason}."


class DataError(KillickError, ValueError):
    """Images or labels that are missing, damaged, or inconsistent with their description."""


class RecipeError(KillickError, ValueError):
    """A recipe with mistakes; the message lists all of them."""


class CheckpointError(KillickError, ValueError):
    """A run that cannot be saved or resumed."""


class OutputError(KillickError, ValueError):
    """A model that returns NaN, or logits for classes other than those of the data."""


class DivergedError(KillickError, ArithmeticError):
    """A loss that became NaN or infinite."""


class ProcessError(KillickError, RuntimeError):
    """A process of a distributed run that ended."""


class InstallError(KillickError, ImportError):
    """An optional library that is not installed."""


def install_hint(extra: str) -> str:
    """How to install an extra. Killick is not on PyPI, where the name could be another project's.

    Example:
        >>> install_hint("export")
        "In your clone of Killick: pip install -e '.[export]'."
    """
    return f"In your clone of Killick: pip install -e '.[{extra}]'."


def import_library(name: str, extra: str, purpose: str) -> Any:
    """An optional library; `purpose` begins the error if it is missing, such as "--engine ray"."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise InstallError(
            f"{purpose} requires {name.partition('.')[0]} ({one_line(problem)})."
            f" {install_hint(extra)}"
        ) from problem


def check_option(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a `value` that is not one of `allowed`, offering the nearest.

    Example:
        >>> check_option("target", "lable", ["label", "uniform"])
        Traceback (most recent call last):
        ...
        killick.errors.OptionError: expected target to be one of 'label', 'uniform', \
found 'lable' (did you mean 'label'?).
    """
    allowed = list(allowed)
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    choices = ", ".join(repr(choice) for choice in allowed[:8])
    if len(allowed) > 8:
        choices += f" and {len(allowed) - 8} more"
    raise OptionError(f"expected {name} to be one of {choices}, found {value!r}{hint}.")


def check_least(name: str, value: object, least: int = 1) -> None:
    """Refuse a `value` that is not a whole number from `least`; None was not given.

    Example:
        >>> check_least("limit", 0)
        Traceback (most recent call last):
        ...
        killick.errors.OptionError: limit must be at least 1, found 0.
    """
    if value is not None and (type(value) is not int or value < least):
        raise OptionError(f"{name} must be at least {least}, found {value!r}.")


def suggest(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)`, or nothing where nothing is near.

    Example:
        >>> suggest("evalute", ["train", "evaluate"])
        ' (did you mean evaluate?)'
        >>> suggest("boil", ["train", "evaluate"])
        ''
    """
    known = list(known)
    begun = [each for each in known if each.startswith(word) and word.strip("-")]
    found = [*begun, *difflib.get_close_matches(word, known, n=1)]
    return f" (did you mean {found[0]}?)" if found else ""


_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxlist, _brief.maxtuple, _brief.maxdict, _brief.maxstring = 3, 8, 8, 4, 80


def show(value: object) -> str:
    """A value in a line of an error, shortened where it is long.

    Example:
        >>> show(list(range(100)))
        '[0, 1, 2, 3, 4, 5, 6, 7, ...]'
    """
    try:
        return _brief.repr(value)[:300]
    except ValueError:  # Python refuses to print numbers of thousands of digits
        return "a number of very many digits"


def one_line(problem: BaseException) -> str:
    """The message of a problem in one line of at most 300 characters; its kind if it has none."""
    text = " ".join(str(problem).split())[:300].rstrip(". ") or type(problem).__name__
    return text.encode("utf-8", "backslashreplace").decode()  # JSON may hold half characters


def find_reason(problem: BaseException) -> str:
    r"""The first cause of a problem, in at most 200 characters, without line breaks and colors.

    Example:
        >>> find_reason(ValueError("\x1b[96mno such thing\x1b[0m\nand more"))
        'no such thing'
    """
    while problem.__cause__ is not None:
        problem = problem.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(problem))
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return lines[0][:200].rstrip(". ") if lines else type(problem).__name__
