"""Preprocessing inside a network, moved out of it so that it is applied before pairing.

A normalization inside the network would be applied to the residual as if it were an image. Done
first, to the image and to the reference, it leaves a pair of prepared images.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.inspection import inputs_of, replace


class ChannelAffine(nn.Module):
    """`x * scale + shift`, one of each per channel: a normalization taken out of a network."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel."""
        return x * self.scale + self.shift


def take_input_transform(net: nn.Module, x: Tensor, layers: Iterable[str]) -> nn.Module | None:
    """Torchvision's `transform_input`, switched off in `net` and returned as a module.

    GoogLeNet and Inception rescale each channel inside `forward`; that belongs before the pair.
    """
    switched = [m for m in net.modules() if getattr(m, "transform_input", False) is True]
    if not switched:
        return None
    stem = next(iter(layers))
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    shift = inputs_of(net, [stem], zero)[stem][:1, :, :1, :1]
    scale = inputs_of(net, [stem], one)[stem][:1, :, :1, :1] - shift
    before = inputs_of(net, [stem], x)[stem]
    affine = ChannelAffine(scale, shift)
    if before.shape != x.shape or not torch.allclose(affine(x), before, atol=1e-5):
        return None
    for module in switched:
        module.transform_input = False  # type: ignore[assignment]
    return affine


def take_leading_module(net: nn.Module, x: Tensor, layers: Iterable[str]) -> nn.Module | None:
    """Take the first module that only prepares the image out of `net`; None if there is none.

    Such a module reads the network's input, has no parameters and keeps no statistics. An
    `nn.Identity` takes its place.
    """
    image = x.clone()
    found: list[str] = []

    def record(name: str, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if len(args) == 1 and args[0] is image and isinstance(output, Tensor):
            found.append(name)

    with ExitStack() as hooks, torch.no_grad():
        for name, module in net.named_modules():
            stateless = not any(True for _ in module.parameters()) and not any(
                getattr(m, "running_mean", None) is not None for m in module.modules()
            )
            inside = any(layer == name or layer.startswith(f"{name}.") for layer in layers)
            if name and stateless and not inside and not isinstance(module, nn.Identity):
                hooks.enter_context(module.register_forward_hook(partial(record, name)))
        net(image)
    if not found:
        return None
    name = found[-1]  # a module is reported after those inside it: the outermost
    module = net.get_submodule(name)
    replace(net, name, nn.Identity())
    return module
