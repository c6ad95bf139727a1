"""Nested dropout (Rippel et al. 2014) against label noise (Chen et al. 2021)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.activation_noise import hook_features
from killick.protocols.base import COMPONENTS, RunContext
from killick.protocols.scheduled import Scheduled
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from killick.protocols.base import Model


@dataclass
class NestedDropout(Scheduled):
    """Lets the last layer read the first k features alone, in each step another k.

    The chance of k is proportional to exp(-(k / (spread * features))^2). Evaluation reads all.
    """

    name: str = "nested_dropout"
    spread: float = setting(
        0.2, "share of the features up to which k usually is: 100 of 512 on Clothing1M", above=0
    )

    def setup(self, model: "Model", run: RunContext) -> None:
        """Hook the last layer."""
        import torch

        super().setup(model, run)
        width = hook_features(model, self._cut).in_features
        k = torch.arange(1, width + 1, dtype=torch.float64)
        chances = (-(k / (self.spread * width)).square()).exp()
        self._up_to = (chances.cumsum(0) / chances.sum()).float().to(run.device)

    def _cut(self, features: "Tensor") -> "Tensor":
        import torch

        from killick.core.stochastic_layers import keep_first

        drawn, off = torch.rand(2, device=features.device)
        count = 1 + (drawn >= self._up_to).sum()
        return keep_first(features, torch.where(off < self.factor, count, len(self._up_to)))


COMPONENTS.register("nested_dropout", NestedDropout)
