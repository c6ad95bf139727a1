"""Settings that somebody asked for and that cannot act: they are told, not ignored.

A recipe may hold them, as one recipe serves several protocols; on the command line they are a
mistake, and the run would not be the one that was meant.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from killick.errors import OptionError, show
from killick.training.recipe import Recipe

_MASKED = ("protocol.name", ("masked",))
_ANCHORED = ("protocol.name", ("anchored", "masked"))
_SGD = ("optimizer.name", ("sgd",))
_MULTISTEP = ("schedule.name", ("multistep",))
_CIFAR = ("data.name", ("cifar10", "cifar100"))
# Setting: the one that it depends on, and what that must be.
NEEDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "protocol.target": _MASKED,
    "protocol.alpha": _MASKED,
    "protocol.alpha_end": _MASKED,
    "protocol.every": _MASKED,
    "protocol.scope": _MASKED,
    "protocol.ranks": _MASKED,
    "protocol.batchnorm": _MASKED,
    "protocol.references": _ANCHORED,
    "protocol.reference_set": _ANCHORED,
    "protocol.stored": _ANCHORED,
    "protocol.stored_as": _ANCHORED,
    "protocol.stem": _ANCHORED,
    "optimizer.momentum": _SGD,
    "optimizer.nesterov": _SGD,
    "optimizer.betas": ("optimizer.name", ("adamw",)),
    "schedule.milestones": _MULTISTEP,
    "schedule.gamma": _MULTISTEP,
    "schedule.final": ("schedule.name", ("cosine",)),
    "augment.padding": ("augment.crop", ("pad",)),
    "augment.policy_arguments": (
        "augment.policy",
        ("randaugment", "trivialaugment", "autoaugment", "augmix", "pixmix"),
    ),
    "data.root": _CIFAR,
    "data.download": _CIFAR,
}


def find_idle(recipe: Recipe, asked: Iterable[str]) -> dict[str, str]:
    """Why they cannot act, of those settings that cannot, by dotted name.

    Example:
        >>> from killick.training.recipe import Protocol
        >>> find_idle(Recipe(protocol=Protocol("standard")), ["protocol.alpha", "epochs"])
        {'protocol.alpha': 'expected protocol.name masked with it, found standard'}
    """
    found = {}
    for dotted in asked:
        if dotted in NEEDS:
            other, wanted = NEEDS[dotted]
            value = _value(recipe, other)
            if value not in wanted:
                among = wanted[0] if len(wanted) == 1 else f"one of {', '.join(wanted)}"
                found[dotted] = f"expected {other} {among} with it, found {value}"
        if dotted == "protocol.alpha" and dotted not in found and recipe.protocol.every is not None:
            every = recipe.protocol.every
            found[dotted] = f"expected no protocol.every with it, which decides, found {every}"
    return found


def refuse_idle(recipe: Recipe, asked: Iterable[str]) -> None:
    """Tell all settings that cannot act in this run.

    Raises:
        OptionError: If there are any.
    """
    _refuse(find_idle(recipe, asked), "")


def refuse_idle_in_arms(recipes: Mapping[str, Recipe], own: Mapping[str, Sequence[str]]) -> None:
    """Likewise of settings that arms of a comparison ask for, each of which must act in its arm.

    Args:
        recipes: Of each arm, by name.
        own: What the arm itself asks for.
    """
    for name, recipe in recipes.items():
        _refuse(find_idle(recipe, own[name]), f" in the arm {name}")


def refuse_idle_in_all(
    recipes: Mapping[str, Recipe], own: Mapping[str, Sequence[str]], shared: Iterable[str]
) -> None:
    """Likewise of settings that are asked for all arms: each must act in one arm at least."""
    idle: dict[str, str] = {}
    for dotted in shared:
        reasons = [
            "each has its own" if dotted in own[name] else find_idle(recipe, [dotted]).get(dotted)
            for name, recipe in recipes.items()
        ]
        if all(reasons):
            idle[dotted] = str(reasons[0])
    _refuse(idle, " in any of the arms")


def _refuse(idle: Mapping[str, str], where: str) -> None:
    if not idle:
        return
    reasons = "; ".join(f"{dotted}: {reason}" for dotted, reason in idle.items())
    one = len(idle) == 1
    raise OptionError(
        f"{'a setting' if one else f'{len(idle)} settings'} cannot act{where}: {reasons}. Leave"
        f" {'it' if one else 'them'} out, or change what decides."
    )


def _value(recipe: Recipe, dotted: str) -> Any:
    group, _, name = dotted.partition(".")
    value = getattr(getattr(recipe, group), name)
    return value if isinstance(value, str) else show(value)
