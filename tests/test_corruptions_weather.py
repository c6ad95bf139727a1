"""Fog, snow and spatter against slow loops, the libraries of the originals, and the peer."""

import math
import warnings
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import weather as oracle
from torch import Tensor
from torch.testing import assert_close

from killick.corruptions import edges, weather
from killick.corruptions.corruption import CORRUPTIONS
from killick.corruptions.suites import TABLES

FUNCTIONS = {"fog": weather.fog, "snow": weather.snow, "spatter": weather.spatter}
CPU = torch.device("cpu")


def rows(name: str, table: str) -> tuple[tuple[float, ...], ...]:
    found = getattr(CORRUPTIONS.find(name), table)
    assert found is not None
    return found


def every(name: str) -> list[object]:
    """The arguments at all severities of all tables."""
    found = [(table, k, row) for table in TABLES for k, row in enumerate(rows(name, table), 1)]
    return [pytest.param(row, id=f"{table}-{k}") for table, k, row in found]


def some_images(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Random smooth images."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 5, 5, generator=generator) * 280 - 10
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return fine.clamp_(0, 255).to(torch.uint8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(name: str, images: Tensor, arguments: tuple[float, ...], seed: int = 0) -> Tensor:
    return FUNCTIONS[name](images, *arguments, generator=seeded(seed))


def each(images: Tensor) -> list[np.ndarray]:
    """Images as the oracle has them."""
    return list(images.permute(0, 2, 3, 1).double().numpy())


def assert_truncated(result: Tensor, levels: np.ndarray) -> None:
    """The bytes are the levels rounded down, up to what float32 can tell."""
    excess = levels - result.permute(1, 2, 0).double().numpy()
    assert excess.min() > -0.003
    assert excess.max() < 1.003


def quietly(module: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(module)


# Fog


@pytest.mark.parametrize("arguments", every("fog"))
@pytest.mark.parametrize("size", [(32, 32), (9, 20)])
def test_fog_is_that_of_the_slow_version(arguments, size):
    images, (amount, decay) = some_images(2, *size), arguments
    images[1] //= 2  # another brightest level
    found = run("fog", images, arguments)
    noise = torch.empty(32 * 32 - 1, 2).uniform_(-1, 1, generator=seeded())
    for i, image in enumerate(each(images)):
        land = oracle.landscape(noise[:, i].tolist(), 32, decay)
        assert_truncated(found[i], oracle.fog(image, land, amount))


@pytest.mark.parametrize(
    ("side", "size"), [(1, 1), (2, 2), (8, 8), (33, 64), (224, 256), (256, 256)]
)
def test_the_land_has_the_next_power_of_two_as_its_size(side, size, monkeypatch):
    drawn = []
    monkeypatch.setattr(weather, "_raise_land", lambda noise, decay: drawn.append(len(noise)))
    monkeypatch.setattr(weather, "_lay_fog", lambda images, land, amount: images)
    run("fog", torch.zeros(1, 3, 1, side, dtype=torch.uint8), (1, 2))
    run("fog", torch.zeros(1, 3, side, 1, dtype=torch.uint8), (1, 2))
    assert drawn == [size * size - 1] * 2


@pytest.mark.parametrize("size", [2, 4, 16, 64])
def test_land_of_any_size_is_that_of_the_slow_version(size):
    noise = torch.empty(size * size - 1, 1).uniform_(-1, 1, generator=seeded(size))
    land = weather._raise_land(noise, 1.7)[0].double()
    land = (land - land.min()) / (land.max() - land.min())
    exact = oracle.landscape(noise[:, 0].tolist(), size, 1.7)
    assert_close(land, torch.from_numpy(exact), atol=1e-6, rtol=0)


def test_a_black_image_stays_black_in_fog():
    black = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    assert not run("fog", black, (3, 1.4)).any()


# Snow


@pytest.mark.parametrize("arguments", every("snow"))
@pytest.mark.parametrize("size", [(20, 20), (11, 24)])
def test_snow_is_that_of_the_slow_version(arguments, size):
    mean, std, zoom, threshold, radius, sigma, mix = arguments
    images, (height, width) = some_images(2, *size), size
    images //= 4  # dark, or it would be white all over
    found = run("snow", images, arguments)
    generator = seeded()
    cropped = math.ceil(height / zoom), math.ceil(width / zoom)
    noise = torch.randn(2, *cropped, generator=generator).double().numpy()
    angles = torch.empty(2).uniform_(-135, -45, generator=generator).tolist()
    for i, image in enumerate(each(images)):
        flakes = oracle.flakes(noise[i], mean, std, zoom, threshold, size)
        exact = oracle.snow(image, oracle.smear(flakes, angles[i], radius, sigma), mix)
        # A flake may be a level brighter in float32, and so may a streak.
        difference = np.abs(found[i].permute(1, 2, 0).double().numpy() - np.floor(exact + 1e-3))
        assert difference.max() <= 2
        assert (difference > 0).mean() < 0.01
    assert found.float().mean() > images.float().mean() + 5


@pytest.mark.parametrize("zoom", [1, 1.25, 1.75, 2, 2.25, 2.5, 3, 4, 4.5])
@pytest.mark.parametrize("size", [8, 31, 32, 224])
def test_zooming_is_scipys(zoom, size):
    from scipy import ndimage

    cropped = math.ceil(size / zoom)
    noise = np.random.default_rng(0).normal(size=cropped)
    zoomed = ndimage.zoom(noise, zoom, order=1)
    top = (len(zoomed) - size) // 2
    matrix = weather._zooming(cropped, size, zoom, CPU)
    assert np.abs(matrix.double().numpy() @ noise - zoomed[top : top + size]).max() < 1e-6


def test_zooming_by_one_changes_nothing():
    noise = torch.randn(3, 7, 11)
    assert torch.equal(weather._enlarge(noise, 7, 11, 1), noise)


def test_snow_lies_twice_on_an_image_once_turned_around():
    black = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    snowy = run("snow", black, (0.1, 0.3, 3, 0.5, 10, 4, 1))
    assert torch.equal(snowy, snowy.flip(2, 3))
    assert torch.equal(snowy[:, 0], snowy[:, 2])
    assert (snowy > 0).float().mean() > 0.05


# Spatter


@pytest.mark.parametrize("arguments", every("spatter"))
@pytest.mark.parametrize("size", [(24, 24), (11, 30)])
def test_spatter_is_that_of_the_slow_version(arguments, size):
    mean, std, sigma, threshold, strength, muddy = arguments
    images = some_images(2, *size)
    found = run("spatter", images, arguments)
    noise = torch.randn(2, *size, generator=seeded()).double().numpy()
    throw = oracle.mud if muddy else oracle.water
    for i, image in enumerate(each(images)):
        liquid = mean + std * oracle.smooth(noise[i], sigma)
        assert_truncated(found[i], throw(image, liquid, threshold, strength))


@pytest.mark.parametrize("mud", [0, 1])
def test_an_image_on_which_no_drop_falls_stays_as_it_is(mud):
    images = some_images(2, 16, 16)
    assert torch.equal(run("spatter", images, (0.1, 0.01, 1, 0.9, 0.6, mud)), images)


def test_drops_above_full_scale_start_again_at_nothing():
    liquid = torch.full((1, 12, 12), 0.9)
    liquid[:, 4:8, 4:8] = 1.02  # 260 of 255
    black = torch.zeros(1, 3, 12, 12, dtype=torch.uint8)
    found = weather._splash_water(black, liquid.clone(), 0.6)
    exact = oracle.water(each(black)[0], liquid[0].double().numpy(), 0.5, 0.6)
    assert exact.max() > 0
    assert_truncated(found[0], exact)


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1, 2, 4])
@pytest.mark.parametrize("size", [(224, 224), (32, 32), (9, 120)])
def test_smoothing_is_that_of_scikit_image(sigma, size):
    filters = quietly("skimage.filters")
    noise = torch.randn(2, *size, generator=seeded())
    for layer, smoothed in zip(noise.double().numpy(), weather._smooth(noise, sigma), strict=True):
        assert np.abs(filters.gaussian(layer, sigma=sigma) - smoothed.numpy()).max() < 2e-6


def drops(n: int, height: int, width: int, row: tuple[float, ...], seed: int = 0) -> Tensor:
    """int16 `(h, w, n)`, as the water has them."""
    mean, std, sigma, threshold = row[:4]
    noise = torch.randn(n, height, width, generator=seeded(seed))
    liquid = weather._smooth(noise, sigma).mul_(std).add_(mean)
    liquid[liquid < threshold] = 0
    return liquid.mul_(255).to(torch.int16).bitwise_and_(255).permute(1, 2, 0).contiguous()


WATER = [row for table in TABLES for row in rows("spatter", table) if not row[5]]
ROUGH = (0.5, 0.3, 0.8, 0.01)  # edges of all strengths everywhere
GENTLE = (0.5, 0.3, 1.6, 0.01)
SIZES = [(32, 32, 8), (224, 224, 2), (8, 50, 4), (3, 2, 4), (1, 9, 2), (1, 1, 1)]


@pytest.mark.parametrize("row", [*WATER, ROUGH, GENTLE])
@pytest.mark.parametrize("size", SIZES)
def test_the_light_on_drops_is_that_of_opencv_to_the_last_bit(row, size):
    cv2 = quietly("cv2")
    height, width, n = size
    layers = drops(n, height, width, row)
    found_edges = edges.find_edges(layers, 50, 150)
    far = edges.measure_distances(found_edges, 20)
    lit = weather._light(layers)
    for i in range(n):
        layer = np.ascontiguousarray(layers[..., i].numpy().astype(np.uint8))
        exact = cv2.Canny(layer, 50, 150)
        assert np.array_equal(found_edges[..., i].numpy(), exact)
        exact = np.minimum(cv2.distanceTransform(255 - exact, cv2.DIST_L2, 5), 20)
        assert np.abs(far[..., i].numpy() / edges.UNIT - exact).max() < 1e-5
        exact = cv2.equalizeHist(cv2.blur(exact, (3, 3)).astype(np.uint8))
        kernel = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
        exact = cv2.blur(cv2.filter2D(exact, cv2.CV_8U, kernel), (3, 3))
        assert np.array_equal(lit[..., i].numpy(), exact)


@pytest.mark.parametrize("row", [ROUGH, GENTLE, WATER[-1]])
@pytest.mark.parametrize("size", [(20, 26), (7, 60), (1, 30)])
def test_the_light_on_drops_is_that_of_the_slow_version(row, size):
    layers = drops(2, *size, row, seed=5)
    lit = weather._light(layers)
    for i in range(2):
        exact = oracle.light(layers[..., i].double().numpy())
        assert np.array_equal(lit[..., i].numpy(), exact)


def test_a_weak_edge_is_followed_to_its_end():
    cv2 = quietly("cv2")
    # A gentle step that winds like a snake through the image, steep at one end only.
    level = np.full((60, 60), 100, dtype=np.uint8)
    for k, x in enumerate(range(4, 56, 8)):
        level[4:56, x : x + 4] = 122
        level[4 : 8 if k % 2 else 56, x : x + 8] = 122
        level[52:56, x : x + 8] = 122 if k % 2 == 0 else level[52:56, x : x + 8]
    level[4:8, 4:8] = 255
    exact = cv2.Canny(level, 50, 150)
    found = edges.find_edges(torch.from_numpy(level.astype(np.int16))[..., None], 50, 150)
    assert np.array_equal(found[..., 0].numpy(), exact)
    assert (exact > 0).sum() > 200
    assert not cv2.Canny(np.minimum(level, 122), 50, 150).any()  # nothing without the steep end


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 40)),
    points=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 39)), max_size=3),
    limit=st.integers(3, 25),
)
@settings(max_examples=60)
def test_distances_are_those_of_dijkstra(size, points, limit):
    marks = torch.zeros(*size, 1, dtype=torch.uint8)
    for y, x in points:
        marks[y % size[0], x % size[1]] = 255
    far = edges.measure_distances(marks, limit)[..., 0].double() / edges.UNIT
    exact = oracle.distances(marks[..., 0].numpy() > 0, limit)
    assert_close(far, torch.from_numpy(exact), atol=2e-5, rtol=0)


def test_a_image_of_one_level_is_equalized_to_itself():
    levels = torch.tensor([7, 20]).expand(4, 5, 2).clone()
    assert edges.equalize(levels.clone(), 20).tolist() == levels.tolist()


# All three


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("table", TABLES)
def test_the_images_stay_as_they_are_and_the_same_state_gives_the_same_pixels(name, table):
    images = some_images(4, 20, 27)
    before = images.clone()
    for row in rows(name, table):
        first = run(name, images, row)
        assert torch.equal(images, before)
        assert first.dtype == torch.uint8
        assert first.shape == images.shape
        assert torch.equal(first, run(name, images, row))
        assert not torch.equal(first, run(name, images, row, seed=1))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("severity", [1, 5])
def test_each_image_has_its_own_weather(name, severity):
    images = torch.full((6, 3, 40, 40), 90, dtype=torch.uint8)
    found = run(name, images, rows(name, "imagenet")[severity - 1]).flatten(1)
    assert len(found.unique(dim=0)) == 6


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_layout_in_memory_does_not_matter(name):
    images = some_images(3, 18, 25)
    last = images.contiguous(memory_format=torch.channels_last)
    for row in (row for table in TABLES for row in rows(name, table)):
        assert torch.equal(run(name, images, row), run(name, last, row))


@pytest.mark.parametrize("name", FUNCTIONS)
@given(height=st.integers(1, 40), width=st.integers(1, 40), severity=st.integers(1, 5))
@settings(max_examples=15)
def test_images_of_any_size_will_do(name, height, width, severity):
    images = some_images(2, height, width)
    for table in TABLES:
        assert run(name, images, rows(name, table)[severity - 1]).shape == images.shape


@pytest.mark.parametrize("name", FUNCTIONS)
def test_only_the_generator_is_used_or_else_torchs_own(name):
    images, row = some_images(2, 16, 16), rows(name, "cifar")[0]
    state = torch.get_rng_state()
    found = run(name, images, row)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    assert torch.equal(FUNCTIONS[name](images, *row, generator=None), found)


@pytest.mark.parametrize("table", TABLES)
# Mud, in spatter's last two, is another thing than water.
@pytest.mark.parametrize(("name", "severities"), [("fog", 5), ("snow", 5), ("spatter", 3)])
def test_more_severe_is_farther_from_the_image(name, severities, table):
    images = some_images(150, 32, 32)
    images //= 2 if name == "snow" else 1  # or much would be white without snow
    changes = [
        (run(name, images, row).float() - images).abs().mean().item()
        for row in rows(name, table)[:severities]
    ]
    assert all(more > 0.99 * less for less, more in zip(changes, changes[1:], strict=False))
    assert changes[-1] > 1.2 * changes[0]


# The peer has ImageNet's constants. Where it draws as much as this does, it is given the same.


@pytest.fixture
def peer(monkeypatch):
    """What the peer makes of images, with its random numbers, repeatable, or given ones."""
    corrupt = quietly("imagecorruptions").corrupt
    numbers = np.random.default_rng(0)

    def run_peer(images: Tensor, name: str, severity: int, **given: object) -> Tensor:
        for kind in ("uniform", "normal"):
            monkeypatch.setattr(np.random, kind, given.get(kind, getattr(numbers, kind)))
        arrays = np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = [corrupt(a, corruption_name=name, severity=severity) for a in arrays]
        return torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2)

    return run_peer


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_fog_is_that_of_the_peer_from_the_same_numbers(severity, peer):
    images = some_images(3, 60, 64)
    noise = torch.empty(64 * 64 - 1, 3).uniform_(-1, 1, generator=seeded()).t().flatten()
    queue = iter(noise.tolist())

    def uniform(low: float, high: float, shape: tuple[int, int]) -> np.ndarray:
        return high * np.array([next(queue) for _ in range(shape[0] * shape[1])]).reshape(shape)

    theirs = peer(images, "fog", severity, uniform=uniform).int()
    ours = run("fog", images, rows("fog", "imagenet")[severity - 1]).int()
    assert (ours - theirs).abs().max() <= 1
    assert (ours != theirs).float().mean() < 0.002


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_spatter_is_that_of_the_peer_from_the_same_numbers(severity, peer):
    images = some_images(6, 224, 224)
    queue = iter(torch.randn(6, 224, 224, generator=seeded()).double().numpy())
    theirs = peer(
        images, "spatter", severity, normal=lambda size, loc, scale: loc + scale * next(queue)
    ).int()
    ours = run("spatter", images, rows("spatter", "imagenet")[severity - 1]).int()
    assert (ours != theirs).float().mean() < 0.002
    assert (ours - theirs).abs().float().mean() < 0.002
    assert (ours - images).abs().float().mean() > 0.5


@pytest.mark.parametrize("severity", [2, 3])
def test_snow_is_that_of_the_peer_from_the_same_numbers_where_it_crops_alike(severity, peer):
    row, images = rows("snow", "imagenet")[severity - 1], some_images(4, 64, 64) // 4
    generator, side = seeded(), int(64 / row[2])
    layers = np.zeros((4, 64, 64))
    top = (64 - side) // 2
    layers[:, top : top + side, top : top + side] = torch.randn(4, side, side, generator=generator)
    layers, angles = iter(layers), iter(torch.empty(4).uniform_(-135, -45, generator=generator))
    theirs = peer(
        images,
        "snow",
        severity,
        normal=lambda size, loc, scale: loc + scale * next(layers),
        uniform=lambda low, high: next(angles).item(),
    ).int()
    ours = run("snow", images, row).int()
    assert (ours - theirs).abs().max() <= 3  # it does not truncate the flakes
    assert (ours - theirs).abs().float().mean() < 0.6


def summarise(images: Tensor, corrupted: Tensor) -> dict[str, Tensor]:
    """Means over the images: change, mean and spread by channel, spectrum of the change."""
    change = corrupted.double() - images
    power = torch.fft.fft2(change.mean(1)).abs().square().mean(0)
    along = torch.fft.fftfreq(images.shape[-1])
    ring = (torch.hypot(along[:, None], along) * 16).round().long().clamp_max(8).flatten()
    sums = torch.zeros(9, dtype=torch.float64).scatter_add_(0, ring, power.flatten())
    return {
        "change": change.abs().mean(),
        "mean": corrupted.double().mean((0, 2, 3)),
        "std": corrupted.double().std((2, 3)).mean(0),
        "spectrum": (sums / ring.bincount(minlength=9)).log(),
    }


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_the_statistics_of_snow_are_those_of_the_peer(severity, peer):
    images = some_images(100, 64, 64)
    theirs = summarise(images, peer(images, "snow", severity))
    ours = summarise(images, run("snow", images, rows("snow", "imagenet")[severity - 1]))
    assert_close(ours["change"], theirs["change"], atol=0, rtol=0.06)
    assert_close(ours["mean"], theirs["mean"], atol=0, rtol=0.03)
    assert_close(ours["std"], theirs["std"], atol=0, rtol=0.05)
    assert_close(ours["spectrum"], theirs["spectrum"], atol=0.2, rtol=0)
