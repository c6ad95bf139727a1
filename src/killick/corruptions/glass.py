"""Frosted glass: pixels take the places of near ones, between two Gaussian blurs."""

import torch
from torch import Tensor

from killick.corruptions.corruption import Generator, corruption
from killick.corruptions.filters import smooth


@corruption(
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    tiny=((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    chunk=2,
)
def glass_blur(
    images: Tensor, sigma: float, reach: float, passes: float, *, generator: Generator
) -> Tensor:
    """The images blurred, their pixels shuffled locally, and blurred again.

    In each pass the pixels are visited from the last to the first, row by row, and each is
    overwritten with a neighbor as that is by then (the original means to swap the two, but only
    copies). `reach + 1` rows and columns before the first and `reach - 1` after the last are not
    visited. The original calculates with float64, this with float32, and draws other numbers.

    Constants:
        sigma: Of both blurs, in pixels.
        reach: How far off a neighbor may be: `-reach` to `reach - 1` in each direction.
        passes: How often the pixels are shuffled.
    """
    n, channels, height, width = images.shape
    reach = int(reach)
    rows, columns = height - 2 * reach, width - 2 * reach
    blurred = smooth(images, sigma)
    if min(rows, columns) < 1:  # too small for any pixel to be visited
        return smooth(blurred, sigma)
    planes = blurred.transpose(0, 1).reshape(channels, n * height * width)
    for _ in range(int(passes)):
        drawn = _draw((n, rows, columns), reach, images.device, generator)
        planes = planes.index_select(1, _trace(drawn, reach, height, width))
    return smooth(planes.view(channels, n, height, width).transpose(0, 1), sigma)


def _draw(shape: tuple[int, ...], reach: int, device: torch.device, generator: Generator) -> Tensor:
    """The number of a neighbor for each visited pixel, row by row in the square of neighbors."""
    count = (2 * reach) ** 2
    return torch.randint(count, shape, dtype=torch.int32, device=device, generator=generator)


def _trace(drawn: Tensor, reach: int, height: int, width: int) -> Tensor:
    """From which place before a pass the pixel at each place after it comes, `(n * h * w,)`.

    A neighbor that lies ahead of its pixel has been visited, and may have been overwritten with
    one that lies ahead of itself, and so on, until one does not. All these chains are followed at
    once, by steps that double: no pixel waits for another.
    """
    n, rows, columns = drawn.shape
    device = drawn.device
    side = torch.arange(-reach, reach, dtype=torch.int32, device=device)
    steps = (side[:, None] * width + side).flatten()
    own = torch.arange(n * height * width, dtype=torch.int32, device=device)
    neighbor = own.clone()
    visited = neighbor.view(n, height, width)[:, reach + 1 : height - reach + 1]
    visited = visited[:, :, reach + 1 : width - reach + 1]
    visited += steps.index_select(0, drawn.flatten()).view(drawn.shape)
    last = torch.maximum(own, neighbor)
    # A chain cannot be longer than there are pixels to visit. On a CPU it is cheap to see that all
    # have ended, after a few rounds; on a GPU the question would cost more than the rounds.
    rounds = (rows * columns - 1).bit_length() if reach > 1 else 0
    for _ in range(rounds):
        further = last.index_select(0, last)
        if device.type == "cpu" and torch.equal(further, last):
            break
        last = further
    return neighbor.index_select(0, last)
