"""Bilinear transduction: for each image the reference whose residual was seen in training.

After Netanyahu et al., "Learning to extrapolate: a transductive approach" (ICLR 2023), as a rule
for selecting references; the networks here are not bilinear. For an image x and candidates r_i the
rule takes the i that minimises `min_m |(x - r_i) - D_m|`, D being a bank of residuals of training.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

from killick.core.anchored import Anchored, anchored_in
from killick.core.references import ReferencePool, take
from killick.errors import OptionError, ReferencesError, ShapeError

BANK_SIZE = 10_000
BANK_BYTES = 128 * 2**20


@torch.no_grad()
def residual_bank(
    model: nn.Module,
    images: Tensor,
    references: Tensor | ReferencePool | None = None,
    *,
    size: int = BANK_SIZE,
    pool: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Residuals like those of training, from random pairs: what transduction compares with.

    Args:
        model: Anchored; its normalization is applied.
        images: Training images with the transforms of training, as the model takes them.
        references: Where references came from in training, drawn as a pool draws them; `images`
            themselves by default, never an image with itself.
        size: How many residuals.
        pool: Average over squares of about this side before comparing. By default 1, or as much as
            is needed for the bank to fit into 128 MiB. Vectors are never pooled.
        generator: For drawing the pairs.

    Returns:
        `(size, …)` residuals, for `model.set_residuals`.
    """
    anchored = anchored_in(model)
    anchored.check(images)
    n, where = len(images), images.device if generator is None else generator.device
    if size < 1 or n < 1 or (pool is not None and pool < 1):
        raise OptionError(
            "expected at least one image, size and pool of at least 1, found"
            f" {n} images, size={size}, pool={pool}."
        )
    first = torch.randint(n, (size,), device=where, generator=generator)
    if references is None:
        if n < 2:
            raise ReferencesError(f"expected at least 2 images to form residuals, found {n}.")
        step = torch.randint(1, n, (size,), device=where, generator=generator)
        second, source = (first + step) % n, images
    elif isinstance(references, ReferencePool):
        second, source = references.draw(size, generator), references.images
    else:
        second = torch.randint(len(references), (size,), device=where, generator=generator)
        source = references
    anchored.check(source, "references")
    first, second = first.to(images.device), second.to(source.device)
    sides = anchored.prepare(images[:1]).shape[2:]
    if pool is None:
        # The smallest side at which the float32 numbers fit.
        whole = 4 * size * images[0].numel() / BANK_BYTES
        pool = math.ceil(whole ** (1 / len(sides))) if sides else 1
    grid = [max(1, side // pool) for side in sides]
    chunks = []
    for a, b in zip(torch.split(first, 1000), torch.split(second, 1000), strict=True):
        x, r = take(images, a), take(source, b).to(images.device)
        chunks.append(_pooled(anchored.prepare(x) - anchored.prepare(r), grid))
    return torch.cat(chunks)


def _pooled(images: Tensor, grid: Sequence[int]) -> Tensor:
    """Images averaged down to `grid`; vectors, and images of that size, as they are."""
    if images.shape[2:] == tuple(grid):
        return images
    pools: list[Any] = [adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d]
    pooled: Tensor = pools[len(grid) - 1](images, tuple(grid))
    return pooled


def nearest_residuals(x: Tensor, candidates: Tensor, bank: Tensor) -> Tensor:
    """`(n, k)`: how far the residual `x - candidate` is from the nearest residual in `bank`.

    With d = x - r, `|d - D|^2 = |d|^2 + |D|^2 - 2 x.D + 2 r.D`: two matrix products of n·M and
    k·M dot products instead of one of n·k·M. What is left is a sweep over n·k·M sums, done in
    pieces that stay in the cache. All three are `(…, features)`.
    """
    # Shift by the candidates' mean: distances stay, numbers get smaller, rounding too.
    centre = candidates.mean(0)
    x, candidates = x - centre, candidates - centre
    size = torch.linalg.vector_norm(bank, dim=1).square()  # without a copy of the bank
    from_candidates = size + 2 * (candidates @ bank.T)  # (k, M)
    squares = torch.empty(len(x), len(candidates), dtype=x.dtype, device=x.device)
    cells = 2**27 if x.is_cuda else 2**18
    few = max(1, cells // bank.shape[0])  # images at a time, against one candidate
    for rows, out in zip(torch.split(x, 1024), torch.split(squares, 1024), strict=True):
        from_x = 2 * (rows @ bank.T)  # (n, M)
        for start in range(0, len(rows), few):
            part = from_x[start : start + few]
            for i in range(len(candidates)):
                out[start : start + few, i] = (from_candidates[i] - part).amin(1)
    squares += torch.cdist(x, candidates, compute_mode="donot_use_mm_for_euclid_dist").square()
    return squares.clamp_min(0).sqrt()


def nearest_candidate(model: Anchored, x: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """For each image the number of the best candidate, and how far its residual is from training."""
    if len(model.residuals) == 0:
        raise ReferencesError(
            "expected a bank of training residuals for protocol='transductive', found none. Store"
            " one first: model.set_residuals(killick.residual_bank(model, train_images))."
        )
    scores = residual_distances(model, x, candidates, model.residuals)
    chosen = scores.argmin(1)  # the first among equals, which `min` does not promise
    return chosen, scores.gather(1, chosen[:, None])[:, 0]


def residual_distances(model: Anchored, x: Tensor, candidates: Tensor, bank: Tensor) -> Tensor:
    """`(n, k)`: how far each image's residual from each reference is from those in `bank`."""
    prepared, references = model.prepare(x), model.prepare(candidates)
    fits = bank.ndim == prepared.ndim and bank.shape[1] == prepared.shape[1]
    if not fits or any(b > s for b, s in zip(bank.shape[2:], prepared.shape[2:], strict=True)):
        raise ShapeError(
            f"a bank of residuals of shape {tuple(bank.shape[1:])} does not fit images of shape"
            f" {tuple(prepared.shape[1:])}. Make one for them: killick.residual_bank."
        )
    grid = bank.shape[2:]
    flat_x, flat_r = _pooled(prepared, grid).flatten(1), _pooled(references, grid).flatten(1)
    precise = torch.promote_types(flat_x.dtype, torch.float32)
    return nearest_residuals(*(t.to(precise) for t in (flat_x, flat_r, bank.flatten(1))))
