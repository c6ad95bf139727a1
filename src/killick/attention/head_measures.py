"""What the weights of an attention head say: how far it looks, how widely, and at what."""

import math

import torch
from torch import Tensor

NORMALIZERS = ("max_pair", "diagonal", "side", "pixels")
PREFIX_HANDLING = ("renormalized", "raw")
MEASURES = ("distance", "distance_off_diagonal", "entropy", "diagonal_mass", "prefix_mass")


def patch_distances(
    grid: tuple[int, int], normalizer: str = "max_pair", pixels: tuple[float, float] = (1.0, 1.0)
) -> Tensor:
    """Distances between patches of a grid in raster order, `(patches, patches)`.

    `max_pair` divides distances in patches by the largest, `diagonal` by the diagonal of the grid,
    `side` by its longer side; `pixels` are those of patches that are `pixels` high and wide.

    Example:
        >>> patch_distances((1, 3)).tolist()
        [[0.0, 0.5, 1.0], [0.5, 0.0, 0.5], [1.0, 0.5, 0.0]]
    """
    height, width = grid
    down, across = pixels if normalizer == "pixels" else (1.0, 1.0)
    rows = down * torch.arange(height, dtype=torch.float64).repeat_interleave(width)
    columns = across * torch.arange(width, dtype=torch.float64).repeat(height)
    found = torch.hypot(rows[:, None] - rows, columns[:, None] - columns)
    units = {
        "max_pair": math.hypot(height - 1, width - 1) or 1.0,  # of a single patch: none
        "diagonal": math.hypot(height, width),
        "side": max(height, width),
    }
    return found / units.get(normalizer, 1.0)


def measure_heads(
    weights: Tensor, distances: Tensor, prefix: int, *, renormalize: bool = True
) -> dict[str, Tensor]:
    """The `MEASURES` of each image and head, `(n, heads)`: means over the patches that look.

    Args:
        weights: After the softmax, `(n, heads, tokens, tokens)`; a row for each token that looks.
        distances: Between patches, as `patch_distances` makes them.
        prefix: How many tokens come before the patches.
        renormalize: Let the weights of patches add up to 1; otherwise what goes to prefix tokens is
            missing from distances and diagonal mass. Entropy is always that of weights that do.
    """
    patches = weights[..., prefix:, prefix:]
    tiny = torch.finfo(weights.dtype).tiny
    total = patches.sum(-1, keepdim=True)
    shares = patches / total.clamp_min(tiny)
    used = shares if renormalize else patches
    far = (used * distances.to(used)).sum(-1)
    own = used.diagonal(dim1=-2, dim2=-1)
    elsewhere = (used - torch.diag_embed(own)).sum(-1)
    found = {
        "distance": far,
        "distance_off_diagonal": far / elsewhere.clamp_min(tiny),  # 0 where nothing else is seen
        "entropy": torch.special.entr(shares).sum(-1) / max(math.log(patches.shape[-1]), tiny),
        "diagonal_mass": own,
        "prefix_mass": weights[..., prefix:, :prefix].sum(-1),
    }
    return {name: each.mean(-1) for name, each in found.items()}
