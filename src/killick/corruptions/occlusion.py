"""Occlusion: squares of one color over part of the image, as the suite `occlusion` evaluates it."""

import torch
from torch import Tensor

from killick.corruptions.corruption import Generator

GRID = 8  # squares along each side
COVERED = (10, 30, 50, 70)  # percent of the image


def occlude(
    images: Tensor, percent: int, color: tuple[int, int, int], *, generator: Generator = None
) -> Tensor:
    """The images with `percent` of their 64 squares, rounded, filled with `color`.

    The squares do not overlap and have an eighth of the side; where that is not whole, they differ
    by a pixel. They are drawn for each image. With a generator in the same state, the squares of a
    lower percentage are among those of a higher one.

    Args:
        images: uint8 `(n, 3, height, width)`.
        percent: 0 to 100.
        color: The gray level of each channel.
        generator: On the images' device; torch's own of that device by default.
    """
    n, _, height, width = images.shape
    draw = torch.rand(n, GRID * GRID, device=images.device, generator=generator)
    covered = draw.argsort(1).argsort(1) < round(percent / 100 * GRID * GRID)
    down = torch.arange(height, device=images.device) * GRID // height
    across = torch.arange(width, device=images.device) * GRID // width
    mask = covered[:, down[:, None] * GRID + across][:, None]
    fill = torch.tensor(color, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
    return torch.where(mask, fill, images)
