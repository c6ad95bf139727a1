"""MC dropout (Gal and Ghahramani 2016): the mean of predictions with dropout on."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from killick.core.image_model import ImageModel
from killick.core.residual_blocks import head_of
from killick.core.stochastic_layers import drop_elements
from killick.data.keyed_random import key
from killick.errors import OptionError
from killick.nets.ensemble_net import average_logits

COMPONENTS = ("dropout", "multi_sample_dropout")  # of training; both drop what the last layer reads


class MCDropout:
    """Dropout of a network in evaluation: its own layers, or that of the recipe's components.

    What is drawn depends on `seed`, the test set, the block of its images, and the number of passes
    over that so far.
    """

    def __init__(self, model: ImageModel, recipe: Mapping[str, Any], draws: int, seed: int) -> None:
        self.draws, self._seed, self._on = draws, seed, False
        self.begin("", 0)
        self._layers, rates = find_dropout(model, recipe.get("components") or [])
        for rate in rates:
            self._hook(model, rate)

    def _hook(self, model: ImageModel, rate: float) -> None:
        def drop(_: nn.Module, read: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            return (drop_elements(read[0], torch.tensor(rate)), *read[1:]) if self._on else None

        model.net.get_submodule(head_of(model)).register_forward_pre_hook(drop)

    def begin(self, test: str, block: int) -> None:
        """Begin with a block of a test set, whose draws do not depend on those of others."""
        self._block, self._passes = (crc32(test.encode()), block), 0

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Dropout is on within this block."""
        with torch.random.fork_rng():
            torch.manual_seed(key(self._seed, 0xD09, *self._block, self._passes) % 2**63)
            self._passes += 1
            self._on = True
            for layer in self._layers:
                layer.training = True
            try:
                yield
            finally:
                self._on = False
                for layer in self._layers:
                    layer.training = False


def find_dropout(
    net: nn.Module, components: Iterable[Mapping[str, Any]]
) -> tuple[list[_DropoutNd], list[float]]:
    """The dropout layers of a network, and the rates of components of its training that drop."""
    layers = [each for each in net.modules() if isinstance(each, _DropoutNd) and each.p > 0]
    rates = [float(each["rate"]) for each in components if each.get("name") in COMPONENTS]
    if not layers and not rates:
        raise OptionError(
            "MC dropout requires dropout in the network, or training with --regularizer dropout;"
            " found neither."
        )
    return layers, rates


def mean_logits(logits: Tensor) -> Tensor:
    """The logits of the mean probabilities of draws `(draws, n, classes)`, as `(1, n, classes)`."""
    return average_logits(logits)[None]
