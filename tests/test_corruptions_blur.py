"""The blurs against slow loops written from their definitions, and against the usual libraries."""

import math
import warnings
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from killick.corruptions import blur, filters, glass, motion
from killick.corruptions.corruption import CORRUPTIONS
from killick.corruptions.suites import TABLES

NAMES = ("gaussian_blur", "defocus_blur", "zoom_blur", "motion_blur", "glass_blur")
RANDOM = ("motion_blur", "glass_blur")
FUNCTIONS = {
    "gaussian_blur": blur.gaussian_blur,
    "defocus_blur": blur.defocus_blur,
    "zoom_blur": blur.zoom_blur,
    "motion_blur": motion.motion_blur,
    "glass_blur": glass.glass_blur,
}


def rows(name: str) -> list[tuple[float, ...]]:
    """The arguments at all severities of all tables."""
    return [row for table in TABLES for row in getattr(CORRUPTIONS.find(name), table)]


def every(*names: str) -> list[object]:
    return [pytest.param(n, r, id=f"{n}-{'-'.join(map(str, r))}") for n in names for r in rows(n)]


def noise(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    """White noise, the hardest for a filter, with some plain black and white."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=generator)
    images[:, :, : height // 4], images[:, :, :, : width // 5] = 255, 0
    return images


def some_images(n: int, side: int, seed: int = 0) -> Tensor:
    """Random images with the spectrum of photographs."""
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(n, 3, side, side, generator=generator) + torch.randn(
        n, 1, side, side, generator=generator
    )
    along = torch.fft.fftfreq(side)
    frequency = torch.hypot(along[:, None], torch.fft.rfftfreq(side)).clamp_min(1 / side)
    values = torch.fft.irfft2(torch.fft.rfft2(white) / frequency**1.2, s=(side, side))
    values = values / values.std((2, 3), keepdim=True) * 50 + 120
    return values.clamp(0, 255).to(torch.uint8)


def assert_truncated(result: Tensor, levels: np.ndarray) -> None:
    """The bytes are the levels, cut to 0 ... 255 and rounded down; a thousandth may tip them up."""
    assert result.dtype == torch.uint8
    excess = np.clip(levels, 0, 255) + 1e-3 - result.double().numpy()
    assert excess.min() > -1e-3
    assert excess.max() < 1 + 1e-3


def run(name: str, images: Tensor, arguments: tuple[float, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return FUNCTIONS[name](images, *arguments, generator=generator)


# The oracles: float64, one image (or batch) at a time, tap by tap.


def clamped(images: np.ndarray, down: int, right: int) -> np.ndarray:
    """The images moved by whole pixels, the edges repeated."""
    height, width = images.shape[-2:]
    row = np.clip(np.arange(height) + down, 0, height - 1)
    column = np.clip(np.arange(width) + right, 0, width - 1)
    return images[..., row[:, None], column]


def bounce(place: int, size: int) -> int:
    """Where a place ends up when thrown back from the middle of the outermost pixels."""
    while not 0 <= place < size:
        place = -place if place < 0 else 2 * (size - 1) - place
        if size == 1:
            return 0
    return place


def gaussian_oracle(images: np.ndarray, sigma: float) -> np.ndarray:
    reach = int(4 * sigma + 0.5)
    bell = [math.exp(-(x**2) / (2 * sigma**2)) for x in range(-reach, reach + 1)]
    total = np.zeros(images.shape)
    for down, a in enumerate(bell, -reach):
        for right, b in enumerate(bell, -reach):
            total += a * b / sum(bell) ** 2 * clamped(images, down, right)
    return total


def disc_oracle(radius: float, alias: float) -> dict[tuple[int, int], float]:
    """The kernel as a dictionary from (down, right) to weight."""
    half, soft = (8, 1) if radius <= 8 else (int(radius), 2)
    line = range(-half, half + 1)
    area = sum(x * x + y * y <= radius**2 for x in line for y in line)
    bell = {x: math.exp(-(x**2) / (2 * alias**2)) for x in range(-soft, soft + 1)}
    kernel = {}
    for y in line:
        for x in line:
            total = 0.0
            for dy, a in bell.items():
                for dx, b in bell.items():
                    u = bounce(y + dy + half, len(line)) - half
                    v = bounce(x + dx + half, len(line)) - half
                    total += a * b * (u * u + v * v <= radius**2)
            kernel[y, x] = total / area / sum(bell.values()) ** 2
    return kernel


def defocus_oracle(images: np.ndarray, radius: float, alias: float) -> np.ndarray:
    height, width = images.shape[-2:]
    total = np.zeros(images.shape)
    for (down, right), weight in disc_oracle(radius, alias).items():
        row = np.array([bounce(y + down, height) for y in range(height)])
        column = np.array([bounce(x + right, width) for x in range(width)])
        total += weight * images[..., row[:, None], column]
    return total


def enlarge_oracle(line: np.ndarray, factor: float) -> np.ndarray:
    """The middle of a line, enlarged, from the definition; linear in between."""
    size = len(line)
    cut = math.ceil(size / factor)
    middle = line[(size - cut) // 2 :][:cut]
    longer = np.interp(
        np.linspace(0, cut - 1, round(cut * factor)), np.arange(cut), middle.astype(float)
    )
    return longer[(len(longer) - size) // 2 :][:size]


def zoom_oracle(images: np.ndarray, step: float, count: int) -> np.ndarray:
    factors = np.arange(1, 1 + (count - 0.5) * step, step)
    assert len(factors) == count
    total = images.astype(float)
    for factor in factors:
        wide = np.apply_along_axis(enlarge_oracle, -1, images, factor)
        total = total + np.apply_along_axis(enlarge_oracle, -2, wide, factor)
    return total / (count + 1)


def smear_oracle(image: np.ndarray, angle: float, radius: float, sigma: float) -> np.ndarray:
    """One image `(c, h, w)`, at one angle."""
    steps = range(2 * math.ceil(radius) + 1)
    bell = [math.exp(-(step**2) / (2 * sigma**2)) for step in steps]
    total = np.zeros(image.shape)
    for step, weight in zip(steps, bell, strict=True):
        down = math.ceil(step * math.sin(math.radians(angle)) - 0.5)
        right = math.ceil(step * math.cos(math.radians(angle)) - 0.5)
        total += weight / sum(bell) * clamped(image, down, right)
    return total


def shuffle_oracle(image: np.ndarray, drawn: np.ndarray, reach: int) -> np.ndarray:
    """One image `(..., h, w)`, one pass, one pixel after the other."""
    image = image.copy()
    height, width = image.shape[-2:]
    for row in range(height - reach, reach, -1):
        for column in range(width - reach, reach, -1):
            number = drawn[row - reach - 1, column - reach - 1]
            down, right = number // (2 * reach) - reach, number % (2 * reach) - reach
            image[..., row, column] = image[..., row + down, column + right]
    return image


def glass_oracle(
    images: np.ndarray, sigma: float, reach: int, drawn: list[np.ndarray]
) -> np.ndarray:
    blurred = np.floor(gaussian_oracle(images, sigma) + 1e-3)
    for one_pass in drawn:
        blurred = np.stack(
            [shuffle_oracle(i, d, reach) for i, d in zip(blurred, one_pass, strict=True)]
        )
    return gaussian_oracle(blurred, sigma)


# Each of them is what its definition says.


@pytest.mark.parametrize("size", [(32, 32), (9, 14)], ids=str)
@pytest.mark.parametrize(("name", "arguments"), every("gaussian_blur"))
def test_gaussian_blur_is_its_definition(name, arguments, size):
    images = noise(2, *size)
    assert_truncated(run(name, images, arguments), gaussian_oracle(images.numpy(), *arguments))


@pytest.mark.parametrize("size", [(32, 32), (9, 14)], ids=str)
@pytest.mark.parametrize(("name", "arguments"), every("defocus_blur"))
def test_defocus_blur_is_its_definition(name, arguments, size):
    images = noise(2, *size)
    assert_truncated(run(name, images, arguments), defocus_oracle(images.numpy(), *arguments))


@pytest.mark.parametrize("size", [(32, 32), (9, 14)], ids=str)
@pytest.mark.parametrize(("name", "arguments"), every("defocus_blur"))
def test_defocus_blur_is_its_definition_also_by_fourier(name, arguments, size, monkeypatch):
    monkeypatch.setattr(blur, "_TABLE", 0)
    images = noise(2, *size)
    assert_truncated(run(name, images, arguments), defocus_oracle(images.numpy(), *arguments))


@pytest.mark.parametrize("size", [(32, 32), (50, 27), (8, 9)], ids=str)
@pytest.mark.parametrize(("name", "arguments"), every("zoom_blur"))
def test_zoom_blur_is_its_definition(name, arguments, size):
    images = noise(2, *size)
    assert_truncated(run(name, images, arguments), zoom_oracle(images.numpy(), *arguments))


@pytest.mark.parametrize("size", [(32, 32), (50, 27), (8, 9)], ids=str)
@pytest.mark.parametrize(("name", "arguments"), every("motion_blur"))
def test_motion_blur_is_its_definition_rounded_to_the_nearest_level(name, arguments, size):
    images = noise(5, *size)
    angles = torch.empty(5).uniform_(-45, 45, generator=torch.Generator().manual_seed(0)).tolist()
    expected = [smear_oracle(i, a, *arguments) for i, a in zip(images.numpy(), angles, strict=True)]
    assert_truncated(run(name, images, arguments), np.stack(expected) + 0.5)


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("size", [(32, 32), (50, 27), (8, 9), (1, 1)], ids=str)
def test_smear_is_its_definition_in_all_directions(channels, size):
    angles = torch.tensor([0.0, 45, -45, 90, -90, 180, -135, -47.3, 12, 77, 163])
    levels = torch.randn(len(angles), channels, *size, generator=torch.Generator().manual_seed(0))
    expected = [
        smear_oracle(i, a, 10, 4) for i, a in zip(levels.numpy(), angles.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        motion.smear(levels, angles, 10, 4).double(),
        torch.tensor(np.stack(expected)),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_smear_leaves_what_it_is_given_alone(dtype):
    levels, angles = noise(3, 8, 9).float(), torch.tensor([10.0, 20, 30], dtype=dtype)
    motion.smear(levels, angles, 3, 1)
    assert torch.equal(levels, noise(3, 8, 9).float())
    assert angles.tolist() == [10, 20, 30]


@pytest.mark.parametrize("size", [(32, 32), (12, 19)], ids=str)
@pytest.mark.parametrize(("name", "arguments"), every("glass_blur"))
def test_glass_blur_is_one_pixel_after_the_other(name, arguments, size):
    sigma, reach, passes = arguments
    images = noise(2, *size)
    generator = torch.Generator().manual_seed(0)
    shape = (2, size[0] - 2 * reach, size[1] - 2 * reach)
    drawn = [glass._draw(shape, reach, images.device, generator).numpy() for _ in range(passes)]
    expected = glass_oracle(images.numpy(), sigma, reach, drawn)
    assert_truncated(run(name, images, arguments), expected)


def test_glass_blur_only_blurs_twice_where_an_image_is_too_small_to_shuffle():
    images = noise(2, 8, 20)
    expected = run("gaussian_blur", run("gaussian_blur", images, (1.5,)), (1.5,))
    assert torch.equal(run("glass_blur", images, (1.5, 4, 2)), expected)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32), st.booleans()
)
def test_chains_of_neighbours_are_followed_to_their_ends(reach, rows, columns, seed, forwards):
    generator = torch.Generator().manual_seed(seed)
    drawn = glass._draw((2, rows, columns), reach, torch.device("cpu"), generator)
    if forwards:  # long chains: each pixel takes one that has been visited
        drawn = drawn.clamp_min(2 * reach**2 + reach)
    height, width = rows + 2 * reach, columns + 2 * reach
    places = np.arange(2 * height * width).reshape(2, height, width)
    pairs = zip(places, drawn.numpy(), strict=True)
    expected = np.stack([shuffle_oracle(one, numbers, reach) for one, numbers in pairs])
    assert np.array_equal(glass._trace(drawn, reach, height, width).numpy(), expected.ravel())


def test_a_chain_along_a_whole_row_is_followed_to_its_end():
    reach, count = 2, 200
    to_the_right = 2 * reach * reach + reach + 1
    drawn = torch.full((1, 1, count), to_the_right, dtype=torch.int32)
    traced = glass._trace(drawn, reach, 1 + 2 * reach, count + 2 * reach).view(5, count + 4)
    assert (traced[3, 3 : 3 + count] == traced[3, 3 + count]).all()  # where no pixel is visited


def test_neighbours_are_drawn_uniformly_and_anew_for_each_pixel_and_image():
    drawn = glass._draw((40, 50, 50), 2, torch.device("cpu"), torch.Generator().manual_seed(0))
    counts = drawn.flatten().bincount(minlength=16).double()
    assert len(counts) == 16
    assert ((counts / 100_000 - 1 / 16).abs() < 4 * math.sqrt(1 / 16 * 15 / 16 / 100_000)).all()
    agreeing = (drawn[0] == drawn[1]).double().mean()
    assert abs(agreeing - 1 / 16) < 4 * math.sqrt(1 / 16 * 15 / 16 / 2500)


@given(st.integers(2, 9), st.integers(0, 30))
def test_mirror_is_numpys_reflection(size, margin):
    places = filters.mirror(torch.arange(-margin, size + margin), size)
    assert np.array_equal(places.numpy(), np.pad(np.arange(size), margin, mode="reflect"))


def test_a_good_size_is_even_and_has_small_factors():
    for size in range(1, 400):
        good = blur.good_size(size)
        assert good >= size
        assert good % 2 == 0
        assert (2 * 3 * 5) ** 9 % good == 0


# The libraries that the originals use.


@pytest.mark.parametrize(("name", "arguments"), every("gaussian_blur"))
def test_gaussian_blur_is_that_of_scikit_image(name, arguments):
    gaussian = quietly("skimage.filters").gaussian
    images = noise(2, 70, 45)
    expected = gaussian(images.numpy() / 255, sigma=(0, 0, arguments[0], arguments[0])) * 255
    assert_truncated(run(name, images, arguments), expected)


@pytest.mark.parametrize("size", [(32, 32), (64, 45)], ids=str)
@pytest.mark.parametrize(("name", "arguments"), every("defocus_blur"))
def test_defocus_blur_is_that_of_opencv(name, arguments, size):
    cv2 = quietly("cv2")
    radius, alias = arguments
    half, side = (8, 3) if radius <= 8 else (radius, 5)
    across = np.arange(-half, half + 1)
    kernel = (across[:, None] ** 2 + across**2 <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(kernel / kernel.sum(), (side, side), alias)
    images = noise(2, *size)
    expected = [[cv2.filter2D(p.astype(float), -1, kernel) for p in i] for i in images.numpy()]
    assert_truncated(run(name, images, arguments), np.array(expected))


@pytest.mark.parametrize("side", [32, 224])
@pytest.mark.parametrize("arguments", CORRUPTIONS.find("zoom_blur").imagenet, ids=str)
def test_zoom_blur_is_that_of_scipy(arguments, side):
    zoom = quietly("scipy.ndimage").zoom
    step, count = arguments
    image = noise(1, side, side)[:, :1]
    total = image[0, 0].double().numpy()
    for factor in np.arange(1, 1 + (count - 0.5) * step, step):
        cut = math.ceil(side / factor)
        first = (side - cut) // 2
        middle = image[0, 0, first : first + cut, first : first + cut].double().numpy()
        large = zoom(middle, factor, order=1)
        trim = (len(large) - side) // 2
        total = total + large[trim : trim + side, trim : trim + side]
    assert_truncated(run("zoom_blur", image, arguments)[0, 0], total / (count + 1))


def quietly(module: str) -> ModuleType:
    """A library whose import may warn, or that may not be there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(module)


@pytest.fixture
def peer(monkeypatch):
    """What the peer makes of images; its random numbers are made repeatable."""
    corrupt = quietly("imagecorruptions").corrupt
    numbers = np.random.default_rng(0)
    monkeypatch.setattr(np.random, "uniform", numbers.uniform)
    monkeypatch.setattr(np.random, "default_rng", lambda: numbers)

    def run_peer(images: Tensor, name: str, severity: int) -> Tensor:
        arrays = np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = [corrupt(a, corruption_name=name, severity=severity) for a in arrays]
        return torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2)

    return run_peer


def spectrum(images: Tensor) -> Tensor:
    """The logarithm of the power in rings of frequency, averaged over images and channels."""
    side = images.shape[-1]
    power = torch.fft.fft2(images.double()).abs().square().mean((0, 1))
    along = torch.fft.fftfreq(side) * side
    ring = torch.hypot(along[:, None], along).round().long().clamp_max(side // 2).flatten()
    total = torch.zeros(side // 2 + 1, dtype=torch.float64).index_add_(0, ring, power.flatten())
    return (total / ring.bincount()).log10()


@pytest.mark.parametrize(
    "severity",
    [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_those_of_the_peer(name, severity, peer):
    images = some_images(40, 64)
    theirs = peer(images, name, severity).double()
    ours = run(name, images, CORRUPTIONS.find(name).imagenet[severity - 1]).double()
    if name == "motion_blur":
        theirs += 0.5  # which rounds down
    change = (ours - images).abs().mean() / (theirs - images).abs().mean()
    assert abs(change - 1) < 0.02
    assert (ours.mean((0, 2, 3)) - theirs.mean((0, 2, 3))).abs().max() < 0.3
    assert (ours.std((0, 2, 3)) / theirs.std((0, 2, 3)) - 1).abs().max() < 0.02
    assert (spectrum(ours) - spectrum(theirs)).abs().max() < 0.1


# What holds for all.


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_the_blocks_of_a_banded_matrix_make_no_difference(block, monkeypatch):
    images = noise(2, 40, 33)
    expected = filters.smooth(images, 1.5)
    monkeypatch.setattr(filters, "_BLOCK", block)
    assert (filters.smooth(images, 1.5).int() - expected.int()).abs().max() <= 1
    assert (filters.smooth(images, 1.5) != expected).double().mean() < 1e-3


def test_what_a_pixel_gets_of_another_several_times_is_added():
    targets, sources = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0, 1, 0, 1, 0])
    mixture = filters.merge(targets, sources, torch.tensor([1.0, 2, 3, 4, 0]).double(), 2)
    assert mixture.places.tolist() == [1, 0, 1]
    assert mixture.weights.tolist() == [2, 4, 4]
    assert mixture.begins.tolist() == [0, 1]


@pytest.mark.parametrize(("name", "arguments"), every(*NAMES))
def test_small_images_keep_their_shape_and_color(name, arguments):
    total = sum(disc_oracle(*arguments).values()) if name == "defocus_blur" else 1
    for size in [(5, 7), (2, 33), (1, 1)]:
        images = torch.full((3, 3, *size), 200, dtype=torch.uint8)
        expected = torch.full_like(images, int(200 * total + 1e-3))  # large discs brighten a little
        assert torch.equal(run(name, images, arguments), expected)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", NAMES)
def test_images_are_left_alone_however_they_lie_in_memory(name, table):
    images = noise(4, 32, 24)
    copy = images.clone()
    for row in getattr(CORRUPTIONS.find(name), table):
        result = run(name, images, row)
        last = run(name, images.contiguous(memory_format=torch.channels_last), row)
        assert torch.equal(images, copy)
        assert torch.equal(result, last)
        assert result.is_contiguous()
        assert result.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_decides_and_nothing_else_does(name):
    images = noise(4, 32, 32)
    before = torch.get_rng_state()
    first, again = (run(name, images, rows(name)[2], seed=3) for _ in range(2))
    other = run(name, images, rows(name)[2], seed=4)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name not in RANDOM)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", RANDOM)
def test_without_a_generator_the_default_one_draws(name):
    images = noise(4, 32, 32)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        result = FUNCTIONS[name](images, *rows(name)[2], generator=None)
    assert torch.equal(result, run(name, images, rows(name)[2], seed=7))


@pytest.mark.parametrize("name", RANDOM)
def test_each_image_has_its_own_draw(name):
    images = noise(1, 32, 32).expand(6, -1, -1, -1)
    results = run(name, images, rows(name)[2])
    assert len({tuple(result.flatten().tolist()) for result in results}) == 6


def test_angles_cover_ninety_degrees_evenly():
    images = torch.zeros(4000, 3, 5, 5, dtype=torch.uint8)
    images[:, :, 2, 3] = 255
    traces = run("motion_blur", images, (1, 1e6))[:, 0] > 0  # three pixels with equal weights
    found = traces.double().mean(0)
    # The second is beside the first up to 30 degrees; the third is two columns farther and one row
    # up or down where its sine is over 1/4 and its cosine over 3/4.
    oblique = math.degrees(math.acos(3 / 4) - math.asin(1 / 4)) / 90
    assert abs(found[2, 2] - 60 / 90) < 0.03
    assert abs(found[1, 1] - oblique) < 0.03
    assert abs(found[3, 1] - oblique) < 0.03


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["gaussian_blur", "zoom_blur", "motion_blur"])
def test_the_change_grows_with_severity(name, table):
    images = some_images(60, 64)
    changes = [
        float((run(name, images, row).double() - images).abs().mean())
        for row in getattr(CORRUPTIONS.find(name), table)
    ]
    assert changes == sorted(changes)
    assert changes[0] > 0.2


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "arguments"), every("gaussian_blur", "defocus_blur", "zoom_blur"))
def test_a_gpu_gives_the_same_levels(name, arguments):
    images = noise(5, 40, 33)
    result = FUNCTIONS[name](images.cuda(), *arguments, generator=None).cpu()
    assert (result.int() - run(name, images, arguments).int()).abs().max() <= 1


@pytest.mark.gpu
def test_a_gpu_smears_and_shuffles_as_a_cpu_does():
    levels, angles = noise(6, 40, 33).float(), torch.linspace(-120, 45, 6)
    smeared = motion.smear(levels.cuda(), angles.cuda(), 10, 3)
    torch.testing.assert_close(smeared.cpu(), motion.smear(levels, angles, 10, 3))
    drawn = glass._draw((6, 34, 27), 3, torch.device("cpu"), None)
    assert torch.equal(glass._trace(drawn.cuda(), 3, 40, 33).cpu(), glass._trace(drawn, 3, 40, 33))
    for name in RANDOM:
        device = torch.Generator("cuda").manual_seed(0)
        result = FUNCTIONS[name](noise(6, 40, 33).cuda(), *rows(name)[2], generator=device)
        assert result.shape == levels.shape
