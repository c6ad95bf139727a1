"""Plane waves, rings, plasma and checkerboards against loops written from their definitions."""

import math

import numpy as np
import pytest
import torch

from killick.corruptions import cbar_patterns
from killick.corruptions.cbar_patterns import (
    checkerboard_cutout,
    cocentric_sine_waves,
    plasma_noise,
    single_frequency_greyscale,
)
from killick.corruptions.corruption import CORRUPTIONS

ALL = [checkerboard_cutout, cocentric_sine_waves, plasma_noise, single_frequency_greyscale]
MANY = 20_000


def severities(name: str) -> list[float]:
    """Of both lists, each number once."""
    rows = (CORRUPTIONS.find(name).cifar or ()) + (CORRUPTIONS.find(name).imagenet or ())
    return sorted({severity for (severity,) in rows})


def cases(name: str) -> list[tuple[float, int, int, int]]:
    """Images, height and width for every severity, at 32 px, oblong, small, and once at 224 px."""
    every = severities(name)
    square = [(severity, 8, 32, 32) for severity in every]
    oblong = [(severity, 8, 17, 30) for severity in every]
    return [*square, *oblong, (every[0], 8, 31, 12), (every[1], 8, 7, 9), (every[2], 1, 224, 224)]


def some_images(n: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(256, (n, 3, height, width), dtype=torch.uint8, generator=generator)


def blank(n: int, height: int, width: int) -> torch.Tensor:
    """Images that take no memory."""
    return torch.zeros((), dtype=torch.uint8).expand(n, 3, height, width)


def numbers(draw: tuple[torch.Tensor, ...], image: int) -> list[float]:
    """What was drawn for one image."""
    return [float(values[image]) for values in draw]


def agree(found: torch.Tensor, expected: np.ndarray, jumps: float = 0.0) -> bool:
    """Equal after truncation, but for a level where float32 ends up on the other side.

    At a discontinuity the other side is far away: a share of `jumps` may be anywhere.
    """
    difference = np.abs(found.numpy().astype(int) - np.clip(expected, 0, 255).astype(int))
    return bool((difference > 1).mean() <= jumps and (difference == 0).mean() > 0.99)


def is_uniform(values: torch.Tensor, low: float, high: float) -> bool:
    """Whether the values fill [low, high] evenly: Kolmogorov and Smirnov, one error in 1000."""
    share = ((values.double().flatten() - low) / (high - low)).sort().values
    steps = torch.arange(len(share) + 1) / len(share)
    distance = torch.maximum(share - steps[:-1], steps[1:] - share).max()
    return bool(share[0] >= 0 and share[-1] <= 1 and distance < 1.95 / math.sqrt(len(share)))


def are_unrelated(draw: tuple[torch.Tensor, ...]) -> bool:
    """Whether no two of the numbers drawn for an image go together."""
    table = torch.stack([values.double().flatten() for values in draw])
    return bool(torch.corrcoef(table).fill_diagonal_(0).abs().max() < 0.03)


# --- single_frequency_greyscale


@pytest.mark.parametrize(("severity", "n", "height", "width"), cases("single_frequency_greyscale"))
def test_a_plane_wave_is_added(severity, n, height, width, generator):
    images = some_images(n, height, width)
    draw = cbar_patterns._draw_plane_wave(images, generator)
    wave = np.zeros((n, 1, height, width))
    for image in range(n):
        across, down, phase = numbers(draw, image)
        for y in range(height):
            for x in range(width):
                wave[image, 0, y, x] = math.sin(across * x + down * y + phase)
    found = cbar_patterns._apply_plane_wave(images, severity, draw)
    assert agree(found, images.numpy() + 19.6 * severity * wave)


def test_plane_waves_have_one_uniform_frequency_and_another_below_it(generator):
    draw = cbar_patterns._draw_plane_wave(blank(MANY, 1, 1), generator)
    level = draw.across.abs() > draw.down.abs()
    larger = torch.where(level, draw.across, draw.down)
    smaller = torch.where(level, draw.down, draw.across)
    assert is_uniform(larger, -math.pi, math.pi)
    assert is_uniform(smaller / larger, -1, 1)
    assert is_uniform(draw.phase, 0, 2 * math.pi)
    assert level.float().mean().item() == pytest.approx(0.5, abs=0.012)
    assert are_unrelated((larger, smaller / larger, level, draw.phase))


# --- cocentric_sine_waves


@pytest.mark.parametrize(("severity", "n", "height", "width"), cases("cocentric_sine_waves"))
def test_wavy_rings_are_added(severity, n, height, width, generator):
    images = some_images(n, height, width)
    draw = cbar_patterns._draw_rings(images, generator)
    saw = np.zeros((n, 1, height, width))
    for image in range(n):
        column, row, frequency, amplitude, breadth = numbers(draw, image)
        for y in range(height):
            for x in range(width):
                angle = math.atan2(x - column, y - row)
                reach = math.dist((x, y), (column, row)) + amplitude * math.sin(frequency * angle)
                saw[image, 0, y, x] = (reach % breadth) / breadth - 0.5
    found = cbar_patterns._apply_rings(images, severity, draw)
    assert agree(found, images.numpy() + 12.8 * severity * saw, jumps=1e-3)


@pytest.mark.parametrize(("height", "width", "tenth"), [(224, 224, 22.4), (30, 50, 3.0)])
def test_rings_are_drawn_over_the_image(height, width, tenth, generator):
    draw = cbar_patterns._draw_rings(blank(MANY, height, width), generator)
    ends = {"column": width, "row": height, "frequency": 10, "amplitude": tenth, "breadth": tenth}
    assert all(is_uniform(getattr(draw, name), 0, end) for name, end in ends.items())
    assert are_unrelated(draw)


def test_rings_of_no_breadth_are_finite():
    draw = cbar_patterns._draw_rings(blank(1, 8, 8), None)._replace(breadth=torch.zeros(1, 1, 1))
    result = cbar_patterns._apply_rings(torch.full((1, 3, 8, 8), 128, dtype=torch.uint8), 5, draw)
    assert (result.int() - 128).abs().max() <= 33


# --- plasma_noise


def plasma(x: float, y: float, time: float, steps: int, sharpness: float) -> list[float]:
    """Red, green and blue between -1 and 1 at a point in units of the scale."""
    frequency, slowness, smallness = 1.0, 1.0, 1.0
    for _ in range(steps):
        first = math.cos(y * frequency + time / slowness) / smallness
        second = math.sin(x * frequency + time / slowness) / smallness
        x, y = x + first - 0.3 * second, y + second + 0.3 * first
        frequency *= 1.93
        slowness *= 1.15
        smallness *= 2.25 - sharpness
    mean = 0.5 * (x + y + math.sin(time))
    return [math.sin(x - time), math.sin(mean), math.sin(y + time)]


@pytest.mark.parametrize(("severity", "n", "height", "width"), cases("plasma_noise"))
def test_plasma_is_blended_in(severity, n, height, width, generator):
    images = some_images(n, height, width)
    draw = cbar_patterns._draw_plasma(images, generator)
    colours = np.zeros((n, 3, height, width))
    for image in range(n):
        time, steps, sharpness, scale = numbers(draw, image)
        for y in range(height):
            for x in range(width):
                here = plasma(x / scale, y / scale, time, int(steps), sharpness)
                colours[image, :, y, x] = here
    left = 1 - 6.4 * severity / 255
    found = cbar_patterns._apply_plasma(images, severity, draw)
    assert agree(found, left * images.numpy() + 6.4 * severity * colours)


def test_plasma_is_drawn_in_its_ranges(generator):
    draw = cbar_patterns._draw_plasma(blank(MANY, 224, 300), generator)
    assert is_uniform(draw.time, 0, 6 * math.pi)
    assert is_uniform(draw.sharpness, 0.5, 1)
    assert is_uniform(draw.scale, 16.8, 44.8)
    counts = draw.steps.flatten().bincount(minlength=8) / MANY
    assert counts.tolist() == pytest.approx([0, 0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0], abs=0.011)
    assert are_unrelated(draw)


# --- checkerboard_cutout


def on_board(draw: cbar_patterns._Board, image: int, y: int, x: int) -> tuple[float, float]:
    """A pixel in the coordinates of the turned board, in squares."""
    angle, square = float(draw.angle[image]), float(draw.square[image])
    first = (y * math.cos(angle) + x * math.sin(angle)) / square
    second = (x * math.cos(angle) - y * math.sin(angle)) / square
    return first, second


@pytest.mark.parametrize(("severity", "n", "height", "width"), cases("checkerboard_cutout"))
def test_squares_of_one_colour_are_cut_out(severity, n, height, width, generator):
    images = some_images(n, height, width)
    draw = cbar_patterns._draw_board(images, generator)
    middle = draw.chance.shape[1] // 2
    expected = images.clone()
    for image in range(n):
        for y in range(height):
            for x in range(width):
                first, second = map(math.floor, on_board(draw, image, y, x))
                chance = draw.chance[image, middle + first, middle + second]
                if first % 2 == second % 2 and chance < severity / 10:
                    expected[image, :, y, x] = 128
    found = cbar_patterns._apply_board(images, severity, draw)
    assert (found != expected).float().mean() < 1e-3  # pixels on an edge
    assert found.ne(images).any()


def test_numbers_are_shared_by_the_same_squares_as_in_the_original_table(generator):
    # There a square is looked up rounded towards zero, in a table of 4 * side // square entries
    # each way, the negative ones from its end.
    side, n = 20, 60
    draw = cbar_patterns._draw_board(blank(n, side, side), generator)
    middle = draw.chance.shape[1] // 2
    for image in range(n):
        entries = int(4 * side // float(draw.square[image]))
        table: dict[tuple[int, int], float] = {}
        for y in range(side):
            for x in range(side):
                first, second = on_board(draw, image, y, x)
                if int(first % 2) == int(second % 2):
                    place = (int(first) % entries, int(second) % entries)
                    down, right = middle + math.floor(first), middle + math.floor(second)
                    chance = float(draw.chance[image, down, right])
                    assert table.setdefault(place, chance) == chance
        assert len(table) == len(set(table.values()))


def test_boards_are_drawn_in_their_ranges(generator):
    draw = cbar_patterns._draw_board(blank(MANY // 4, 224, 250), generator)
    assert is_uniform(draw.angle, 0, 2 * math.pi)
    assert is_uniform(draw.square, 22.4, 56)
    assert is_uniform(draw.chance[:, ::5, ::5], 0, 1)
    assert cbar_patterns._draw_board(blank(50, 5, 5), generator).square.min() == 1


@pytest.mark.parametrize("severity", severities("checkerboard_cutout"))
def test_half_of_the_fraction_becomes_grey(severity, generator):
    white = torch.full((1500, 3, 32, 32), 255, dtype=torch.uint8)
    result = checkerboard_cutout(white, severity, generator=generator)
    assert result.unique().tolist() == [128, 255]
    assert result.eq(128).float().mean().item() == pytest.approx(severity / 20, rel=0.06)
