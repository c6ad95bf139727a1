"""Terms that methods add to a client's loss, as components of its training step."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from killick.federated.weight_spectrum import divergence, spectrum
from killick.protocols.base import Component, ForwardPass, RunContext

if TYPE_CHECKING:
    from killick.protocols.base import Model


class Penalty(Component):
    """Adds a function of the network's weights to the loss."""

    def __init__(self, strength: float) -> None:
        super().__init__("penalty")
        self._strength = strength

    def setup(self, model: "Model", run: RunContext) -> None:
        """Remember the network."""
        self._net = model.net

    def loss(self, seen: ForwardPass, loss: Tensor) -> Tensor:
        """The loss with the penalty."""
        return loss + self._strength * self.value(self._net)

    def value(self, net: nn.Module) -> Tensor:
        """The penalty of the present weights, without its strength."""
        raise NotImplementedError


class Proximal(Penalty):
    """Half the squared distance of the weights from fixed ones."""

    def __init__(self, strength: float, center: Mapping[str, Tensor]) -> None:
        super().__init__(strength)
        self._center = center

    def setup(self, model: "Model", run: RunContext) -> None:
        """Bring the center to the device."""
        super().setup(model, run)
        self._center = {name: each.to(run.device) for name, each in self._center.items()}

    def value(self, net: nn.Module) -> Tensor:
        """1/2 |w - center|^2 over all parameters."""
        found = [
            (each - self._center[name]).square().sum() for name, each in net.named_parameters()
        ]
        return 0.5 * sum(found[1:], found[0])


class SpectralPenalty(Penalty):
    """The divergence of the weights' spectra from those of a fixed teacher."""

    def __init__(self, strength: float, teacher: Mapping[str, Tensor], keep: float) -> None:
        super().__init__(strength)
        self._teacher, self._keep = teacher, keep

    def setup(self, model: "Model", run: RunContext) -> None:
        """Compute the teacher's spectra once."""
        super().setup(model, run)
        names = {name for name, _ in model.net.named_parameters()}
        weights = {n: each.to(run.device) for n, each in self._teacher.items() if n in names}
        self._spectra = spectrum(weights, self._keep)

    def value(self, net: nn.Module) -> Tensor:
        """KL(teacher || student), over all weight tensors."""
        return divergence(spectrum(net, self._keep), self._spectra)
