"""Words of the command line as values; a mistake is told with what was expected."""

import argparse

from killick.errors import OptionError


def read_names(text: str) -> tuple[str, ...]:
    """`a,b` as names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def read_numbers(option: str, words: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Names that are whole numbers, such as severities or seeds."""
    if words is None:
        return None
    if not words or not all(word.isdecimal() for word in words):
        raise OptionError(f"expected {option} such as 1,3,5, found {','.join(words)!r}.")
    return tuple(int(word) for word in words)


def read_pair(text: str) -> tuple[str, str]:
    """`NAME=DATA`."""
    name, equals, data = text.partition("=")
    if not (name and equals and data):
        raise argparse.ArgumentTypeError(f"expected NAME=DATA, found {text!r}")
    return name, data


def name_sets(option: str, pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Data by name, each name once."""
    found: dict[str, str] = {}
    for name, data in pairs:
        if name in found:
            raise OptionError(f"expected another name for each {option}, found {name!r} twice.")
        found[name] = data
    return found
