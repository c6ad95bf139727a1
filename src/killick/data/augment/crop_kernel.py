"""Parts of images of several sizes brought to one size on a GPU, by a single kernel.

Each pixel of the result is computed alone, from a few of the image. The result is that of the matrix
products in `resized_crops`, bit by bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # pixels of the result that a program makes


@triton.jit  # type: ignore[untyped-decorator]
def _resize(  # type: ignore[no-untyped-def]
    contents, corners, areas, widths, firsts, weights, counts, found, number, size, most,
    block: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1)
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    inside = pixel < size * size
    row, column = image * size + pixel // size, (number + image) * size + pixel % size
    corner, area = tl.load(corners + image), tl.load(areas + image)
    width = tl.load(widths + image)
    rows, columns = tl.load(counts + image), tl.load(counts + number + image)
    top = tl.load(firsts + row, mask=inside, other=0)
    place = contents + corner + top * width + tl.load(firsts + column, mask=inside, other=0)
    red = tl.zeros((block,), tl.float32)
    green = tl.zeros((block,), tl.float32)
    blue = tl.zeros((block,), tl.float32)
    for down in range(rows):
        weight = tl.load(weights + row * most + down, mask=inside, other=0.0)
        used = weight != 0
        line_red = tl.zeros((block,), tl.float32)
        line_green = tl.zeros((block,), tl.float32)
        line_blue = tl.zeros((block,), tl.float32)
        for across in range(columns):
            share = tl.load(weights + column * most + across, mask=used, other=0.0)
            here, wanted = place + down * width + across, share != 0
            line_red += share * tl.load(here, mask=wanted, other=0).to(tl.float32)
            line_green += share * tl.load(here + area, mask=wanted, other=0).to(tl.float32)
            line_blue += share * tl.load(here + 2 * area, mask=wanted, other=0).to(tl.float32)
        red += weight * _round(line_red)
        green += weight * _round(line_green)
        blue += weight * _round(line_blue)
    result = found + (image.to(tl.int64) * size * size + pixel) * 3
    tl.store(result, _round(red).to(tl.uint8), mask=inside)
    tl.store(result + 1, _round(green).to(tl.uint8), mask=inside)
    tl.store(result + 2, _round(blue).to(tl.uint8), mask=inside)


@triton.jit
def _round(values):  # type: ignore[no-untyped-def]
    return tl.minimum(tl.maximum(tl.floor(values + 0.5), 0.0), 255.0)


def resize(
    contents: Tensor,
    corners: Tensor,
    areas: Tensor,
    widths: Tensor,
    taps: tuple[Tensor, Tensor, Tensor],
    size: int,
) -> Tensor:
    """Images `(n, 3, size, size)`, uint8, in channels_last layout.

    Args:
        contents: Images uint8 `(3, height, width)`, end to end.
        corners: Where in it the part of each image begins.
        areas: Pixels of a channel of each image.
        widths: Of the images.
        taps: From `resized_crops.find_taps`, of the rows of all images, then of their columns.
        size: Of the result.
    """
    number, most = len(corners), taps[1].shape[2]
    firsts, weights, counts = (each.contiguous() for each in taps)
    found = torch.empty(number, size, size, 3, dtype=torch.uint8, device=contents.device)
    grid = (triton.cdiv(size * size, BLOCK), number)
    with torch.cuda.device_of(contents):
        _resize[grid](
            *(contents, corners, areas, widths, firsts, weights, counts, found),
            *(number, size, most),
            block=BLOCK,
        )
    return found.permute(0, 3, 1, 2)


def try_out(device: torch.device) -> None:
    """Compile the kernel and resize an image of one pixel."""
    zero = torch.zeros(1, dtype=torch.long, device=device)
    one = torch.ones(2, 1, 1, device=device)
    taps = (torch.zeros(2, 1, dtype=torch.long, device=device), one, zero.new_ones(2))
    image = torch.zeros(3, dtype=torch.uint8, device=device)
    resize(image, zero, zero + 1, zero + 1, taps, 1)
    torch.cuda.synchronize(device)
