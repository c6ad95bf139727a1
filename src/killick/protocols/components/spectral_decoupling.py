"""Spectral decoupling (Pezeshki et al. 2021): a penalty on the logits instead of weight decay."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.base import COMPONENTS, Component, ForwardPass
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class SpectralDecoupling(Component):
    """Penalizes the squared norm of the logits, so that training does not settle on few features."""

    name: str = "spectral_decoupling"
    strength: float = setting(1e-3, "factor of half the mean squared norm", least=0)

    def loss(self, seen: ForwardPass, loss: "Tensor") -> "Tensor":
        """Add the penalty."""
        return loss + self.strength / 2 * seen.logits.float().square().sum(1).mean()


COMPONENTS.register("spectral_decoupling", SpectralDecoupling)
