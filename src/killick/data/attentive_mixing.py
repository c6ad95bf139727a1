"""Attentive CutMix: the cells of an image that get most attention are pasted into its neighbor."""

import torch
from torch import Tensor

from killick.data.mixing import neighbors


def paste_attended(
    images: Tensor, soft: Tensor, attention: Tensor, count: int, drawn: Tensor
) -> tuple[Tensor, Tensor]:
    """Images with the `count` most attended cells of their neighbor, and labels in proportion.

    `attention` of the images themselves is `(n, grid, grid)`, labels are probabilities, and `drawn`
    says which images are changed.
    """
    height, width = images.shape[2:]
    grid, device = attention.shape[-1], images.device
    partner = neighbors(len(images), device)
    most = attention.flatten(1).topk(count).indices
    chosen = torch.zeros(len(images), grid * grid, dtype=torch.bool, device=device)
    chosen = chosen.scatter(1, most, True).index_select(0, partner) & drawn[:, None]
    rows = torch.arange(height, device=device) * grid // height
    columns = torch.arange(width, device=device) * grid // width
    inside = chosen[:, rows[:, None] * grid + columns][:, None]
    share = drawn[:, None] * (count / grid**2)
    mixed = torch.where(inside, images.index_select(0, partner), images)
    return mixed, (1 - share) * soft + share * soft.index_select(0, partner)
