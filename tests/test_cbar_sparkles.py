"""Sparkles, inverse sparkles and lines of C-bar, against slow loops over pixels."""

import math
import warnings
from importlib import import_module

import pytest
import torch
from torch import Tensor

from killick.corruptions import cbar_sparkles as cbar
from killick.corruptions.corruption import CORRUPTIONS

NAMES = ("sparkles", "inverse_sparkles", "lines")
SIZES = ((32, 32), (11, 18))


def some_images(n: int, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, 3, height, width), dtype=torch.uint8, generator=g)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def severities(name: str) -> list[float]:
    rows = (CORRUPTIONS.find(name).cifar, CORRUPTIONS.find(name).imagenet)
    return sorted({severity for row in rows if row is not None for (severity,) in row})


def is_truncated(found: Tensor, exact: Tensor, within: float = 0.02) -> bool:
    """Whether `found` is `exact` truncated, up to what float32 can tell."""
    low, high = (exact - within).clamp(0, 255).floor(), (exact + within).clamp(0, 255).floor()
    return bool(((low <= found) & (found <= high)).all())


def is_uniform(values: Tensor, low: float, high: float) -> bool:
    """Whether the values fill the interval evenly (Kolmogorov and Smirnov, at about 0.001)."""
    values = ((values.double().flatten() - low) / (high - low)).sort().values
    expected = torch.arange(len(values)) / len(values)
    inside = bool((values >= 0).all() and (values <= 1).all())
    return inside and float((values - expected).abs().max()) < 1.95 / math.sqrt(len(values))


def share_at(dy: float, dx: float, lengths: list[float], exponent: float) -> float:
    """How strongly a burst of rays reaches a pixel at this offset from its centre."""
    around = (0.5 + math.atan2(dx, dy) / (2 * math.pi)) * len(lengths)
    ray, part = math.floor(around), around - math.floor(around)
    first, second = lengths[ray % len(lengths)], lengths[(ray + 1) % len(lengths)]
    length = (1 - part) * first + part * second
    strength = (length**2 / (dy**2 + dx**2 + 1e-4)) ** exponent
    return min(1.0, (1 - (part - 0.5) ** 2) * strength)


def burst(shape: tuple[int, int], drawn: cbar.Bursts, i: int, k: int, lengths, exponent) -> Tensor:
    row, column = drawn.centers[i, k].tolist()
    shares = torch.empty(shape, dtype=torch.float64)
    for y in range(shape[0]):
        for x in range(shape[1]):
            shares[y, x] = share_at(y - row, x - column, lengths, exponent)
    return shares


def sparkles_slowly(image: Tensor, severity: float, drawn: cbar.Bursts, i: int) -> Tensor:
    shape = (image.shape[1], image.shape[2])
    radius, values = 0.01 * severity * min(shape), image.double()
    for k in range(5):
        count = int(drawn.rays[i, k])
        lengths = [max(1, radius * (1 + 0.25 * g)) for g in drawn.spread[i, k, :count].tolist()]
        values = values + burst(shape, drawn, i, k, lengths, 1.0) * (255 - values)
    return values


def inverse_slowly(image: Tensor, severity: float, drawn: cbar.Bursts, i: int) -> Tensor:
    shape = (image.shape[1], image.shape[2])
    radius, count = min(shape) / 4, int(drawn.rays[i, 0])
    lengths = [radius * (1 + 0.25 * g) for g in drawn.spread[i, 0, :count].tolist()]
    shares = burst(shape, drawn, i, 0, lengths, 0.13 * severity)
    return 255 + shares * (image.double() - 255)


def ends_slowly(shape: tuple[int, int], drawn: cbar.Lines, i: int, k: int) -> list[int]:
    u, v, turn = drawn.places[i, k].tolist()
    angle = float(drawn.angle[i]) + 2 * math.pi * float(drawn.variation[i]) * (turn - 0.5)
    reach_y, reach_x = min(shape) * math.cos(angle), min(shape) * math.sin(angle)
    y, x = shape[0] * u, shape[1] * v
    return [int(y - reach_y), int(x - reach_x), int(y + reach_y), int(x + reach_x)]


def cover_slowly(y0: int, x0: int, y1: int, x1: int) -> dict[tuple[int, int], float]:
    """A walk along the longer axis, which paints the pixels beside the line."""
    if abs(y1 - y0) > abs(x1 - x0):
        return {(y, x): share for (x, y), share in cover_slowly(x0, y0, x1, y1).items()}
    length, step = max(math.hypot(y1 - y0, x1 - x0), 1), 1 if x1 >= x0 else -1
    painted = {}
    for x in range(x0, x1 + step, step):
        on_line = y0 + (y1 - y0) * (x - x0) / max(abs(x1 - x0), 1) * step
        for y in range(math.floor(on_line) - 2, math.ceil(on_line) + 3):
            distance = abs(y - on_line) * abs(x1 - x0) / length
            if min(y0, y1) <= y <= max(y0, y1) and distance < 1 - 1e-9:
                painted[y, x] = 1 - distance
    return painted


def lines_slowly(image: Tensor, severity: float, drawn: cbar.Lines, i: int) -> Tensor:
    shape = (image.shape[1], image.shape[2])
    values = image.double().clone()
    for k in range(int(severity / 10 * min(shape))):
        for (y, x), share in cover_slowly(*ends_slowly(shape, drawn, i, k)).items():
            if 0 <= y < shape[0] and 0 <= x < shape[1]:
                mixed = (1 - share) * values[:, y, x] + share * 128
                values[:, y, x] = (mixed + 1e-3).floor()  # the guard of all truncations
    return values


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("severity", severities("sparkles"))
def test_sparkles_are_those_of_the_slow_version(severity, size):
    images = some_images(1, *size)
    drawn = cbar._draw_bursts(images, 5, 0.0, 1.0, seeded())
    found = cbar._add_sparkles(images, severity, drawn)
    assert is_truncated(found[0], sparkles_slowly(images[0], severity, drawn, 0))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("severity", severities("inverse_sparkles"))
def test_inverse_sparkles_are_those_of_the_slow_version(severity, size):
    images = some_images(2, *size)
    drawn = cbar._draw_bursts(images, 1, 0.25, 0.75, seeded())
    found = cbar._surround(images, severity, drawn)
    for i in range(2):
        assert is_truncated(found[i], inverse_slowly(images[i], severity, drawn, i))


@pytest.mark.slow
def test_sparkles_are_those_of_the_slow_version_at_the_size_of_imagenet():
    images = some_images(2, 224, 224)
    five, one = (cbar._draw_bursts(images, k, 0.25, 0.75, seeded()) for k in (5, 1))
    found = cbar._add_sparkles(images, 3, five)
    assert is_truncated(found[1], sparkles_slowly(images[1], 3, five, 1))
    found = cbar._surround(images, 4, one)
    assert is_truncated(found[1], inverse_slowly(images[1], 4, one, 1))


@pytest.mark.parametrize("size", [*SIZES, (224, 224)])
@pytest.mark.parametrize("severity", severities("lines"))
def test_lines_are_those_of_the_slow_version(severity, size):
    images = some_images(2, *size)
    drawn = cbar._draw_lines(images, int(severity / 10 * min(size)), seeded())
    found = cbar._cross_out(images, drawn).double()
    for i in range(2):
        wrong = (found[i] - lines_slowly(images[i], severity, drawn, i)).abs()
        assert wrong.max() <= 1
        assert (wrong > 0).double().mean() < 1e-3


def test_ends_of_lines_are_truncated_towards_zero():
    images = some_images(40, 20, 27)
    drawn = cbar._draw_lines(images, 6, seeded())
    rows, columns = cbar._ends(20, 27, drawn)
    slow = [[ends_slowly((20, 27), drawn, i, k) for k in range(6)] for i in range(40)]
    both = torch.stack((rows, columns), 3).flatten(2)  # y0 x0 y1 x1
    assert (both == torch.tensor(slow)).all()
    assert (rows < 0).any()
    assert (rows > 20).any()


def test_a_single_line_is_that_of_scikit_image():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw = import_module("skimage.draw")
    for y in range(-21, 22):
        for x in range(-21, 22):
            rows, columns, shares = draw.line_aa(3, -2, 3 + y, -2 + x)
            slow = cover_slowly(3, -2, 3 + y, -2 + x)
            theirs = dict(
                zip(zip(rows.tolist(), columns.tolist(), strict=True), shares, strict=True)
            )
            assert theirs.keys() == slow.keys()
            assert all(abs(theirs[at] - slow[at]) < 1e-6 for at in slow)


@pytest.mark.parametrize(("severity", "count"), [(0.5, 1), (1, 3), (1.5, 4), (2, 6), (2.5, 8)])
def test_the_number_of_lines_is_the_truncated_share_of_the_side(severity, count, monkeypatch):
    counts = []
    draw = cbar._draw_lines
    monkeypatch.setattr(cbar, "_draw_lines", lambda *a: counts.append(a[1]) or draw(*a))
    cbar.lines(some_images(1), severity, generator=None)
    cbar.lines(some_images(1, 32, 90), severity, generator=None)
    assert counts == [count, count]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.25, 0.75)])
def test_bursts_are_drawn_as_the_authors_do(low, high):
    drawn = cbar._draw_bursts(some_images(4000, 2, 3), 5, low, high, seeded())
    assert is_uniform(drawn.centers[..., 0], 2 * low, 2 * high)
    assert is_uniform(drawn.centers[..., 1], 3 * low, 3 * high)
    assert is_uniform(torch.special.ndtr(drawn.spread[:, :, :10]), 0, 1)
    counts = drawn.rays.flatten().bincount(minlength=200).double()
    assert counts[:50].sum() == 0
    assert len(counts) == 200
    assert (counts[50:] - 20000 / 150).abs().max() < 5 * math.sqrt(20000 / 150)


def test_lines_are_drawn_as_the_authors_do():
    drawn = cbar._draw_lines(some_images(8000, 1, 1), 4, seeded())
    assert is_uniform(drawn.angle, 0, 2 * math.pi)
    assert is_uniform(drawn.variation, 0.1, 1)
    for axis in range(3):
        assert is_uniform(drawn.places[..., axis], 0, 1)


def test_where_sparkles_may_lie_differs(monkeypatch):
    ranges = []
    draw = cbar._draw_bursts
    monkeypatch.setattr(cbar, "_draw_bursts", lambda *a: ranges.append(a[1:4]) or draw(*a))
    cbar.sparkles(some_images(1), 1, generator=None)
    cbar.inverse_sparkles(some_images(1), 1, generator=None)
    assert ranges == [(5, 0.0, 1.0), (1, 0.25, 0.75)]


def test_the_last_ray_is_followed_by_the_first():
    lengths = torch.arange(199.0).repeat(2, 1)
    around = cbar._close(lengths, torch.tensor([[50], [199]]))
    assert around[0, 48:52].tolist() == [48, 49, 0, 1]
    assert around[1, 197:].tolist() == [197, 198, 0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_a_higher_severity_changes_more(name):
    images = some_images(64)
    changes = [
        (getattr(cbar, name)(images, *row, generator=seeded()).float() - images).abs().mean()
        for row in CORRUPTIONS.find(name).cifar
    ]
    assert changes == sorted(changes)
    assert changes[0] > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_draw_is_the_generators_and_the_input_stays(name):
    images = some_images(6)
    before, make = images.clone(), getattr(cbar, name)
    first = make(images, 2.5, generator=seeded(1))
    assert torch.equal(first, make(images, 2.5, generator=seeded(1)))
    assert not torch.equal(first, make(images, 2.5, generator=seeded(2)))
    assert torch.equal(images, before)
    assert first.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("name", NAMES)
def test_the_global_state_is_left_alone(name):
    state = torch.get_rng_state()
    getattr(cbar, name)(some_images(2), 2.5, generator=seeded())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", NAMES)
def test_each_image_has_a_draw_of_its_own(name):
    images = some_images(1).expand(8, -1, -1, -1)
    found = getattr(cbar, name)(images, 2.5, generator=seeded())
    assert len(found.flatten(1).unique(dim=0)) == 8


def test_white_stays_white_and_sparkles_only_brighten():
    images = some_images(8)
    assert (cbar.sparkles(images, 7, generator=seeded()) >= images).all()
    assert (cbar.inverse_sparkles(images, 5, generator=seeded()) >= images).all()
    assert (cbar.sparkles(torch.full_like(images, 255), 7, generator=seeded()) == 255).all()


def test_a_image_of_the_lines_grey_stays():
    images = torch.full((4, 3, 32, 32), 128, dtype=torch.uint8)
    assert torch.equal(cbar.lines(images, 2.5, generator=seeded()), images)
