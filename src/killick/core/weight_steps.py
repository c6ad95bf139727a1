"""Weight updates within a training step, without waiting for the device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def move_along_gradient(
    weights: Sequence[Tensor], distance: float
) -> Iterator[list[Tensor | None]]:
    """Within this block the weights are `distance` further along their gradient; yields gradients.

    Afterwards they are what they were, bit by bit. A gradient of zero moves nothing.
    """
    gradients = [None if weight.grad is None else weight.grad.clone() for weight in weights]
    known = [gradient for gradient in gradients if gradient is not None]
    norm = torch.stack([each.float().square().sum() for each in known]).sum().sqrt()
    scale = distance / (norm + 1e-12)
    before = [weight.detach().clone() for weight in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None:
            weight.data.add_(gradient * scale.to(gradient.dtype))
    yield gradients
    for weight, old in zip(weights, before, strict=True):
        weight.data.copy_(old)
