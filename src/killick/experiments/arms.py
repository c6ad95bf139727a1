"""Arms of a comparison: what is trained differently, and nothing else."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from killick.errors import OptionError
from killick.training.recipe_files import SHORT, find_setting, read_setting, settings


@dataclass(frozen=True)
class Arm:
    """One way to train; everything that it does not say is the comparison's recipe.

    Attributes:
        name: In folders and in the report.
        settings: Of the recipe, by dotted name.
        first: Share of the epochs that are trained as a standard network first; then it is anchored
            exactly, and trained on. The learning rate follows one schedule through both.
        start: A trained network to start from, instead of fresh weights.
        after: Another arm, whose trained network of the same seed it starts from. That one keeps
            its own settings and budget, and is trained once for all that start from it.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    first: float = 0.0
    start: str | None = None
    after: "Arm | None" = None


_LABEL = {"protocol.name": "masked", "protocol.target": "label"}
KNOWN = {
    "standard": Arm("standard", {"protocol.name": "standard"}),
    "anchored": Arm("anchored", {"protocol.name": "anchored"}),
    "masked-uniform": Arm(
        "masked-uniform", {"protocol.name": "masked", "protocol.target": "uniform"}
    ),
    "masked-label": Arm("masked-label", _LABEL),
    "finetuned": Arm("finetuned", _LABEL, first=0.5),
}


def parse_arm(text: str) -> Arm:
    """An arm from `NAME` or `NAME:key=value,...`.

    A key is a setting of the recipe, such as `optimizer.lr`, or a short name of one, such as
    `alpha`; or `first` or `from`, see `Arm`. A known name brings its own settings along.

    Example:
        >>> parse_arm("strong:protocol=masked,target=label,alpha=0.5").settings["protocol.alpha"]
        0.5
        >>> parse_arm("masked-label:alpha=0.5").settings["protocol.target"]
        'label'
    """
    name, colon, rest = text.partition(":")
    _check_name(name, text)
    if not colon:
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise OptionError(
                f"expected --arm to be one of {', '.join(KNOWN)}, or NAME:key=value,... for another"
                f" one, found {name!r}{hint}."
            )
        return KNOWN[name]
    base = KNOWN.get(name, Arm(name))
    found: dict[str, Any] = dict(base.settings)
    first, start = base.first, base.start
    for key, value in _pairs(rest, text):
        if key == "first":
            first = _share(value, text)
        elif key == "from":
            start = value
        else:
            dotted = find_setting(key)
            _check_setting(key, dotted, text)
            found[dotted] = read_setting(dotted, value)
    if first and start is not None:
        raise OptionError(f"expected first or from in --arm {text}, found both.")
    return Arm(name, found, first, start)


def parse_arms(given: Iterable[str | Arm]) -> tuple[Arm, ...]:
    """Arms, also by their texts; all that are known if there are none."""
    arms = [each if isinstance(each, Arm) else parse_arm(each) for each in given]
    arms = arms or list(KNOWN.values())
    names = [arm.name for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"expected arms of different names, found {twice!r} twice.")
    return tuple(arms)


def _pairs(rest: str, text: str) -> list[tuple[str, str]]:
    """`a=1,b=[2, 3]` in its parts: commas inside brackets belong to the value."""
    parts, depth = [""], 0
    for letter in rest:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    pairs = []
    for part in parts:
        key, equals, value = part.strip().partition("=")
        if not equals or not key or not value:
            raise OptionError(
                f"expected --arm NAME:key=value,..., as in strong:protocol=masked,target=label,"
                f"alpha=0.5, found {part.strip()!r} in {text!r}."
            )
        pairs.append((key.strip(), value.strip()))
    return pairs


def _share(value: str, text: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1
    if not 0 < share < 1:
        raise OptionError(f"expected first between 0 and 1 in --arm {text}, found {value!r}.")
    return share


def _check_setting(key: str, dotted: str, text: str) -> None:
    known = settings()
    if dotted == "seed":
        raise OptionError(f"expected no seed in --arm {text}: --seeds are for all arms.")
    if dotted in known:
        return
    near = [name for name in known if name.endswith(f".{key}")]
    near = near or difflib.get_close_matches(key, [*SHORT, *known, "first", "from"], n=1)
    hint = f" (did you mean {near[0]}?)" if near else "; killick train --help lists them"
    raise OptionError(f"no such setting in --arm {text}: {key}{hint}.")


def _check_name(name: str, text: str) -> None:
    if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
        raise OptionError(
            f"expected a name of letters, digits, - and _ for an arm, found {name!r} in {text!r}."
        )
