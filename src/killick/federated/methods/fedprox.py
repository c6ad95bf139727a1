"""FedProx (Li et al. 2020): FedAvg whose clients stay near the model they received."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.federated.method import METHODS, GenericResult, Method, State
from killick.federated.penalties import Proximal
from killick.settings import setting

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a proximal term."""

    strength: float = setting(0.1, "of the proximal term, mu", least=0)

    def train_generic(self, client: "LocalClient", received: State, own: State) -> GenericResult:
        """Train the generic model, near the one received."""
        return GenericResult(client.fit(received, [Proximal(self.strength, received)]))


METHODS.register("fedprox", FedProx)
