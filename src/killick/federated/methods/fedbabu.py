"""FedBABU (Oh et al. 2022): the last layer stays as it was drawn, until clients fine-tune."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from killick.federated.method import METHODS, GenericResult, Method, State
from killick.settings import setting

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient


@dataclass(frozen=True)
class FedBABU(Method):
    """A shared body under a fixed last layer, fine-tuned by each client before it is used."""

    keep_head: ClassVar[bool] = True
    epochs: int = setting(1, "of fine-tuning", least=1)

    def train_generic(self, client: "LocalClient", received: State, own: State) -> GenericResult:
        """Train all but the last layer."""
        return GenericResult(client.without_head(client.fit(received, train="body")))

    def personalize(self, client: "LocalClient", generic: State, own: State) -> State:
        """Fine-tune the whole model."""
        return client.fit(generic, epochs=self.epochs, purpose="tuning")


METHODS.register("fedbabu", FedBABU)
