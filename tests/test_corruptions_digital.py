"""Contrast to JPEG, and elastic distortion: the operations of ImageNet-C, by slower means."""

import colorsys
import io
import math
import warnings
from collections.abc import Sequence
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

from killick.corruptions import digital, elastic, filters
from killick.corruptions.corruption import CORRUPTIONS
from killick.corruptions.suites import TABLES

STILL = ["contrast", "brightness", "saturate", "pixelate", "jpeg_compression"]
NAMES = [*STILL, "elastic_transform"]
SIZES = [(32, 32), (23, 37)]


def rows(name: str) -> list[tuple[tuple[float, ...], ...]]:
    """The arguments at the five severities, for each table."""
    return [getattr(CORRUPTIONS.find(name), table) for table in TABLES]


def settings_of(name: str) -> list[tuple[float, ...]]:
    """The arguments at every severity of all tables."""
    return [arguments for row in rows(name) for arguments in row]


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(n: int, height: int, width: int) -> Tensor:
    """Patches of colour with some grain, in the channels_last layout."""
    coarse = torch.rand(n, 3, height // 6 + 2, width // 6 + 2, generator=seeded(1)) * 300 - 20
    patches = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    grain = torch.randn(n, 3, height, width, generator=seeded(2)) * 6
    images = (patches + grain).clamp(0, 255).to(torch.uint8)
    return images.contiguous(memory_format=torch.channels_last)


def make(name: str, images: Tensor, arguments: Sequence[float], seed: int = 5) -> Tensor:
    module = elastic if name == "elastic_transform" else digital
    result = getattr(module, name)(images, *arguments, generator=seeded(seed))
    assert result.dtype == torch.uint8
    assert result.shape == images.shape
    return result


def is_truncated(found: Tensor, exact: np.ndarray, slack: float = 2e-3) -> bool:
    """Whether `found` is `exact` cut to 0 ... 255 and to whole levels, but for float32's errors."""
    gap = found.numpy() - np.clip(exact, 0, 255)
    return bool((gap > -1 - (slack - 2e-3)).all() and (gap <= slack).all())


def palette() -> Tensor:
    """All greys, a lattice of colours up to the corners, and random ones, `(1, 3, 54, 64)`."""
    greys = torch.arange(256).repeat(3, 1).T
    lattice = torch.cartesian_prod(*[torch.tensor([0, 1, 2, 50, 90, 127, 128, 200, 254, 255])] * 3)
    others = torch.randint(256, (54 * 64 - len(greys) - len(lattice), 3), generator=seeded())
    colours = torch.cat([greys, lattice, others]).to(torch.uint8)
    return colours.T.reshape(1, 3, 54, 64)


def by_hsv(images: Tensor, change) -> np.ndarray:
    """Every pixel through Python's own HSV and back."""
    exact = np.empty(images.shape)
    for i, y, x in np.ndindex(images.shape[0], *images.shape[2:]):
        hsv = colorsys.rgb_to_hsv(*(images[i, :, y, x] / 255).tolist())
        exact[i, :, y, x] = 255 * np.array(colorsys.hsv_to_rgb(*change(*hsv)))
    return exact


def by_pillow(images: Tensor, change) -> Tensor:
    """Every image through Pillow."""
    arrays = [np.ascontiguousarray(image.permute(1, 2, 0).numpy()) for image in images]
    changed = [np.array(change(Image.fromarray(array))) for array in arrays]
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2)


def boxed(image: Image.Image, scale: float) -> Image.Image:
    small = tuple(max(1, int(side * scale)) for side in image.size)
    return image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)


def coded(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("factor", [a for (a,) in settings_of("contrast")])
def test_contrast_keeps_the_mean_of_each_channel_and_a_share_of_the_rest(factor, size):
    images = some_images(2, *size)
    exact = np.empty(images.shape)
    for i, channel in np.ndindex(2, 3):
        values = images[i, channel].contiguous().view(-1).tolist()
        mean = sum(values) / len(values)
        exact[i, channel] = np.reshape([(v - mean) * factor + mean for v in values], size)
    assert is_truncated(make("contrast", images, (factor,)), exact)


@pytest.mark.parametrize("level", [0, 1, 128, 255])
@pytest.mark.parametrize("factor", [0.05, 0.3, 0.75])
def test_contrast_leaves_a_uniform_image_as_it_is(level, factor):
    images = torch.full((2, 3, 224, 224), level, dtype=torch.uint8)
    assert torch.equal(make("contrast", images, (factor,)), images)


@pytest.mark.parametrize("added", [a for (a,) in settings_of("brightness")])
def test_brightness_raises_the_value_of_hsv(added):
    exact = by_hsv(palette(), lambda h, s, v: (h, s, min(v + added, 1)))
    assert is_truncated(make("brightness", palette(), (added,)), exact)


@pytest.mark.parametrize("arguments", settings_of("saturate"))
def test_saturate_scales_and_shifts_the_saturation_of_hsv(arguments):
    factor, offset = arguments
    exact = by_hsv(palette(), lambda h, s, v: (h, min(s * factor + offset, 1), v))
    assert is_truncated(make("saturate", palette(), arguments), exact)


def test_an_offset_of_the_saturation_turns_greys_red_as_in_the_original():
    grey = torch.full((1, 3, 8, 8), 100, dtype=torch.uint8)
    assert make("saturate", grey, (2, 0.1))[0, :, 0, 0].tolist() == [100, 90, 90]
    assert torch.equal(make("saturate", grey, (2, 0)), grey)


@pytest.mark.parametrize("size", [*SIZES, (224, 224), (65, 33)])
@pytest.mark.parametrize("scale", [a for (a,) in settings_of("pixelate")])
def test_pixelate_is_pillows(scale, size):
    images = some_images(2, *size)
    expected = by_pillow(images, lambda image: boxed(image, scale))
    assert torch.equal(make("pixelate", images, (scale,)), expected)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.01, 1))
def test_pixelate_is_pillows_at_any_size_and_scale(height, width, scale):
    images = torch.randint(256, (1, 3, height, width), dtype=torch.uint8, generator=seeded())
    expected = by_pillow(images, lambda image: boxed(image, scale))
    gap = (make("pixelate", images, (scale,)).int() - expected.int()).abs().max()
    assert gap <= (0 if height < 2 * width else 1)  # Pillow 13 takes tall ones by rows first


def test_pixelate_gives_each_box_its_rounded_mean():
    image = torch.tensor([[0, 10, 3, 4], [20, 31, 3, 4]], dtype=torch.uint8)
    found = make("pixelate", image.expand(1, 3, 2, 4), (0.5,))
    # Along x: 5 and 3.5, 25.5 and 3.5, rounded up; then along y.
    assert found[0, 0].tolist() == [[16, 16, 4, 4], [16, 16, 4, 4]]


@pytest.mark.parametrize("size", [*SIZES, (112, 96), (8, 1)])
@pytest.mark.parametrize("quality", [a for (a,) in settings_of("jpeg_compression")])
def test_jpeg_compression_is_pillows(quality, size):
    images = some_images(3, *size)
    expected = by_pillow(images, lambda image: coded(image, quality))
    assert torch.equal(make("jpeg_compression", images, (quality,)), expected)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**32))
def test_jpeg_compression_is_pillows_at_any_size_and_quality(height, width, quality, seed):
    images = torch.randint(256, (1, 3, height, width), generator=seeded(seed)).to(torch.uint8)
    expected = by_pillow(images, lambda image: coded(image, quality))
    assert torch.equal(make("jpeg_compression", images, (quality,)), expected)


@pytest.mark.parametrize("quality", [1, 30, 75, 100])
def test_jpeg_compression_is_pillows_on_images_of_extremes(quality):
    images = 255 * torch.randint(2, (8, 3, 48, 48), dtype=torch.uint8, generator=seeded())
    images[4:] = images[4:, :, ::8, ::8].repeat_interleave(8, 2).repeat_interleave(8, 3)
    expected = by_pillow(images, lambda image: coded(image, quality))
    assert torch.equal(make("jpeg_compression", images, (quality,)), expected)


def mirrored(place: int, size: int, *, repeat_edge: bool) -> int:
    """The pixel that a place outside stands for: ... 1 0 | 0 1 2 ... or ... 2 1 | 0 1 2 ..."""
    while not 0 <= place < size:
        if repeat_edge:
            place = -1 - place if place < 0 else 2 * size - 1 - place
        else:
            place = 0 if size == 1 else -place if place < 0 else 2 * size - 2 - place
    return place


def between(image: np.ndarray, y: float, x: float, *, repeat_edge: bool) -> np.ndarray:
    """The colour at a place between pixels."""
    top, left = math.floor(y), math.floor(x)
    colour = np.zeros(3)
    for row, tall in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, wide in ((left, 1 - (x - left)), (left + 1, x - left)):
            i = mirrored(row, image.shape[1], repeat_edge=repeat_edge)
            j = mirrored(column, image.shape[2], repeat_edge=repeat_edge)
            colour += tall * wide * image[:, i, j]
    return colour


def smoothed(field: np.ndarray, sigma: float) -> np.ndarray:
    """A Gaussian of three standard deviations over a field that is mirrored, edges repeated."""
    reach = int(3 * sigma + 0.5)
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-reach, reach + 1)]
    for axis in (0, 1):
        total = np.zeros_like(field)
        for k, weight in zip(range(-reach, reach + 1), weights, strict=True):
            size = field.shape[axis]
            places = [mirrored(i + k, size, repeat_edge=True) for i in range(size)]
            total += weight / sum(weights) * field.take(places, axis)
        field = total
    return field


def distorted(image: np.ndarray, jitter: np.ndarray, noise: np.ndarray, arguments) -> np.ndarray:
    """One image, by the definition: three points move, then every pixel comes from elsewhere."""
    height, width = image.shape[1:]
    alpha, sigma, affine, side = arguments
    unit = side * min(height, width)
    x, y, reach = height // 2, width // 2, min(height, width) // 3
    old = np.array([[x + reach, y + reach], [x + reach, y - reach], [x - reach, y - reach]])
    new = old + affine * unit * jitter
    back = np.linalg.solve(np.hstack([new, np.ones((3, 1))]), old)  # (x, y, 1) times it
    moved = np.empty_like(image)
    for i, j in np.ndindex(height, width):
        source = np.array([j, i, 1]) @ back
        moved[:, i, j] = between(image, source[1], source[0], repeat_edge=False)
    if alpha == 0:
        return moved
    shift = [alpha * unit * smoothed(field, sigma * unit) for field in noise]
    bent = np.empty_like(image)
    for i, j in np.ndindex(height, width):
        bent[:, i, j] = between(moved, i + shift[1][i, j], j + shift[0][i, j], repeat_edge=True)
    return bent


@pytest.mark.parametrize("size", [(32, 32), (14, 21), (20, 11)])
@pytest.mark.parametrize("arguments", settings_of("elastic_transform"))
def test_elastic_transform_is_that_of_the_slow_version(arguments, size):
    images, generator = some_images(2, *size), seeded()
    jitter = 2 * torch.rand(2, 3, 2, generator=generator).double().numpy() - 1
    noise = 2 * torch.rand(2, 2, *size, generator=generator).double().numpy() - 1
    found = make("elastic_transform", images, arguments)
    for i, image in enumerate(images.double().numpy()):
        assert is_truncated(found[i], distorted(image, jitter[i], noise[i], arguments), 6e-3)


@pytest.mark.parametrize("size", [1, 5, 32, 224])
@pytest.mark.parametrize("sigma", [0, 0.1, 0.3, 1.9, 7.0, 170.8])
def test_smoothing_is_scipys_also_where_it_is_wider_than_the_image(size, sigma):
    line = torch.rand(3, size, generator=seeded(), dtype=torch.float64)
    expected = line if sigma == 0 else gaussian_filter1d(line, sigma, mode="reflect", truncate=3)
    matrix = filters.mirrored_gaussian(size, sigma, 3, torch.device("cpu")).double()
    np.testing.assert_allclose(line @ matrix.T, expected, atol=3e-6)


@pytest.mark.parametrize("size", [(32, 40), (2, 2), (1, 5)])
def test_elastic_transform_without_any_displacement_leaves_images_as_they_are(size):
    images = some_images(2, *size)
    found = make("elastic_transform", images, (0, 0, 0, 1))
    assert ((found.int() - images).abs() <= 1).all()
    assert (found == images).double().mean() > 0.99


def test_the_constants_of_elastic_transform_are_in_units_of_the_shorter_side():
    images = some_images(3, 24, 40)
    found = make("elastic_transform", images, (0.1, 0.06, 0.04, 2))
    assert torch.equal(found, make("elastic_transform", images, (0.2, 0.12, 0.08, 1)))


def test_three_points_on_one_line_do_not_send_pixels_to_infinity():
    onto_one = -torch.tensor([[[5.0, 5], [5, -5], [-5, -5]]])
    assert elastic._affine_grid(onto_one, 16, 16).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_images_stay_as_they_are_and_equal_generators_give_equal_pixels(name):
    images = some_images(3, 16, 20)
    before, state = images.clone(), torch.get_rng_state()
    for arguments in settings_of(name):
        first, second = make(name, images, arguments), make(name, images, arguments)
        assert torch.equal(first, second)
        assert torch.equal(make(name, images.contiguous(), arguments), first)
        assert first.data_ptr() != images.data_ptr()
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", STILL)
def test_generators_are_left_alone_where_nothing_is_random(name):
    generator, module = seeded(), digital
    getattr(module, name)(some_images(1, 8, 8), *rows(name)[0][0], generator=generator)
    assert torch.equal(generator.get_state(), seeded().get_state())


@pytest.mark.parametrize("arguments", settings_of("elastic_transform"))
def test_each_image_is_distorted_in_its_own_way(arguments):
    images = some_images(1, 32, 32).expand(4, 3, 32, 32)
    found = make("elastic_transform", images, arguments)
    assert len({image.numpy().tobytes() for image in found}) == 4
    assert not torch.equal(found, make("elastic_transform", images, arguments, seed=6))


@pytest.mark.parametrize("name", ["contrast", "brightness", "pixelate", "jpeg_compression"])
def test_higher_severities_change_more(name):
    for row, side in zip(rows(name), (32, 64, 96), strict=True):
        images = some_images(6, side, side)
        changes = [(make(name, images, a).double() - images).abs().mean().item() for a in row]
        assert changes == sorted(set(changes))


# Not elastic_transform, which is another operation there: without the affine part.
@pytest.mark.parametrize("name", STILL)
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_results_are_those_of_imagecorruptions_to_within_a_grey_level(name, severity):
    images = some_images(3, 64, 128)  # powers of 2: at others, its pixelate repeats other pixels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        corrupt = import_module("imagecorruptions").corrupt
        arrays = np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
        theirs = np.stack([corrupt(a, corruption_name=name, severity=severity) for a in arrays])
    ours = make(name, images, rows(name)[-1][severity - 1])
    gap = (ours.int() - torch.from_numpy(theirs).permute(0, 3, 1, 2).int()).abs()
    assert gap.max() <= 1
    assert (gap > 0).double().mean() < 0.15  # where skimage leaves 128 as 127.9999999
