"""Spectral co-distillation (Chen et al. 2023), as its paper means it: both models teach each other.

The generic model learns from the low frequencies of the client's personalized one, the personalized
model from the full spectrum of the generic one, near which it also stays.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from killick.federated.method import METHODS, GenericResult, Method, State
from killick.federated.penalties import Penalty, Proximal, SpectralPenalty
from killick.settings import setting

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient


@dataclass(frozen=True)
class Spectral(Method):
    """Generic and personalized models teach each other through the spectra of their weights."""

    trains_personal: ClassVar[bool] = True
    generic: float = setting(0.3, "strength of the spectral term of the generic model", least=0)
    personal: float = setting(0.4, "that of the personalized model", least=0)
    strength: float = setting(0.2, "of the proximal term of the personalized model", least=0)
    keep: float = setting(
        0.4, "share of low frequencies that the generic model sees", above=0, most=1
    )

    def train_generic(self, client: "LocalClient", received: State, own: State) -> GenericResult:
        """Train the generic model, taught by the client's personalized one."""
        terms = [SpectralPenalty(self.generic, own, self.keep)] if self.generic else []
        return GenericResult(client.fit(received, terms))

    def train_personal(self, client: "LocalClient", received: State, own: State) -> State:
        """Train the personalized model, taught by the generic one received this round."""
        terms: list[Penalty] = [Proximal(self.strength, received)]
        if self.personal:
            terms.append(SpectralPenalty(self.personal, received, keep=1.0))
        return client.fit(own, terms, purpose="personal")


METHODS.register("spectral", Spectral)
