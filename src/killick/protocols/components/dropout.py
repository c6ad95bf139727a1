"""Dropout before the last layer: after every BatchNorm, whose statistics it would shift otherwise."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.activation_noise import ActivationNoise
from killick.protocols.base import COMPONENTS
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from killick.protocols.base import Model


@dataclass
class Dropout(ActivationNoise):
    """Dropout of the features that the last layer reads (Srivastava et al. 2014).

    In fine-tuning a very large rate, about 0.9, makes the last layer use many features (Zhang and
    Bottou 2023).
    """

    name: str = "dropout"
    rate: float = setting(0.3, "share of the features that are dropped", least=0, below=1)

    def find_layers(self, model: "Model") -> dict[str, float]:
        """The last layer."""
        from killick.core.residual_blocks import head_of

        return {head_of(model): 1.0}

    def _hook(self, layer: "nn.Module", rate: float) -> None:
        from killick.core.stochastic_layers import drop_elements

        def act(module: "nn.Module", read: "tuple[Tensor, ...]") -> Any:
            if not module.training:
                return None
            return (drop_elements(read[0], rate * self.factor), *read[1:])

        layer.register_forward_pre_hook(act)


COMPONENTS.register("dropout", Dropout)
