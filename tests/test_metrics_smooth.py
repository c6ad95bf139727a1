"""Smooth calibration error against direct sums over points, and against relplot."""

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

from killick.errors import DataError, OptionError
from killick.metrics import smooth_calibration as smooth
from killick.metrics import smooth_ece, smooth_ece_interval, smooth_reliability

BANDWIDTHS = [0.2, 0.05, 0.01, 0.003]
Array = np.ndarray


def drawn(n: int, kind: str, seed: int = 0) -> tuple[Array, Array]:
    """Confidences and outcomes of a model of some kind."""
    rng = np.random.default_rng(seed)
    f = rng.beta(5, 1.5, n)
    if kind == "calibrated":
        return f, (rng.random(n) < f).astype(float)
    if kind == "overconfident":
        return f, (rng.random(n) < f - 0.2).astype(float)
    if kind == "underconfident":
        f = rng.beta(3, 3, n)
        return f, (rng.random(n) < f + 0.15).astype(float)
    if kind == "saturated":  # at exactly 0 and 1, and beside
        f = np.select([rng.random(n) < 0.5, rng.random(n) < 0.2], [1.0, 0.0], f)
        return f, (rng.random(n) < 0.2 + 0.6 * f).astype(float)
    if kind == "near one":
        return 1 - rng.exponential(0.01, n).clip(0, 1), (rng.random(n) < 0.95).astype(float)
    assert kind == "tied"
    f = rng.choice([0.1, 0.5, 0.503, 0.9], n)
    return f, (rng.random(n) < f**2).astype(float)


KINDS = ["calibrated", "overconfident", "underconfident", "saturated", "near one", "tied"]


def tensors(f: Array, y: Array) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(f), torch.from_numpy(y)


def kernel_sum(f: Array, weights: Array, sigma: float, t: Array) -> Array:
    """The mean of weights times Gaussians around f and around all its mirror images near [0, 1]."""
    total = np.zeros_like(t)
    turns = range(-1 - math.ceil(5 * sigma), 2 + math.ceil(5 * sigma))
    for point, weight in zip(f, weights, strict=True):
        for turn in turns:
            for image in (2 * turn + point, 2 * turn - point):
                if -9 * sigma < image < 1 + 9 * sigma:
                    near = slice(*np.searchsorted(t, [image - 9 * sigma, image + 9 * sigma]))
                    total[near] += weight * np.exp(-0.5 * ((t[near] - image) / sigma) ** 2)
    return total / (len(f) * sigma * math.sqrt(2 * math.pi))


def slow_smooth_ece(f: Array, y: Array, sigma: float) -> float:
    """The integral of |the smoothed residual|, by a mesh of 200 steps in a bandwidth or more."""
    t = np.linspace(0, 1, max(4001, round(200 / sigma) + 1))
    return float(np.trapezoid(np.abs(kernel_sum(f, f - y, sigma, t)), t))


@pytest.fixture(scope="session")
def relplot() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("relplot")


@pytest.mark.parametrize("n", [1, 3, 150])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sigma", BANDWIDTHS)
def test_at_a_bandwidth_it_is_the_direct_sum_over_points(sigma, kind, n):
    f, y = drawn(n, kind)
    assert smooth_ece(*tensors(f, y), sigma) == pytest.approx(
        slow_smooth_ece(f, y, sigma), abs=1e-6
    )


@pytest.mark.parametrize("sigma", [0.0004, 0.00005, 0.7, 3.0])
def test_very_small_and_very_large_bandwidths_are_direct_sums_too(sigma):
    f, y = drawn(12, "saturated", seed=1)
    f[:4] = 0.5 + min(sigma, 0.3) * np.arange(4) / 3
    expected = slow_smooth_ece(f, y, sigma)
    assert smooth_ece(*tensors(f, y), sigma) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5]), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([0.2, 0.03, 0.003]),
)
def test_a_few_points_anywhere_give_the_direct_sum(points, sigma):
    f, y = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    expected = slow_smooth_ece(f, y, sigma)
    assert smooth_ece(*tensors(f, y), sigma) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["calibrated", "overconfident", "underconfident", "near one"])
def test_with_automatic_bandwidth_it_is_relplots_to_its_own_precision(kind, relplot):
    f, y = drawn(3000, kind)
    assert smooth_ece(*tensors(f, y)) == pytest.approx(relplot.smECE(f, y), abs=3e-4)


def test_the_automatic_bandwidth_is_where_the_error_equals_it():
    for kind in KINDS:
        pair = tensors(*drawn(400, kind))
        found = smooth_reliability(*pair).bandwidth
        assert found * 1024 == round(found * 1024)
        assert smooth_ece(*pair) == smooth_ece(*pair, found)
        assert smooth_ece(*pair, found) <= found
        assert smooth_ece(*pair, found - 1 / 1024) > found - 1 / 1024


def test_points_beside_the_ends_are_reflected_there():
    f, y = np.array([0.00004, 1 - 0.00007, 0.00002, 1.0]), np.array([1.0, 0.0, 0.0, 0.0])
    for sigma in (0.05, 0.003, 0.0002):
        expected = slow_smooth_ece(f, y, sigma)
        assert smooth_ece(*tensors(f, y), sigma) == pytest.approx(expected, abs=1e-6)


def test_the_grid_is_fine_enough_for_the_smallest_bandwidth_that_can_be_found():
    f, y = np.full(1002, 0.5), np.arange(1002) % 2.0
    f[:2], y[:2] = (0.3002, 0.3031), (0.0, 1.0)
    assert smooth_reliability(*tensors(f, y)).bandwidth == 2 / 1024
    assert smooth_ece(*tensors(f, y)) == pytest.approx(slow_smooth_ece(f, y, 2 / 1024), abs=1e-8)


def test_a_tiny_error_ends_at_the_smallest_bandwidth():
    f = torch.full((10_000,), 0.5, dtype=torch.float64)
    y = torch.arange(10_000) % 2
    assert smooth_reliability(f, y).bandwidth == 2 / 1024
    assert smooth_ece(f, y) == pytest.approx(0, abs=1e-15)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=20), st.data())
def test_it_lies_in_the_unit_interval_and_ignores_the_order(points, data):
    f, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*points, strict=True))
    found = smooth_ece(f, y)
    assert 0 <= found <= 1
    order = data.draw(st.permutations(range(len(f))))
    assert smooth_ece(f[order], y[order], 0.1) == pytest.approx(smooth_ece(f, y, 0.1), abs=1e-13)
    assert abs(float((f - y).mean())) <= found + 1e-9  # never less than the plain gap


def test_extremes():
    ones = torch.ones(50)
    assert smooth_ece(ones, ones) == pytest.approx(0.0, abs=1e-15)
    assert smooth_ece(ones, 0 * ones) == pytest.approx(1.0, abs=1e-12)
    assert smooth_ece(0 * ones, ones) == pytest.approx(1.0, abs=1e-12)
    assert smooth_ece(torch.tensor([0.3]), torch.tensor([True])) == pytest.approx(0.7, abs=1e-7)


def test_blocks_of_images_change_nothing(monkeypatch):
    pair = tensors(*drawn(500, "saturated"))
    whole = smooth_ece(*pair)
    monkeypatch.setattr(smooth, "_BLOCK", 64)
    assert smooth_ece(*pair) == pytest.approx(whole, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_widened_and_not_rounded_further(dtype):
    f, y = tensors(*drawn(300, "overconfident"))
    f = f.to(dtype)
    assert smooth_ece(f, y.bool()) == smooth_ece(f.double(), y)


def test_the_input_is_left_alone():
    f, y = tensors(*drawn(300, "overconfident"))
    before = f.clone(), y.clone()
    smooth_ece(f, y), smooth_reliability(f, y), smooth_ece_interval(f, y, resamples=3)
    assert torch.equal(f, before[0])
    assert torch.equal(y, before[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sigma", [0.2, 0.03, 0.003])
def test_the_diagram_is_a_kernel_regression(sigma, kind):
    f, y = drawn(150, kind)
    found = smooth_reliability(*tensors(f, y), sigma, points=41)
    t = np.linspace(0, 1, 41)
    density = kernel_sum(f, np.ones_like(f), sigma, t)
    np.testing.assert_allclose(found.confidence, t, atol=1e-15)
    np.testing.assert_allclose(found.density, density, atol=1e-5 * density.max())
    dense = density > 0.05 * density.max()
    right = kernel_sum(f, y, sigma, t)[dense] / density[dense]
    np.testing.assert_allclose(found.accuracy.numpy()[dense], right, atol=1e-4)
    assert found.accuracy[found.density < 1e-7].isnan().all()
    assert found.bandwidth == sigma


def test_the_density_has_the_integral_one_and_the_curve_stays_within_bounds():
    found = smooth_reliability(*tensors(*drawn(2000, "near one")), points=4001)
    assert np.trapezoid(found.density, found.confidence) == pytest.approx(1, abs=1e-6)
    assert found.density.min() >= 0
    seen = found.accuracy[~found.accuracy.isnan()]
    assert seen.min() >= 0
    assert seen.max() <= 1


def slow_bootstrap(f: Array, y: Array, sigma: float | None, times: int) -> Array:
    rng = np.random.default_rng(7)
    draws = [rng.integers(len(f), size=len(f)) for _ in range(times)]
    return np.array([smooth_ece(*tensors(f[d], y[d]), sigma) for d in draws])


@pytest.mark.parametrize("sigma", [None, 0.05])
@pytest.mark.parametrize("kind", ["calibrated", "saturated"])
def test_the_interval_is_that_of_resampled_images(kind, sigma, generator):
    f, y = drawn(400, kind)
    slow = slow_bootstrap(f, y, sigma, 400)
    found = smooth_ece_interval(*tensors(f, y), 0.8, 600, generator, sigma)
    np.testing.assert_allclose(found, np.quantile(slow, [0.1, 0.9]), atol=0.35 * slow.std())


def test_a_resample_is_a_multinomial_draw(generator):
    sizes = torch.tensor([3, 0, 1, 6, 0, 0, 2, 8])
    counts = smooth._resample(sizes, 40_000, generator)
    share = sizes.double() / 20
    assert (counts.sum(1) == 20).all()
    assert (counts == counts.round()).all()
    assert (counts >= 0).all()
    np.testing.assert_allclose(counts.mean(0), sizes, atol=0.05)
    covariance = 20 * (share.diag() - share[:, None] * share)
    np.testing.assert_allclose(counts.T.cov(), covariance, atol=0.15)


def test_a_wider_level_gives_a_wider_interval_around_a_plain_gap(generator):
    pair = tensors(*drawn(2000, "overconfident"))
    ends = [smooth_ece_interval(*pair, level, 200, generator) for level in (0.5, 0.95)]
    assert ends[1][0] < ends[0][0] < smooth_ece(*pair) < ends[0][1] < ends[1][1]


def test_the_interval_repeats_with_its_generator_and_leaves_the_global_one_alone():
    pair = tensors(*drawn(200, "overconfident"))
    state = torch.get_rng_state()
    found = [
        smooth_ece_interval(*pair, resamples=40, generator=torch.Generator().manual_seed(5))
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert torch.equal(state, torch.get_rng_state())
    assert smooth_ece_interval(*pair, resamples=40) != found[0]


@pytest.mark.parametrize("right", [0, 1])
def test_an_interval_of_sure_predictions_is_a_point(right):
    low, high = smooth_ece_interval(torch.ones(30), torch.full((30,), right), resamples=5)
    assert (low, high) == pytest.approx((1 - right, 1 - right), abs=1e-12)


def test_what_cannot_be_smoothed_is_refused():
    f, y = tensors(*drawn(10, "calibrated"))
    for function in (smooth_ece, smooth_reliability):
        with pytest.raises(DataError, match=r"confidences from 0 to 1, found -0\.5"):
            function(f * 0 - 0.5, y)
        with pytest.raises(OptionError, match=r"bandwidth of at least 0\.00001, found 0\.0\."):
            function(f, y, 0.0)
        with pytest.raises(OptionError, match=r"bandwidth of at least 0\.00001, found inf\."):
            function(f, y, math.inf)
    with pytest.raises(OptionError, match=r"bandwidth of at least 0\.00001, found -1\."):
        smooth_ece_interval(f, y, bandwidth=-1)
