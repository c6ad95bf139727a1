"""Dropout before the last layer: after every BatchNorm, whose statistics it would shift otherwise."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.activation_noise import hook_features
from killick.protocols.base import COMPONENTS, RunContext
from killick.protocols.scheduled import Scheduled
from killick.settings import setting

if TYPE_CHECKING:
    from killick.protocols.base import Model


@dataclass
class Dropout(Scheduled):
    """Dropout of the features that the last layer reads (Srivastava et al. 2014).

    In fine-tuning a very large rate, about 0.9, makes the last layer use many features (Zhang and
    Bottou 2023).
    """

    name: str = "dropout"
    rate: float = setting(0.3, "share of the features that are dropped", least=0, below=1)

    def setup(self, model: "Model", run: RunContext) -> None:
        """Hook the last layer."""
        from killick.core.stochastic_layers import drop_elements

        super().setup(model, run)
        hook_features(model, lambda x: drop_elements(x, self.rate * self.factor))


COMPONENTS.register("dropout", Dropout)
