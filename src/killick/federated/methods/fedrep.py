"""FedRep (Collins et al. 2021): a shared body, and a last layer of each client's own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from killick.federated.method import METHODS, GenericResult, Method, State
from killick.settings import setting

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient


@dataclass(frozen=True)
class FedRep(Method):
    """A shared body with a personal last layer, trained in turns."""

    keep_head: ClassVar[bool] = True
    evaluates_generic: ClassVar[bool] = False  # its last layer is never trained
    head_epochs: int = setting(1, "of the last layer, before those of the body", least=1)

    def train_generic(self, client: "LocalClient", received: State, own: State) -> GenericResult:
        """Train the last layer under the received body, then the body under it."""
        start = self.personalize(client, received, own)
        tuned = client.fit(start, train="head", epochs=self.head_epochs, purpose="personal")
        trained = client.fit(tuned, train="body")
        return GenericResult(client.without_head(trained), own=trained)

    def personalize(self, client: "LocalClient", generic: State, own: State) -> State:
        """The generic body with the client's own last layer."""
        return {**own, **client.without_head(generic)}


METHODS.register("fedrep", FedRep)
