"""Residual blocks and the last layer of a network, found by running it; no network is known by name."""

import copy
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating, pair
from killick.core.image_model import ImageModel
from killick.core.inspection import run
from killick.errors import StemError


def example_inputs(model: ImageModel) -> Tensor:
    """Noise as the network inside a model reads it: two images, or two pairs."""
    like = next(model.parameters())
    noise = torch.rand(2, *model.image_shape, generator=torch.Generator().manual_seed(0))
    images = noise.to(like.device)
    if model.normalize is not None:
        images = (images * 255).to(torch.uint8)
    if isinstance(model, Anchored):
        return pair(model.prepare(images), model.prepare(images.flip(0)))
    return images if model.normalize is None else model.normalize(images)


def find_head(net: nn.Module, x: Tensor) -> str:
    """The name of the linear layer that computes the logits."""
    seen: dict[str, Tensor] = {}

    def record(name: str, _: nn.Module, read: tuple[Tensor, ...], computed: Tensor) -> None:
        seen[name] = computed.detach().clone()

    with ExitStack() as hooks:
        for name, module in net.named_modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_hook(partial(record, name)))
        logits = run(net, x)
    found = [name for name, computed in seen.items() if torch.equal(computed, logits)]
    if not found:
        raise StemError(
            f"none of the {len(seen)} linear layers of {type(net).__name__} computes the logits. Use"
            " a network that ends with one."
        )
    return found[-1]


def head_of(model: ImageModel) -> str:
    """The name of the layer in a model's network that computes the logits."""
    with evaluating(model):
        return find_head(model.net, example_inputs(model))


def find_residual_blocks(model: ImageModel) -> dict[str, Tensor]:
    """The innermost blocks that add something to their input, in order, with what they compute.

    With all its weights at zero, such a block returns its input. Blocks that change the shape are
    not among them.
    """
    net, seen = model.net, dict[str, tuple[Any, Tensor]]()

    def record(name: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        read = args[0] if args else None
        if isinstance(read, Tensor) and isinstance(output, Tensor) and read.shape == output.shape:
            seen.setdefault(name, ((tuple(args), dict(kwargs)), output))

    with evaluating(model), torch.no_grad(), ExitStack() as hooks:
        for name, module in net.named_modules():
            if (
                name
                and next(module.children(), None) is not None
                and any(True for _ in module.parameters())
            ):
                hook = partial(record, name)
                hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        run(net, example_inputs(model))
        found = [name for name, (call, _) in seen.items() if _adds(net.get_submodule(name), call)]
    inner = [name for name in found if not any(each.startswith(f"{name}.") for each in found)]
    return {name: seen[name][1] for name in inner}


def _adds(module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether a module without weights returns its input."""
    empty = copy.deepcopy(module)
    for parameter in empty.parameters():
        parameter.zero_()
    args, kwargs = call
    try:
        return torch.equal(empty(*args, **kwargs), args[0])
    except Exception:  # whatever a module raises for weights of zero
        return False
