"""Label smoothing."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.base import COMPONENTS, Component
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class LabelSmoothing(Component):
    """Cross-entropy with smoothed labels."""

    name: str = "label_smoothing"
    smoothing: float = setting(0.1, "share of the target spread over all classes", least=0, below=1)

    @classmethod
    def from_recipe(cls, recipe: Any) -> "Component | None":
        """Made by `augment.smoothing`."""
        smoothing = recipe.augment.smoothing
        return cls(smoothing=smoothing) if smoothing else None

    def criterion(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Cross-entropy with torch's label smoothing."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, targets, label_smoothing=self.smoothing)


COMPONENTS.register("label_smoothing", LabelSmoothing)
