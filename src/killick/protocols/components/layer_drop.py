"""LayerDrop (Fan et al. 2020): whole layers are skipped, so that they can be pruned afterwards."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.activation_noise import ActivationNoise, find_blocks
from killick.protocols.base import COMPONENTS

if TYPE_CHECKING:
    from torch import Tensor

    from killick.protocols.base import Model


@dataclass
class LayerDrop(ActivationNoise):
    """Skips residual blocks for whole batches, all at the same rate."""

    name: str = "layer_drop"

    def find_layers(self, model: "Model") -> dict[str, float]:
        """All residual blocks."""
        return dict.fromkeys(find_blocks(model, self.name), 1.0)

    def change(self, read: "Tensor", computed: "Tensor", rate: "Tensor") -> "Tensor":
        """The output, or the input where the block is skipped."""
        from killick.core.stochastic_layers import drop_layer

        return drop_layer(read, computed, rate)


COMPONENTS.register("layer_drop", LayerDrop)
