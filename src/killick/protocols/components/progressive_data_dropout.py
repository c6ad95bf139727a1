"""Progressive data dropout (2025): samples that are learned already are left out of the gradient."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.base import COMPONENTS, RunContext
from killick.protocols.scheduled import Stepwise
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from killick.protocols.base import Model


@dataclass
class ProgressiveDataDropout(Stepwise):
    """Trains on samples whose class is not yet predicted with some confidence; at last on all.

    A step costs what it always does: samples are left out of the loss, not of the batch.
    """

    name: str = "progressive_data_dropout"
    threshold: float = setting(
        0.3, "confidence of the true class that counts as learned", above=0, most=1
    )
    rest: float = setting(0.1, "last share of the run, on all samples", least=0, most=1)

    def setup(self, model: "Model", run: RunContext) -> None:
        """Begin with dropping."""
        import torch

        self._steps = run.steps
        self._all = torch.zeros((), dtype=torch.bool, device=run.device)

    def criterion(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Cross-entropy of the samples that are kept."""
        from torch.nn.functional import cross_entropy, one_hot

        soft = one_hot(targets, logits.shape[1]) if targets.ndim == 1 else targets
        confidence = (logits.detach().softmax(1) * soft).sum(1)
        kept = (confidence < self.threshold) | self._all
        losses = cross_entropy(logits, targets, reduction="none")
        return (losses * kept).sum() / kept.sum().clamp_min(1)

    def step(self, number: int) -> None:
        """Take all samples in the last part."""
        super().step(number)
        if number >= (1 - self.rest) * self._steps:
            self._all.fill_(True)


COMPONENTS.register("progressive_data_dropout", ProgressiveDataDropout)
