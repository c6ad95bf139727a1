"""The moving average of the weights: often better than the last ones, at no cost in training."""

import copy

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.training.recipe import Average


class MovingAverage:
    """A copy of a model whose weights follow it slowly.

    An anchored copy estimates BatchNorm statistics for its own weights; those of any other network
    are averaged like weights.

    Args:
        model: Followed; not the wrapper of DDP or the compiler.
        settings: How slowly.
    """

    def __init__(self, model: Anchored | Standard, settings: Average) -> None:
        assert settings.decay is not None
        self.model = copy.deepcopy(model)
        self.model.eval().requires_grad_(False)
        self._every, self._share = settings.every, 1 - settings.decay
        self._pairs = list(zip(_floats(self.model), _floats(model), strict=True))
        self._others = [
            (mine, theirs)
            for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True)
            if not mine.is_floating_point()
        ]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follow the model, after step number `step`, counted from 1."""
        if step % self._every:
            return
        first = step == self._every  # from there on: the first weights mean nothing
        mine, theirs = (list(tensors) for tensors in zip(*self._pairs, strict=True))
        torch._foreach_lerp_(mine, theirs, 1.0 if first else self._share)
        for kept, now in self._others:
            kept.copy_(now)


def _floats(model: nn.Module) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
