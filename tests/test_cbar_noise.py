"""Blue, brownish and Perlin noise against loops written from their definitions."""

import math

import numpy as np
import pytest
import torch

from killick.corruptions import cbar_noise
from killick.corruptions.cbar_noise import blue_noise_sample, brownish_noise, perlin_noise
from killick.corruptions.corruption import CORRUPTIONS

CPU = torch.device("cpu")
ALL = [blue_noise_sample, brownish_noise, perlin_noise]


def severities(name: str) -> list[float]:
    """Of both lists, each number once."""
    rows = (CORRUPTIONS.find(name).cifar or ()) + (CORRUPTIONS.find(name).imagenet or ())
    return sorted({severity for (severity,) in rows})


def cases(name: str) -> list[tuple[float, int, int]]:
    """Every severity, in turn at 32 px and at sizes with one side longer, odd or both."""
    sizes = [(32, 32), (18, 26), (21, 14), (15, 15), (12, 19)]
    every = severities(name)
    square = [(severity, 32, 32) for severity in every]
    return square + [(every[i], *size) for i, size in enumerate(sizes[1:])]


def some_images(n: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(256, (n, 3, height, width), dtype=torch.uint8, generator=generator)


def agree(found: torch.Tensor, expected: np.ndarray) -> bool:
    """Equal after truncation, but for a level where float32 ends up on the other side."""
    difference = np.abs(found.numpy().astype(int) - np.clip(expected, 0, 255).astype(int))
    return bool(difference.max() <= 1 and (difference == 0).mean() > 0.99)


# --- noise made from its spectrum


def spectral_noise(phases: torch.Tensor, height: int, width: int, brown: bool) -> np.ndarray:
    """The real part of a sum of waves, over its standard deviation, wave by wave in float64."""
    numbers = iter(phases.double().tolist())
    angle = np.full((height, width), np.nan)
    for row in range(height):
        for column in range(width // 2):
            angle[row, column] = next(numbers)
            angle[height - 1 - row, width - 1 - column] = angle[row, column]
    if width % 2:
        for row in range((height + 1) // 2):
            angle[row, width // 2] = angle[height - 1 - row, width // 2] = next(numbers)
    assert next(numbers, None) is None
    side = min(height, width)
    total = np.zeros((height, width), complex)
    down = np.arange(height)[:, None] / height
    across = np.arange(width)[None, :] / width
    for row in range(height):
        along = np.zeros((1, width), complex)
        for column in range(width):
            y, x = (row - height / 2) * side / height, (column - width / 2) * side / width
            power = 1 / (x * x + y * y + 1) if brown else math.sqrt(x * x + y * y)
            turn = 2 * np.pi * (column + width // 2) * across + angle[row, column]
            along += power * np.exp(1j * turn)
        total += np.exp(2j * np.pi * (row + height // 2) * down) * along
    return total.real / total.real.std()


@pytest.mark.parametrize(("severity", "height", "width"), cases("blue_noise_sample"))
def test_blue_noise_blots_out_what_the_definition_does(severity, height, width, generator):
    images = some_images(2, height, width)
    phases = cbar_noise._draw_phases(images, 1, generator)
    found = cbar_noise._apply_blue_noise(images, severity, phases)
    for image, drawn, result in zip(images, phases, found, strict=True):
        kept = spectral_noise(drawn, height, width, brown=False) > 0.3 * severity - 2.5
        assert np.array_equal(result.numpy(), image.numpy() * kept)


@pytest.mark.parametrize(("severity", "height", "width"), cases("brownish_noise"))
def test_brownish_noise_adds_what_the_definition_does(severity, height, width, generator):
    images = some_images(2, height, width)
    phases = cbar_noise._draw_phases(images, 3, generator)
    found = cbar_noise._apply_brownish_noise(images, severity, phases)
    noise = np.stack([spectral_noise(drawn, height, width, brown=True) for drawn in phases])
    noise = noise.reshape(2, 3, height, width)
    assert agree(found, images.numpy() + 6.4 * severity * noise)


@pytest.mark.slow
def test_spectral_noise_is_the_definition_at_224_too(generator):
    images = some_images(1, 224, 224)
    phases = cbar_noise._draw_phases(images, 3, generator)
    blue = cbar_noise._apply_blue_noise(images, 2.4, phases[:1])
    kept = spectral_noise(phases[0], 224, 224, brown=False) > 0.3 * 2.4 - 2.5
    assert np.array_equal(blue.numpy(), images.numpy() * kept)
    brown = cbar_noise._apply_brownish_noise(images, 3, phases)[:, 1]
    added = 19.2 * spectral_noise(phases[1], 224, 224, brown=True)
    assert agree(brown, images[:, 1].numpy() + added)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (9, 9), (9, 12), (12, 9), (1, 1)])
def test_phases_are_uniform_and_independent(height, width, generator):
    phases = cbar_noise._draw_phases(some_images(4000, height, width), 1, generator).double()
    drawn = phases[:, :-1] if height % 2 and width % 2 else phases
    assert drawn.shape == phases.shape or phases[:, -1].eq(0).all()
    if drawn.numel():
        assert drawn.min() >= 0
        assert drawn.max() < 2 * math.pi + 1e-6
        waves = torch.exp(1j * drawn)
        assert waves.mean(0).abs().max() < 0.07  # each phase of its own, over the images
        assert waves.mean(1).abs().square().mul(drawn.shape[1]).mean().sub(1).abs() < 0.1


@pytest.mark.parametrize("severity", severities("blue_noise_sample"))
def test_blue_noise_blots_out_the_share_of_a_normal_distribution(severity, generator):
    white = torch.full((200, 3, 32, 32), 255, dtype=torch.uint8)
    result = blue_noise_sample(white, severity, generator=generator)
    expected = 0.5 * math.erfc((2.5 - 0.3 * severity) / math.sqrt(2))
    assert result.eq(0).float().mean().item() == pytest.approx(expected, rel=0.06)
    assert torch.equal(result[:, 0], result[:, 1])
    assert torch.equal(result[:, 0], result[:, 2])


CYCLES = np.hypot(*np.meshgrid(*[np.minimum(np.arange(32), 32 - np.arange(32))] * 2))


def rings(power: np.ndarray) -> np.ndarray:
    """The mean over frequencies about 1, 2, … 15 cycles from zero, of planes 32 px wide."""
    return np.array([power[np.round(CYCLES) == cycles].mean() for cycles in range(1, 16)])


def spectrum(planes: np.ndarray) -> np.ndarray:
    return rings((np.abs(np.fft.fft2(planes)) ** 2).mean(0))


def test_power_of_blue_noise_grows_with_the_square_of_frequency(generator):
    phases = cbar_noise._draw_phases(some_images(1000, 32, 32), 1, generator)
    plane = cbar_noise._frequencies(32, 32, CPU)
    noise = cbar_noise._make_noise(phases, plane, plane.distance).numpy()
    ratio = spectrum(noise) / rings(CYCLES**2)
    assert ratio == pytest.approx(np.full(15, 0.5), rel=0.06)


def test_holes_of_blue_noise_keep_apart(generator):
    white = torch.full((300, 3, 32, 32), 255, dtype=torch.uint8)
    holes = blue_noise_sample(white, 4.2, generator=generator)[:, 0].eq(0).numpy()
    power = spectrum(holes - holes.mean())
    assert power[:3].mean() < 0.8 * power[12:].mean()


def test_power_of_brownish_noise_falls_with_the_fourth_power_of_frequency(generator):
    grey = torch.full((1000, 3, 32, 32), 128, dtype=torch.uint8)
    noise = brownish_noise(grey, 2.5, generator=generator)[:, 0].numpy() - 127.5
    ratio = (spectrum(noise) / rings(1 / (CYCLES**2 + 1) ** 2))[:6]
    assert ratio / ratio[:4].mean() == pytest.approx(np.ones(6), rel=0.15)


def test_brownish_noise_has_its_deviation_and_every_channel_its_own(generator):
    grey = torch.full((500, 3, 32, 32), 128, dtype=torch.uint8)
    noise = brownish_noise(grey, 2.5, generator=generator).double() - 127.5
    deviations = noise.std((2, 3), correction=0)
    assert (deviations - 16).abs().max() < 0.4
    means = noise.mean((2, 3))
    assert means.std() > 5  # zero frequency stays
    assert torch.corrcoef(means.T).fill_diagonal_(0).abs().max() < 0.15


# --- Perlin noise


def perlin(draw: cbar_noise._Lattice, side: int, row: int, column: int) -> float:
    """0.5 + 0.5 * turbulence at a pixel of the one image of a draw, at most 1."""
    hashes, gradients = draw.hashes[0].tolist(), draw.gradients[0].double().tolist()

    def ease(t: float) -> float:
        return 3 * t**2 - 2 * t**3

    turbulence = 0.0
    for frequency in (1, 2, 4, 8, 16):
        y, x = (place * frequency * 224 / (32 * side) for place in (row, column))
        value = 0.0
        for i in (math.floor(y), math.floor(y) + 1):
            for j in (math.floor(x), math.floor(x) + 1):
                down, across = gradients[hashes[(hashes[i % 256] + j) % 256]]
                nearness = ease(1 - abs(y - i)) * ease(1 - abs(x - j))
                value += nearness * ((y - i) * down + (x - j) * across)
        turbulence += abs(1.5 * value) / frequency
    return min(0.5 + 0.5 * turbulence, 1.0)


@pytest.mark.parametrize(("severity", "height", "width"), cases("perlin_noise"))
def test_perlin_noise_blends_in_what_the_definition_does(severity, height, width, generator):
    images = some_images(1, height, width)
    draw = cbar_noise._draw_lattice(images, generator)
    found = cbar_noise._apply_perlin_noise(images, severity, draw)
    side, weight = min(height, width), 0.05 * severity
    noise = [[perlin(draw, side, y, x) for x in range(width)] for y in range(height)]
    assert agree(found, (1 - weight) * images.numpy() + 255 * weight * np.array(noise))


@pytest.mark.parametrize(("height", "width"), [(224, 224), (4, 64), (64, 4)])
def test_perlin_noise_is_the_definition_where_there_are_many_cells_too(height, width, generator):
    images = some_images(1, height, width)
    draw = cbar_noise._draw_lattice(images, generator)
    found = cbar_noise._apply_perlin_noise(images, 5.8, draw)
    rows, columns = range(0, height, 9), range(0, width, 9)
    noise = [[perlin(draw, min(height, width), y, x) for x in columns] for y in rows]
    images, found = images[..., ::9, ::9], found[..., ::9, ::9]
    assert agree(found, 0.71 * images.numpy() + 255 * 0.29 * np.array(noise))


def test_hashes_are_swapped_from_the_last_to_the_first(generator):
    partners = torch.randint(256, (256, 5), generator=generator)
    for image, found in enumerate(cbar_noise._shuffle(partners)):
        hashes = list(range(256))
        for place in reversed(range(256)):
            other = int(partners[place, image])
            hashes[place], hashes[other] = hashes[other], hashes[place]
        assert found.tolist() == hashes


def test_hashes_are_distributed_as_after_random_swaps(generator):
    found = cbar_noise._draw_lattice(some_images(4000, 1, 1), generator).hashes
    assert torch.equal(found.sort(1).values, torch.arange(256).expand(4000, 256))
    partners = np.random.default_rng(0).integers(256, size=(256, 4000))
    expected = cbar_noise._shuffle(torch.from_numpy(partners))
    spread = 256 / math.sqrt(12) * math.sqrt(2 / 4000)
    assert (found.double().mean(0) - expected.double().mean(0)).abs().max() < 4.5 * spread


def test_gradients_are_points_of_a_square_brought_to_length_one(generator):
    gradients = (
        cbar_noise._draw_lattice(some_images(200, 1, 1), generator).gradients.double().flatten(0, 1)
    )
    assert torch.allclose(gradients.norm(dim=1), torch.ones(len(gradients), dtype=torch.float64))
    # Over a square the flatter of both slopes, with its sign, is uniform, and so are the quarters.
    slope = (gradients.abs().amin(1) / gradients.abs().amax(1)).sort().values
    even = (torch.arange(len(slope)) + 0.5) / len(slope)
    assert (slope - even).abs().max() < 0.012
    quarters = (gradients.sign() * torch.tensor([1, 2])).sum(1).add(3).long().bincount()[::2]
    assert (quarters / len(gradients) - 0.25).abs().max() < 0.012


def test_gradients_of_length_zero_stay_zero():
    draw = cbar_noise._draw_lattice(some_images(1, 1, 1), None)
    draw.gradients[:] = torch.nn.functional.normalize(torch.zeros(1, 256, 2), dim=2)
    result = cbar_noise._apply_perlin_noise(torch.zeros(1, 3, 9, 9, dtype=torch.uint8), 8, draw)
    assert result.eq(51).all()
