"""Progressive self-distillation, PS-KD (Kim et al. 2021): a network learns from itself, an epoch ago."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.base import COMPONENTS, Component, ForwardPass, RunContext
from killick.protocols.sample_table import SampleTable, check_labels
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from killick.data.batches import Batch
    from killick.protocols.base import Model


@dataclass
class PSKD(Component):
    """Mixes each label with what the network predicted for the sample an epoch ago.

    Predictions are kept where neither the reference was masked nor the label mixed; a mixed sample,
    or one masked towards the uniform distribution, keeps its target.
    """

    name: str = "ps_kd"
    share: float = setting(
        0.8, "of the prediction in the last epoch; it rises from 0", least=0, most=1
    )

    def check(self, recipe: Any) -> list[str]:
        """Not all labels may be mixed."""
        return check_labels(self.name, recipe)

    def setup(self, model: "Model", run: RunContext) -> None:
        """Make the table of predictions."""
        import torch

        self._table = SampleTable(run, self.name)
        self._seen = torch.zeros(len(run.train), 1, device=run.device)
        self._now = torch.zeros((), device=run.device)
        self._epochs, self._epoch = max(1, round(run.steps / run.steps_per_epoch)), 0

    def targets(self, seen: ForwardPass) -> "Tensor":
        """Labels mixed with predictions."""
        import torch
        from torch.nn.functional import one_hot

        targets, numbers = seen.targets, seen.batch.numbers
        soft = targets if targets.ndim == 2 else one_hot(targets, seen.logits.shape[1]).float()
        share = self._now * self._seen.index_select(0, numbers)
        if seen.unlabeled is not None:
            share = torch.where(seen.unlabeled.view(-1, 1), 0.0, share)
        return torch.lerp(soft, self._table.read(numbers), share)

    def observe(self, batch: "Batch", logits: "Tensor", masked: "Tensor | None") -> None:
        """Keep the predictions."""
        found = self._table.update(batch, logits.float().softmax(1), masked)
        self._table.write(batch.numbers, found)

    def epoch(self, number: int) -> None:
        """Let the share rise; samples without a prediction keep their label."""
        self._epoch = number
        self._now.fill_(self.share * (number + 1) / self._epochs)
        self._seen.copy_(self._table.values.any(1, keepdim=True))

    def state_dict(self) -> dict[str, Any]:
        """The predictions, and the epoch."""
        return {**self._table.state_dict(), "seen": self._seen, "epoch": self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        self._table.load_state_dict(state)
        if state["epoch"]:
            self.epoch(state["epoch"])
        self._seen.copy_(state["seen"])


COMPONENTS.register("ps_kd", PSKD)
