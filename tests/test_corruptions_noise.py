"""Noise: the operations of ImageNet-C value by value, with the same draws, and as distributions."""

import math
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from killick.corruptions import noise
from killick.corruptions.corruption import CORRUPTIONS
from killick.corruptions.suites import TABLES

NAMES = ["gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"]
SIZES = [(32, 32), (9, 14)]
Row = tuple[tuple[float, ...], ...]


def rows(name: str) -> list[Row]:
    """The arguments at the five severities, for each table."""
    return [getattr(CORRUPTIONS.find(name), table) for table in TABLES]


def numbers(name: str) -> list[float]:
    """The one argument at every severity of all tables."""
    return [argument for row in rows(name) for (argument,) in row]


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(n: int, height: int, width: int) -> Tensor:
    """Random grey levels from dark to bright, in the channels_last layout."""
    images = torch.randint(256, (n, height, width, 3), dtype=torch.uint8, generator=seeded(1))
    return images.permute(0, 3, 1, 2)


def make(name: str, images: Tensor, arguments: Sequence[float], seed: int = 5) -> Tensor:
    result = getattr(noise, name)(images, *arguments, generator=seeded(seed))
    assert result.dtype == torch.uint8
    assert result.shape == images.shape
    return result


def is_truncated(found: Tensor, exact: Sequence[float]) -> bool:
    """Whether `found` is `exact` cut to 0 ... 255 and to whole levels, but for float32's errors."""
    cut = np.clip(np.array(exact), 0, 255)
    gap = found.contiguous().view(-1).numpy() - cut
    return bool((gap > -1).all() and (gap <= 2e-3).all())


def drawn_bits(count: int, seed: int = 5) -> list[int]:
    """The 32-bit numbers of the values, from -2^31: both halves of each draw of 64, lower first."""
    draws = torch.empty((count + 1) // 2, dtype=torch.int64)
    draws.random_(-(2**63), None, generator=seeded(seed))
    halves = []
    for draw in draws.tolist():
        for half in (draw % 2**32, draw // 2**32 % 2**32):
            halves.append(half - 2**32 if half >= 2**31 else half)
    return halves[:count]


def implied(table: Tensor) -> np.ndarray:
    """The probabilities that alias tables stand for, `(rows, 256)`, slot by slot."""
    chance = np.zeros((len(table) // 256, 256))
    for place, entry in enumerate(table.tolist()):
        row, slot = divmod(place, 256)
        threshold, alias = divmod(entry + 2**31, 256)
        chance[row, slot] += threshold / 2**23 / 256
        chance[row, alias] += (1 - threshold / 2**23) / 256
    return chance


def shot_law(photons: float, level: int) -> np.ndarray:
    """How often a grey level becomes each of the 256, by scipy's Poisson distribution."""
    law, expected = np.zeros(256), level / 255 * photons
    counts = np.arange(math.ceil(photons))
    for count, chance in zip(counts, stats.poisson.pmf(counts, expected), strict=True):
        law[int(count / photons * 255 + 1e-9)] += chance
    law[255] += stats.poisson.sf(counts[-1], expected)
    return law


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("std", numbers("gaussian_noise"))
def test_gaussian_noise_adds_its_draw_to_every_value(std, size):
    images = some_images(2, *size)
    draws = torch.randn(images.shape, generator=seeded()).view(-1).tolist()
    values = images.contiguous().view(-1).tolist()
    exact = [(v / 255 + std * z) * 255 for v, z in zip(values, draws, strict=True)]
    assert is_truncated(make("gaussian_noise", images, (std,)), exact)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("std", numbers("speckle_noise"))
def test_speckle_noise_adds_its_draw_times_the_value(std, size):
    images = some_images(2, *size)
    draws = torch.randn(images.shape, generator=seeded()).view(-1).tolist()
    values = images.contiguous().view(-1).tolist()
    exact = [(v / 255 + v / 255 * std * z) * 255 for v, z in zip(values, draws, strict=True)]
    assert is_truncated(make("speckle_noise", images, (std,)), exact)


@pytest.mark.parametrize("size", [*SIZES, (3, 3)])
@pytest.mark.parametrize("share", numbers("impulse_noise"))
def test_impulse_noise_replaces_the_values_with_the_outermost_draws(share, size):
    images = some_images(3, *size)
    expected = images.contiguous().view(-1).tolist()
    for i, bits in enumerate(drawn_bits(len(expected))):
        place = (bits + 2**31) / 2**32  # uniform in [0, 1)
        expected[i] = 0 if place < share / 2 else 255 if place >= 1 - share / 2 else expected[i]
    assert make("impulse_noise", images, (share,)).view(-1).tolist() == expected


@pytest.mark.parametrize("share", numbers("impulse_noise"))
def test_impulse_noise_hits_its_share_of_the_values_of_each_channel_half_white_half_black(share):
    images = torch.full((4, 3, 200, 200), 77, dtype=torch.uint8)
    hit = make("impulse_noise", images, (share,))
    count = hit[:, 0].numel()
    spread = 5 * math.sqrt(share / 2 / count)
    for channel in hit.unbind(1):
        assert (channel == 255).double().mean().item() == pytest.approx(share / 2, abs=spread)
        assert (channel == 0).double().mean().item() == pytest.approx(share / 2, abs=spread)
    both = ((hit[:, 0] != 77) & (hit[:, 1] != 77)).double().mean().item()
    assert both == pytest.approx(share**2, abs=5 * share / math.sqrt(count))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_impulse_noise_of_any_share_leaves_black_white_and_what_was_there(share):
    images = torch.full((1, 3, 300, 300), 100, dtype=torch.uint8)
    found = make("impulse_noise", images, (share,))
    assert set(found.unique().tolist()) == ({100} if share == 0 else {0, 100, 255})
    assert (found != 100).double().mean().item() == pytest.approx(share, abs=5e-3)


def test_draws_on_the_bounds_of_impulse_noise_are_divided_evenly(monkeypatch):
    bound = 2**30  # for a share of a half
    draws = [-(2**31), -bound - 1, -bound, 0, bound - 1, bound, 2**31 - 1]
    bits = torch.tensor(draws, dtype=torch.int32).expand(1, 3, 1, 7).clone()
    monkeypatch.setattr(noise, "_random_bits", lambda *_: bits)
    found = make("impulse_noise", torch.full((1, 3, 1, 7), 9, dtype=torch.uint8), (0.5,))
    assert found[0, 0, 0].tolist() == [0, 0, 9, 9, 9, 255, 255]


@pytest.mark.parametrize("sign", [0, -(2**31)])
def test_a_draw_on_the_threshold_takes_the_alias_and_one_below_it_the_slot(sign):
    law = torch.zeros(1, 256, dtype=torch.float64)
    law[0, 3], law[0, 200] = 0.7 / 256, 1 - 0.7 / 256  # so slot 3 is filled up with 200
    threshold = round(0.7 * 2**23)
    draws = [sign + 256 * place + 3 for place in (0, threshold - 1, threshold, 2**23 - 1)]
    bits = torch.tensor(draws, dtype=torch.int32).view(1, 1, 1, 4)
    found = noise._look_up(torch.zeros_like(bits, dtype=torch.uint8), bits, noise.pack_aliases(law))
    assert found.view(-1).tolist() == [3, 3, 200, 200]


@pytest.mark.parametrize("photons", numbers("shot_noise"))
def test_the_tables_of_shot_noise_are_the_poisson_distribution(photons):
    chance = implied(noise._shot_table(photons, torch.device("cpu")))
    law = np.stack([shot_law(photons, level) for level in range(256)])
    assert np.abs(chance - law).max() < 2**-24
    assert not chance[law == 0].any()


@pytest.mark.parametrize("size", [*SIZES, (5, 5)])
@pytest.mark.parametrize("photons", numbers("shot_noise"))
def test_shot_noise_looks_its_draws_up_in_the_tables(photons, size):
    images = some_images(1, *size)
    table = noise._shot_table(photons, torch.device("cpu")).tolist()
    values = images.contiguous().view(-1).tolist()
    expected = []
    for value, bits in zip(values, drawn_bits(len(values)), strict=True):
        slot, fraction = bits % 256, bits // 256 % 2**23
        threshold, alias = divmod(table[256 * value + slot] + 2**31, 256)
        expected.append(slot if fraction < threshold else alias)
    assert make("shot_noise", images, (photons,)).view(-1).tolist() == expected


@pytest.mark.parametrize("photons", numbers("shot_noise"))
def test_shot_noise_draws_from_the_poisson_distribution(photons):
    levels = [1, 60, 128, 254]
    images = torch.tensor(levels, dtype=torch.uint8).repeat(3, 1).view(1, 3, 4, 1)
    found = make("shot_noise", images.expand(20_000, 3, 4, 1), (photons,))
    for row, level in enumerate(levels):
        seen = found[:, :, row].reshape(-1).bincount(minlength=256).numpy()
        expected = shot_law(photons, level) * seen.sum()
        common = expected >= 5
        seen = np.append(seen[common], seen[~common].sum())
        expected = np.append(expected[common], expected[~common].sum())
        if expected[-1] < 5:
            seen, expected = seen[:-1], expected[:-1] * seen[:-1].sum() / expected[:-1].sum()
        assert len(seen) == 1 or stats.chisquare(seen, expected).pvalue > 1e-4


def test_shot_noise_leaves_black_black():
    black = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    assert make("shot_noise", black, (3.0,)).eq(0).all()


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100))
@settings(max_examples=10)
def test_alias_tables_stand_for_their_distribution(seed, evenness):
    law = stats.dirichlet(np.full(256, evenness), seed).rvs(4)
    assert np.abs(implied(noise.pack_aliases(torch.from_numpy(law))) - law).max() < 2**-24


@pytest.mark.parametrize("name", NAMES)
def test_images_stay_as_they_are_and_equal_generators_give_equal_pixels(name):
    images = some_images(3, 16, 16)
    before, state = images.clone(), torch.get_rng_state()
    arguments = rows(name)[0][2]
    first, second = make(name, images, arguments), make(name, images, arguments)
    assert torch.equal(first, second)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, make(name, images, arguments, seed=6))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_images_in_another_layout_give_the_same_pixels(name):
    images, arguments = some_images(3, 9, 14), rows(name)[-1][2]
    found = make(name, images.contiguous(), arguments)
    assert torch.equal(make(name, images, arguments), found)


@pytest.mark.parametrize("name", NAMES)
def test_each_image_and_each_channel_has_noise_of_its_own(name):
    images = torch.full((4, 3, 32, 32), 120, dtype=torch.uint8)
    planes = make(name, images, rows(name)[-1][2]).view(12, -1)
    change = planes.double() - planes.double().mean(1, keepdim=True)
    correlation = torch.corrcoef(change) - torch.eye(12)
    assert correlation.abs().max() < 0.15  # 4.8 standard deviations, for 1024 pixels


@pytest.mark.parametrize("name", NAMES)
def test_higher_severities_change_more(name):
    images = some_images(4, 64, 64)
    for row in rows(name):
        changes = [(make(name, images, a).double() - images).abs().mean().item() for a in row]
        assert changes == sorted(set(changes))


@pytest.fixture(scope="module")
def peer() -> Callable[[str, Tensor, int], Tensor]:
    """imagecorruptions, which has ImageNet's constants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        corrupt = import_module("imagecorruptions").corrupt

    def of(name: str, images: Tensor, severity: int) -> Tensor:
        np.random.seed(7)  # noqa: NPY002 - it draws from there
        drawn = np.random.default_rng(7)  # and skimage from one of these, for impulse noise
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("ignore")
            patch.setattr(np.random, "default_rng", lambda _: drawn)
            each = [
                corrupt(image.permute(1, 2, 0).numpy(), corruption_name=name, severity=severity)
                for image in images
            ]
        return torch.from_numpy(np.stack(each)).permute(0, 3, 1, 2)

    return of


def spectrum(change: Tensor, bins: int = 5) -> Tensor:
    """The power of a change at each distance from frequency 0, averaged over all planes."""
    power = torch.fft.fft2(change - change.mean((2, 3), keepdim=True)).abs().square().mean((0, 1))
    along = torch.fft.fftfreq(len(power))
    distance = (along[:, None] ** 2 + along**2).sqrt()
    ring = (distance / 0.5 * bins).long().clamp_max(bins - 1)
    total = torch.zeros(bins, dtype=power.dtype).index_add_(0, ring.view(-1), power.view(-1))
    return total / ring.view(-1).bincount(minlength=bins)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.slow
def test_noise_has_the_statistics_of_imagecorruptions(peer, name, severity):
    images = some_images(12, 96, 96) // 2 + 64 * torch.arange(3, dtype=torch.uint8)[:, None, None]
    ours = make(name, images, rows(name)[-1][severity - 1]).double()
    theirs = peer(name, images, severity).double()
    change, their_change = ours - images, theirs - images
    assert_close(change.abs().mean(), their_change.abs().mean(), rtol=0.05, atol=0)
    assert_close(ours.mean((0, 2, 3)), theirs.mean((0, 2, 3)), rtol=0, atol=0.8)
    assert_close(ours.std((0, 2, 3)), theirs.std((0, 2, 3)), rtol=0.02, atol=0)
    assert_close(spectrum(change), spectrum(their_change), rtol=0.1, atol=0)
