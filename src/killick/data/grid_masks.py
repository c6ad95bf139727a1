"""Masks of GridMask: squares on a grid, turned and shifted."""

import math

import torch
from torch import Tensor


def make_grid_masks(
    draws: Tensor, height: int, width: int, *, periods: tuple[float, float], visible: float
) -> Tensor:
    """Where pixels are deleted, `(n, height, width)`.

    Args:
        draws: `(n, 4)` in [0, 1): period, offsets down and across, angle.
        height: Of the images.
        width: Of the images.
        periods: The shortest and the longest, in pixels; whole pixels are drawn.
        visible: Share of a period's edge that stays.
    """
    low, high = (round(each) for each in periods)
    period = (low + draws[:, 0] * (high - low + 1)).floor().clamp_max(high)[:, None, None]
    deleted = ((1 - visible) * period).round()
    angle = (2 * math.pi * draws[:, 3])[:, None, None]
    rows = torch.arange(height, device=draws.device)[:, None] - (height - 1) / 2
    columns = torch.arange(width, device=draws.device)[None, :] - (width - 1) / 2
    down = rows * angle.cos() - columns * angle.sin()
    across = rows * angle.sin() + columns * angle.cos()
    inside = torch.ones((), dtype=torch.bool, device=draws.device)
    for along, offset in ((down, draws[:, 1]), (across, draws[:, 2])):
        place = torch.remainder(along + offset[:, None, None] * period, period)
        inside = inside & (place < deleted)
    return inside
