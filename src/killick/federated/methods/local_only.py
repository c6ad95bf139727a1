"""Local training: every client for itself, nothing is exchanged."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from killick.federated.method import METHODS, Method, State

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient


@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client for itself."""

    uploads: ClassVar[bool] = False
    evaluates_generic: ClassVar[bool] = False
    trains_personal: ClassVar[bool] = True

    def train_personal(self, client: "LocalClient", received: State, own: State) -> State:
        """Train the client's own model."""
        return client.fit(own, purpose="personal")


METHODS.register("local", LocalOnly)
