"""Optimizers from a recipe, ready for CUDA graphs where there is a GPU."""

from typing import Any

import torch
from torch import Tensor, nn

from killick.training.recipe import Optimizer

_EMBEDDINGS = ("class_token", "cls_token", "pos_embed", "position_embedding", "relative_position")


def make_optimizer(
    model: nn.Module, settings: Optimizer, device: torch.device
) -> torch.optim.Optimizer:
    """SGD or AdamW over the weights of `model`.

    On a GPU it is fused, and its learning rate is a tensor there, which a captured graph reads.
    """
    groups = weight_groups(model, settings)
    cuda = device.type == "cuda"
    rate = torch.tensor(settings.lr, device=device) if cuda else settings.lr
    if settings.name == "sgd":
        return torch.optim.SGD(
            groups,
            lr=rate,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            fused=True if cuda else None,
        )
    first, second = settings.betas
    return torch.optim.AdamW(
        groups, lr=rate, betas=(first, second), fused=True if cuda else None, capturable=cuda
    )


def weight_groups(model: nn.Module, settings: Optimizer) -> list[dict[str, object]]:
    """The weights that decay, and those that do not."""
    decaying: list[Tensor] = []
    exempt: list[Tensor] = []
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        matrix = weight.ndim > 1 and not any(part in name for part in _EMBEDDINGS)
        (decaying if settings.decay == "all" or matrix else exempt).append(weight)
    groups: list[dict[str, object]] = [
        {"params": decaying, "weight_decay": settings.weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def set_rate(optimizer: torch.optim.Optimizer, rate: Tensor | float) -> None:
    """Use `rate` from now on, without waiting for the device."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(rate) if isinstance(rate, Tensor) else group["lr"].fill_(rate)
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
