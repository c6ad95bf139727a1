"""Bilinear transduction, candidate by candidate in float64, from the formula."""

import numpy as np

Array = np.ndarray


def distances(x: Array, candidates: Array, bank: Array) -> Array:
    """`(n, k)`: `min_m |(x_i - r_j) - D_m|`."""
    scores = np.empty((len(x), len(candidates)))
    for i, image in enumerate(x):
        for j, reference in enumerate(candidates):
            gaps = ((image - reference) - bank).reshape(len(bank), -1)
            scores[i, j] = min(np.sqrt((gaps**2).sum(1)))
    return scores


def nearest(scores: Array) -> list[int]:
    """For each image the first of its nearest candidates."""
    return [min(range(len(row)), key=lambda j, row=row: (row[j], j)) for row in scores]


def average_pooled(images: Array, side: int) -> Array:
    """Means over squares of `side` by `side`; the sides must divide."""
    n, c, h, w = images.shape
    assert h % side == 0
    assert w % side == 0
    out = np.empty((n, c, h // side, w // side))
    for i in range(h // side):
        for j in range(w // side):
            rows, columns = slice(i * side, (i + 1) * side), slice(j * side, (j + 1) * side)
            out[:, :, i, j] = images[:, :, rows, columns].mean((2, 3))
    return out


def pairs_behind(residuals: Array, images: Array, references: Array) -> list[tuple[int, int]]:
    """For each residual the one pair (image, reference) it is the difference of."""
    found = []
    for residual in residuals:
        matches = [
            (i, j)
            for i, image in enumerate(images)
            for j, reference in enumerate(references)
            if np.allclose(image - reference, residual, rtol=0, atol=1e-5)
        ]
        assert len(matches) == 1, f"{len(matches)} pairs have this residual"
        found += matches
    return found
