"""Sharpness-aware minimization (Foret et al. 2021): the gradient of the worst weights nearby."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.base import COMPONENTS, Component
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class SAM(Component):
    """Takes the gradient `rho` away, where the loss is higher, for flat minima; a step costs two."""

    name: str = "sam"
    rho: float = setting(0.05, "distance of the weights whose gradient is taken", above=0)

    def cost(self) -> float:
        """Two passes."""
        return 2.0

    def gradient(self, parameters: "Sequence[Tensor]", again: "Callable[[], None]") -> None:
        """Climb, compute the gradient there, and come back."""
        from killick.core.weight_steps import move_along_gradient

        with move_along_gradient(parameters, self.rho):
            again()


COMPONENTS.register("sam", SAM)
