"""Early-learning regularization, ELR (Liu et al. 2020): holds on to what was learned before the noise."""

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
class ELR(Component):
    """Pulls predictions towards their own average over the epochs, against noisy labels.

    The average is updated where neither the reference is masked nor the label mixed; a mixed sample,
    or one masked towards the uniform distribution, has no such term.
    """

    name: str = "elr"
    strength: float = setting(3.0, "factor of the term; 7 on CIFAR-100", least=0)
    decay: float = setting(0.7, "of the average of predictions; 0.9 on CIFAR-100", least=0, below=1)

    def check(self, recipe: Any) -> list[str]:
        """Not all labels may be mixed."""
        return check_labels(self.name, recipe)

    def setup(self, model: "Model", run: RunContext) -> None:
        """Make the table of averages."""
        self._table = SampleTable(run, self.name)

    def loss(self, seen: ForwardPass, loss: "Tensor") -> "Tensor":
        """Add `strength * mean log(1 - <p, t>)`."""
        average = self._average(seen.batch, seen.logits, seen.masked)
        terms = (1 - (_probabilities(seen.logits) * average).sum(1)).log()
        if seen.unlabeled is not None:
            terms = terms * ~seen.unlabeled
        return loss + self.strength * terms.mean()

    def observe(self, batch: "Batch", logits: "Tensor", masked: "Tensor | None") -> None:
        """Update the averages."""
        self._table.write(batch.numbers, self._average(batch, logits, masked))

    def _average(self, batch: "Batch", logits: "Tensor", masked: "Tensor | None") -> "Tensor":
        """Of all predictions so far, with these where the reference is not masked."""
        p = _probabilities(logits).detach()
        before = self._table.read(batch.numbers)
        now = self.decay * before + (1 - self.decay) * p / p.sum(1, keepdim=True)
        return self._table.update(batch, now, masked)

    def state_dict(self) -> dict[str, Any]:
        """The averages."""
        return self._table.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        self._table.load_state_dict(state)


def _probabilities(logits: "Tensor") -> "Tensor":
    """Away from 0 and 1, as the authors' code has them, so that the logarithm stays finite."""
    return logits.float().softmax(1).clamp(1e-4, 1 - 1e-4)


COMPONENTS.register("elr", ELR)
