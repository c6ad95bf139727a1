"""ACLS, adaptive and conditional label smoothing (Park et al. 2023): bounds how far logits spread."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.base import COMPONENTS, Component, ForwardPass
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class ACLS(Component):
    """Penalizes a largest logit beyond a margin, and others that are further than it below."""

    name: str = "acls"
    strength: float = setting(0.1, "factor of both penalties", least=0)
    largest: float = setting(1.0, "weight of the largest logit's penalty", least=0)
    others: float = setting(0.1, "weight of the other logits' penalty", least=0)
    margin: float = setting(10.0, "up to which nothing is penalized", least=0)

    def loss(self, seen: ForwardPass, loss: "Tensor") -> "Tensor":
        """Add the penalties."""
        logits = seen.logits.float()
        largest = logits.amax(1, keepdim=True)
        high = (largest - self.margin).relu().square().mean()
        # The largest is no further than the margin below itself: it adds nothing here.
        far = (largest - logits - self.margin).relu().square().sum(1) / (logits.shape[1] - 1)
        return loss + self.strength * (self.largest * high + self.others * far.mean())


COMPONENTS.register("acls", ACLS)
