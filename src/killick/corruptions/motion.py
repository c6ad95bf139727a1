"""Motion blur as ImageMagick does it: an image smeared along a line, strongest where it began."""

import functools
import math

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats

# Numbers that are fetched at a time: longer runs need fewer fetches, but a larger table of them.
_RUN = 12
# Weights below this share of the whole cannot change a gray level in float32.
_NEGLIGIBLE = 1e-8


def smear(levels: Tensor, angles: Tensor, radius: float, sigma: float) -> Tensor:
    """Each pixel becomes the weighted mean of those ahead of it on a line that begins at it.

    There are `2 * radius + 1` of them, one apart and rounded to whole pixels, the pixel itself the
    first, with the weights of one half of a Gaussian. What lies outside repeats the edge. `levels`
    are float32 `(n, c, h, w)` and stay as they are; `angles`, `(n,)`, are in degrees: 0 is to the
    right, 90 downwards.

    Example:
        >>> point = torch.tensor([[[[0.0, 0.0, 1.0, 0.0]]]])
        >>> smear(point, torch.zeros(1), radius=1, sigma=1e6)  # three equal weights
        tensor([[[[0.3333, 0.3333, 0.3333, 0.0000]]]])
    """
    n, channels, height, width = levels.shape
    device = levels.device
    weights = _weights(math.ceil(radius), sigma, device)
    taps = len(weights)
    reach = min(taps, width) - 1  # farther to the side there is but the edge again
    down, right = _offsets(angles, taps)

    # The table holds every run of pixels that some line can meet: those that begin at each pixel
    # of the image widened by `reach` on both sides. One weighted sum of its rows is a run of the
    # result, and `embedding_bag` does all of them in one go.
    run = max(1, _RUN // channels)
    runs = -(-width // run)
    wide = runs * run + 2 * reach
    starts = wide - run + 1
    columns = torch.arange(-reach, wide - reach, device=device).clamp_(0, width - 1)
    padded = levels.index_select(3, columns).permute(0, 2, 3, 1).contiguous()
    strides = (height * wide * channels, wide * channels, channels, 1)
    table = padded.as_strided((n, height, starts, run * channels), strides).flatten(0, 2)

    rows = torch.arange(height, dtype=torch.int32, device=device)[:, None]
    rows = (rows + down[:, None]).clamp_(0, height - 1)
    rows += torch.arange(0, n * height, height, dtype=torch.int32, device=device)[:, None, None]
    first = rows.mul_(starts).add_(right.clamp(-reach, reach)[:, None]).add_(reach)
    ahead = torch.arange(0, runs * run, run, dtype=torch.int32, device=device)[:, None]
    places = (first[:, :, None] + ahead).view(-1, taps)
    smeared = embedding_bag(
        places, table, mode="sum", per_sample_weights=weights.expand(len(places), taps)
    )
    smeared = smeared.view(n, height, runs * run, channels)[:, :, :width]
    return smeared.permute(0, 3, 1, 2)


@functools.lru_cache(maxsize=32)
def _weights(radius: int, sigma: float, device: torch.device) -> Tensor:
    """Half a Gaussian of sum 1, without what float32 would not show."""
    weights = torch.arange(2 * radius + 1, dtype=torch.float64).square_().div_(-2 * sigma**2).exp_()
    weights /= weights.sum()
    return weights[weights > _NEGLIGIBLE].float().to(device)


def _offsets(angles: Tensor, taps: int) -> tuple[Tensor, Tensor]:
    """How far down and how far to the right each step of each line goes, `(n, taps)`."""
    steps = torch.arange(taps, device=angles.device, dtype=torch.float64)
    directions = angles.double().deg2rad()[:, None]
    down = (steps * directions.sin()).sub_(0.5).ceil_()  # halves are rounded down
    right = (steps * directions.cos()).sub_(0.5).ceil_()
    return down.int(), right.int()


@corruption(
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    tiny=((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    chunk=0.5,
)
def motion_blur(images: Tensor, radius: float, sigma: float, *, generator: Generator) -> Tensor:
    """The images as if the camera had moved, each along its own line within 45 degrees of level.

    The original hands the image to ImageMagick, which calculates with 16 bits and rounds to the
    nearest gray level; this calculates with float32 and rounds as well. `radius` is half of the
    line's length and `sigma` says how the weights fall off along it, both in pixels.
    """
    angles = torch.empty(len(images), device=images.device).uniform_(-45, 45, generator=generator)
    smeared = smear(to_floats(images), angles, radius, sigma)
    return to_bytes(smeared.add_(0.5)).contiguous()
