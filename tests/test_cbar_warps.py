"""Warps, blurs and caustics of C-bar, against slow loops over pixels and against scipy."""

import math
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import interpolate

from killick.corruptions import cbar_caustics as caustics
from killick.corruptions import cbar_warps as warps
from killick.corruptions.corruption import CORRUPTIONS

MODULES: dict[str, ModuleType] = {
    "pinch_and_twirl": warps,
    "ripple": warps,
    "circular_motion_blur": warps,
    "transverse_chromatic_abberation": warps,
    "caustic_refraction": caustics,
}
NAMES = tuple(MODULES)
RANDOM = tuple(name for name in NAMES if name != "circular_motion_blur")
SIZES = ((32, 32), (20, 31))


def corrupt(name: str, images: Tensor, severity: float, seed: int | None = 0) -> Tensor:
    g = None if seed is None else seeded(seed)
    return getattr(MODULES[name], name)(images, severity, generator=g)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def severities(name: str) -> list[float]:
    return [
        severity
        for (severity,) in CORRUPTIONS.find(name).cifar or CORRUPTIONS.find(name).imagenet or ()
    ]


def some_images(n: int, height: int = 32, width: int = 32) -> Tensor:
    """Noise: every pixel tells where it came from."""
    return torch.randint(256, (n, 3, height, width), dtype=torch.uint8, generator=seeded())


def scenes(n: int) -> Tensor:
    """Something smooth, like photographs."""
    noise = torch.rand(n, 3, 8, 8, generator=seeded())
    return (255 * interpolate(noise, (32, 32), mode="bilinear")).to(torch.uint8)


def is_truncated(found: Tensor, exact: np.ndarray | Tensor, within: float = 0.02) -> bool:
    """Whether `found` is `exact` truncated, up to what float32 can tell."""
    exact = torch.as_tensor(exact)
    low, high = (exact - within).clamp(0, 255).floor(), (exact + within).clamp(0, 255).floor()
    return bool(((low <= found) & (found <= high)).all())


def is_uniform(values: Tensor, low: float, high: float) -> bool:
    """Whether the values fill the interval evenly (Kolmogorov and Smirnov, at about 0.001)."""
    values = ((values.double().flatten() - low) / (high - low)).sort().values
    expected = torch.arange(len(values)) / len(values)
    inside = bool((values >= 0).all() and (values <= 1).all())
    return inside and float((values - expected).abs().max()) < 1.95 / math.sqrt(len(values))


def bilinear(image: np.ndarray, y: float, x: float) -> np.ndarray:
    """The value of `(3, h, w)` between four pixels, each 0 if it is not in the image."""
    total = np.zeros(3)
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                weight = (1 - abs(y - row)) * (1 - abs(x - column))
                total += weight * image[:, row, column]
    return total


def twirl_slowly(image: Tensor, severity: float, signs: Tensor, number: int) -> np.ndarray:
    """Disc after disc, each from what those before it left."""
    values = image.double().numpy()
    cell = min(values.shape[1:]) // number
    for j, i in np.ndindex(*signs.shape):
        middle, after = ((j + 0.5) * cell, (i + 0.5) * cell), values.copy()
        for y in range(j * cell, (j + 1) * cell):
            for x in range(i * cell, (i + 1) * cell):
                out = complex(y - middle[0], x - middle[1])
                share = abs(out) / (cell / 2)
                if 0 < share <= 1:
                    angle = float(signs[j, i]) * severity * math.pi / 20 * (1 - share) ** 2
                    out *= complex(math.cos(angle), math.sin(angle))
                    out /= math.sin(math.pi / 2 * share) ** (0.04 * severity + 0.1)
                    after[:, y, x] = bilinear(values, middle[0] + out.real, middle[1] + out.imag)
        values = after
    return values


def ripple_slowly(image: Tensor, severity: float, waves: Tensor, phases: Tensor) -> np.ndarray:
    values = image.double().numpy()
    size, after = values.shape[1:], np.empty(values.shape)
    for y, x in np.ndindex(size):
        place = []
        for axis, at in enumerate((y, x)):
            turn = 2 * math.pi * at / (float(waves[axis]) * size[axis]) + float(phases[axis])
            place.append(at + 0.0025 * severity * size[axis] * math.sin(turn))
        after[:, y, x] = bilinear(values, *place)
    return after


def blur_by_scipy(image: Tensor, severity: float) -> np.ndarray:
    weights = [math.exp(-2 * (i / 10 - 1) ** 2) for i in range(21)]
    rotated = [
        ndimage.rotate(image.double().numpy(), (i / 10 - 1) * 1.5 * severity, (1, 2), reshape=False)
        for i in range(21)
    ]
    return sum(w * r for w, r in zip(weights, rotated, strict=True)) / sum(weights)


def magnify_by_scipy(channel: Tensor, zoom: float) -> np.ndarray:
    found = ndimage.zoom(channel.double().numpy(), zoom, prefilter=False)
    top, left = ((big - small) // 2 for big, small in zip(found.shape, channel.shape, strict=True))
    return found[top : top + channel.shape[0], left : left + channel.shape[1]]


def pattern_at(y: float, x: float, time: float, size: float) -> float:
    p = [(at / size % 1) * 2 * math.pi - 250 for at in (y, x)]
    i, c = list(p), 1.0
    for k in range(1, 6):
        t = time * (1 - 3.5 / k)
        i = [
            p[0] + math.cos(t - i[0]) + math.sin(t + i[1]),
            p[1] + math.sin(t - i[1]) + math.cos(t + i[0]),
        ]
        c += 200 / math.hypot(p[0] / math.sin(i[0] + t), p[1] / math.cos(i[1] + t))
    return min(1.0, abs(1.17 - (c / 5) ** 1.4) ** 8)


def surface_slowly(shape: tuple[int, int], time: float, size: float) -> np.ndarray:
    pattern = [[pattern_at(y, x, time, size) for x in range(shape[1])] for y in range(shape[0])]
    return ndimage.gaussian_filter(np.array(pattern), 1)


def refract_slowly(image: Tensor, severity: float, surface: np.ndarray) -> tuple[np.ndarray, ...]:
    """The image, and where a normal is so near to the limit of 0.999 that float32 cannot tell."""
    values = image.double().numpy()
    around, after = np.pad(surface, 1), np.empty(values.shape)
    unclear = np.zeros(surface.shape, dtype=bool)
    for y, x in np.ndindex(*surface.shape):
        rows = around[y + 2, x + 1] - around[y, x + 1]
        columns = around[y + 1, x + 2] - around[y + 1, x]
        normal, ray = np.array([rows, columns, 1.0]), np.array([0.0, 0.0, 1.0])
        normal /= np.linalg.norm(normal)
        unclear[y, x] = abs(normal[2] - 0.999) < 2e-6
        if normal[2] < 0.999:
            sideways = ray - normal[2] * normal
            sine = np.linalg.norm(sideways) / 4
            ray = math.sqrt(1 - sine**2) * normal + sine * sideways / np.linalg.norm(sideways)
        shift = np.round(ray * 0.05 * severity * min(surface.shape), 3)
        after[:, y, x] = bilinear(values, y + shift[0], x + shift[1])
        after[:, y, x] += 255 * 0.2 * severity * (rows - columns)
    return after, unclear


@pytest.mark.parametrize("size", [*SIZES, (33, 33)])
@pytest.mark.parametrize("severity", severities("pinch_and_twirl"))
def test_pinch_and_twirl_is_that_of_the_slow_version(severity, size):
    images = some_images(2, *size)
    signs = warps._draw_signs(images, seeded())
    found = warps._twirl(images, severity, signs)
    for i in range(2):
        assert is_truncated(found[i], twirl_slowly(images[i], severity, signs[i], 3))


def test_pinch_and_twirl_has_five_by_five_discs_at_224():
    images = some_images(1, 224, 224)
    signs = warps._draw_signs(images, seeded())
    assert signs.shape == (1, 5, 5)
    found = warps._twirl(images, 6.5, signs)
    assert is_truncated(found[0], twirl_slowly(images[0], 6.5, signs[0], 5))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("severity", severities("ripple"))
def test_ripple_is_that_of_the_slow_version(severity, size):
    images = some_images(2, *size)
    waves, phases = warps._draw_waves(images, seeded())
    found = warps._displace(images, severity, waves, phases)
    for i in range(2):
        assert is_truncated(found[i], ripple_slowly(images[i], severity, waves[i], phases[i]))


@pytest.mark.slow
def test_ripple_is_that_of_the_slow_version_at_224():
    images = some_images(1, 224, 224)
    waves, phases = warps._draw_waves(images, seeded())
    found = warps._displace(images, 8, waves, phases)
    assert is_truncated(found[0], ripple_slowly(images[0], 8, waves[0], phases[0]))


@pytest.mark.parametrize("size", [*SIZES, (2, 3)])
@pytest.mark.parametrize("severity", severities("circular_motion_blur"))
def test_circular_motion_blur_is_that_of_scipy(severity, size):
    images = some_images(2, *size)
    found = corrupt("circular_motion_blur", images, severity)
    for i in range(2):
        assert is_truncated(found[i], blur_by_scipy(images[i], severity))


@pytest.mark.slow
def test_circular_motion_blur_is_that_of_scipy_at_224():
    images = some_images(1, 224, 224)
    found = corrupt("circular_motion_blur", images, 6)
    assert is_truncated(found[0], blur_by_scipy(images[0], 6))


@pytest.mark.parametrize("size", [*SIZES, (2, 3), (224, 224)])
@pytest.mark.parametrize("severity", severities("transverse_chromatic_abberation"))
def test_transverse_chromatic_abberation_is_that_of_scipy(severity, size):
    images = some_images(2, *size)
    orders = warps._draw_orders(images, seeded())
    found = warps._magnify(images, severity, orders)
    for i in range(2):
        for channel, order in enumerate(orders[i].tolist()):
            exact = magnify_by_scipy(images[i, channel], 1 + 0.025 * severity * order)
            assert is_truncated(found[i, channel], exact + 0.5)  # so rounded


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("severity", severities("caustic_refraction"))
def test_caustic_refraction_is_that_of_the_slow_version(severity, size):
    images = some_images(2, *size)
    times, sizes = caustics._draw_surfaces(images, seeded())
    found = caustics._refract(images, severity, caustics._surface(*size, times, sizes))
    for i in range(2):
        surface = surface_slowly(size, float(times[i]), float(sizes[i]))
        exact, unclear = refract_slowly(images[i], severity, surface)
        # Rounding a displacement to 0.001 may go either way: 0.001 of up to 2 * 255 levels.
        assert is_truncated(found[i, :, ~unclear], exact[:, ~unclear], 0.6)
        assert (found[i].numpy() == np.floor(exact.clip(0, 255))).mean() > 0.99


@pytest.mark.slow
def test_caustic_refraction_is_that_of_the_slow_version_at_224():
    images = some_images(1, 224, 224)
    times, sizes = caustics._draw_surfaces(images, seeded(1))
    found = caustics._surface(224, 224, times, sizes)
    surface = surface_slowly((224, 224), float(times[0]), float(sizes[0]))
    assert abs(found[0].double().numpy() - surface).max() < 5e-6
    exact, unclear = refract_slowly(images[0], 9.15, surface)
    found = caustics._refract(images, 9.15, torch.from_numpy(surface).float()[None])
    assert is_truncated(found[0, :, ~unclear], exact[:, ~unclear], 0.6)
    assert unclear.mean() < 1e-3


def test_waves_are_drawn_as_the_authors_do():
    waves, phases = warps._draw_waves(some_images(8000, 1, 1), seeded())
    for axis in range(2):
        assert is_uniform(waves[:, axis], 0.1, 0.3)
        assert is_uniform(phases[:, axis], 0, 2 * math.pi)


def test_surfaces_are_drawn_as_the_authors_do():
    times, sizes = caustics._draw_surfaces(some_images(8000, 2, 3), seeded())
    assert is_uniform(times, 0.5, 2)
    assert is_uniform(sizes, 1.5, 2.5)


def test_discs_turn_either_way_equally_often():
    signs = warps._draw_signs(some_images(2000, 3, 4), seeded())
    assert signs.shape == (2000, 3, 4)
    assert set(signs.unique().tolist()) == {-1, 1}
    assert signs.mean(0).abs().max() < 4 / math.sqrt(2000)


def test_all_orders_of_the_colours_come_equally_often():
    orders = warps._draw_orders(some_images(6000, 1, 1), seeded())
    assert (orders.sort(1).values == torch.arange(3)).all()
    counts = torch.unique(orders, dim=0, return_counts=True)[1]
    assert len(counts) == 6
    assert (counts - 1000).abs().max() < 4 * math.sqrt(1000)


@pytest.mark.parametrize("name", NAMES)
def test_a_higher_severity_changes_more(name):
    images = scenes(64)
    changes = [
        (corrupt(name, images, severity).float() - images).abs().mean()
        for severity in severities(name)
    ]
    assert changes == sorted(changes)
    assert changes[0] > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_draw_is_the_generators_and_the_input_stays(name):
    images = some_images(4)
    before, first = images.clone(), corrupt(name, images, 5, seed=1)
    assert torch.equal(first, corrupt(name, images, 5, seed=1))
    assert torch.equal(first, corrupt(name, images, 5, seed=2)) == (name not in RANDOM)
    assert torch.equal(images, before)
    assert first.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("name", NAMES)
def test_the_global_state_is_left_alone(name):
    state = torch.get_rng_state()
    corrupt(name, some_images(2), 5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", RANDOM)
def test_each_image_has_a_draw_of_its_own(name):
    found = corrupt(name, some_images(1).expand(5, -1, -1, -1), 5)
    distinct = len(found.flatten(1).unique(dim=0))
    assert distinct == 5 or (name.startswith("transverse") and distinct > 1)  # of six orders


@pytest.mark.parametrize("name", NAMES)
def test_without_a_generator_the_default_one_draws(name):
    assert corrupt(name, some_images(2), 5, seed=None).shape == (2, 3, 32, 32)


@pytest.mark.parametrize("name", ["pinch_and_twirl", "transverse_chromatic_abberation"])
def test_one_colour_stays_where_no_border_is_in_reach(name):
    images = torch.full((3, 3, 32, 32), 201, dtype=torch.uint8)
    assert torch.equal(corrupt(name, images, 10), images)


def test_pixels_in_no_disc_stay():
    images = some_images(3, 224, 224)
    found = corrupt("pinch_and_twirl", images, 10)
    assert torch.equal(found[:, :, 220:], images[:, :, 220:])
    assert torch.equal(found[:, :, ::44, ::44], images[:, :, ::44, ::44])
    assert not torch.equal(found, images)
