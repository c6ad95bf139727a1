"""Recipes from YAML files, names and dotted overrides; every mistake is told at once."""

import dataclasses
import difflib
import operator
import types
import typing
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from killick.errors import OptionError, RecipeError, check_option, show
from killick.training.recipe import Recipe

LARGEST = 2**17  # characters of a recipe, a hundred times those that are shipped; YAML is slow
_MOST_TOLD = 20  # mistakes
_MOST_VALUES = 10_000  # passed on to a network; in YAML a few names can stand for billions

# What everyone sets has a short name.
SHORT = {
    "data": "data.name",
    "network": "network.name",
    "protocol": "protocol.name",
    "target": "protocol.target",
    "alpha": "protocol.alpha",
    "alpha_end": "protocol.alpha_end",
    "lr": "optimiser.lr",
}


def shipped() -> dict[str, Path]:
    """The recipes that come with Killick, by name."""
    folder = Path(str(resources.files("killick"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_recipe(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a shipped name or a YAML file, with some settings replaced.

    Args:
        source: Such as "cifar10-resnet18", or "my.yaml".
        overrides: By dotted name: `{"optimiser.lr": 0.05}`.

    Raises:
        RecipeError: With all mistakes of the file and the overrides.
    """
    values = read_yaml(find_recipe(source))
    for dotted, value in (overrides or {}).items():
        _replace(values, dotted, value)
    changed = f"{len(overrides)} setting{'s' * (len(overrides) > 1)}" if overrides else ""
    where = f"{source} with {changed} changed" if overrides else str(source)
    return make_recipe(values, where)


def find_recipe(source: str | Path) -> Path:
    """The file of a recipe: a shipped name, or the path of a YAML file."""
    known = shipped()
    if str(source) in known:
        return known[str(source)]
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    begin = [name for name in known if name.startswith(str(source))]
    if begin:
        raise OptionError(
            f"expected the recipe to be one of {', '.join(known)}, found {source!r} (did you mean"
            f" {begin[0]!r}?)."
        )
    check_option("the recipe", str(source), known)
    raise AssertionError


def read_yaml(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The settings of a file, on top of those of its `base`, if it has one."""
    try:
        values = yaml.safe_load(_text_of(path))
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise RecipeError(f"cannot read the recipe {path}: {reason}.") from None
    except RecipeError:
        raise
    except Exception as problem:  # beside its own errors, YAML raises what dates and numbers do
        reason = " ".join(str(problem).split())[:300]
        raise RecipeError(f"cannot read the recipe {path}: not YAML ({reason}).") from None
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise RecipeError(
            f"cannot read the recipe {path}: expected settings such as 'epochs: 10', found"
            f" {type(values).__name__}."
        )
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise RecipeError(
            f"cannot read the recipe {path}: expected a name for base, found {show(base)}."
        )
    above = (*above, path.resolve())
    try:
        beside = path.parent / base
        under = find_recipe(beside if beside.is_file() else base)
        if under.resolve() in above:
            raise RecipeError(f"cannot read the recipe {path}: it is its own base.")
        return _merged(read_yaml(under, above), values)
    except (OSError, ValueError) as problem:  # among them those of Killick
        reason = getattr(problem, "strerror", None) or str(problem)
        if str(path) in reason:
            raise
        raise RecipeError(
            f"cannot read the recipe {path}: its base is {show(base)}, and {reason[:300]}"
        ) from None


def _text_of(path: Path) -> str:
    """What is written in a plain file; a device or a pipe may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise RecipeError(f"cannot read the recipe {path}: it is no plain file.")
    with open(path, encoding="utf-8") as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise RecipeError(f"cannot read the recipe {path}: it is longer than {LARGEST} characters.")
    return text


def make_recipe(values: Mapping[str, Any], where: str = "the recipe") -> Recipe:
    """A checked recipe from nested settings; settings that are left out have their defaults."""
    problems: list[str] = []
    recipe = _read(Recipe, values, "", problems)
    if not problems:
        assert isinstance(recipe, Recipe)
        problems += _contradictions(recipe)
    if problems:
        count = "one mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        if len(problems) > _MOST_TOLD:
            problems[_MOST_TOLD:] = [f"and {len(problems) - _MOST_TOLD} more"]
        raise RecipeError(f"{where} has {count}: " + "; ".join(problems) + ".")
    assert isinstance(recipe, Recipe)
    return recipe


def read_options(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """A checked instance of `kind`, a flat dataclass of fields made by `setting`.

    Args:
        kind: Its fields are whole numbers, numbers, texts, true or false, or lists of them.
        values: By name; a text is read as what the field wants, lists with commas.
        where: For whom it tells mistakes.
    """
    hints = typing.get_type_hints(kind)
    read = {
        name: _from_text(value, hints[name]) if isinstance(value, str) and name in hints else value
        for name, value in values.items()
    }
    problems: list[str] = []
    found = _read(kind, read, "", problems)
    if problems:
        raise OptionError(f"{where}: " + "; ".join(problems) + ".")
    return found


def _from_text(text: str, hint: Any) -> Any:
    """What a text of the command line stands for."""
    kinds = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
    if text in ("none", "null") and type(None) in kinds:
        return None
    if str in kinds:
        return text
    listed = next((each for each in kinds if typing.get_origin(each) is list), None)
    if listed is not None and not text.strip().startswith("["):
        (inner,) = listed.__args__
        words = [word.strip() for word in text.split(",") if word.strip()]
        return words if inner is str else [_yaml_or_text(word) for word in words]
    return _yaml_or_text(text)


def _yaml_or_text(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except Exception:  # of YAML, or of a date or number that is none
        return text


def to_yaml(recipe: Recipe) -> str:
    """The recipe with every setting, as YAML that makes it again."""
    return yaml.safe_dump(
        dataclasses.asdict(recipe), sort_keys=False, allow_unicode=True, width=100
    )


def settings(kind: type = Recipe, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """Every setting by its dotted name."""
    found: dict[str, dataclasses.Field[Any]] = {}
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[each.name]):
            found |= settings(hints[each.name], f"{prefix}{each.name}.")
        else:
            found[prefix + each.name] = each
    return found


def read_setting(dotted: str, text: str) -> Any:
    """What a text stands for: a text where one is wanted, everything else as YAML.

    Several numbers may also stand without brackets, `0.5,0.5,0.5`, as in other commands.
    """
    known = settings().get(dotted)
    optional = known is not None and isinstance(known.type, types.UnionType)
    if optional and text in ("none", "null"):
        return None
    if known is not None and known.type in (str, str | None):
        return text  # YAML would take ' #2' for a comment, and ': ' for a mapping
    listed = known is not None and "list[float]" in str(known.type)
    return _yaml_or_text(f"[{text}]" if listed and not text.strip().startswith("[") else text)


def _merged(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        # What is passed on to a network or a policy belongs to it, and is replaced as a whole.
        whole = key in ("arguments", "policy_arguments")
        result[key] = _merged(result[key], value) if both and not whole else value
    return result


def _replace(values: dict[str, Any], dotted: str, value: Any) -> None:
    *groups, last = dotted.split(".")
    for group in groups:
        inner = values.setdefault(group, {})
        if isinstance(inner, str):
            inner = values[group] = {"name": inner}
        if not isinstance(inner, dict):
            raise RecipeError(f"no such setting: {dotted}; {group} is one by itself.")
        values = inner
    values[last] = value


def _read(kind: type, values: Any, prefix: str, problems: list[str]) -> object:
    if isinstance(values, str) and "name" in {each.name for each in dataclasses.fields(kind)}:
        values = {"name": values}  # `protocol: masked` is `protocol: {name: masked}`
    if not isinstance(values, Mapping):
        name = prefix.rstrip(".") or "the recipe"
        first = next(iter(settings(kind)))
        problems.append(f"{name}: expected settings such as {prefix}{first}, found {show(values)}")
        return None
    hints = typing.get_type_hints(kind)
    fields = {each.name: each for each in dataclasses.fields(kind)}
    taken: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            told = show(name).strip("'\"")
            problems.append(_unknown(f"{prefix}{told}", prefix, list(fields)))
        elif dataclasses.is_dataclass(hints[name]):
            taken[name] = _read(hints[name], value, f"{prefix}{name}.", problems)
        else:
            problem, converted = _convert(value, hints[name])
            problem = problem or _limits(converted, fields[name].metadata)
            if problem:
                problems.append(f"{prefix}{name}: expected {problem}, found {show(value)}")
            taken[name] = converted
    return None if problems else kind(**taken)


def _unknown(name: str, prefix: str, known: list[str]) -> str:
    last = name.removeprefix(prefix)
    everywhere = settings()
    near = difflib.get_close_matches(last, known, n=1)
    if near:
        return f"{name}: no such setting (did you mean {prefix}{near[0]}?)"
    elsewhere = [dotted for dotted in everywhere if dotted.split(".")[-1] == last]
    near = elsewhere or difflib.get_close_matches(name, list(everywhere), n=1)
    return f"{name}: no such setting" + (f" (did you mean {near[0]}?)" if near else "")


def _convert(value: Any, hint: Any) -> tuple[str, Any]:
    """What was expected, if `value` is not it, and the value in its type."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return "", None
        (hint,) = [option for option in hint.__args__ if option is not type(None)]
    if hint is bool:
        return ("" if isinstance(value, bool) else "true or false"), value
    if hint is int:
        fine = isinstance(value, int) and not isinstance(value, bool)
        return ("" if fine else "a whole number"), value
    if hint is float:
        number = _number(value)
        return ("" if number is not None else "a number"), number
    if hint is str:
        return ("" if isinstance(value, str) else "a text"), value
    if typing.get_origin(hint) is dict:
        fine = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        if fine and not _is_plain(value):
            return "no more than names, numbers and texts that end somewhere", value
        return ("" if fine else "settings such as {name: value}"), value
    if hint == list[float]:
        numbers = [_number(item) for item in value] if isinstance(value, list) else [None]
        return ("" if None not in numbers else "numbers such as [0.3, 0.6]"), numbers
    kind, words = {
        list[int]: (int, "whole numbers such as [1, 5]"),
        list[str]: (str, "names such as [a, b]"),
    }[hint]
    fine = isinstance(value, list) and all(type(item) is kind for item in value)
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
    if value is None:
        return ""
    if meta["among"] and value not in meta["among"]:
        near = difflib.get_close_matches(str(value), meta["among"], n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"one of {', '.join(meta['among'])}{hint}"
    limits: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
        ("least", "at least", operator.ge),
        ("above", "more than", operator.gt),
        ("most", "at most", operator.le),
        ("below", "less than", operator.lt),
    )
    for name, words, holds in limits:
        if meta[name] is not None and not holds(value, meta[name]):
            return f"{words} {meta[name]}"
    return ""


def _contradictions(recipe: Recipe) -> list[str]:
    """Settings that are fine alone and not together."""
    problems = []
    protocol, data, augment = recipe.protocol, recipe.data, recipe.augment
    if protocol.name == "masked" and protocol.target is None:
        problems.append(
            "protocol.target: expected label (the authors' code) or uniform (the paper's text),"
            " found neither; they are opposite mechanisms, so there is no default"
        )
    if protocol.every is not None and protocol.scope == "sample":
        problems.append("protocol.every: expected scope: batch with it, found sample; use alpha")
    if protocol.every is not None and protocol.alpha_end is not None:
        problems.append(
            "protocol.alpha_end: expected no protocol.every with it, which decides how often"
        )
    if protocol.reference_set is not None and protocol.references == "batch":
        problems.append(
            "protocol.reference_set: expected references: clean or augmented with it, found batch,"
            " whose references are the batch's own pictures"
        )
    if (data.mean is None) != (data.std is None):
        problems.append("data.mean, data.std: expected both or neither, found one")
    for name, values in (("mean", data.mean), ("std", data.std)):
        if values is not None and len(values) != 3:
            problems.append(
                f"data.{name}: expected a number for each of 3 channels, found {show(values)}"
            )
    if any(not 0 < share < 1 for share in recipe.schedule.milestones):
        problems.append(
            "schedule.milestones: expected shares of the budget between 0 and 1, found"
            f" {show(recipe.schedule.milestones)}"
        )
    if recipe.schedule.begin >= recipe.schedule.end:
        problems.append(
            f"schedule.begin: expected less than schedule.end {recipe.schedule.end:g}, found"
            f" {recipe.schedule.begin:g}"
        )
    betas = recipe.optimiser.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        problems.append(f"optimiser.betas: expected two from 0 to below 1, found {show(betas)}")
    if recipe.optimiser.nesterov and recipe.optimiser.momentum == 0:
        problems.append("optimiser.nesterov: expected momentum with it, found 0")
    if augment.mixing_set is not None and augment.policy != "pixmix":
        problems.append(
            f"augment.mixing_set: expected policy: pixmix with it, found {augment.policy}"
        )
    if data.validation >= 1 and data.validation != int(data.validation):
        problems.append(
            f"data.validation: expected a share below 1 or a whole number, found {data.validation}"
        )
    if data.resize is not None and data.resize < data.size:
        problems.append(
            f"data.resize: expected at least data.size {data.size}, found {data.resize}"
        )
    if protocol.references == "augmented" and (
        augment.crop == "resized" or augment.policy != "none"
    ):
        problems.append(
            "protocol.references: expected clean or batch with crop: resized or a policy, found"
            " augmented; references are padded and flipped alone"
        )
    if "num_classes" in recipe.network.arguments or "in_chans" in recipe.network.arguments:
        problems.append(
            "network.arguments: expected neither num_classes nor in_chans; the data decide them"
        )
    return problems
