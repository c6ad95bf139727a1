"""Where a network's last feature map is strong, found by running it; no network is known by name."""

import math
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import evaluating
from killick.core.image_model import ImageModel
from killick.core.inspection import run
from killick.core.residual_blocks import example_inputs
from killick.errors import OptionError

# They make the features of every place equally strong.
_LEVELING = (nn.LayerNorm, nn.RMSNorm)


class LastMap:
    """The mean strength of a trained model's features at each place of its last map."""

    def __init__(self, model: ImageModel) -> None:
        self.model = model.eval().requires_grad_(False)
        self._seen: Tensor | None = None
        model.net.get_submodule(find_last_map(model)).register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, read: Any, computed: Tensor) -> None:
        self._seen = computed

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The map `(n, side, side)` of images as the model takes them."""
        self.model(images)
        assert self._seen is not None
        strength = measure_strength(self._seen)
        assert strength is not None
        return strength


def find_last_map(model: ImageModel) -> str:
    """The name of the module that computes the last map, or the last tokens of a transformer."""
    last: list[str] = []
    leveled: dict[int, Tensor] = {}  # by where they are stored, which views share

    def record(name: str, module: nn.Module, read: Any, computed: Any) -> None:
        if not isinstance(computed, Tensor) or len(computed) != 2:
            return
        storage = computed.untyped_storage().data_ptr()
        if isinstance(module, _LEVELING):
            leveled[storage] = computed
        elif measure_strength(computed) is not None and storage not in leveled:
            last.append(name)

    with evaluating(model), torch.no_grad(), ExitStack() as hooks:
        for name, module in model.net.named_modules():
            hooks.enter_context(module.register_forward_hook(partial(record, name)))
        run(model.net, example_inputs(model))
    if not last:
        raise OptionError(
            f"{type(model.net).__name__} has no feature map to find attended places in. Use a"
            " convolutional network or a transformer."
        )
    return last[-1]


def measure_strength(features: Tensor) -> Tensor | None:
    """The mean absolute value over channels, `(n, side, side)`; None if there is no square map.

    Channels may come first or last; of tokens `(n, tokens, channels)` the last ones are the map.

    Example:
        >>> measure_strength(torch.ones(2, 5, 3, 3)).shape, measure_strength(torch.ones(2, 10, 5)).shape
        (torch.Size([2, 3, 3]), torch.Size([2, 3, 3]))
    """
    shape = features.shape
    if features.ndim == 4 and shape[2] == shape[3] > 1:
        return features.abs().mean(1)
    if features.ndim == 4 and shape[1] == shape[2] > 1:
        return features.abs().mean(3)
    if features.ndim == 3 and (side := math.isqrt(shape[1])) > 1:
        return features[:, -side * side :].abs().mean(2).view(-1, side, side)
    return None
