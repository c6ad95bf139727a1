"""Networks that were written for pairs: twice the channels of an image, read as they are."""

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from killick.core.inspection import (
    Layer,
    describe,
    inputs_of,
    named_layers,
    try_example,
)
from killick.core.stems import Stem, Widened, channel_counts, match_features
from killick.errors import StemError


def read_pairs(
    net: nn.Module, stem: str | Sequence[str] | None = None, example: Tensor | None = None
) -> Widened:
    """A copy of `net`, which reads pairs already, with what folding must know of its first layers.

    `example` is a batch of images, with half of its channels.
    """
    net = copy.deepcopy(net)
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    pairs = None if example is None else torch.cat([example, example], dim=1)
    trial = try_example(net, pairs)
    found = trial.images
    if found.shape[1] % 2:
        raise StemError(
            f"{type(net).__name__} does not read pairs: expected twice the channels of an image,"
            f" found {found.shape[1]} channels."
        )
    x = found[:, : found.shape[1] // 2]
    names = [stem] if isinstance(stem, str) else list(stem or ())
    layers = named_layers(net, names) if names else trial.find_stem(net)
    stems = _find_halves(net, layers, x)
    counts = channel_counts(net, layers, found.shape[1])
    for module, mode in modes:
        module.training = mode
    return Widened(net, None, stems, counts, x)


def _find_halves(net: nn.Module, layers: dict[str, Layer], x: Tensor) -> tuple[Stem, ...]:
    """For each layer, which of the features that it reads are of the reference."""
    nothing, stems = torch.zeros_like(x), []
    halves = [torch.cat(both, dim=1) for both in ((x, nothing), (nothing, x))]
    first, second = (inputs_of(net, layers, half) for half in halves)
    for name, layer in layers.items():
        axis = -1 if isinstance(layer, nn.Linear) else 1
        a, b = (arrived[name].movedim(axis, 0) for arrived in (first, second))
        plain = a[a.flatten(1).abs().amax(1) > 0]
        found = match_features(name, plain, a, b)
        if found is None:
            raise StemError(
                f"{type(net).__name__} does not read pairs as Killick makes them,"
                f" [reference, residual]: {describe({name: cast(nn.Module, layer)})} does not read"
                " the two halves alike. Take what stands before it out of the network."
            )
        stems.append(found)
    return tuple(stems)
