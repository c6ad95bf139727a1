"""Linear filters for whole batches: a Gaussian as two matrices, and any other as a sparse one.

Neither uses a convolution layer: with one channel in and one out, those are slow on a CPU.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from killick.corruptions.corruption import to_bytes, to_floats

# A Gaussian ends at this many standard deviations, in scipy and scikit-image.
_TRUNCATE = 4.0
# Side of the blocks that a banded matrix is cut into on a CPU.
_BLOCK = 32


def smooth(images: Tensor, sigma: float) -> Tensor:
    """The images, uint8 `(n, c, h, w)`, convolved with a Gaussian, their edges repeated outwards.

    The result is uint8 again, rounded down. Each image is multiplied with a matrix from the left
    and one from the right. On a CPU this goes slab by slab, which leaves out most of what is zero
    in the matrices and stays in the cache.
    """
    n, channels, height, width = images.shape
    reach = int(_TRUNCATE * sigma + 0.5)
    down = gaussian_matrix(height, sigma, images.device)
    across = gaussian_matrix(width, sigma, images.device)
    flat = images.reshape(n * channels, height, width)
    smoothed = torch.empty_like(flat)
    for rows, around in _bands(height, reach, images.device):
        slab = (down[rows, around] @ to_floats(flat[:, around])).view(-1, width)
        result = torch.empty_like(slab)
        for columns, near in _bands(width, reach, images.device):
            torch.mm(slab[:, near], across[columns, near].T, out=result[:, columns])
        smoothed[:, rows] = to_bytes(result).view(n * channels, -1, width)
    return smoothed.view(n, channels, height, width)


def _bands(size: int, reach: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Blocks of places, and which places a filter reads for each."""
    step = _BLOCK if device.type == "cpu" else size
    for start in range(0, size, step):
        stop = min(start + step, size)
        yield slice(start, stop), slice(max(start - reach, 0), min(stop + reach, size))


@functools.lru_cache(maxsize=64)
def gaussian_matrix(size: int, sigma: float, device: torch.device) -> Tensor:
    """Smooths columns of `size` numbers when multiplied from the left; each row sums to 1."""
    offsets, weights = gaussian(int(_TRUNCATE * sigma + 0.5), sigma)
    places = (torch.arange(size)[:, None] + offsets).clamp_(0, size - 1)
    return make_matrix(places, weights).float().to(device)


@functools.lru_cache(maxsize=48)
def mirrored_gaussian(size: int, sigma: float, truncate: float, device: torch.device) -> Tensor:
    """As `gaussian_matrix`, but the line is mirrored at its ends, the end pixels repeated.

    A filter longer than the line meets its mirror images again.
    """
    offsets, weights = gaussian(int(truncate * sigma + 0.5), max(sigma, 1e-9))
    places = (torch.arange(size)[:, None] + offsets) % (2 * size)
    places = torch.minimum(places, 2 * size - 1 - places)
    return make_matrix(places, weights).float().to(device)


def gaussian(reach: int, sigma: float) -> tuple[Tensor, Tensor]:
    """Offsets from `-reach` to `reach`, and their weights, which sum to 1."""
    offsets = torch.arange(-reach, reach + 1)
    weights = offsets.double().div_(sigma).square_().mul_(-0.5).exp_()
    return offsets, weights / weights.sum()


def make_matrix(places: Tensor, weights: Tensor) -> Tensor:
    """The matrix, float64, whose row i has the `weights` at `places[i]`, added where they meet."""
    matrix = torch.zeros(len(places), len(places), dtype=torch.float64)
    return matrix.scatter_add_(1, places, weights.expand(len(places), -1))


class Mixture(NamedTuple):
    """For each pixel of the result, row by row, which pixels it is made of and how much of each.

    The three are a sparse matrix: `places` and `weights` of all pixels one after the other, and
    where in them each pixel `begins`.
    """

    places: Tensor
    weights: Tensor
    begins: Tensor

    def to(self, device: torch.device) -> "Mixture":
        """The same on another device."""
        return Mixture(*(part.to(device) for part in self))


def mix(images: Tensor, mixture: Mixture) -> Tensor:
    """The weighted sums as floats `(n, c, h, w)`, from images of any type.

    With the images side by side in memory, each sum is one of rows that hold all of them.
    """
    n, channels, height, width = images.shape
    table = images.reshape(n * channels, height * width).t().float().contiguous()
    mixed = embedding_bag(
        mixture.places, table, mixture.begins, mode="sum", per_sample_weights=mixture.weights
    )
    return mixed.t().view(n, channels, height, width)


def merge(targets: Tensor, sources: Tensor, weights: Tensor, pixels: int) -> Mixture:
    """The mixture in which pixel `targets[i]` gets `weights[i]` of pixel `sources[i]`.

    What one gets of another several times is added. All three on the CPU.
    """
    some = weights > 0
    pairs, place = torch.unique((targets * pixels + sources)[some], return_inverse=True)
    total = torch.zeros(len(pairs), dtype=torch.float64).index_add_(0, place, weights[some])
    begins = torch.searchsorted(pairs, torch.arange(0, pixels**2, pixels))
    return Mixture((pairs % pixels).int(), total.float(), begins.int())


def mirror(places: Tensor, size: int) -> Tensor:
    """The places of an image of that size that stand at any places of a line, also outside it.

    The image is mirrored at the middle of its outermost pixels, as often as need be.

    Example:
        >>> mirror(torch.arange(-3, 7), 4).tolist()
        [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]
    """
    period = max(2 * (size - 1), 1)
    places = places % period
    return torch.minimum(places, period - places) if size > 1 else places
