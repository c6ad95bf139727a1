"""Exponential moving average of the weights (EMA): often better than the last weights."""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.base import COMPONENTS, Component, RunContext
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from killick.protocols.base import Model


@dataclass
class WeightAverage(Component):
    """Evaluates and saves an exponential moving average of the weights (EMA).

    An anchored average updates BatchNorm statistics for its own weights; those of other networks
    are averaged like weights.
    """

    name: str = "weight_average"
    decay: float = setting(0.999, "share kept at each update", above=0, below=1)
    every: int = setting(1, "steps between updates", least=1)

    @classmethod
    def from_recipe(cls, recipe: Any) -> "Component | None":
        """Made by `average.decay` and `average.every`."""
        average = recipe.average
        return None if average.decay is None else cls(decay=average.decay, every=average.every)

    def setup(self, model: "Model", run: RunContext | None) -> None:
        """Copy the model."""
        self.average: Model = copy.deepcopy(model)
        self.average.eval().requires_grad_(False)
        self._done = 0
        self._pairs = list(zip(_floats(self.average), _floats(model), strict=True))
        buffers = zip(self.average.buffers(), model.buffers(), strict=True)
        self._others = [pair for pair in buffers if not pair[0].is_floating_point()]

    def step(self, number: int) -> None:
        """Move the average towards the model."""
        import torch

        self._done = number
        if number % self.every:
            return
        first = number == self.every  # starts from there: the first weights mean nothing
        with torch.no_grad():
            mine, theirs = (list(tensors) for tensors in zip(*self._pairs, strict=True))
            torch._foreach_lerp_(mine, theirs, 1.0 if first else 1 - self.decay)
            for kept, now in self._others:
                kept.copy_(now)

    def inference(self, model: "Model") -> "Model":
        """The average, once there is one."""
        return self.average if self._done >= self.every else model

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights, and the number of steps."""
        return {"step": self._done, "model": self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the averaged weights; BatchNorm statistics are updated again."""
        from killick.core.anchored import Anchored

        self._done = state["step"]
        self.average.load_state_dict(state["model"])
        if isinstance(self.average, Anchored) and self.average.recent is not None:
            self.average.mark_unsettled()


def _floats(model: "nn.Module") -> "list[Tensor]":
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]


COMPONENTS.register("weight_average", WeightAverage)
