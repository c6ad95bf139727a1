"""DropBlock (Ghiasi et al. 2018): squares of feature maps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.activation_noise import ActivationNoise, find_maps
from killick.protocols.base import COMPONENTS
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from killick.protocols.base import Model


@dataclass
class DropBlock(ActivationNoise):
    """Drops squares of the maps of the last two stages."""

    name: str = "dropblock"
    side: int = setting(7, "of the squares; at most the map's", least=1)
    ramp: bool = setting(True, "whether the rate rises linearly over the run")

    def find_layers(self, model: "Model") -> dict[str, float]:
        """The blocks of the last two stages."""
        return find_maps(model, self.name)

    def change(self, read: "Tensor", computed: "Tensor", rate: "Tensor") -> "Tensor":
        """The map without some squares."""
        from killick.core.stochastic_layers import drop_blocks

        return drop_blocks(computed, rate, self.side)


COMPONENTS.register("dropblock", DropBlock)
