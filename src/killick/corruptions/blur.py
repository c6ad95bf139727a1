"""Blurs that are linear and the same for every image: Gaussian, out of focus, zoom."""

import functools
import math

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from killick.corruptions.corruption import Generator, corruption, to_bytes
from killick.corruptions.filters import Mixture, gaussian, make_matrix, merge, mirror, mix, smooth

# The disc is drawn in a square that reaches this far to each side, or farther where it has to.
_SMALL_DISC = 8
# What is below this share of the whole cannot change a gray level in float32.
_NEGLIGIBLE = 1e-8
# A table with more entries takes too much memory, and Fourier's transform is as fast.
_TABLE = 1 << 21


@corruption(
    cifar=(0.4, 0.6, 0.7, 0.8, 1), tiny=(0.5, 0.75, 1, 1.25, 1.5), imagenet=(1, 2, 3, 4, 6), chunk=2
)
def gaussian_blur(images: Tensor, sigma: float, *, generator: Generator) -> Tensor:
    """The images convolved with a Gaussian that ends at 4 sigma, the edges repeated outwards.

    `sigma` is in pixels. The original calculates with float64, this with float32.
    """
    return smooth(images, sigma)


@corruption(
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    tiny=((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    chunk=0.5,
)
def defocus_blur(images: Tensor, radius: float, alias: float, *, generator: Generator) -> Tensor:
    """The images convolved with a disc whose rim is softened, mirrored at their edges.

    `radius` is in pixels, `alias` the sigma of the Gaussian that softens the disc. The original
    calculates with float64, this with float32.
    """
    height, width = images.shape[2:]
    kernel = disc(radius, alias)
    if int(kernel.count_nonzero()) * height * width <= _TABLE:
        mixture = _disc_mixture(radius, alias, height, width, images.device)
        return to_bytes(mix(images, mixture)).contiguous()
    rows, columns, spectrum = _disc_spectrum(radius, alias, height, width, images.device)
    extended = images.index_select(2, rows).index_select(3, columns).float()
    blurred = torch.fft.irfft2(torch.fft.rfft2(extended).mul_(spectrum), s=extended.shape[2:])
    return to_bytes(blurred[:, :, :height, :width]).contiguous()


@functools.lru_cache(maxsize=32)
def disc(radius: float, alias: float) -> Tensor:
    """The kernel on the CPU, float64 `(side, side)` with an odd side, zero outside the soft disc.

    It is drawn as OpenCV would: the disc fills whole pixels of a square, is softened with a
    Gaussian of 3 x 3 (or 5 x 5) weights, and cut off where the square ends. Beyond, the softening
    sees the square mirrored, which counts where the disc touches it.
    """
    half = _SMALL_DISC if radius <= _SMALL_DISC else math.ceil(radius)
    soft = 1 if radius <= _SMALL_DISC else 2
    line = torch.arange(-half, half + 1).double()
    kernel = (line[:, None] ** 2 + line**2 <= radius**2).double()
    kernel /= kernel.sum()
    offsets, weights = gaussian(soft, alias)
    places = mirror(torch.arange(len(line))[:, None] + offsets, len(line))
    matrix = make_matrix(places, weights)
    kernel = matrix @ kernel @ matrix.T
    kernel[kernel < _NEGLIGIBLE] = 0
    reach = int((kernel.sum(0) > 0).nonzero().max()) - half
    return kernel[half - reach : half + reach + 1, half - reach : half + reach + 1]


@functools.lru_cache(maxsize=16)
def _disc_mixture(
    radius: float, alias: float, height: int, width: int, device: torch.device
) -> Mixture:
    """The disc around each pixel as a table."""
    kernel = disc(radius, alias)
    reach = len(kernel) // 2
    down, right = kernel.nonzero().unbind(1)
    rows = mirror(torch.arange(height)[:, None] + (down - reach), height)
    columns = mirror(torch.arange(width)[:, None] + (right - reach), width)
    sources = (rows[:, None] * width + columns).flatten()
    pixels = height * width
    targets = torch.arange(pixels).repeat_interleave(len(down))
    return merge(targets, sources, kernel[down, right].repeat(pixels), pixels).to(device)


@functools.lru_cache(maxsize=16)
def _disc_spectrum(
    radius: float, alias: float, height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows and columns the extended image has, and the transform of the disc at its size."""
    kernel = disc(radius, alias)
    reach = len(kernel) // 2
    shape = good_size(height + 2 * reach), good_size(width + 2 * reach)
    rows = mirror(torch.arange(-reach, shape[0] - reach), height)
    columns = mirror(torch.arange(-reach, shape[1] - reach), width)
    # The kernel begins at the corner, so the result does: conj() makes it look ahead, not back.
    spectrum = torch.fft.rfft2(kernel, s=shape).conj().resolve_conj().to(torch.complex64)
    return rows.to(device), columns.to(device), spectrum.to(device)


def good_size(size: int) -> int:
    """The next even number, from `size` on, without prime factors above 5: fast to transform."""
    while size % 2 or next_fast_len(size, real=True) != size:
        size += 1
    return size


@corruption(
    cifar=((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26)),
    tiny=((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26)),
    imagenet=((0.01, 12), (0.01, 16), (0.02, 11), (0.02, 13), (0.03, 11)),
    chunk=4,
)
def zoom_blur(images: Tensor, step: float, count: int, *, generator: Generator) -> Tensor:
    """The mean of the images and their middles enlarged 1, 1 + step, 1 + 2 * step ... times.

    There are `count` factors. Heights and widths are enlarged each about their own middle; the
    original is for squares.
    """
    mixture = _zoom_mixture(step, int(count), *images.shape[2:], images.device)
    return to_bytes(mix(images, mixture)).contiguous()


@functools.lru_cache(maxsize=16)
def _zoom_mixture(
    step: float, count: int, height: int, width: int, device: torch.device
) -> Mixture:
    """What each pixel of the mean is made of: itself, and four neighbors for each factor."""
    pixels = height * width
    everywhere = torch.arange(pixels)
    targets, sources = [everywhere], [everywhere]
    weights = [torch.ones(pixels, dtype=torch.float64)]
    step = (1 + step) - 1  # as numpy's arange does, which decides whether 224 / 1.12 is above 200
    for factor in (1 + number * step for number in range(count)):
        rows, row_weights = enlargement(height, factor)
        columns, column_weights = enlargement(width, factor)
        sources.append((rows[:, None, :, None] * width + columns[:, None]).flatten())
        weights.append((row_weights[:, None, :, None] * column_weights[:, None]).flatten())
        targets.append(everywhere.repeat_interleave(4))
    mean = torch.cat(weights) / (count + 1)
    return merge(torch.cat(targets), torch.cat(sources), mean, pixels).to(device)


def enlargement(size: int, factor: float) -> tuple[Tensor, Tensor]:
    """From which two places of a line each place of its enlarged middle comes, and how much.

    The middle is cut so that it is not too short after enlarging, its ends are mapped to the ends
    of the enlarged line, and of that the middle is kept: `(size, 2)` places and weights.

    Example:
        >>> places, weights = enlargement(4, 2.0)  # 1 and 2 become 4 numbers
        >>> places.tolist()
        [[1, 2], [1, 2], [1, 2], [2, 2]]
    """
    cut = math.ceil(size / factor)
    longer = round(cut * factor)
    kept = torch.arange(size) + (longer - size) // 2
    position = kept.double() * ((cut - 1) / max(longer - 1, 1))
    before = position.floor().clamp_(0, cut - 1)
    share = position - before
    places = torch.stack((before, (before + 1).clamp_max_(cut - 1)), 1).long()
    return places + (size - cut) // 2, torch.stack((1 - share, share), 1)
