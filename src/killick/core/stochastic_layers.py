"""Noise on activations in training, at rates that are tensors: they may change in a captured step.

They draw from torch's default generator and keep the mean of what they change, but for `keep_first`.
"""

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad


def drop_elements(x: Tensor, rate: Tensor) -> Tensor:
    """Dropout: each number becomes 0 at `rate`, the others are scaled up."""
    return _keep(x, torch.rand_like(x, dtype=torch.float32) >= rate, rate)


def keep_first(x: Tensor, count: Tensor) -> Tensor:
    """Nested dropout: the first `count` numbers of the last axis; the others become 0."""
    return x * (torch.arange(x.shape[-1], device=x.device) < count)


def drop_channels(x: Tensor, rate: Tensor) -> Tensor:
    """Spatial dropout: whole channels of `(n, channels, height, width)`."""
    drawn = torch.rand(*x.shape[:2], *[1] * (x.ndim - 2), device=x.device)
    return _keep(x, drawn >= rate, rate)


def drop_blocks(x: Tensor, rate: Tensor, side: int) -> Tensor:
    """DropBlock: squares of `side` in each channel; about `rate` of all numbers become 0.

    A side beyond the map's is the map's.
    """
    height, width = x.shape[2:]
    side = min(side, height, width)
    rows, columns = height - side + 1, width - side + 1  # where a square can begin
    seeds = rate * (height * width) / (side**2 * rows * columns)
    drawn = torch.rand(*x.shape[:2], rows, columns, device=x.device) < seeds
    # Along one side, then along the other: 2 side comparisons for each number, not side squared.
    around = pad(drawn.float(), [side - 1] * 4)
    kept = 1 - max_pool2d(max_pool2d(around, (1, side), stride=1), (side, 1), stride=1)
    scale = kept.numel() / kept.sum().clamp_min(1)
    return (x * (kept * scale)).to(x.dtype)


def drop_samples(x: Tensor, output: Tensor, rate: Tensor) -> Tensor:
    """Stochastic depth: a residual block's `output` for `x`, left out for some samples at `rate`."""
    drawn = torch.rand(len(x), *[1] * (x.ndim - 1), device=x.device)
    return (x + _keep(output - x, drawn >= rate, rate)).to(output.dtype)


def drop_layer(x: Tensor, output: Tensor, rate: Tensor) -> Tensor:
    """LayerDrop: a residual block's `output` for `x`, left out for the whole batch at `rate`."""
    return torch.where(torch.rand((), device=x.device) >= rate, output, x.to(output.dtype))


def _keep(x: Tensor, kept: Tensor, rate: Tensor) -> Tensor:
    return (x * kept / (1 - rate).clamp_min(1e-6)).to(x.dtype)
