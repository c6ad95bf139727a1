"""PixMix, and the images it mixes in: what is drawn, what is computed, what is refused."""

import math
import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy import stats
from torch import Tensor

from killick.data import fractals
from killick.data.fractals import make_mixing_images
from killick.data.pixmix import CHANGES, PixMix, add_images, multiply_images
from killick.errors import OptionError


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_image(height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Smooth colors with some black and some white in them."""
    noise = torch.randn(1, 3, 5, 5, generator=seeded(seed))
    smooth = torch.nn.functional.interpolate(noise, (height, width), mode="bicubic")[0]
    return (smooth * 120 + 128).clamp(0, 255).byte()


def some_mixing_images(count: int = 5, side: int = 40) -> Tensor:
    return torch.stack([some_image(side, side, seed=100 + i) for i in range(count)])


def slowly_mixed(
    first: np.ndarray, second: np.ndarray, multiply: bool, own: float, other: float
) -> np.ndarray:
    """One number after the other, from the formulas of the paper."""
    out = np.zeros_like(first)
    for index in np.ndindex(first.shape):
        x, y = float(first[index]), float(second[index])
        if multiply:
            value = math.pow(2 * x, own) * math.pow(max(2 * y, 1e-37), other) / 2
        else:
            value = (own * (2 * x - 1) + other * (2 * y - 1) + 1) / 2
        out[index] = min(max(value, 0.0), 1.0)
    return out


def slow_run(image: Tensor, pixmix: PixMix, seed: int) -> np.ndarray:
    """What PixMix makes of the image, step by step as the paper has it."""
    draws = torch.rand(8 + 8 * pixmix.k, dtype=torch.float64, generator=seeded(seed)).tolist()

    def altered(otherwise: Tensor) -> Tensor:
        wanted, which, strength, side = (draws.pop(0) for _ in range(4))
        name = list(CHANGES)[int(which * 9)]
        level = 0.1 + strength * (pixmix.severity - 0.1)
        return otherwise if wanted < 0.5 else change(image, name, level, 1 if side < 0.5 else -1)

    mixed = altered(image).double().numpy() / 255
    rounds, textures = int(draws.pop(0) * (pixmix.k + 1)), pixmix.mixing_images
    texture = textures[int(draws.pop(0) * len(textures))]
    room = [texture.shape[axis] - image.shape[axis] + 1 for axis in (1, 2)]
    top, left = (int(draws.pop(0) * each) for each in room)
    crop = texture[:, top : top + image.shape[1], left : left + image.shape[2]]
    for _ in range(rounds):
        partner = altered(crop).double().numpy() / 255
        multiply, away, first, second = (draws.pop(0) for _ in range(4))
        own, other = (
            stats.beta.ppf(first, pixmix.beta, 1),
            stats.beta.ppf(1 - second, 1, pixmix.beta),
        )
        if away >= 0.5:
            own, other = 2 - own, -other
        mixed = slowly_mixed(mixed, partner, multiply < 0.5, own, other)
    return mixed * 255


def change(image: Tensor, name: str, level: float, sign: int) -> Tensor:
    return CHANGES[name](image, level / 10, sign)


WEIGHTS = [(0.7, 0.2), (1.3, -0.4), (1.0, 0.0), (0.01, 0.99), (2.0, -1.0)]


@pytest.mark.parametrize("multiply", [False, True])
@pytest.mark.parametrize(("own", "other"), WEIGHTS)
def test_mixing_agrees_with_the_formulas(multiply, own, other):
    first, second = (some_image(9, 7, seed).double() / 255 for seed in (1, 2))
    first[0, 0, :3], second[0, 0, 1:4] = 0, 0
    mix = multiply_images if multiply else add_images
    expected = slowly_mixed(first.numpy(), second.numpy(), multiply, own, other)
    np.testing.assert_allclose(mix(first, second, own, other), expected, atol=1e-12)
    single = mix(first.float(), second.float(), own, other)
    np.testing.assert_allclose(single, expected, atol=1e-5)


@pytest.mark.parametrize("beta", [1.0, 3.0, 5.5])
@pytest.mark.parametrize("seed", range(20))
def test_an_image_comes_out_as_a_slow_run_of_the_paper(seed, beta):
    image = some_image(16, 12, seed)
    pixmix = PixMix(some_mixing_images(side=20), k=4, beta=beta, severity=5)
    difference = np.abs(
        pixmix(image, seeded(seed)).double().numpy() - slow_run(image, pixmix, seed)
    )
    assert difference.max() < 0.51


def test_without_rounds_the_image_comes_out_as_it_is_or_changed_once():
    image, pixmix = some_image(), PixMix(some_mixing_images(), k=0)
    same = 0
    for seed in range(200):
        found = pixmix(image, seeded(seed))
        np.testing.assert_array_equal(found.numpy(), slow_run(image, pixmix, seed).round())
        same += torch.equal(found, image)
    assert 70 < same < 130


def test_the_same_generator_gives_the_same_image_and_the_given_one_is_kept():
    image, pixmix = some_image(), PixMix(some_mixing_images())
    before = image.clone()
    first, again = ([pixmix(image, g) for _ in range(8)] for g in (seeded(3), seeded(3)))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({mixed.numpy().tobytes() for mixed in first}) > 4
    assert torch.equal(image, before)


def test_every_image_takes_equally_many_numbers_from_the_generator():
    pixmix, generator = PixMix(some_mixing_images(), k=3), seeded(0)
    for _ in range(5):
        pixmix(some_image(), generator)
    expected = seeded(0)
    torch.rand(5 * (8 + 8 * 3), dtype=torch.float64, generator=expected)
    assert torch.equal(generator.get_state(), expected.get_state())


def test_the_global_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    pixmix = PixMix(make_mixing_images(6, 32, seed=0))
    for seed in range(20):
        pixmix(some_image(), seeded(seed))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (17, 40), (64, 30), (1, 1)])
def test_images_of_any_size_come_out_in_their_size_and_type(height, width):
    image, pixmix = some_image(height, width), PixMix(some_mixing_images(side=36), severity=10)
    for seed in range(30):
        mixed = pixmix(image, seeded(seed))
        assert mixed.shape == image.shape
        assert mixed.dtype == torch.uint8


def test_smaller_images_are_enlarged_until_they_cover_the_image():
    pixmix = PixMix(some_mixing_images(count=1, side=8))
    crop = pixmix._crop(some_image(32, 20), iter([0.0, 0.0, 0.0]))
    expected = torch.nn.functional.interpolate(
        pixmix.mixing_images.float(), (32, 32), mode="bilinear", antialias=True
    )
    assert crop.shape == (3, 32, 20)
    assert (crop - expected[0, :, :, :20]).abs().max() <= 1


def by_pillow(image: Image.Image, name: str, level: float, sign: int) -> Image.Image:
    """The authors' change, done with the library they use."""
    simple = {
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "posterize": lambda: ImageOps.posterize(image, 4 - int(level * 4 / 10)),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(level * 256 / 10)),
        "rotate": lambda: image.rotate(sign * int(level * 3), Image.Resampling.BILINEAR),
    }
    if name in simple:
        return simple[name]()
    width, height = image.size
    matrix = {
        "shear_x": (1, sign * level * 0.03, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, sign * level * 0.03, 1, 0),
        "translate_x": (1, 0, sign * int(level * width / 30), 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, sign * int(level * height / 30)),
    }[name]
    affine = Image.Transform.AFFINE
    return image.transform(image.size, affine, matrix, Image.Resampling.BILINEAR)


@pytest.mark.parametrize("level", [0.1, 1.7, 2.9, 9.9])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_those_of_the_authors(name, level):
    image = some_image(32, 28, seed=4)
    for sign in (-1, 1):
        pillow = by_pillow(Image.fromarray(image.permute(1, 2, 0).numpy()), name, level, sign)
        expected = torch.from_numpy(np.array(pillow)).permute(2, 0, 1).float()
        differs = (change(image, name, level, sign).float() - expected).abs() > 1
        if name in ("rotate", "shear_x", "shear_y"):
            assert differs.float().mean() < 0.06  # the libraries differ where black begins
        else:
            assert not differs.any()


def test_it_can_be_sent_to_another_process():
    pixmix = PixMix(some_mixing_images(), k=2, beta=4.0, severity=1)
    copy = pickle.loads(pickle.dumps(pixmix))
    assert torch.equal(copy(some_image(), seeded(1)), pixmix(some_image(), seeded(1)))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"k": -1}, "-1"),
        ({"beta": 0.0}, "0.0"),
        ({"beta": math.nan}, "nan"),
        ({"severity": 11}, "11"),
    ],
)
def test_options_out_of_range_are_refused(options, told):
    with pytest.raises(OptionError, match=told):
        PixMix(some_mixing_images(), **options)


def test_mixing_images_are_as_promised_and_the_same_for_the_same_seed():
    first, again, other = (make_mixing_images(31, 24, seed) for seed in (1, 1, 2))
    assert first.shape == (31, 3, 24, 24)
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_mixing_images_are_full_of_contrast_and_color():
    images = make_mixing_images(240, 32, seed=0).float() / 255
    assert images.std((2, 3)).mean(1).min() > 0.08  # none is nearly of one color
    assert (images.amax(1) - images.amin(1)).mean() > 0.25
    spread = images.mean((2, 3)).std(0)
    assert spread.min() > 0.08  # nor are they all of one mean color


def test_mixing_images_have_structure_neighbouring_pixels_are_alike():
    images = make_mixing_images(240, 32, seed=0).float().flatten(0, 1)
    centred = images - images.mean((1, 2), keepdim=True)
    beside = (centred[:, :, 1:] * centred[:, :, :-1]).mean((1, 2)) / centred.square().mean((1, 2))
    assert beside.median() > 0.6
    assert (beside > 0.1).float().mean() > 0.95


@pytest.mark.parametrize(
    "view", [(0.1, -0.2, 1.2, -0.76, 0.09, 0.0), (0.0, 0.0, 0.0, -0.6, 0.1, 1.4)]
)
def test_fractals_tell_how_soon_numbers_escape_and_else_how_near_to_zero_they_come(view):
    views = torch.tensor(view, dtype=torch.float64).view(1, 6, 1, 1)
    found = fractals._escape_time(views, 16)[0]
    assert (found < 0).any()
    assert (found > 0).any()
    for (row, column), value in np.ndenumerate(found.numpy()):
        pixel = complex((2 * column + 1) / 16 - 1, (2 * row + 1) / 16 - 1)
        assert value == pytest.approx(slow_escape(view, pixel), abs=1e-4)


def slow_escape(view: tuple[float, ...], pixel: complex) -> float:
    z = complex(view[0], view[1]) + view[2] * pixel
    c = complex(view[3], view[4]) + view[5] * pixel
    nearest = 1.0
    for step in range(48):
        if abs(z) > 16:
            return max(step + 1 - math.log2(math.log(abs(z)) / math.log(16)), 0)
        z = z * z + c
        nearest = min(nearest, abs(z))
    return -nearest


def test_mixing_images_of_one_call_all_differ():
    images = make_mixing_images(200, 16, seed=0)
    assert len(images.flatten(1).unique(dim=0)) == 200
