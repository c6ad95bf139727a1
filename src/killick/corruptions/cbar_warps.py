"""C-bar corruptions that move pixels: pinch and twirl, ripple, circular blur, colored fringes.

Definitions by Mintun et al. (2021), from their generator of the published sets. There a severity s
stands for a share of a largest value: a parameter is s times that value over 10, the same for every
image. What lies outside of the image is black in all of them. `side` is the authors' image size;
here, where an image is not square, it is the shorter side unless said otherwise. Deviations: the
random numbers come from torch, and the arithmetic is in float32.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats
from killick.corruptions.filters import Mixture, merge, mix

_ROTATIONS = 21


@corruption(cifar=(5.5, 6, 6.5, 8.5, 10))
def pinch_and_twirl(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """Images pinched and twirled in discs side by side, each clockwise or not by chance.

    The discs fill square cells of `side // 3` pixels (`side // 5` from 224 pixels up), counted from
    the top left, as many of them along a longer axis as fit in proportion. For a pixel at distance
    d from the center, as a share of the radius, the value comes from `sin(d pi / 2)^-m` times as
    far out, turned by `a (1 - d)^2`, where `m = (s / 10) 0.4 + 0.1` and `a = (s / 10) pi / 2`, with
    either sign for each disc. Interpolation is bilinear.
    """
    return _twirl(images, severity, _draw_signs(images, generator))


@corruption(cifar=(5.5, 6, 6.5, 7.5, 8))
def ripple(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """Images with rows and columns displaced by a sine each.

    A value in row y comes from row `y + A sin(2 pi y / l + p)` with `A = (s / 10) 0.025 side`, a
    wavelength l uniform in 0.1 to 0.3 sides and a phase p uniform in 0 to 2 pi; columns likewise by
    a draw of their own. The side is the axis's own length. Interpolation is bilinear.
    """
    return _displace(images, severity, *_draw_waves(images, generator))


@corruption(cifar=(2.8, 3.6, 4.4, 5.2, 6))
def circular_motion_blur(images: Tensor, severity: float, *, generator: Generator) -> Tensor:
    """Images averaged over 21 rotations about the center; nothing is drawn.

    The angles are `u (s / 10) 15` degrees for 21 evenly spaced u in -1 to 1, with weights
    proportional to `exp(-2 u^2)`. Each rotation is an interpolation by cubic splines with mirrored
    edges, and black where it looks outside of the outermost pixels' centers (scipy's `rotate`).
    """
    height, width = images.shape[2:]
    levels = to_floats(images).reshape(-1, height, width)
    rows, columns = _spline_inverse(height, images.device), _spline_inverse(width, images.device)
    splines = (rows @ levels @ columns.T).view(images.shape)
    blurred = mix(splines, _rotations(height, width, severity, images.device))
    return to_bytes(blurred).contiguous()


@corruption(cifar=(1, 2, 5, 9, 10))
def transverse_chromatic_abberation(
    images: Tensor, severity: float, *, generator: Generator
) -> Tensor:
    """Images with their three colors at three magnifications, in random order.

    These are 1, `1 + z / 2` and `1 + z` for `z = (s / 10) 0.5`. A color is resized to
    `round(magnification * length)` pixels along each axis, outermost centers upon outermost, and
    the middle is cut out. The interpolation is by cubic B-splines whose coefficients are the pixels
    themselves (scipy's `zoom` without its prefilter), so that all colors are blurred, also at 1.
    Values are rounded to the nearest, not truncated: the authors resize in uint8.
    """
    return _magnify(images, severity, _draw_orders(images, generator))


def _draw_signs(images: Tensor, generator: Generator) -> Tensor:
    """-1 or 1 for each disc, `(n, discs down, discs across)`."""
    _, down, across = _cells(*images.shape[2:])
    drawn = torch.randint(2, (len(images), down, across), device=images.device, generator=generator)
    return drawn.mul_(2).sub_(1).float()


def _cells(height: int, width: int) -> tuple[int, int, int]:
    """The side of a cell, and how many there are down and across."""
    side = min(height, width)
    number = 5 if side >= 224 else 3
    return side // number, number * height // side, number * width // side


def _twirl(images: Tensor, severity: float, signs: Tensor) -> Tensor:
    """The warp with the given signs.

    The authors go from disc to disc, but none looks into one that was before it.
    """
    upright, twist, still, rows, columns = _discs(*images.shape[2:], severity, images.device)
    signs = signs.index_select(1, rows).index_select(2, columns)
    warped = sample(to_floats(images), torch.addcmul(upright, signs[..., None], twist))
    return torch.where(still, images, to_bytes(warped))


def sample(levels: Tensor, places: Tensor) -> Tensor:
    """Bilinear interpolation at `places` as given by `places_of`, `(n, h, w, 2)`; 0 outside."""
    return grid_sample(levels, places, mode="bilinear", padding_mode="zeros", align_corners=False)


def places_of(rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
    """Coordinates in pixels, as `sample` takes them: column first, -1 and 1 at the outer edges."""
    return torch.stack(((2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1), -1)


@lru_cache(maxsize=16)
def _discs(
    height: int, width: int, severity: float, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Where pixels come from: a fixed part, and one that is added or subtracted by the sign.

    Also which pixels stay, and for each row and each column its disc.
    """
    cell, down, across = _cells(height, width)
    sides = (torch.arange(side, dtype=torch.float64) for side in (height, width))
    row, column = torch.meshgrid(*sides, indexing="ij")
    cell = max(cell, 1)
    disc_row = (row // cell).clamp_max(down - 1)
    disc_column = (column // cell).clamp_max(across - 1)
    dy, dx = row - (disc_row + 0.5) * cell, column - (disc_column + 0.5) * cell
    distance = torch.hypot(dy, dx) / (cell / 2)
    # The rest at the lower and right edges is in no cell, though a disc may reach it.
    moved = (row < down * cell) & (column < across * cell) & (distance > 0) & (distance <= 1)
    scale = (math.pi / 2 * distance).sin() ** -(severity / 10 * 0.4 + 0.1)
    turn = severity / 10 * math.pi / 2 * (1 - distance) ** 2
    out, swing = scale * turn.cos() - 1, scale * turn.sin()
    upright = places_of(row + out * dy, column + out * dx, height, width)
    twist = torch.stack((2 * swing * dy / width, -2 * swing * dx / height), -1)
    return (
        torch.where(moved[..., None], upright, 0).float().to(device),
        torch.where(moved[..., None], twist, 0).float().to(device),
        ~moved.to(device),
        disc_row[:, 0].long().to(device),
        disc_column[0].long().to(device),
    )


def _draw_waves(images: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Wavelengths as shares of the side, and phases in radians, `(n, 2)` each: rows, columns."""
    n, device = len(images), images.device
    wavelengths = torch.rand(n, 2, device=device, generator=generator).mul_(0.2).add_(0.1)
    phases = torch.rand(n, 2, device=device, generator=generator).mul_(2 * math.pi)
    return wavelengths, phases


def _displace(images: Tensor, severity: float, wavelengths: Tensor, phases: Tensor) -> Tensor:
    """The ripple of the given waves: one matrix for the rows and one for the columns."""
    rows, columns = (
        _ripple_matrix(length, severity, wavelengths[:, axis, None], phases[:, axis, None])
        for axis, length in enumerate(images.shape[2:])
    )
    return to_bytes(rows[:, None] @ to_floats(images) @ columns.mT[:, None])


def _ripple_matrix(length: int, severity: float, wavelength: Tensor, phase: Tensor) -> Tensor:
    """Bilinear weights along one axis, `(n, length, length)`: to row i, from row j."""
    along = torch.arange(length, device=phase.device, dtype=torch.float32)
    shift = (along * (2 * math.pi / length) / wavelength + phase).sin_()
    shift.mul_(severity / 10 * 0.025 * length)
    steps = (along[:, None] - along) + shift[:, :, None]
    return steps.abs_().neg_().add_(1).clamp_min_(0)


def _draw_orders(images: Tensor, generator: Generator) -> Tensor:
    """For each color the number of its magnification, `(n, 3)`: a random permutation."""
    return torch.rand(len(images), 3, device=images.device, generator=generator).argsort(1)


def _magnify(images: Tensor, severity: float, orders: Tensor) -> Tensor:
    """The colors at the magnifications of the given orders."""
    height, width = images.shape[2:]
    rows = _magnifications(height, severity, images.device).index_select(0, orders.flatten())
    columns = _magnifications(width, severity, images.device).index_select(0, orders.flatten())
    levels = to_floats(images).reshape(-1, height, width)
    magnified = torch.bmm(torch.bmm(rows, levels), columns.mT)
    return to_bytes(magnified.add_(0.5).view(images.shape))


@lru_cache(maxsize=16)
def _magnifications(length: int, severity: float, device: torch.device) -> Tensor:
    """The three matrices along one axis, `(3, length, length)`."""
    matrices = []
    for step in range(3):
        resized = round((1 + step * (severity / 10 * 0.5) / 2) * length)
        first = (resized - length) // 2
        places = torch.arange(first, first + length, dtype=torch.float64)
        matrices.append(_spline_matrix(places * ((length - 1) / max(resized - 1, 1)), length))
    return torch.stack(matrices).float().to(device)


def _cubic(distance: Tensor) -> Tensor:
    """The cubic B-spline."""
    near, far = distance.abs(), (2 - distance.abs()).clamp_min(0)
    return torch.where(near < 1, 2 / 3 - near**2 + near**3 / 2, far**3 / 6)


def _spline_matrix(places: Tensor, length: int) -> Tensor:
    """The weights of `length` coefficients in the spline at `places`, mirrored at both ends."""
    along = torch.arange(length, dtype=torch.float64)
    weights = _cubic(places[:, None] - along)
    weights[:, 1:] += _cubic(places[:, None] + along[1:])
    weights[:, :-1] += _cubic(places[:, None] - (2 * (length - 1) - along[:-1]))
    return weights / weights.sum(1, keepdim=True)


@lru_cache(maxsize=16)
def _spline_inverse(length: int, device: torch.device) -> Tensor:
    """The matrix from pixels to the coefficients of the spline through them."""
    at_pixels = _spline_matrix(torch.arange(length, dtype=torch.float64), length)
    inverse: Tensor = torch.linalg.inv(at_pixels)
    return inverse.float().to(device)


@lru_cache(maxsize=5)
def _rotations(height: int, width: int, severity: float, device: torch.device) -> Mixture:
    """The coefficients that the blur adds for each pixel."""
    step = torch.linspace(-1, 1, _ROTATIONS, dtype=torch.float64)[:, None]
    share = torch.exp(-2 * step**2)
    share /= share.sum()
    angle = step * math.radians(severity / 10 * 15)
    size, middle_y, middle_x = height * width, (height - 1) / 2, (width - 1) / 2
    parts = []
    for pixels in torch.arange(size).split(4096):  # a large image's all at once would not fit
        dy, dx = pixels // width - middle_y, pixels % width - middle_x
        y = angle.cos() * dy + angle.sin() * dx + middle_y
        x = angle.cos() * dx - angle.sin() * dy + middle_x
        inside = (y >= 0) & (y <= height - 1) & (x >= 0) & (x <= width - 1)
        (rows, row_weights), (columns, column_weights) = _taps(y, height), _taps(x, width)
        source = rows[..., :, None] * width + columns[..., None, :]
        weight = (share * inside)[..., None, None] * row_weights[..., :, None]
        weight = weight * column_weights[..., None, :]
        target = pixels[:, None, None].expand_as(source)
        parts.append(merge(target.flatten(), source.flatten(), weight.flatten(), size))
    places, weights, begins = zip(*parts, strict=True)
    begin = torch.stack(begins).sum(0, dtype=torch.int32)  # each counts what is before a pixel
    return Mixture(torch.cat(places), torch.cat(weights), begin).to(device)


def _taps(places: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The four coefficients around each place, mirrored at both ends, and their weights."""
    taps = places.floor()[..., None] + torch.arange(-1, 3)
    weights = _cubic(places[..., None] - taps)
    mirrored = (length - 1) - ((length - 1) - taps.abs()).abs()
    return mirrored.clamp_min(0).long(), weights
