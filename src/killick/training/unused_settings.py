"""Settings given on the command line that have no effect in the run.

A recipe may hold them, since it serves several protocols; on the command line they are a mistake.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from killick.errors import OptionError
from killick.training.recipe import Recipe

_SGD = ("optimizer.name", ("sgd",))
_MULTISTEP = ("schedule.name", ("multistep",))
_CIFAR = ("data.name", ("cifar10", "cifar100"))
# Setting: the one that it depends on, and its values.
NEEDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "optimizer.momentum": _SGD,
    "optimizer.nesterov": _SGD,
    "optimizer.betas": ("optimizer.name", ("adamw",)),
    "schedule.milestones": _MULTISTEP,
    "schedule.gamma": _MULTISTEP,
    "schedule.final": ("schedule.name", ("cosine",)),
    "augment.padding": ("augment.crop", ("pad",)),
    "data.root": _CIFAR,
    "data.download": _CIFAR,
}


def find_unused(recipe: Recipe, given: Iterable[str]) -> dict[str, str]:
    """The settings among `given` that have no effect, with the reason.

    Example:
        >>> from killick.training.recipe_files import make_recipe
        >>> find_unused(make_recipe({"protocol": "standard"}), ["protocol.alpha", "epochs"])
        {'protocol.alpha': 'not a setting of the protocol standard'}
    """
    found = {}
    protocol = recipe.protocol
    own = {each.name for each in dataclasses.fields(protocol)}
    for dotted in given:
        group, _, name = dotted.partition(".")
        if group == "protocol" and name and name not in own:
            found[dotted] = f"not a setting of the protocol {protocol.name}"
        elif dotted == "protocol.alpha" and getattr(protocol, "every", None) is not None:
            found[dotted] = "protocol.every decides instead"
        elif dotted in NEEDS:
            other, values = NEEDS[dotted]
            value = _value(recipe, other)
            if value not in values:
                found[dotted] = f"requires {other} {' or '.join(values)}, found {value}"
        elif dotted == "augment.policy_arguments" and recipe.augment.policy == "none":
            found[dotted] = "requires augment.policy"
    return found


def refuse_unused(recipe: Recipe, given: Iterable[str]) -> None:
    """Raise an `OptionError` if a setting has no effect in this run."""
    _refuse(find_unused(recipe, given), "")


def refuse_unused_in_arms(recipes: Mapping[str, Recipe], own: Mapping[str, Sequence[str]]) -> None:
    """Raise an `OptionError` if a setting of an arm has no effect in it.

    Args:
        recipes: Of each arm, by name.
        own: The settings that the arm itself gives.
    """
    for name, recipe in recipes.items():
        _refuse(find_unused(recipe, own[name]), f" in the arm {name}")


def refuse_unused_in_all(
    recipes: Mapping[str, Recipe], own: Mapping[str, Sequence[str]], shared: Iterable[str]
) -> None:
    """Raise an `OptionError` if a setting for all arms has no effect in any of them."""
    unused: dict[str, str] = {}
    for dotted in shared:
        reasons = [
            "each has its own" if dotted in own[name] else find_unused(recipe, [dotted]).get(dotted)
            for name, recipe in recipes.items()
        ]
        if all(reasons):
            unused[dotted] = str(reasons[0])
    _refuse(unused, " in any of the arms")


def _refuse(unused: Mapping[str, str], where: str) -> None:
    if unused:
        reasons = "; ".join(f"{dotted}: {reason}" for dotted, reason in unused.items())
        raise OptionError(f"settings without effect{where}: {reasons}. Leave them out.")


def _value(recipe: Recipe, dotted: str) -> Any:
    group, _, name = dotted.partition(".")
    return getattr(getattr(recipe, group), name)
