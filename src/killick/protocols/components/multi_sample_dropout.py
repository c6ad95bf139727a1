"""Multi-sample dropout (Inoue 2019): several dropout masks in one step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.activation_noise import hook_features
from killick.protocols.base import COMPONENTS, RunContext
from killick.protocols.scheduled import Scheduled
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from killick.protocols.base import Model


@dataclass
class MultiSampleDropout(Scheduled):
    """Several dropout masks on the features that the last layer reads; their losses are averaged.

    The features are computed once.
    """

    name: str = "multi_sample_dropout"
    rate: float = setting(0.3, "share of the features that a mask drops", least=0, below=1)
    masks: int = setting(8, "of each step", least=1)

    def setup(self, model: "Model", run: RunContext) -> None:
        """Hook the last layer."""
        super().setup(model, run)

        def keep(module: "nn.Module", read: Any, computed: "Tensor") -> "Tensor | None":
            if not module.training:
                return None
            first, *self._more = computed.unbind()
            return first

        hook_features(model, self._drop).register_forward_hook(keep)

    def _drop(self, features: "Tensor") -> "Tensor":
        from killick.core.stochastic_layers import drop_elements

        several = features.expand(self.masks, *features.shape)
        return drop_elements(several, self.rate * self.factor)

    def more_logits(self) -> "Sequence[Tensor]":
        """Those of all masks but the first."""
        return self._more


COMPONENTS.register("multi_sample_dropout", MultiSampleDropout)
