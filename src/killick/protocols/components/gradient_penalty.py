"""Gradient regularization (Zhao et al. 2022): a penalty on the norm of the loss's gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.base import COMPONENTS, Component
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class GradientPenalty(Component):
    """Adds the norm of the gradient to the loss, by a finite difference; a step costs two."""

    name: str = "gradient_penalty"
    strength: float = setting(0.01, "factor of the norm", least=0)
    distance: float = setting(0.05, "of the weights whose gradient is compared", above=0)

    def cost(self) -> float:
        """Two passes."""
        return 2.0

    def gradient(self, parameters: "Sequence[Tensor]", again: "Callable[[], None]") -> None:
        """`g + strength / distance * (g(w + distance g / |g|) - g)`."""
        from killick.core.weight_steps import move_along_gradient

        share = self.strength / self.distance
        with move_along_gradient(parameters, self.distance) as before:
            again()
        for weight, own in zip(parameters, before, strict=True):
            if weight.grad is not None and own is not None:
                weight.grad.mul_(share).add_(own, alpha=1 - share)


COMPONENTS.register("gradient_penalty", GradientPenalty)
