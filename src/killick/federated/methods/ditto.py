"""Ditto (Li et al. 2021): FedAvg, and personalized models that stay near the generic one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from killick.federated.method import METHODS, Method, State
from killick.federated.penalties import Proximal
from killick.settings import setting

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient


@dataclass(frozen=True)
class Ditto(Method):
    """A personalized model near the generic one."""

    trains_personal: ClassVar[bool] = True
    strength: float = setting(0.2, "of the proximal term, lambda", least=0)

    def train_personal(self, client: "LocalClient", received: State, own: State) -> State:
        """Train the personalized model, near the generic one received this round."""
        return client.fit(own, [Proximal(self.strength, received)], purpose="personal")


METHODS.register("ditto", Ditto)
