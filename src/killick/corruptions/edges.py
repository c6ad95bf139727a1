"""Edges, distances to them and equalized histograms as OpenCV makes them, for the water drops.

OpenCV works on one image; this works on many, `(h, w, n)`: with the images side by side in
memory, a shift by some pixels is one long run. The arithmetic is that of integers, and the result
equal to OpenCV's. Only the search for weak edges waits for the device.
"""

import torch
from torch import Tensor

# Slopes between which a gradient counts as diagonal, in OpenCV's 15 bits: tan 22.5°, tan 67.5°.
_FLAT, _STEEP = 13573, 13573 + 2**16
# OpenCV's steps of 1 along an axis, 1.4 along a diagonal and 2.1969 for a knight's move, in a unit
# in which all three are whole (the last to a millionth) and 25 pixels still have room in int16.
UNIT = 1290
# Each with the directions it goes in, down and right; the opposite ones are understood.
_STEPS = (
    (UNIT, ((0, 1), (1, 0))),
    (1806, ((1, 1), (1, -1))),
    (2834, ((1, 2), (1, -2), (2, 1), (2, -1))),
)
_ROUNDS = 3  # of growing between two looks whether it has ended


def frame(values: Tensor, dim: int, mirrored: bool) -> Tensor:
    """The values with one more at both ends along `dim`: the last one again, or the one before."""
    length = values.shape[dim]
    inwards = min(1, length - 1) if mirrored else 0
    ends = values.narrow(dim, inwards, 1), values.narrow(dim, length - 1 - inwards, 1)
    return torch.cat((ends[0], values, ends[1]), dim)


def add_neighbors(framed: Tensor, dim: int) -> Tensor:
    """Each value with both its neighbors along `dim`; what `frame` added is gone."""
    length = framed.shape[dim] - 2
    total = framed.narrow(dim, 0, length) + framed.narrow(dim, 1, length)
    return total.add_(framed.narrow(dim, 2, length))


def differ(framed: Tensor, dim: int) -> Tensor:
    """The neighbor after each value less the one before it; what `frame` added is gone."""
    length = framed.shape[dim] - 2
    return framed.narrow(dim, 2, length) - framed.narrow(dim, 0, length)


def find_edges(levels: Tensor, low: int, high: int) -> Tensor:
    """Where Canny's method sees an edge, as 255: the crest of a slope, joined to one steeper yet.

    In int16 `levels`, 0 to 255, `(h, w, n)`, a crest is seen where the slope, by Sobel's masks and
    the L1 norm, is above `low` and is connected to one where it is above `high`.
    """
    framed = frame(frame(levels, 0, mirrored=False), 1, mirrored=False)
    across = differ(add_neighbors(framed, 0).add_(framed[1:-1]), 1)
    down = differ(add_neighbors(framed, 1).add_(framed[:, 1:-1]), 0)
    slope, crest = _find_crests(across, down)
    weak = crest.bitwise_and_(low - slope)
    strong = weak & (high - slope)
    return _grow(_mask(strong), _mask(weak))


def _find_crests(across: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """The slope of each pixel, and a number below 0 where no neighbor up or down it is steeper.

    The sign says what a comparison would: `a < b` where `a - b` is below 0, and bits are combined
    instead of booleans. Comparing int16 is an order slower on a CPU.
    """
    height, width, n = across.shape
    wide, tall = across.abs(), down.abs()
    framed = across.new_zeros(height + 2, width + 2, n)
    slope = torch.add(wide, tall, out=framed[1:-1, 1:-1])

    def beyond(y: int, x: int) -> Tensor:
        return framed[1 + y : 1 + y + height, 1 + x : 1 + x + width]

    # Of two equals side by side the first is the crest; of two on a diagonal neither is.
    level = torch.maximum(beyond(0, -1), beyond(0, 1) - 1).sub_(slope)
    upright = torch.maximum(beyond(-1, 0), beyond(1, 0) - 1).sub_(slope)
    falling = torch.maximum(beyond(-1, -1), beyond(1, 1)).sub_(slope)
    rising = torch.maximum(beyond(-1, 1), beyond(1, -1)).sub_(slope)

    wide, tall = wide.int(), tall.int().mul_(2**15)
    flat = (tall - wide * _FLAT).clamp_(-1, 0).to(torch.int16)
    steep = (wide * _STEEP).sub_(tall).clamp_(-1, 0).to(torch.int16)
    opposed = across ^ down
    diagonal = (opposed & rising).bitwise_or_(opposed.bitwise_not() & falling)
    diagonal.bitwise_and_((flat | steep).bitwise_not_())
    return slope, diagonal.bitwise_or_(flat & level).bitwise_or_(steep & upright)


def _mask(signs: Tensor) -> Tensor:
    """255 where a number is below 0, with a column of zeros after the last."""
    height, width, n = signs.shape
    mask = torch.zeros(height, width + 1, n, dtype=torch.uint8, device=signs.device)
    mask[:, :-1] = signs.clamp(-1, 0)
    return mask


def _grow(seeds: Tensor, allowed: Tensor) -> Tensor:
    """The seeds and all of `allowed` that is connected to them, over sides and corners.

    In one long row, pixels that leave an image on the right come back on the left of the next
    line: there is the column of zeros, of which none is allowed.
    """
    height, columns, n = seeds.shape
    line, grown, allowed = columns * n, seeds.view(-1), allowed.view(-1)
    while True:
        before = grown
        for _ in range(_ROUNDS):
            wider = grown.clone()
            wider[n:].bitwise_or_(grown[:-n])
            wider[:-n].bitwise_or_(grown[n:])
            grown = wider.clone()
            grown[line:].bitwise_or_(wider[:-line])
            grown[:-line].bitwise_or_(wider[line:])
            grown.bitwise_and_(allowed)
        if not int((before ^ grown).max()):
            return grown.view(height, columns, n)[:, :-1]


def measure_distances(edges: Tensor, limit: int) -> Tensor:
    """How far each pixel is from the nearest edge, by the steps of a chess king and a knight.

    A shortest way has two kinds of steps, a knight's and one of a king's, each in one direction.
    So it is found by trying each kind once, twice, four times … in all directions. The result is
    int16, in units of 1 / `UNIT` pixels, and no greater than `limit` pixels, at most 25.
    """
    height, width, n = edges.shape
    # A way out on the right and in again on the left of the next line is longer than the limit.
    columns, longest = width + limit, limit * UNIT
    distances = torch.full((height, columns, n), longest, dtype=torch.int16, device=edges.device)
    distances[:, :width].mul_(edges == 0)
    flat, times = distances.view(-1), 1
    while times <= limit:
        for weight, directions in _STEPS:
            step = times * weight
            if step >= longest:
                continue
            further = flat.clamp(max=limit * UNIT - step).add_(step)  # never beyond int16
            for y, x in directions:
                shift = times * (y * columns + x) * n
                if shift < len(flat):
                    ahead, behind = flat[shift:], flat[:-shift]
                    torch.minimum(ahead, further[:-shift], out=ahead)
                    torch.minimum(behind, further[shift:], out=behind)
        if not flat.is_cuda:  # no way is longer than this one: spare the steps it has not
            longest = int(distances[:, :width].max())
        times *= 2
    return distances[:, :width]


def equalize(levels: Tensor, highest: int) -> Tensor:
    """The levels spread over 0 to 255, so that each takes as much of that as it has pixels.

    The lowest becomes 0; an image with one level only stays as it is. No level of `levels`, int64
    `(h, w, n)`, which may be overwritten, is above `highest`.
    """
    height, width, n = levels.shape
    device, pixels = levels.device, height * width
    cells = levels.mul_(n).add_(torch.arange(n, device=device)).view(-1)
    ones = torch.ones(1, dtype=torch.int32, device=device).expand(len(cells))
    counts = torch.zeros((highest + 1) * n, dtype=torch.int32, device=device)
    upto = counts.scatter_add_(0, cells, ones).view(highest + 1, n).cumsum(0)
    lowest = upto.masked_fill(upto == 0, pixels).amin(0)
    rest = pixels - lowest
    # A tensor divided, as OpenCV does it: torch makes a product of a number over a tensor.
    share = torch.full((), 255.0, device=device) / rest.clamp(min=1)
    spread = (upto - lowest).clamp_(min=0).mul(share).round_()
    same = torch.arange(highest + 1.0, device=device)[:, None]
    table = torch.where(rest > 0, spread, same).to(torch.int16)
    return table.view(-1).index_select(0, cells).view(height, width, n)
