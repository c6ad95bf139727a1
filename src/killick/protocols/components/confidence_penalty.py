"""Confidence penalty (Pereyra et al. 2017): rewards predictions of high entropy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.base import COMPONENTS, Component, ForwardPass
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class ConfidencePenalty(Component):
    """Subtracts the entropy of the predictions from the loss."""

    name: str = "confidence_penalty"
    strength: float = setting(0.1, "factor of the mean entropy", least=0)

    def loss(self, seen: ForwardPass, loss: "Tensor") -> "Tensor":
        """Subtract the entropy."""
        logs = seen.logits.float().log_softmax(1)
        return loss + self.strength * (logs.exp() * logs).sum(1).mean()


COMPONENTS.register("confidence_penalty", ConfidencePenalty)
