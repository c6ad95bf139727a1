"""Recipes from YAML files, names and dotted overrides; all mistakes are reported at once."""

import dataclasses
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from killick.errors import OptionError, RecipeError, check_option, show
from killick.protocols.base import check_protocol
from killick.settings import (
    read_settings,
    settings_of,
    value_from_text,
    yaml_or_text,
)
from killick.training.recipe import Recipe

LARGEST = 2**17  # characters of a recipe, a hundred times those that are shipped; YAML is slow
_MOST_SHOWN = 20  # mistakes

# Short names of the most common settings.
SHORT = {
    "data": "data.name",
    "network": "network.name",
    "protocol": "protocol.name",
    "target": "protocol.target",
    "alpha": "protocol.alpha",
    "alpha_end": "protocol.alpha_end",
    "lr": "optimizer.lr",
}


def find_setting(name: str) -> str:
    """The dotted name of a setting: from its short name, or with dashes.

    Example:
        >>> find_setting("lr"), find_setting("optimizer.weight-decay")
        ('optimizer.lr', 'optimizer.weight_decay')
    """
    name = name.replace("-", "_")
    return SHORT.get(name, name)


def shipped() -> dict[str, Path]:
    """The recipes that come with Killick, by name."""
    folder = Path(str(resources.files("killick"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_recipe(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a shipped name or a YAML file, with some settings replaced.

    Args:
        source: Such as "cifar10-resnet18", or "my.yaml".
        overrides: By dotted name: `{"optimizer.lr": 0.05}`.

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
    recipe = read_settings(Recipe, values, "", problems)
    if not problems:
        assert isinstance(recipe, Recipe)
        problems += _contradictions(recipe)
    if problems:
        count = "one mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        if len(problems) > _MOST_SHOWN:
            problems[_MOST_SHOWN:] = [f"and {len(problems) - _MOST_SHOWN} more"]
        raise RecipeError(f"{where} has {count}: " + "; ".join(problems) + ".")
    assert isinstance(recipe, Recipe)
    return recipe


def to_yaml(recipe: Recipe) -> str:
    """The recipe with every setting, as YAML that makes it again."""
    return yaml.safe_dump(
        dataclasses.asdict(recipe), sort_keys=False, allow_unicode=True, width=100
    )


def settings() -> dict[str, dataclasses.Field[Any]]:
    """Every setting of a recipe by its dotted name."""
    return settings_of(Recipe)


def read_setting(dotted: str, text: str) -> Any:
    """What a text stands for: a text where one is wanted, everything else as YAML.

    Lists may be written without brackets: `0.5,0.5,0.5`.
    """
    known = settings().get(dotted)
    return yaml_or_text(text) if known is None else value_from_text(text, known.type)


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


def _contradictions(recipe: Recipe) -> list[str]:
    """Settings that are fine alone and not together."""
    data, augment = recipe.data, recipe.augment
    problems = check_protocol(recipe)
    if (data.mean is None) != (data.std is None):
        problems.append("data.mean, data.std: expected both or neither, found one")
    for name, values in (("mean", data.mean), ("std", data.std)):
        if values is not None and len(values) != 3:
            problems.append(
                f"data.{name}: expected a number for each of 3 channels, found {show(values)}"
            )
    milestones = recipe.schedule.milestones
    if any(not 0 < share < 1 for share in milestones):
        problems.append(
            f"schedule.milestones: expected shares between 0 and 1, found {show(milestones)}"
        )
    if recipe.schedule.begin >= recipe.schedule.end:
        problems.append(
            f"schedule.begin: expected less than schedule.end {recipe.schedule.end:g}, found"
            f" {recipe.schedule.begin:g}"
        )
    betas = recipe.optimizer.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        problems.append(f"optimizer.betas: expected two from 0 to below 1, found {show(betas)}")
    if recipe.optimizer.nesterov and recipe.optimizer.momentum == 0:
        problems.append("optimizer.nesterov: requires optimizer.momentum")
    if augment.mixing_set is not None and augment.policy != "pixmix":
        problems.append(f"augment.mixing_set: requires policy: pixmix, found {augment.policy}")
    if data.validation >= 1 and data.validation != int(data.validation):
        problems.append(
            f"data.validation: expected a share below 1 or a whole number, found {data.validation}"
        )
    if data.resize is not None and data.resize < data.size:
        problems.append(
            f"data.resize: expected at least data.size {data.size}, found {data.resize}"
        )
    if "num_classes" in recipe.network.arguments or "in_chans" in recipe.network.arguments:
        problems.append("network.arguments: num_classes and in_chans come from the data")
    return problems
