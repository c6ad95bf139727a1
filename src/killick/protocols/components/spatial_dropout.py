"""Spatial dropout (Tompson et al. 2015): whole channels of feature maps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.activation_noise import ActivationNoise, find_maps
from killick.protocols.base import COMPONENTS

if TYPE_CHECKING:
    from torch import Tensor

    from killick.protocols.base import Model


@dataclass
class SpatialDropout(ActivationNoise):
    """Drops channels of the maps of the last two stages."""

    name: str = "spatial_dropout"

    def find_layers(self, model: "Model") -> dict[str, float]:
        """The blocks of the last two stages."""
        return find_maps(model, self.name)

    def change(self, read: "Tensor", computed: "Tensor", rate: "Tensor") -> "Tensor":
        """The map without some channels."""
        from killick.core.stochastic_layers import drop_channels

        return drop_channels(computed, rate)


COMPONENTS.register("spatial_dropout", SpatialDropout)
