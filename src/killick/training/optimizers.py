"""Optimizer and learning rate from a recipe, ready for CUDA graphs where there is a GPU."""

import inspect
import math
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from killick.errors import RecipeError, one_line
from killick.training.recipe import Optimizer, Schedule

T = TypeVar("T", bound=torch.optim.Optimizer)
_EMBEDDINGS = ("class_token", "cls_token", "pos_embed", "position_embedding", "relative_position")


def _without_compiler(kind: type[T]) -> type[T]:
    """The optimizer without torch's decorators, which import its compiler: that takes seconds.

    They matter only where a step of an optimizer is compiled itself; here it never is.
    """
    plain = {
        name: inspect.unwrap(getattr(kind, name))
        for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict", "step")
    }
    plain["step"] = torch.no_grad()(plain["step"])
    return cast(type[T], type(kind.__name__, (kind,), plain))


_SGD, _AdamW = _without_compiler(torch.optim.SGD), _without_compiler(torch.optim.AdamW)


def make_optimizer(
    modules: Sequence[nn.Module],
    settings: Optimizer,
    device: torch.device,
    kind: type[torch.optim.Optimizer] | None = None,
) -> torch.optim.Optimizer:
    """SGD, AdamW or a class of the user's own over the weights of `modules`.

    On a GPU it is fused, and its learning rate is a tensor there, which a captured graph reads.
    """
    groups = weight_groups(modules, settings)
    if kind is not None:
        return _make_own(kind, groups, settings)
    cuda = device.type == "cuda"
    rate = torch.tensor(settings.lr, device=device) if cuda else settings.lr
    fused = True if cuda else None
    if settings.name == "sgd":
        return _SGD(
            groups, lr=rate, momentum=settings.momentum, nesterov=settings.nesterov, fused=fused
        )
    first, second = settings.betas
    return _AdamW(groups, lr=rate, betas=(first, second), fused=fused, capturable=cuda)


def _make_own(
    kind: type[torch.optim.Optimizer], groups: list[dict[str, object]], settings: Optimizer
) -> torch.optim.Optimizer:
    try:
        made = kind(groups, lr=settings.lr, **settings.init_args)  # type: ignore[call-arg]
    except Exception as problem:  # whatever arguments make it raise
        raise RecipeError(
            f"optimizer.class_path: {kind.__name__}: {one_line(problem)}."
        ) from problem
    if settings.weight_decay and "weight_decay" not in made.defaults:
        raise RecipeError(
            f"{kind.__name__} has no weight decay, found optimizer.weight_decay"
            f" {settings.weight_decay:g}. Set it to 0."
        )
    return made


def weight_groups(modules: Sequence[nn.Module], settings: Optimizer) -> list[dict[str, object]]:
    """The weights that decay, and those that do not."""
    decaying: list[Tensor] = []
    exempt: list[Tensor] = []
    for module in modules:
        for name, weight in module.named_parameters():
            if weight.requires_grad:
                matrix = weight.ndim > 1 and not any(part in name for part in _EMBEDDINGS)
                (decaying if settings.decay == "all" or matrix else exempt).append(weight)
    decays = ((decaying, settings.weight_decay), (exempt, 0.0))
    return [{"params": weights, "weight_decay": decay} for weights, decay in decays if weights]


def set_rate(optimizer: torch.optim.Optimizer, rate: Tensor | float) -> None:
    """Use `rate` from now on, without waiting for the device."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = float(rate)


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take up `state`; how it is executed stays as it is on this device."""
    options = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    # torch moves the state as the groups say, so they must say so before.
    groups = [{**was, **own} for was, own in zip(state["param_groups"], options, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": groups})
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)


def learning_rate(step: int, steps: int, lr: float, schedule: Schedule) -> float:
    """The learning rate of step `step`, counted from 0, of a run of `steps`.

    A warm-up rises linearly from `warmup_start`; what comes after it has the rest of the budget.
    Milestones are shares of the whole budget. A run may take a part of a schedule, from `begin` to
    `end`: two runs, one after the other, then follow it as one.

    Example:
        >>> settings = Schedule(name="multistep", milestones=[0.3, 0.6, 0.8], gamma=0.2)
        >>> [round(learning_rate(s, 200, 0.1, settings), 5) for s in (0, 59, 60, 120, 199)]
        [0.1, 0.1, 0.02, 0.004, 0.0008]
    """
    whole = steps / (schedule.end - schedule.begin)
    place = step + schedule.begin * whole
    warm = round(schedule.warmup * whole)
    if place < warm:
        return lr * (schedule.warmup_start + (1 - schedule.warmup_start) * place / warm)
    if schedule.name == "constant":
        return lr
    if schedule.name == "multistep":
        passed = sum(place >= round(share * whole) for share in schedule.milestones)
        return lr * schedule.gamma**passed
    along = (place - warm) / max(1, whole - warm)
    return lr * (schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * along)))
