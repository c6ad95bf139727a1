"""JPEG without the files: what coding and decoding does to pixels, on any device.

The bits of a JPEG file give back exactly what was put into them, so only the steps before and after
count: other colors, half of their resolution, cosine transforms, rounding to the table of the
quality, and the way back. They are whole-number arithmetic in libjpeg, done here in floats that
hold the same numbers exactly: float64 in products of matrices, which is never rounded to TF32.
"""

from functools import lru_cache

import torch
from torch import Tensor

from killick.corruptions.corruption import to_bytes, to_floats

# The cosines of a transform of eight in units of 2^-13, times the root of 2, for the first four
# places; the other four mirror them, with the sign changed in odd rows. They are libjpeg's (method
# "islow"): sums of a few rounded constants, so that some are 1 off the nearest whole number.
_COSINES = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)
# The tables of the standard (ITU T.81, annex K), for quality 50, by rows of frequencies.
_LUMA_STEPS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_COLOR_STEPS = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


def recode(images: Tensor, quality: int) -> Tensor:
    """The images as they come back from a JPEG file of quality 1 to 100, as libjpeg gives them."""
    height, width = images.shape[2:]
    luma, colors = _to_planes(images)
    luma_blocks, color_blocks = _to_blocks(luma), _to_blocks(colors)
    frequencies = _transform(torch.cat([luma_blocks, color_blocks], 2))
    split = luma_blocks.shape[2]
    luma_steps, color_steps = _steps(quality, images.device)
    _round_to(frequencies[:, :, :split], luma_steps)
    _round_to(frequencies[:, :, split:], color_steps)
    blocks = _transform_back(frequencies)
    luma = _to_plane(blocks[:, :, :split], luma.shape)
    colors = _to_plane(blocks[:, :, split:], colors.shape)
    colors = _enlarge(colors[:, :, : (height + 1) // 2, : (width + 1) // 2])
    return _to_pixels(luma[:, 0, :height, :width], colors[:, :, :height, :width])


def _to_planes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Luma, `(n, 1, ...)`, and both color differences, `(n, 2, ...)`, halved, all from -128.

    They are filled up to whole blocks of 8 by repeating what is last. Colors are filled sideways
    before they are halved, downwards afterwards.
    """
    height = images.shape[2]
    red, green, blue = to_floats(_fill(_fill(images, 3, 16), 2, 2)).unbind(1)
    luma = (red * _of(19595)).add_(green, alpha=_of(38470)).add_(blue, alpha=_of(7471))
    luma = luma.add_(0.5).floor_().sub_(128)
    colors = torch.empty(len(red), 2, *red.shape[1:], device=red.device)
    bluish, reddish = colors.unbind(1)
    torch.mul(blue, 0.5, out=bluish).sub_(green, alpha=_of(21709)).sub_(red, alpha=_of(11059))
    torch.mul(red, 0.5, out=reddish).sub_(green, alpha=_of(27439)).sub_(blue, alpha=_of(5329))
    colors.add_(_of(2**15 - 1)).floor_()
    colors = colors[:, :, ::2] + colors[:, :, 1::2]
    colors = colors[..., ::2] + colors[..., 1::2]
    # Rounded down after 1 or 2 is added, in turn, so that halves go up as often as down.
    colors[..., ::2] += 1
    colors[..., 1::2] += 2
    return _fill(luma[:, None, :height], 2, 8), _fill(colors.mul_(0.25).floor_(), 2, 8)


def _fill(planes: Tensor, axis: int, unit: int) -> Tensor:
    """The planes with what is last along `axis` repeated up to a multiple of `unit`."""
    size = planes.shape[axis]
    if size % unit == 0:
        return planes
    last = planes.narrow(axis, size - 1, 1)
    return torch.cat([planes, *[last] * (-size % unit)], axis)


def _to_blocks(planes: Tensor) -> Tensor:
    """All blocks in float64, `(8, 8, blocks)`, so that the matrices of a product are wide."""
    n, channels, height, width = planes.shape
    blocks = planes.reshape(n * channels, height // 8, 8, width // 8, 8).permute(2, 4, 0, 1, 3)
    return blocks.to(torch.float64, memory_format=torch.contiguous_format).view(8, 8, -1)


def _to_plane(blocks: Tensor, shape: torch.Size) -> Tensor:
    """The float32 planes of this shape that the blocks are from."""
    n, channels, height, width = shape
    split = blocks.reshape(8, 8, n * channels, height // 8, width // 8)
    planes = split.permute(2, 3, 0, 4, 1)
    return planes.to(torch.float32, memory_format=torch.contiguous_format).view(shape)


@lru_cache(maxsize=8)
def _cosines(device: torch.device) -> Tensor:
    """The matrix of the transform, `(8 frequencies, 8 places)`, in units of 2^-13."""
    half = torch.tensor(_COSINES, dtype=torch.float64)
    other = half.flip(1)
    other[1::2] *= -1
    return torch.cat([half, other], 1).to(device)


def _transform(blocks: Tensor) -> Tensor:
    """The frequencies of blocks, times 8: along x, then along y, rounded after each."""
    cosines, half = _cosines(blocks.device), blocks.new_full((1, 1), 0.5)
    along_x = torch.baddbmm(half, (cosines * 2**-11).expand(8, 8, 8), blocks).floor_()
    along_y = torch.addmm(half, cosines * 2**-15, along_x.view(8, -1)).floor_()
    return along_y.view_as(blocks)


def _transform_back(frequencies: Tensor) -> Tensor:
    """The blocks of frequencies, from -128 to 127: along y, then along x, rounded after each."""
    cosines, half = _cosines(frequencies.device).T, frequencies.new_full((1, 1), 0.5)
    along_y = torch.addmm(half, cosines * 2**-11, frequencies.view(8, -1)).floor_()
    along_y = along_y.view_as(frequencies)
    along_x = torch.baddbmm(half, (cosines * 2**-18).expand(8, 8, 8), along_y).floor_()
    return along_x.clamp_(-128, 127)


def _round_to(frequencies: Tensor, steps: Tensor) -> None:
    """Turns frequencies, times 8, into the nearest multiples of their steps; halves go outwards."""
    # A trifle more, since halves would go to even numbers; the next eighth of a step is far away.
    frequencies.mul_((1 + 1e-7) / (8 * steps)).round_().mul_(steps)


@lru_cache(maxsize=128)
def _steps(quality: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The steps of luma and of colors, `(8, 8, 1)`, coarser the lower the quality."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    tables = torch.tensor([_LUMA_STEPS, _COLOR_STEPS])
    luma, color = ((tables * percent + 50) // 100).clamp_(1, 255).double().unsqueeze(3).to(device)
    return luma, color


def _enlarge(colors: Tensor) -> Tensor:
    """Colors at twice the resolution: three parts of the nearest value, one of the next, each way.

    libjpeg only repeats values in images up to 4 pixels wide.
    """
    if colors.shape[3] <= 2:
        return colors.repeat_interleave(2, 2).repeat_interleave(2, 3)
    n, channels, height, width = colors.shape
    triple = colors * 3
    tall = torch.empty(n, channels, height, 2, width, device=colors.device)
    torch.add(triple, _shift(colors, 2, -1), out=tall[:, :, :, 0])
    torch.add(triple, _shift(colors, 2, 1), out=tall[:, :, :, 1])
    tall = tall.flatten(2, 3)
    triple = tall * 3
    wide = torch.empty(n, channels, 2 * height, 2 * width, device=colors.device)
    torch.add(triple, _shift(tall, 3, -1).add_(8), out=wide[..., ::2])
    torch.add(triple, _shift(tall, 3, 1).add_(7), out=wide[..., 1::2])
    return wide.mul_(1 / 16).floor_()


def _shift(planes: Tensor, axis: int, step: int) -> Tensor:
    """The value before (-1) or after (1) each along `axis`; at the end, the last itself."""
    size = planes.shape[axis]
    if step < 0:
        return torch.cat([planes.narrow(axis, 0, 1), planes.narrow(axis, 0, size - 1)], axis)
    return torch.cat([planes.narrow(axis, 1, size - 1), planes.narrow(axis, size - 1, 1)], axis)


def _to_pixels(luma: Tensor, colors: Tensor) -> Tensor:
    """RGB of luma, `(n, ...)`, and color differences, `(n, 2, ...)`, all from -128."""
    bluish, reddish = colors.unbind(1)
    change = torch.empty(len(luma), 3, *luma.shape[1:], device=luma.device)
    red, green, blue = change.unbind(1)
    torch.mul(reddish, _of(91881), out=red)
    torch.mul(reddish, _of(-46802), out=green).sub_(bluish, alpha=_of(22554))
    torch.mul(bluish, _of(116130), out=blue)
    return to_bytes(change.add_(0.5).floor_().add_((luma + 128)[:, None]))


def _of(units: int) -> float:
    """A weight of libjpeg's colors, in units of 2^-16; times a byte, it is exact in float32."""
    return units / 2**16
