"""Elastic distortion: a random affine map, then a random smooth displacement of every pixel."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats
from killick.corruptions.filters import mirrored_gaussian

_TRUNCATE = 3  # standard deviations, where the smoothing ends
_SLIP = 244 / 224  # of the original, for ImageNet; kept
_FLAT = 1e-4  # an area, as a share of what it was, that counts as none


@corruption(
    cifar=(
        *((0, 0, 0.08, 1), (0.05, 0.2, 0.07, 1), (0.08, 0.06, 0.06, 1)),
        *((0.1, 0.04, 0.05, 1), (0.1, 0.03, 0.03, 1)),
    ),
    tiny=(
        *((0, 0, 0.08, 1), (0.05, 0.3, 0.06, 1), (0.1, 0.08, 0.06, 1)),
        *((0.1, 0.03, 0.03, 1), (0.16, 0.03, 0.02, 1)),
    ),
    imagenet=(
        *((2, 0.7, 0.1, _SLIP), (2, 0.08, 0.2, _SLIP), (0.05, 0.01, 0.02, _SLIP)),
        *((0.07, 0.01, 0.02, _SLIP), (0.12, 0.01, 0.02, _SLIP)),
    ),
)
def elastic_transform(
    images: Tensor, alpha: float, sigma: float, affine: float, side: float, *, generator: Generator
) -> Tensor:
    """The images under an affine map of their own, then displaced by a smooth random field.

    As in ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019): three points around the middle
    are moved, and the image with them; then every pixel is fetched from elsewhere, by smoothed
    uniform noise. Both steps interpolate linearly between mirrored edges, without and with the edge
    repeated. Not as there: the random numbers; the rounding to 1/32 of a pixel in the first step, by
    OpenCV before version 5; images under 3 pixels, where its three points are one.

    Constants:
        alpha: Scale of the displacement; without any, there is only the affine map.
        sigma: Of the Gaussian that smooths the noise.
        affine: How far the three points may move along either axis.
        side: The unit of these three, as a share of the image's shorter side.
    """
    n, _, height, width = images.shape
    unit = side * min(height, width)
    device = images.device
    jitter = torch.rand(n, 3, 2, device=device, generator=generator).mul_(2).sub_(1)
    grid = _affine_grid(jitter.mul_(affine * unit), height, width)
    # With aligned corners the mirror stands in the middle of the outer pixels, else at their edge.
    levels = grid_sample(to_floats(images), grid, padding_mode="reflection", align_corners=True)
    if alpha:
        noise = torch.rand(n, 2, height, width, device=device, generator=generator)
        grid = _displaced_grid(noise.mul_(2).sub_(1), alpha * unit, sigma * unit)
        levels = grid_sample(levels, grid, padding_mode="reflection", align_corners=False)
    return to_bytes(levels)


def _affine_grid(jitter: Tensor, height: int, width: int) -> Tensor:
    """Where each pixel comes from, as `grid_sample` wants it, -1 and 1 being the outer pixels.

    The three points are corners of a square of two thirds of the shorter side, in the middle: right
    below, right above and left above. In an image that is not square the middle has its coordinates
    exchanged, as in the original. `jitter`, `(n, 3, 2)`, is how far they move, in pixels, x first.
    """
    reach = max(1, min(height, width) // 3)
    corner_x, corner_y = height // 2 + reach, width // 2 - reach
    # The map from old places to new: its columns are the two edges that meet in the corner.
    x_edge = (jitter[:, 1] - jitter[:, 2]).div_(2 * reach)
    y_edge = (jitter[:, 0] - jitter[:, 1]).div_(2 * reach)
    a, b, c, d = x_edge[:, 0] + 1, y_edge[:, 0], x_edge[:, 1], y_edge[:, 1] + 1
    area = a * d - b * c
    # Three points on one line would send every pixel to infinity.
    area = torch.where(area.abs() < _FLAT, _FLAT, area)
    moved_x, moved_y = jitter[:, 1, 0] + corner_x, jitter[:, 1, 1] + corner_y
    x_from = torch.stack([d, -b, b * moved_y - d * moved_x], 1).div_(area[:, None])
    y_from = torch.stack([-c, a, c * moved_x - a * moved_y], 1).div_(area[:, None])
    x_from[:, 2] += corner_x
    y_from[:, 2] += corner_y
    back = torch.stack([x_from.mul_(2 / max(width - 1, 1)), y_from.mul_(2 / max(height - 1, 1))], 1)
    along_x = back[:, :, :1] * torch.arange(width, device=jitter.device)
    along_y = back[:, :, 1:2] * torch.arange(height, device=jitter.device) + (back[:, :, 2:] - 1)
    return (along_x[:, :, None, :] + along_y[:, :, :, None]).permute(0, 2, 3, 1)


def _displaced_grid(noise: Tensor, alpha: float, sigma: float) -> Tensor:
    """Where each pixel comes from, as `grid_sample` wants it, -1 and 1 being the image's edges.

    `noise`, in [-1, 1), `(n, 2, height, width)`, is the displacement along x first.
    """
    height, width = noise.shape[2:]
    rows = mirrored_gaussian(height, sigma, _TRUNCATE, noise.device)
    columns = mirrored_gaussian(width, sigma, _TRUNCATE, noise.device)
    shift = rows @ noise @ columns.T
    shift[:, 0] *= 2 * alpha / width
    shift[:, 1] *= 2 * alpha / height
    shift += _centers(height, width, noise.device)
    return shift.permute(0, 2, 3, 1)


@lru_cache(maxsize=16)
def _centers(height: int, width: int, device: torch.device) -> Tensor:
    """The x and y of every pixel's center, if -1 and 1 are the edges, `(2, height, width)`."""
    y = (2 * torch.arange(height) + 1) / height - 1
    x = (2 * torch.arange(width) + 1) / width - 1
    return torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1]).to(device)
