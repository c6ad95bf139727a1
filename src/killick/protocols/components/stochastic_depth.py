"""Stochastic depth (Huang et al. 2016), also called drop path: residual blocks are skipped."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.activation_noise import ActivationNoise, find_blocks
from killick.protocols.base import COMPONENTS

if TYPE_CHECKING:
    from torch import Tensor

    from killick.protocols.base import Model


@dataclass
class StochasticDepth(ActivationNoise):
    """Skips residual blocks for some samples, later blocks more often: the last one at the rate."""

    name: str = "stochastic_depth"

    def find_layers(self, model: "Model") -> dict[str, float]:
        """All residual blocks, with rates that rise linearly."""
        found = find_blocks(model, self.name)
        return {block: (number + 1) / len(found) for number, block in enumerate(found)}

    def change(self, read: "Tensor", computed: "Tensor", rate: "Tensor") -> "Tensor":
        """The output, or the input for samples that skip the block."""
        from killick.core.stochastic_layers import drop_samples

        return drop_samples(read, computed, rate)


COMPONENTS.register("stochastic_depth", StochasticDepth)
