"""pFedMe (Dinh et al. 2020): clients descend Moreau envelopes of their losses.

For weights w, the personalized model is theta(w), the minimizer of loss(theta) + lambda/2 |theta - w|^2,
found by a few gradient steps from w on one batch. The gradient of the envelope is
lambda (w - theta(w)); the recipe's optimizer takes steps along it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from killick.federated.method import METHODS, GenericResult, Method, State
from killick.protocols.base import Component, RunContext
from killick.settings import setting

if TYPE_CHECKING:
    from killick.federated.local_client import LocalClient
    from killick.protocols.base import Model


class MoreauStep(Component):
    """Replaces the gradient of the loss by that of its Moreau envelope."""

    def __init__(self, strength: float, steps: int, rate: float) -> None:
        super().__init__("moreau")
        self._strength, self._steps, self._rate = strength, steps, rate

    def setup(self, model: "Model", run: RunContext) -> None:
        """Remember the network."""
        self._net = model.net

    def gradient(self, parameters: Sequence[Tensor], again: Callable[[], None]) -> None:
        """Descend to theta on this batch; then restore w and set the envelope's gradient."""
        start = [weight.detach().clone() for weight in parameters]
        for step in range(self._steps):
            if step:
                again()
            for weight, center in zip(parameters, start, strict=True):
                assert weight.grad is not None
                weight -= self._rate * (weight.grad + self._strength * (weight - center))
        self.theta = {name: w.detach().clone() for name, w in self._net.named_parameters()}
        for weight, center in zip(parameters, start, strict=True):
            weight.grad = self._strength * (center - weight)
            weight.copy_(center)


@dataclass(frozen=True)
class PFedMe(Method):
    """Personalized models by Moreau envelopes."""

    own_gradient: ClassVar[bool] = True

    strength: float = setting(1.0, "of the proximal term, lambda", above=0)
    steps: int = setting(5, "gradient steps to the personalized model, K", least=1)
    rate: float = setting(0.1, "of these steps", above=0)
    beta: float = setting(1.0, "part of the clients' mean in the next generic model", above=0)

    def train_generic(self, client: "LocalClient", received: State, own: State) -> GenericResult:
        """Train on the envelope; the client keeps the last personalized model."""
        moreau = MoreauStep(self.strength, self.steps, self.rate)
        trained = client.fit(received, [moreau])
        return GenericResult(trained, own=client.settle({**trained, **moreau.theta}))

    def personalize(self, client: "LocalClient", generic: State, own: State) -> State:
        """The client's last personalized model."""
        return own

    def average(self, before: State, mean: State) -> State:
        """Go a part of the way to the clients' mean."""
        mixed = {
            name: before[name] + self.beta * (each - before[name])
            if each.is_floating_point()
            else each
            for name, each in mean.items()
        }
        return {**before, **mixed}


METHODS.register("pfedme", PFedMe)
