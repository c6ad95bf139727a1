"""Attention dropout (Vaswani et al. 2017): attention weights are dropped."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.errors import OptionError
from killick.protocols.base import COMPONENTS, RunContext
from killick.protocols.scheduled import Scheduled
from killick.settings import setting

if TYPE_CHECKING:
    from torch import nn

    from killick.protocols.base import Model


@dataclass
class AttentionDropout(Scheduled):
    """Drops attention weights of a transformer, instead of the rate its layers came with."""

    name: str = "attention_dropout"
    rate: float = setting(
        0.1, "share that is dropped, where the schedule is at its height", least=0, below=1
    )

    @property
    def captures(self) -> bool:
        """Rates are plain numbers of the layers: a graph keeps the first."""
        return self.when == "always" and not self.ramp

    def setup(self, model: "Model", run: RunContext) -> None:
        """Find the attention layers."""
        self._places = _find_rates(model.net)
        if not self._places:
            raise OptionError(
                f"attention_dropout needs attention layers, found none in {type(model.net).__name__}."
                " Leave it out."
            )
        super().setup(model, run)

    def step(self, number: int) -> None:
        """Set the rate of the next step."""
        super().step(number)
        for layer, name in self._places:
            setattr(layer, name, self.rate * self._last)


def _find_rates(net: "nn.Module") -> "list[tuple[nn.Module, str]]":
    """Where attention layers keep their rate: of torch, of timm, and of torchvision's Swin."""
    from torch import nn

    found: list[tuple[nn.Module, str]] = []
    for module in net.modules():
        inner = getattr(module, "attn_drop", None)
        if isinstance(module, nn.MultiheadAttention):
            found.append((module, "dropout"))
        elif isinstance(inner, nn.Dropout):
            found.append((inner, "p"))
        elif isinstance(getattr(module, "attention_dropout", None), float):
            found.append((module, "attention_dropout"))
    return found


COMPONENTS.register("attention_dropout", AttentionDropout)
