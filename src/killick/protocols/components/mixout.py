"""Mixout (Lee et al. 2020): in fine-tuning, weights fall back to where they started."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.base import COMPONENTS, Component, RunContext
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from killick.protocols.base import Model


@dataclass
class Mixout(Component):
    """Replaces each number of a matrix, at a rate, by the one training started from.

    The others are scaled so that the mean stays. Biases and norms are left alone.
    """

    name: str = "mixout"
    rate: float = setting(0.7, "share of the numbers that fall back", least=0, below=1)

    def setup(self, model: "Model", run: RunContext) -> None:
        """Keep the weights that training starts from."""
        matrices = [weight for weight in model.parameters() if weight.requires_grad]
        self._start = [weight.detach().clone() for weight in matrices if weight.ndim > 1]

    def weights(self, parameters: "Sequence[Tensor]") -> None:
        """Mix, and remember what was there."""
        import torch
        from torch import distributed

        self._before, self._kept = [], []
        for weight, start in zip(_matrices(parameters), self._start, strict=True):
            kept = (torch.rand_like(weight, dtype=torch.float32) >= self.rate).to(torch.uint8)
            if distributed.is_initialized() and distributed.get_world_size() > 1:
                distributed.broadcast(kept, 0)  # the weights of all processes stay equal
            mixed = start + (weight - start) * kept / (1 - self.rate)
            self._before.append(weight.detach().clone())
            self._kept.append(kept)
            weight.data.copy_(mixed)

    def gradient(self, parameters: "Sequence[Tensor]", again: "Callable[[], None]") -> None:
        """The gradient of what was mixed, with respect to the weights, which come back."""
        parts = zip(_matrices(parameters), self._before, self._kept, strict=True)
        for weight, before, kept in parts:
            weight.data.copy_(before)
            if weight.grad is not None:
                weight.grad.mul_(kept / (1 - self.rate))

    def state_dict(self) -> dict[str, Any]:
        """The weights that training started from."""
        return {"start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        for mine, stored in zip(self._start, state["start"], strict=True):
            mine.copy_(stored)


def _matrices(weights: "Sequence[Tensor]") -> "list[Tensor]":
    return [weight for weight in weights if weight.ndim > 1]


COMPONENTS.register("mixout", Mixout)
