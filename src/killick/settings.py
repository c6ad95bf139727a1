"""Dataclasses of settings: each field says what it means, its default and what it may be.

The command line's help, the checks and the documentation are made from that.
"""

import dataclasses
import difflib
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from killick.errors import OptionError, show, suggest
from killick.registry import Registry

Field = dataclasses.Field[Any]
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("more than", operator.gt),
    "most": ("at most", operator.le),
    "below": ("less than", operator.lt),
}
_KINDS: dict[Any, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    str: (str, "a text"),
    list[int]: (int, "whole numbers such as [1, 5]"),
    list[str]: (str, "names such as [a, b]"),
}
# Accepted too.
SPELLINGS = {
    "optimiser": "optimizer",
    "normalise": "normalize",
    "colour": "color",
    "regularizers": "components",
}
_MOST_VALUES = 10_000  # passed on to a network; in YAML a few names can stand for billions


def setting(
    default: Any, about: str, *, among: tuple[str, ...] | None = None, **limits: float
) -> Any:
    """A field of a recipe: its default, its meaning and its limits: least, above, most or below."""
    meta = {"about": about, "among": among, **limits}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


def registered(registry: Registry[Any], default: str) -> Any:
    """A field that is an instance of one of the registered dataclasses, chosen by its `name`."""
    meta = {"registry": registry, "default": default}
    return dataclasses.field(default_factory=lambda: registry.find(default)(), metadata=meta)


def registered_list(registry: Registry[Any], about: str) -> Any:
    """A field that is a list of instances of registered dataclasses."""
    return dataclasses.field(
        default_factory=list, metadata={"registry": registry, "about": about, "among": None}
    )


def settings_of(kind: type, prefix: str = "") -> dict[str, Field]:
    """Every setting by its dotted name; of registered dataclasses those of all entries."""
    found: dict[str, Field] = {}
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        if not dataclasses.is_dataclass(hints[each.name]):
            found[prefix + each.name] = each
        elif "registry" in each.metadata:
            found |= _settings_of_entries(each, f"{prefix}{each.name}.")
        else:
            found |= settings_of(hints[each.name], f"{prefix}{each.name}.")
    return found


def _settings_of_entries(field: Field, prefix: str) -> dict[str, Field]:
    registry, default = field.metadata["registry"], field.metadata["default"]
    found: dict[str, Field] = {}
    for name in dict.fromkeys((*registry.names(), default)):
        found = {**settings_of(registry.find(name), prefix), **found}
    about = settings_of(registry.find(default))["name"].metadata["about"]
    first = setting(default, about, among=registry.names())
    first.name, first.type = "name", str
    return {**found, f"{prefix}name": first}


def read_settings(kind: type, values: Any, prefix: str, problems: list[str]) -> Any:
    """A checked instance of a dataclass of settings; mistakes are added to `problems`.

    `prefix` begins the names in messages.
    """
    return _Reader(kind, prefix, problems).read(kind, values, prefix)


@dataclasses.dataclass
class _Reader:
    """Reads nested settings and collects mistakes; `kind` and `prefix` are the outermost."""

    kind: type
    prefix: str
    problems: list[str]

    def read(self, kind: type, values: Any, prefix: str) -> Any:
        fields = {each.name: each for each in dataclasses.fields(kind)}
        if isinstance(values, str) and "name" in fields:
            values = {"name": values}  # `network: timm:resnet18`: `network: {name: timm:resnet18}`
        if not isinstance(values, Mapping):
            name, first = prefix.rstrip(".") or "the recipe", next(iter(settings_of(kind)))
            self._add(name, f"settings such as {prefix}{first}", values)
            return None
        hints = typing.get_type_hints(kind)
        taken: dict[str, Any] = {}
        for name, value in values.items():
            if name in SPELLINGS:
                name = SPELLINGS[name]
            if name not in fields:
                self.problems.append(self._unknown(show(name).strip("'\""), prefix, list(fields)))
            elif "registry" in fields[name].metadata:
                taken[name] = self._read_registered(fields[name], value, prefix + name)
            elif dataclasses.is_dataclass(hints[name]):
                taken[name] = self.read(hints[name], value, f"{prefix}{name}.")
            else:
                taken[name] = self._read_value(value, hints[name], fields[name], prefix + name)
        return None if self.problems else kind(**taken)

    def _add(self, name: str, expected: str, found: Any) -> None:
        self.problems.append(f"{name}: expected {expected}, found {show(found)}")

    def _read_value(self, value: Any, hint: Any, field: Field, name: str) -> Any:
        problem, converted = _convert(value, hint)
        problem = problem or _limits(converted, field.metadata)
        if problem:
            self._add(name, problem, value)
        return converted

    def _read_registered(self, field: Field, value: Any, name: str) -> Any:
        """One instance of a registered dataclass, or a list of them.

        Where there is one, the recipe may also hold settings of the others, so that `--protocol`
        alone can choose another: they are checked and left out.
        """
        registry, default = field.metadata["registry"], field.metadata.get("default")
        if default is None:
            if not isinstance(value, list):
                self._add(name, "a list such as [{name: ...}]", value)
                return []
            return [self._read_entry(registry, v, f"{name}[{i}].") for i, v in enumerate(value)]
        if isinstance(value, Mapping):
            value = {"name": default, **value}
            known: set[str] = set()
            if isinstance(value["name"], str) and value["name"] in registry:
                known = {each.name for each in dataclasses.fields(registry.find(value["name"]))}
            for _, other in registry.items() if known else ():
                hints = typing.get_type_hints(other)
                for each in dataclasses.fields(other):
                    if each.name in value and each.name not in known:
                        one = value.pop(each.name)
                        self._read_value(one, hints[each.name], each, f"{name}.{each.name}")
        return self._read_entry(registry, value, f"{name}.")

    def _read_entry(self, registry: Registry[Any], value: Any, prefix: str) -> Any:
        value = {"name": value} if isinstance(value, str) else value
        name = value.get("name") if isinstance(value, Mapping) else None
        if isinstance(name, str) and name not in registry:
            name = name.replace("-", "_")
            value = {**value, "name": name}
        if not isinstance(name, str):
            self._add(f"{prefix}name", f"a {registry.title}", value)
            return None
        try:
            kind = registry.find(name)
        except OptionError as problem:
            self.problems.append(f"{prefix}name: {str(problem).rstrip('.')}")
            return None
        return self.read(kind, value, prefix)

    def _unknown(self, name: str, prefix: str, known: list[str]) -> str:
        everywhere = list(settings_of(self.kind, self.prefix))
        near = [dotted for dotted in everywhere if dotted.split(".")[-1] == name]
        near += [prefix + each for each in difflib.get_close_matches(name, known, n=1)]
        near += difflib.get_close_matches(prefix + name, everywhere, n=1)
        last = {dotted.split(".")[-1]: dotted for dotted in everywhere}
        near += [last[each] for each in difflib.get_close_matches(name, last, n=1)]
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"{prefix}{name}: no such setting{hint}"


def _convert(value: Any, hint: Any) -> tuple[str, Any]:
    """What was expected, if `value` is not it, and the value in its type."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return "", None
        (hint,) = [option for option in hint.__args__ if option is not type(None)]
    if hint is float:
        number = _number(value)
        return ("" if number is not None else "a number"), number
    if typing.get_origin(hint) is dict:
        fine = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        if fine and not _is_plain(value):
            return "no more than names, numbers and texts that end somewhere", value
        return ("" if fine else "settings such as {name: value}"), value
    if hint == list[float]:
        numbers = [_number(item) for item in value] if isinstance(value, list) else [None]
        return ("" if None not in numbers else "numbers such as [0.3, 0.6]"), numbers
    kind, words = _KINDS[hint]
    items = value if typing.get_origin(hint) is list else [value]
    fine = isinstance(items, list) and all(
        isinstance(item, kind) and (kind is bool or not isinstance(item, bool)) for item in items
    )
    return ("" if fine else words), value


def _number(value: Any) -> float | None:
    """A float; also from '1e-4', which YAML takes for a text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None  # refuses NaN as well


def _is_plain(value: Any) -> bool:
    """Whether it can be written down; YAML can make dates, and lists that hold themselves."""
    rest, seen = [value], 0
    while rest and seen < _MOST_VALUES:
        each = rest.pop()
        seen += 1
        if isinstance(each, dict):
            rest += [*each.keys(), *each.values()]
        elif isinstance(each, list):
            rest += each
        elif not isinstance(each, str | int | float | None):
            return False
    return not rest


def _limits(value: Any, meta: Mapping[str, Any]) -> str:
    """What was expected, if `value`, or an element of a list, is outside of the limits."""
    if value is None:
        return ""
    if isinstance(value, list):
        return next((problem for each in value if (problem := _limits(each, meta))), "")
    among = meta.get("among")
    if among and value not in among:
        return f"one of {', '.join(among)}{suggest(str(value), among)}"
    for name, (words, holds) in _LIMITS.items():
        if name in meta and not holds(value, meta[name]):
            return f"{words} {meta[name]}"
    return ""


def read_options(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """A checked instance of `kind`, a flat dataclass of fields made by `setting`.

    A text is read as what the field wants, lists with commas. `where` begins the error message.
    """
    hints = typing.get_type_hints(kind)
    read = dict(values)
    for name in hints.keys() & values.keys():
        if isinstance(values[name], str):
            read[name] = value_from_text(values[name], hints[name])
    problems: list[str] = []
    found = read_settings(kind, read, "", problems)
    if problems:
        raise OptionError(f"{where}: " + "; ".join(problems) + ".")
    return found


def split_pairs(text: str, given: str = "") -> list[tuple[str, str]]:
    """The parts of `a=1,b=[2, 3]`; commas inside brackets belong to the value.

    `given` is what the user typed, for errors.

    Example:
        >>> split_pairs("a=1,b=[2, 3]")
        [('a', '1'), ('b', '[2, 3]')]
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    pairs = []
    for part in parts:
        key, _, value = (word.strip() for word in part.partition("="))
        if not (key and value):
            raise OptionError(f"expected key=value,..., found {part!r} in {given or repr(text)}.")
        pairs.append((key, value))
    return pairs


def value_from_text(text: str, hint: Any) -> Any:
    """The value of a text for a setting of this type; lists may be written without brackets."""
    kinds = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
    if text in ("none", "null") and type(None) in kinds:
        return None
    if str in kinds:
        return text  # YAML would take ' #2' for a comment, and ': ' for a mapping
    listed = next((each for each in kinds if typing.get_origin(each) is list), None)
    if listed is not None and not text.strip().startswith("["):
        if listed != list[str]:
            return yaml_or_text(f"[{text}]")
        words: list[str] = []
        for word in filter(None, map(str.strip, text.split(","))):
            if "=" in word and ":" not in word and words and ":" in words[-1]:
                words[-1] += f",{word}"  # NAME:key=value,key=value is one
            else:
                words.append(word)
        return words
    return yaml_or_text(text)


def yaml_or_text(text: str) -> Any:
    """What YAML makes of a text; the text itself where it is not YAML."""
    try:
        return yaml.safe_load(text)
    except Exception:  # of YAML, or of a date or number that is none
        return text
