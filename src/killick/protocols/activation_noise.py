"""Components that change activations in training, by hooks: the network keeps its layers and names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.protocols.base import RunContext
from killick.protocols.scheduled import Scheduled
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from killick.protocols.base import Model


@dataclass
class ActivationNoise(Scheduled):
    """Noise at a rate; nothing changes in evaluation, and at rate 0."""

    rate: float = setting(
        0.1, "share that is dropped, where the schedule is at its height", least=0, below=1
    )

    def setup(self, model: "Model", run: RunContext) -> None:
        """Hook the layers."""
        super().setup(model, run)
        for name, share in self.find_layers(model).items():
            self._hook(model.net.get_submodule(name), self.rate * share)

    def find_layers(self, model: "Model") -> dict[str, float]:
        """The layers by name, each with the share of the rate that it gets."""
        raise NotImplementedError

    def change(self, read: "Tensor", computed: "Tensor", rate: "Tensor") -> "Tensor":
        """What a layer passes on, from what it read and computed."""
        raise NotImplementedError

    def _hook(self, layer: "nn.Module", rate: float) -> None:
        def act(module: "nn.Module", read: Any, computed: "Tensor") -> "Tensor | None":
            if not module.training:
                return None
            return self.change(read[0], computed, rate * self.factor)

        layer.register_forward_hook(act)


def hook_features(model: "Model", change: "Callable[[Tensor], Tensor]") -> "nn.Linear":
    """Let the last layer read changed features in training; the layer."""
    from torch import nn

    from killick.core.residual_blocks import head_of

    def act(module: "nn.Module", read: "tuple[Tensor, ...]") -> Any:
        return (change(read[0]), *read[1:]) if module.training else None

    head = model.net.get_submodule(head_of(model))
    assert isinstance(head, nn.Linear)
    head.register_forward_pre_hook(act)
    return head


def find_blocks(model: "Model", name: str) -> "dict[str, Tensor]":
    """The residual blocks of a model; an error that names the component if there are none."""
    from killick.core.residual_blocks import find_residual_blocks

    found = find_residual_blocks(model)
    if not found:
        raise OptionError(
            f"{name} needs residual blocks, found none in {type(model.net).__name__}. Leave it out."
        )
    return found


def find_maps(model: "Model", name: str) -> dict[str, float]:
    """The residual blocks of convolutions in the last two stages: of the two smallest sizes."""
    from torch import nn

    net = model.net
    maps = {
        block: computed.shape[-2:].numel()
        for block, computed in find_blocks(model, name).items()
        if any(isinstance(each, nn.Conv2d) for each in net.get_submodule(block).modules())
    }
    last = sorted(set(maps.values()))[:2]
    if not last:
        raise OptionError(
            f"{name} needs blocks of convolutions, found none in {type(net).__name__}. For"
            " transformers: stochastic_depth."
        )
    return {block: 1.0 for block, size in maps.items() if size in last}
