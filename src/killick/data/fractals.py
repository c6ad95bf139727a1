"""Images of rich structure to mix into training images: fractals and textures, all made here.

Six kinds come equally often: Julia sets, pieces of the Mandelbrot set, attractors of random maps,
colored clouds, interfering waves, and cells. None shows anything a network should learn to name.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

_STEPS = 48  # of the escape-time fractals
_FAR = 16.0  # where they count as escaped
_KEYS = 6  # colors of a palette
_PIXELS = 2**18  # drawn at once: keeps memory flat, and stays in the processor's cache


def make_mixing_images(count: int, size: int, seed: int) -> Tensor:
    """Images for `PixMix`, uint8 `(count, 3, size, size)`, of six kinds in random order.

    They should be somewhat larger than the images, so that crops differ.

    Example:
        >>> tuple(make_mixing_images(6, 36, seed=0).shape)
        (6, 3, 36, 36)
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randperm(count, generator=generator) % len(_KINDS)
    images = torch.empty(count, 3, size, size, dtype=torch.uint8)
    for kind, make in enumerate(_KINDS):
        rows = (kinds == kind).nonzero().squeeze(1)
        for chunk in rows.split(max(1, _PIXELS // size**2)):
            made = _strengthen(make(len(chunk), size, generator))
            images[chunk] = made.mul_(255).round_().clamp_(0, 255).byte()
    return images


def _make_julia(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Julia sets of numbers just outside the Mandelbrot set, where they are most intricate."""
    real, imaginary = _mandelbrot_edge(3 * n, generator)
    x0, y0 = (between((3 * n, 1, 1), -0.4, 0.4, generator) for _ in range(2))
    zoom = 1.5 * between((3 * n, 1, 1), -1.2, 0, generator).exp()
    views = torch.stack([x0, y0, zoom, real, imaginary, torch.zeros_like(zoom)], 1)
    return _color_views(views, n, size, generator)


def _make_mandelbrot(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Pieces of the Mandelbrot set's edge, at any scale."""
    real, imaginary = _mandelbrot_edge(3 * n, generator)
    zoom = between((3 * n, 1, 1), -5, -0.7, generator).exp()
    zero = torch.zeros_like(zoom)
    views = torch.stack([zero, zero, zero, real, imaginary, zoom], 1)
    return _color_views(views, n, size, generator)


def _mandelbrot_edge(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers just outside the set's two largest parts, the cardioid and the disc beside it."""
    turn = between((n, 1, 1), 0, 2 * math.pi, generator)
    beyond = between((n, 1, 1), 1.0, 1.08, generator)
    on_disc = torch.rand(n, 1, 1, generator=generator) < 0.25
    real = torch.where(on_disc, 0.25 * turn.cos() - 1, turn.cos() / 2 - (2 * turn).cos() / 4)
    imaginary = torch.where(on_disc, 0.25 * turn.sin(), turn.sin() / 2 - (2 * turn).sin() / 4)
    return real * beyond, imaginary * beyond


def _escape_time(views: Tensor, size: int) -> Tensor:
    """How soon `z*z + c` leaves, positive; where it stays, how near it comes to 0, from -1 to 0.

    `views` has for each image the middle and the half width of `z`, and of `c`, `(n, 6, 1, 1)`.
    """
    z_real, z_imaginary, z_zoom, c_real, c_imaginary, c_zoom = views.unbind(1)
    x, y = _grid(size)
    real, imaginary = c_real + c_zoom * x, c_imaginary + c_zoom * y
    x, y = (z.expand(-1, size, size) for z in (z_real + z_zoom * x, z_imaginary + z_zoom * y))
    nearest = torch.full_like(x, _FAR)
    when = torch.full_like(x, -1.0)
    for step in range(_STEPS):
        squares = x * x + y * y
        left = (squares > _FAR**2) & (when < 0)
        smooth = step + 1 - (squares.clamp_min(2).log() / (2 * math.log(_FAR))).log2()
        when = torch.where(left, smooth.clamp_min(0), when)
        x, y = x * x - y * y + real, 2 * x * y + imaginary
        x, y = x.clamp_(-1e4, 1e4), y.clamp_(-1e4, 1e4)  # what has left must not overflow
        nearest = torch.minimum(nearest, x.hypot(y))
    return torch.where(when < 0, -nearest.clamp_max(1), when)


def _color_views(views: Tensor, n: int, size: int, generator: torch.Generator) -> Tensor:
    """The `n` most varied views in color; four points a pixel, since edges are finer than any."""
    small = _escape_time(views, 12).add(2).log()
    change = (small[:, :, 1:] - small[:, :, :-1]).abs().mean((1, 2))
    fine = _escape_time(views[change.argsort(descending=True)[:n]], 2 * size)
    values = torch.where(fine < 0, fine + 1, fine.add(2).log())
    return functional.avg_pool2d(_color(_spread(values), generator), 2)


def _make_attractors(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Where points gather that jump by one of four random maps, again and again."""
    points, jumps, settling = 2 * size**2, 24, 8
    linear, shift = _draw_maps(n, 4, generator)
    bend = torch.rand(n, 1, 1, generator=generator) < 0.5
    where = between((n, points, 2), -1, 1, generator)
    shade = torch.rand(n, points, generator=generator)
    image = torch.arange(n)[:, None]
    hits, shades = torch.zeros(n, size**2), torch.zeros(n, size**2)
    for jump in range(jumps):
        chosen = torch.randint(4, (n, points), generator=generator)
        where = (linear[image, chosen] @ where[..., None])[..., 0] + shift[image, chosen]
        where = torch.where(bend, where.sin(), where)
        shade = (shade + chosen / 3) / 2  # remembers the way that led here
        if jump >= settling:
            spread, middle = torch.std_mean(where, 1, keepdim=True)
            cell = ((where - middle) / (4.4 * spread + 1e-3) + 0.5) * size
            cell = cell.floor_().clamp_(0, size - 1).long()
            index = cell[..., 0] * size + cell[..., 1]
            hits.scatter_add_(1, index, torch.ones_like(shade))
            shades.scatter_add_(1, index, shade)
    shades = (shades / hits.clamp_min(1)).view(n, size, size)
    light = _spread(hits.add_(1).log_().view(n, size, size))
    ground = torch.rand(n, 3, 1, 1, generator=generator) * 0.5
    return torch.lerp(ground, _color(shades, generator), light[:, None])


def _draw_maps(n: int, maps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Linear parts `(n, maps, 2, 2)` that turn, shrink and shear a little, and shifts."""
    angle = between((n, maps), 0, 2 * math.pi, generator)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 2)
    shear = 0.25 * torch.randn(n, maps, 4, generator=generator)
    linear = (turn + shear) * between((n, maps, 1), 0.4, 0.7, generator)
    return linear.view(n, maps, 2, 2), between((n, maps, 2), -1, 1, generator)


def _make_clouds(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Noise in three mixed colors whose power falls with frequency, slowly or steeply."""
    rows, columns = torch.fft.fftfreq(size)[:, None], torch.fft.rfftfreq(size)[None, :]
    frequency = rows.hypot(columns).clamp_min(1 / size)
    fall = between((n, 1, 1, 1), 0.8, 2.2, generator)
    noise = torch.fft.rfft2(torch.randn(n, 3, size, size, generator=generator))
    layers: Tensor = torch.fft.irfft2(noise * frequency**-fall, s=(size, size)).flatten(2)
    layers = (layers - layers.mean(2, keepdim=True)) / layers.std(2, keepdim=True)
    mixing = functional.normalize(torch.randn(n, 3, 3, generator=generator), dim=2)
    light = between((n, 3, 1), -0.8, 0.8, generator)
    return (mixing @ layers * 1.4 + light).sigmoid().view(n, 3, size, size)


def _make_waves(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Waves of several directions that bend and disturb each other."""
    x, y = _grid(size)
    total = torch.zeros(n, size, size)
    for _ in range(4):
        angle, phase = (between((n, 1, 1), 0, 2 * math.pi, generator) for _ in range(2))
        length = between((n, 1, 1), 0.7, 2.6, generator).exp()
        along = length * (x * angle.cos() + y * angle.sin())
        total = total + (along + phase + 1.5 * total).sin()
    return _color(_spread(total), generator)


def _make_cells(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Cells around random points, each with its color, darker towards its walls."""
    points = 20
    x, y = _grid(size)
    x0, y0 = (between((n, points, 1, 1), -1.1, 1.1, generator) for _ in range(2))
    power = between((n, 1, 1, 1), 1, 2.5, generator)  # 2 has straight walls, 1 is angular
    distance = ((x - x0).abs() ** power + (y - y0).abs() ** power) ** (1 / power)
    two = distance.topk(2, dim=1, largest=False)
    shade = torch.rand(n, points, generator=generator)
    own = shade.gather(1, two.indices[:, 0].flatten(1)).view(n, size, size)
    ripple = between((n, 1, 1), 0, 0.6, generator)
    image = _color((own + ripple * two.values[:, 0]).clamp_(0, 1), generator)
    wall = (two.values[:, 1] - two.values[:, 0]) * between((n, 1, 1), 4, 16, generator)
    return image * wall.clamp(0.25, 1)[:, None]


def _color(values: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers from 0 to 1, `(n, h, w)`, in colors: each image has a palette of its own."""
    n = len(values)
    keys = torch.rand(n, 3, _KEYS, generator=generator)
    position = values.flatten(1).clamp(0, 1) * (_KEYS - 1)
    below = position.long().clamp_max(_KEYS - 2)
    index = below[:, None].expand(-1, 3, -1)
    low, high = keys.gather(2, index), keys.gather(2, index + 1)
    mixed = torch.lerp(low, high, (position - below)[:, None])
    return mixed.view(n, 3, *values.shape[1:])


def _spread(values: Tensor) -> Tensor:
    """From 0 to 1 in each image, but for the outermost hundredths, which are cut off."""
    flat = values.flatten(1)
    ordered = flat[:, :: max(1, flat.shape[1] // 2048)].sort(dim=1).values  # a part is enough
    edge = ordered.shape[1] // 50
    low, high = ordered[:, edge, None, None], ordered[:, -1 - edge, None, None]
    return ((values - low) / (high - low).clamp_min(1e-6)).clamp_(0, 1)


def _strengthen(images: Tensor) -> Tensor:
    """The same, but those of little contrast with more: none is nearly of one color."""
    spread, middle = torch.std_mean(images, (2, 3), keepdim=True)
    factor = 0.15 / spread.mean(1, keepdim=True).clamp_min(1e-3)
    return middle + (images - middle) * factor.clamp_min(1)


def between(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Random numbers, uniform from `low` to `high`."""
    return torch.rand(shape, generator=generator) * (high - low) + low


def _grid(size: int) -> tuple[Tensor, Tensor]:
    """Of each pixel its middle, from -1 to 1 over the image."""
    ticks = (torch.arange(size) + 0.5) * (2 / size) - 1
    return ticks[None, :], ticks[:, None]


_KINDS: tuple[Callable[[int, int, torch.Generator], Tensor], ...] = (
    *(_make_julia, _make_mandelbrot, _make_attractors),
    *(_make_clouds, _make_waves, _make_cells),
)
