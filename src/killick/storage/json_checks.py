"""Checks of untrusted JSON: kinds and sizes of values, before they are used."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

LARGEST_IMAGE = 2**26  # numbers
MOST_REFERENCES = 10**4
Check = Callable[[Any], bool]


def find_bad(values: Mapping[str, Any], checks: Mapping[str, Check]) -> list[str]:
    """The keys whose values do not pass their check; a missing one is checked as None."""
    return [key for key, fits in checks.items() if not fits(values.get(key))]


def optional(check: Check) -> Check:
    """The same check, which None passes too."""
    return lambda value: value is None or check(value)


def is_text(value: object) -> bool:
    """Whether it is text that can be written; JSON may hold half characters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def are_texts(values: object) -> bool:
    """Whether it is a list of texts."""
    return isinstance(values, list) and all(map(is_text, values))


def is_dictionary(value: object) -> bool:
    """Whether it is a dictionary whose keys are texts."""
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def is_whole(value: object, least: int, most: int) -> bool:
    """Whether it is a whole number in a range."""
    return type(value) is int and least <= value <= most


def is_number(value: object, least: float = -1e300, most: float = 1e300) -> bool:
    """Whether it is a finite number in a range."""
    return isinstance(value, int | float) and type(value) is not bool and least <= value <= most


def are_numbers(values: object) -> bool:
    """Whether it is a list of finite numbers."""
    return isinstance(values, list) and all(map(is_number, values))


def is_shape(value: object) -> bool:
    """Whether it can be the shape of an image or a vector."""
    return (
        isinstance(value, list)
        and 1 <= len(value) <= 4
        and all(is_whole(side, 1, LARGEST_IMAGE) for side in value)
        and math.prod(value) <= LARGEST_IMAGE
    )


def is_record(**checks: Check) -> Check:
    """Whether it is a dictionary of these keys and no others, whose values pass."""
    return lambda value: (
        isinstance(value, dict) and value.keys() == checks.keys() and not find_bad(value, checks)
    )


is_share = partial(is_number, least=0, most=1)


is_threshold = is_record(
    energy=is_number,
    acceptance=is_share,
    k=partial(is_whole, least=1, most=MOST_REFERENCES),
    fitted_on=is_text,
    refused=lambda value: (
        is_dictionary(value) and all(map(is_text, value)) and all(map(is_share, value.values()))
    ),
)
