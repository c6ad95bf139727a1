"""FedAvg, then each client fine-tunes the generic model on its own data."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.federated.method import METHODS, Method, State
from killick.settings import setting

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient


@dataclass(frozen=True)
class FedAvgFinetune(Method):
    """FedAvg, fine-tuned by each client before it is used."""

    epochs: int = setting(1, "of fine-tuning", least=1)

    def personalize(self, client: "LocalClient", generic: State, own: State) -> State:
        """Fine-tune the generic model."""
        return client.fit(generic, epochs=self.epochs, purpose="tuning")


METHODS.register("fedavg-finetune", FedAvgFinetune)
