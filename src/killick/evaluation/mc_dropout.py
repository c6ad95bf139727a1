"""MC dropout (Gal and Ghahramani 2016): the mean of predictions with dropout on."""

from collections.abc import Iterator, Mapping
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


class MCDropout:
    """Dropout of a network in evaluation: its own layers, or that of the recipe's component.

    What is drawn depends on `seed`, the test set, the block of its images, and the number of passes
    over that so far.
    """

    def __init__(self, model: ImageModel, recipe: Mapping[str, Any], draws: int, seed: int) -> None:
        self.draws, self._seed, self._on = draws, seed, False
        self.begin("", 0)
        self._layers = [m for m in model.modules() if isinstance(m, _DropoutNd) and m.p > 0]
        components = recipe.get("components") or []
        found = [each for each in components if each.get("name") == "dropout"]
        if not self._layers and not found:
            raise OptionError(
                "MC dropout requires dropout in the network, or training with --regularizer dropout;"
                " found neither."
            )
        if found:
            self._hook(model, float(found[0]["rate"]))

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


def mean_logits(logits: Tensor) -> Tensor:
    """The logits of the mean probabilities of draws `(draws, n, classes)`, as `(1, n, classes)`."""
    return average_logits(logits)[None]
