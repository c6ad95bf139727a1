"""Recipes from YAML files, names and dotted overrides; all mistakes are reported at once."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from killick.data.data_settings import EMBEDDED, full_name
from killick.errors import FileError, OptionError, RecipeError, check_option, one_line, show
from killick.protocols.base import check_protocol, components_of, uses
from killick.runtime.plain_files import read_plain
from killick.settings import SPELLINGS, read_settings, settings_of, value_from_text, yaml_or_text
from killick.training.recipe import Recipe, named_classes

LARGEST = 2**17  # bytes of a recipe, a hundred times those that are shipped; YAML is slow
_MOST_SHOWN = 20  # mistakes
DEFAULT_RECIPE = "small-shapes"  # where no recipe is named

# Short names of the most common settings.
SHORT = {
    "data": "data.name",
    "network": "network.name",
    "model": "network.name",
    "pretrained": "network.pretrained",
    "protocol": "protocol.name",
    "target": "protocol.target",
    "alpha": "protocol.alpha",
    "alpha_end": "protocol.alpha_end",
    "lr": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "batch_size": "batch",
    "logger": "loggers",
}


def find_setting(name: str) -> str:
    """The dotted name of a setting: from its short name, another spelling, or with dashes.

    Example:
        >>> find_setting("lr"), find_setting("optimiser.weight-decay")
        ('optimizer.lr', 'optimizer.weight_decay')
    """
    parts = name.replace("-", "_").split(".")
    name = ".".join(SPELLINGS.get(part, part) for part in parts)
    return SHORT.get(name, name)


def fit_default(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for the default recipe, without what suits only its own images and network."""
    own: dict[str, Any] = {}
    if given.get("data.name", EMBEDDED[0]) not in EMBEDDED:
        own |= {"data.limit": None, "data.validation": 0.1}
    if "network.name" in given:
        own |= {"network.arguments": {}}
    return {**own, **given}


def shipped() -> dict[str, Path]:
    """The recipes that come with Killick, by name."""
    folder = Path(str(resources.files("killick"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_recipe(source: str | Path | Recipe, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a shipped name or a YAML file, with some settings replaced.

    The settings under `standard:` in the file replace others where the protocol is standard.

    Args:
        source: Such as "cifar10-resnet18", or "my.yaml"; or a recipe.
        overrides: By dotted name: `{"optimizer.lr": 0.05}`.

    Raises:
        RecipeError: With all mistakes of the file and the overrides.
    """
    if isinstance(source, Recipe):
        values, source = dataclasses.asdict(source), "the recipe"
    else:
        values = read_yaml(find_recipe(source))
    own = values.pop("standard", {})
    if not isinstance(own, dict):
        raise RecipeError(f"{source} has under standard no settings such as {{epochs: 300}}.")
    values = _replaced(values, overrides or {})
    protocol = values.get("protocol")
    if own and "standard" in (protocol, protocol.get("name") if isinstance(protocol, dict) else ""):
        values = _replaced(_merged(values, own), overrides or {})
    recipe = make_recipe(values, str(source))
    data = dataclasses.replace(recipe.data, name=full_name(recipe.data.name))
    return dataclasses.replace(recipe, data=data)


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run folder."""
    return make_recipe(read_yaml(folder / "recipe.yaml"), f"the recipe of {folder}")


def find_recipe(source: str | Path) -> Path:
    """The file of a recipe: a shipped name, or the path of a YAML file."""
    known, path = shipped(), Path(source)
    if str(source) not in known and (path.suffix in (".yaml", ".yml") or path.exists()):
        return path
    check_option("the recipe", str(source), known)
    return known[str(source)]


def read_yaml(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The settings of a file, on top of those of its `base`, if it has one."""
    try:
        values = yaml.safe_load(read_plain(path, LARGEST).decode("utf-8"))
    except FileError as problem:
        raise RecipeError(f"cannot read the recipe {path}: {problem.reason}.") from None
    except Exception as problem:  # beside its own errors, YAML raises what dates and numbers do
        raise RecipeError(
            f"cannot read the recipe {path}: not YAML ({one_line(problem)})."
        ) from None
    if not isinstance(values, dict | None):
        raise RecipeError(f"the recipe {path} has no settings such as 'epochs: 10'.")
    values = {SPELLINGS.get(key, key): value for key, value in (values or {}).items()}
    base = values.pop("base", None)
    if base is None:
        return values
    above = (*above, path.resolve())
    try:
        beside = path.parent / base
        under = find_recipe(beside if beside.is_file() else base)
        if under.resolve() in above:
            raise RecipeError("it is its own base.")
        below = read_yaml(under, above)
        if isinstance(below.get("standard"), dict):  # a setting given here holds for all protocols
            below["standard"] = _without(below["standard"], values)
        return _merged(below, values)
    except (OSError, TypeError, ValueError) as problem:  # among them those of Killick
        reason = str(problem)[:300]
        raise RecipeError(f"the recipe {path} has no base {show(base)}: {reason}") from None


def make_recipe(values: Mapping[str, Any], where: str = "the recipe") -> Recipe:
    """A checked recipe from nested settings; settings that are left out have their defaults."""
    problems: list[str] = []
    recipe = read_settings(Recipe, values, "", problems)
    if not problems:
        problems = _contradictions(recipe)
    if problems:
        count = "one mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        raise RecipeError(f"{where} has {count}: {'; '.join(problems[:_MOST_SHOWN])}.")
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
    if dotted == "data.name":
        return full_name(text)
    known = settings().get(dotted)
    return yaml_or_text(text) if known is None else value_from_text(text, known.type)


def _merged(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        # What is passed on to a network or a policy belongs to it, and is replaced as a whole.
        whole = key in ("arguments", "policy_arguments", "transform", "init_args")
        result[key] = _merged(result[key], value) if both and not whole else value
    return result


def _without(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings without those that are given."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if key not in given:
            kept[key] = value
        elif isinstance(value, dict) and isinstance(given[key], dict):
            kept[key] = _without(value, given[key])
    return kept


def _replaced(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    for dotted, value in overrides.items():
        _replace(values, dotted, value)
    return values


def _replace(values: dict[str, Any], dotted: str, value: Any) -> None:
    *groups, last = find_setting(dotted).split(".")
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
    data, augment, optimizer = recipe.data, recipe.augment, recipe.optimizer
    schedule, arguments = recipe.schedule, recipe.network.arguments
    channels = [len(values) for values in (data.mean, data.std) if values is not None]
    share = data.validation < 1 or data.validation == int(data.validation)
    betas = len(optimizer.betas) == 2 and all(0 <= beta < 1 for beta in optimizer.betas)
    mixes = augment.mixing_set is None or augment.policy == "pixmix"
    free = arguments.keys().isdisjoint({"num_classes", "in_chans"})
    requirements = {
        "data.mean, data.std: expected both or neither, 3 numbers each": channels in ([], [3, 3]),
        "data.validation: expected a share below 1 or a whole number": share,
        "data.resize: expected at least data.size": (data.resize or data.size) >= data.size,
        "augment.mixing_set: requires policy: pixmix": mixes,
        "optimizer.betas: expected two from 0 to below 1": betas,
        "optimizer.nesterov: requires optimizer.momentum": optimizer.momentum
        or not optimizer.nesterov,
        "schedule.milestones: expected shares between 0 and 1": all(
            0 < share < 1 for share in schedule.milestones
        ),
        "schedule.begin: expected less than schedule.end": schedule.begin < schedule.end,
        "network.arguments: num_classes and in_chans come from the data": free,
    }
    problems = [text for text, holds in requirements.items() if not holds]
    return check_protocol(recipe) + problems + _class_problems(recipe)


def _class_problems(recipe: Recipe) -> list[str]:
    """Class paths that cannot be one, and arguments without a class."""
    problems = []
    for name, spec in named_classes(recipe).items():
        path, keys = spec.get("class_path"), set(spec) - {"class_path", "init_args"}
        if not isinstance(path, str) or re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path) is None:
            problems.append(f"{name}.class_path: expected module.Class, found {show(path)}")
        if keys or not isinstance(spec.get("init_args", {}), dict):
            problems.append(f"{name}: expected class_path and init_args, found {show(spec)}")
    for name in ("optimizer", "schedule", "loss"):
        own = getattr(recipe, name)
        if own.init_args and own.class_path is None:
            problems.append(f"{name}.init_args: requires {name}.class_path")
    for decided in {"lr", "weight_decay", "params"} & recipe.optimizer.init_args.keys():
        problems.append(f"optimizer.init_args: {decided} is a setting of its own")
    if recipe.loss.class_path and any(uses(each, "criterion") for each in components_of(recipe)):
        problems.append("loss.class_path: a component replaces the loss already")
    return problems


# Settings that act only with some values of another one.
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "optimizer.momentum": ("optimizer.name", ("sgd",)),
    "optimizer.nesterov": ("optimizer.name", ("sgd",)),
    "optimizer.betas": ("optimizer.name", ("adamw",)),
    "schedule.milestones": ("schedule.name", ("multistep",)),
    "schedule.gamma": ("schedule.name", ("multistep",)),
    "schedule.final": ("schedule.name", ("cosine",)),
    "augment.padding": ("augment.crop", ("pad",)),
    "data.root": ("data.name", ("cifar10", "cifar100", "wds")),
    "data.download": ("data.name", ("cifar10", "cifar100", "wds")),
}
# Settings that a class path of their group replaces.
REPLACED = {
    *(f"optimizer.{name}" for name in ("name", "momentum", "nesterov", "betas")),
    *(f"schedule.{name}" for name in ("name", "milestones", "gamma", "warmup", "final")),
}


def find_unused(recipe: Recipe, given: Iterable[str]) -> dict[str, str]:
    """The settings among `given` that have no effect, with the reason.

    A recipe may hold them, since it serves several protocols; on the command line they are a
    mistake.

    Example:
        >>> find_unused(make_recipe({"protocol": "standard"}), ["protocol.alpha", "epochs"])
        {'protocol.alpha': 'not a setting of the protocol standard'}
    """
    values, found = dataclasses.asdict(recipe), {}
    for dotted in given:
        group, _, name = dotted.partition(".")
        if group == "protocol" and name and name not in values["protocol"]:
            found[dotted] = f"not a setting of the protocol {recipe.protocol.name}"
        elif dotted in REPLACED and values[group]["class_path"] is not None:
            found[dotted] = f"{group}.class_path decides it; see {group}.init_args"
        elif dotted in NEEDS:
            other, wanted = NEEDS[dotted]
            value = values[group][other.partition(".")[2]]
            if value.partition(":")[0] not in wanted:
                found[dotted] = f"requires {other} {' or '.join(wanted)}, found {value}"
    return found


def refuse_unused(recipe: Recipe, given: Iterable[str], where: str = "this run") -> None:
    """Raise an `OptionError` if a setting has no effect in this run."""
    unused = [f"{dotted}: {reason}" for dotted, reason in find_unused(recipe, given).items()]
    if unused:
        raise OptionError(f"no effect in {where}: {'; '.join(unused)}. Leave it out.")
