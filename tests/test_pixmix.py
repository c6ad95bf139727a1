"""PixMix, and the images it mixes in: what is drawn, what is computed, what is refused."""

import math
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from killick.data import fractals
from killick.data.fractals import make_mixing_images
from killick.data.pixmix import CHANGES, Change, PixMix, PixMixPlan, Round, change, mix
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


def slowly_mixed(first: np.ndarray, second: np.ndarray, round_: Round) -> np.ndarray:
    """One number after the other, from the formulas of the paper."""
    out = np.zeros_like(first)
    for index in np.ndindex(first.shape):
        x, y = float(first[index]), float(second[index])
        if round_.multiply:
            value = math.pow(2 * x, round_.own) * math.pow(max(2 * y, 1e-37), round_.other) / 2
        else:
            value = (round_.own * (2 * x - 1) + round_.other * (2 * y - 1) + 1) / 2
        out[index] = min(max(value, 0.0), 1.0)
    return out


def rounds_of(k: int, count: int, **options: float) -> list[Round]:
    """The rounds of many plans."""
    pixmix, generator = PixMix(some_mixing_images(), k=k, **options), seeded(0)
    return [round_ for _ in range(count) for round_ in pixmix.draw(generator).rounds]


def share_below(values: list[float], bound: float) -> float:
    return sum(value < bound for value in values) / len(values)


WEIGHTS = [(0.7, 0.2), (1.3, -0.4), (1.0, 0.0), (0.01, 0.99), (2.0, -1.0)]


@pytest.mark.parametrize("multiply", [False, True])
@pytest.mark.parametrize(("own", "other"), WEIGHTS)
def test_mixing_agrees_with_the_formulas(multiply, own, other):
    first, second = (some_image(9, 7, seed).double() / 255 for seed in (1, 2))
    first[0, 0, :3], second[0, 0, 1:4] = 0, 0
    round_ = Round(None, multiply, own, other)
    expected = slowly_mixed(first.numpy(), second.numpy(), round_)
    np.testing.assert_allclose(mix(first, second, round_), expected, atol=1e-12)
    single = mix(first.float(), second.float(), round_)
    np.testing.assert_allclose(single, expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_an_image_comes_out_as_a_slow_run_of_its_plan(seed):
    image, pixmix = some_image(16, 12, seed), PixMix(some_mixing_images(side=20), k=4)
    plan = pixmix.draw(seeded(seed))
    mixed = change(image, plan.start).double().numpy() / 255
    top, left = int(plan.top * 5), int(plan.left * 9)
    crop = pixmix.mixing_images[plan.mixing_image, :, top : top + 16, left : left + 12]
    for round_ in plan.rounds:
        partner = crop if round_.partner is None else change(image, round_.partner)
        mixed = slowly_mixed(mixed, partner.double().numpy() / 255, round_)
    difference = np.abs(pixmix.apply(image, plan).double().numpy() - mixed * 255)
    assert difference.max() < 0.51


def test_without_rounds_the_image_comes_out_as_it_is_or_changed_once():
    image, pixmix = some_image(), PixMix(some_mixing_images(), k=0)
    same = 0
    for seed in range(200):
        plan = pixmix.draw(seeded(seed))
        assert plan.rounds == ()
        assert torch.equal(pixmix(image, seeded(seed)), change(image, plan.start))
        same += plan.start is None
    assert 70 < same < 130


def test_a_round_that_gives_the_other_no_weight_changes_nothing():
    image, pixmix = some_image(), PixMix(some_mixing_images())
    rounds = tuple(Round(None, multiply, 1.0, 0.0) for multiply in (False, True))
    assert torch.equal(pixmix.apply(image, PixMixPlan(None, rounds, 0, 0.5, 0.5)), image)


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
        pixmix.draw(generator)
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


def test_rounds_are_as_often_of_each_number():
    pixmix, generator = PixMix(some_mixing_images(), k=4), seeded(1)
    counts = Counter(len(pixmix.draw(generator).rounds) for _ in range(5000))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(abs(count - 1000) < 120 for count in counts.values())


def test_halves_of_the_cases_are_halves():
    rounds = rounds_of(4, 3000)
    for half in (
        [round_.partner is None for round_ in rounds],
        [round_.multiply for round_ in rounds],
        [round_.other < 0 for round_ in rounds],
        [round_.partner.sign > 0 for round_ in rounds if round_.partner],
    ):
        assert abs(sum(half) / len(half) - 0.5) < 0.03


@pytest.mark.parametrize("beta", [1.0, 3.0, 5.5])
def test_weights_follow_the_beta_distributions(beta):
    rounds = rounds_of(4, 3000, beta=beta)
    given, taken = ([r for r in rounds if (r.other < 0) == away] for away in (False, True))
    for bound in (0.1, 0.3, 0.5, 0.8):
        high, low = bound**beta, 1 - (1 - bound) ** beta  # of Beta(beta, 1) and Beta(1, beta)
        assert abs(share_below([r.own for r in given], bound) - high) < 0.03
        assert abs(share_below([r.other for r in given], bound) - low) < 0.03
        assert abs(share_below([r.own - 1 for r in taken], bound) - low) < 0.03
        assert abs(share_below([-r.other for r in taken], bound) - low) < 0.03


def test_weights_are_independent_of_each_other():
    rounds = rounds_of(4, 3000)
    for away in (False, True):
        pairs = torch.tensor([(r.own, r.other) for r in rounds if (r.other < 0) == away])
        assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 0.06


def test_all_changes_come_as_often_and_as_strong_as_the_severity_says():
    changes = [r.partner for r in rounds_of(4, 4000, severity=5) if r.partner]
    counts = Counter(change.name for change in changes)
    assert set(counts) == set(CHANGES)
    assert all(abs(count / len(changes) - 1 / 9) < 0.02 for count in counts.values())
    levels = torch.tensor([change.level for change in changes])
    assert levels.min() >= 0.1
    assert levels.max() <= 5
    assert abs(float(levels.mean()) - 2.55) < 0.1


def test_one_image_serves_all_rounds_and_all_images_and_places_come():
    pixmix, generator = PixMix(some_mixing_images(count=7)), seeded(2)
    plans = [pixmix.draw(generator) for _ in range(2000)]
    counts = Counter(plan.mixing_image for plan in plans)
    assert sorted(counts) == list(range(7))
    assert min(counts.values()) > 200
    for place in ([plan.top for plan in plans], [plan.left for plan in plans]):
        assert abs(sum(place) / 2000 - 0.5) < 0.03


def test_crops_reach_every_edge_of_the_image():
    texture = torch.arange(36, dtype=torch.uint8).reshape(1, 1, 6, 6).expand(1, 3, 6, 6)
    pixmix = PixMix(texture)
    found = {
        int(pixmix._crop(PixMixPlan(None, (), 0, top, left), 4, 5)[0, 0, 0])
        for top in (0.0, 0.5, 0.999)
        for left in (0.0, 0.999)
    }
    assert found == {0, 1, 6, 7, 12, 13}


def test_smaller_images_are_enlarged_until_they_cover_the_image():
    pixmix = PixMix(some_mixing_images(count=1, side=8))
    crop = pixmix._crop(PixMixPlan(None, (), 0, 0.0, 0.0), 32, 20)
    expected = torch.nn.functional.interpolate(
        pixmix.mixing_images.float(), (32, 32), mode="bilinear", antialias=True
    )
    assert crop.shape == (3, 32, 20)
    assert (crop - expected[0, :, :, :20]).abs().max() <= 1


def by_pillow(image: Image.Image, wanted: Change) -> Image.Image:
    """The authors' change, done with the library they use."""
    level, sign = wanted.level, wanted.sign
    simple = {
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "posterize": lambda: ImageOps.posterize(image, 4 - int(level * 4 / 10)),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(level * 256 / 10)),
        "rotate": lambda: image.rotate(sign * int(level * 3), Image.Resampling.BILINEAR),
    }
    if wanted.name in simple:
        return simple[wanted.name]()
    width, height = image.size
    matrix = {
        "shear_x": (1, sign * level * 0.03, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, sign * level * 0.03, 1, 0),
        "translate_x": (1, 0, sign * int(level * width / 30), 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, sign * int(level * height / 30)),
    }[wanted.name]
    affine = Image.Transform.AFFINE
    return image.transform(image.size, affine, matrix, Image.Resampling.BILINEAR)


@pytest.mark.parametrize("level", [0.1, 1.7, 2.9, 9.9])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_those_of_the_authors(name, level):
    image = some_image(32, 28, seed=4)
    for sign in (-1, 1):
        wanted = Change(name, level, sign)
        pillow = by_pillow(Image.fromarray(image.permute(1, 2, 0).numpy()), wanted)
        expected = torch.from_numpy(np.array(pillow)).permute(2, 0, 1).float()
        differs = (change(image, wanted).float() - expected).abs() > 1
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


@pytest.mark.parametrize(
    ("count", "size", "told"),
    [
        (0, 32, "expected count to be at least 1 image, found 0"),
        (5, 4, "expected size to be at least 8 pixels, found 4"),
    ],
)
def test_mixing_images_that_cannot_be_are_refused(count, size, told):
    with pytest.raises(OptionError, match=told):
        make_mixing_images(count, size, seed=0)
