"""Focal loss (Lin et al. 2017): samples that are easy count less."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.base import COMPONENTS, Component
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class FocalLoss(Component):
    """Cross-entropy, each class weighted by `(1 - probability) ** gamma`."""

    name: str = "focal_loss"
    gamma: float = setting(
        3.0, "0 is cross-entropy; 3 calibrates well (Mukhoti et al. 2020)", least=0
    )

    def criterion(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """The loss of class numbers or probabilities."""
        from torch.nn.functional import one_hot

        logs = logits.log_softmax(1)
        soft = one_hot(targets, logits.shape[1]) if targets.ndim == 1 else targets
        # Not 0, where powers below 1 have no finite gradient.
        misses = (1 - logs.exp()).clamp_min(1e-7)
        return -(soft * misses**self.gamma * logs).sum(1).mean()


COMPONENTS.register("focal_loss", FocalLoss)
