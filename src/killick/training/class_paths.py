"""Classes that a recipe names by `class_path` and `init_args`: transforms, optimizers and more.

Naming a class imports its module, so only a recipe that the user gave in this call is resolved,
never one that lies in a model or a run folder.
"""

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from killick.errors import OptionError, RecipeError, one_line
from killick.training.recipe import Recipe, named_classes


@dataclass(frozen=True)
class OwnClasses:
    """What a recipe names by class path, imported; None where it names nothing."""

    transform: Callable[..., Any] | None = None
    optimizer: type[torch.optim.Optimizer] | None = None
    scheduler: type[torch.optim.lr_scheduler.LRScheduler] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None


def import_classes(recipe: Recipe) -> OwnClasses:
    """Import the classes of a recipe that the user gave."""
    transform = recipe.augment.transform
    optimizer = _find_kind(recipe.optimizer, "optimizer", torch.optim.Optimizer)
    if optimizer is not None:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise RecipeError(f"optimizer.class_path: {optimizer.__name__} needs a closure.")
    return OwnClasses(
        _make(transform, "augment.transform") if transform else None,
        optimizer,
        _find_kind(recipe.schedule, "schedule", torch.optim.lr_scheduler.LRScheduler),
        _make(asdict(recipe.loss), "loss") if recipe.loss.class_path else None,
    )


def check_same_classes(given: Recipe | None, stored: Recipe, where: str) -> None:
    """Refuse to resume a stored recipe whose classes the user did not name in this call."""
    theirs = named_classes(stored)
    ours = {} if given is None else named_classes(given)
    if not theirs or ours == theirs:
        return
    names, first = " and ".join(sorted(theirs)), min(theirs)
    if not ours:
        raise RecipeError(
            f"{where} uses classes by class_path ({names}), and classes named by a run folder are"
            " never imported. Name the recipe again (--recipe FILE), or the classes, as when it began:"
            f" --{'augment.transform' if first == 'transform' else f'{first}.class_path'} ..."
        )
    differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    raise RecipeError(f"{where} was trained with another {' and '.join(differing)}.")


def check_loss(
    loss: Callable[[Tensor, Tensor], Tensor], classes: int, device: torch.device
) -> None:
    """Refuse a loss that cannot be taken of logits and class numbers, or cannot be trained with."""
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, nn.Module) and any(each.requires_grad for each in loss.parameters()):
        raise OptionError(
            f"the loss {name} has trainable parameters, which no optimizer gets. Make them part of"
            " the network, or freeze them: loss.requires_grad_(False)."
        )
    state = copy.deepcopy(loss)  # a trial must not change what it counts
    try:
        with torch.random.fork_rng(devices=[]):
            found = state(
                torch.zeros(2, classes, device=device, requires_grad=True),
                torch.zeros(2, dtype=torch.long, device=device),
            )
    except Exception as problem:  # whatever it raises
        raise OptionError(
            f"the loss {name} fails on logits (2, {classes}) and class numbers (2,):"
            f" {one_line(problem)}."
        ) from problem
    if not isinstance(found, Tensor) or found.numel() != 1 or not found.requires_grad:
        raise OptionError(
            f"the loss {name} must return one differentiable number, found {found!r}."
        )


def make_rates(
    kind: type[torch.optim.lr_scheduler.LRScheduler], recipe: Recipe, steps: int, per_epoch: int
) -> list[float]:
    """The learning rate of every step, as a scheduler of torch sets it."""
    part = recipe.schedule
    whole = round(steps / (part.end - part.begin))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=recipe.optimizer.lr)
    try:
        scheduler = kind(optimizer, **part.init_args)
        before = _without_rate(optimizer)
        rates = []
        for step in range(whole):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            if part.every == "step" or (step + 1) % per_epoch == 0:
                scheduler.step()
    except Exception as problem:  # whatever arguments make it raise
        raise RecipeError(
            f"schedule.class_path: {kind.__name__}: {one_line(problem)}."
        ) from problem
    if _without_rate(optimizer) != before:
        raise RecipeError(
            f"schedule.class_path: {kind.__name__} changes more than the learning rate. Turn that off"
            " in schedule.init_args, as with cycle_momentum: false."
        )
    start = round(part.begin * whole)
    return rates[start : start + steps]


def _without_rate(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    (group,) = optimizer.param_groups
    idle = ("lr", "params", "initial_lr", "min_lr", "max_lr")
    return {name: value for name, value in group.items() if name not in idle}


def _find_kind(settings: Any, name: str, kind: type) -> Any:
    if settings.class_path is None:
        return None
    found = _import(settings.class_path, f"{name}.class_path")
    if not isinstance(found, type) or not issubclass(found, kind):
        raise RecipeError(
            f"{name}.class_path: {settings.class_path} is no subclass of {kind.__name__}."
        )
    return found


def _make(spec: Mapping[str, Any], name: str) -> Any:
    """An instance of a class; a function, with its arguments if there are some."""
    found, given = _import(spec["class_path"], name), spec.get("init_args") or {}
    arguments = {key: _make_nested(value, name) for key, value in given.items()}
    try:
        if isinstance(found, type):
            found = found(**arguments)
        elif arguments:
            found = partial(found, **arguments)
    except Exception as problem:  # whatever arguments make it raise
        raise RecipeError(f"{name}: {spec['class_path']}: {one_line(problem)}.") from problem
    if not callable(found):
        raise RecipeError(f"{name}: {spec['class_path']} cannot be called.")
    return found


def _make_nested(value: Any, name: str) -> Any:
    """A value of `init_args`, with instances in the place of what has a class path."""
    if isinstance(value, list):
        return [_make_nested(each, name) for each in value]
    if isinstance(value, Mapping) and "class_path" in value:
        return _make(value, name)
    return value


def _import(path: str, name: str) -> Any:
    module, _, last = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), last)
    except Exception as problem:  # whatever a module raises
        raise RecipeError(
            f"{name}: cannot import {path}: {one_line(problem)}. A file of yours is found with"
            " PYTHONPATH=FOLDER."
        ) from problem
