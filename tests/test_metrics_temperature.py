"""The fitted temperature is the one minimum, by scipy's measure, or a bound where there is none."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import logsumexp, softmax

from killick.errors import DataError
from killick.metrics import fit_temperature, nll
from killick.metrics import input_checks as checks


def noisy(n: int, classes: int, scale: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from the logits' own softmax, and the logits multiplied by `scale`."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    labels = logits.softmax(1).multinomial(1, generator=g)[:, 0]
    return scale * logits, labels


def slow_slope(inverse: float, z: np.ndarray, labels: np.ndarray) -> float:
    """The derivative, in 1 / T, of the mean surprise."""
    own = z[np.arange(len(z)), labels]
    return float(((softmax(inverse * z, axis=1) * z).sum(1) - own).mean())


def slow_nll(inverse: float, z: np.ndarray, labels: np.ndarray) -> float:
    own = z[np.arange(len(z)), labels]
    return float((logsumexp(inverse * z, axis=1) - inverse * own).mean())


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_the_temperature_is_scipys(scale, classes):
    logits, labels = noisy(600, classes, scale, seed=classes)
    found = fit_temperature(logits, labels)
    z, y = logits.numpy(), labels.numpy()
    root = 1 / brentq(slow_slope, 0.01, 100, args=(z, y), xtol=1e-15, rtol=1e-14)
    assert found == pytest.approx(root, rel=1e-8)
    least = minimize_scalar(slow_nll, bounds=(0.01, 100), args=(z, y), method="bounded")
    assert slow_nll(1 / found, z, y) <= least.fun + 1e-12
    assert found == pytest.approx(scale, rel=0.2)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(3, 20), st.floats(0.05, 20))
def test_it_is_a_minimum_inside_the_bounds_or_the_bound_itself(seed, n, scale):
    logits, labels = noisy(n, 3, scale, seed)
    found = fit_temperature(logits, labels)
    assert 0.01 <= found <= 100
    for other in (found * 0.999, found * 1.001):
        if 0.01 <= other <= 100:
            assert nll(logits / found, labels) <= nll(logits / other, labels) + 1e-12


def test_temperature_scales_with_the_logits_and_ignores_offsets():
    logits, labels = noisy(300, 5, 1.0, seed=0)
    found = fit_temperature(logits, labels)
    assert fit_temperature(3 * logits, labels) == pytest.approx(3 * found, rel=1e-8)
    assert fit_temperature(logits + 1e6, labels) == pytest.approx(found, rel=1e-6)


def test_separable_data_end_at_the_lower_bound_and_reversed_ones_at_the_upper():
    logits = 5 * torch.eye(4)
    labels = torch.arange(4)
    assert fit_temperature(logits, labels) == 0.01
    assert fit_temperature(logits, labels, bounds=(0.5, 2.0)) == 0.5
    assert fit_temperature(-logits, labels) == 100.0


def test_constant_logits_leave_the_temperature_alone():
    logits = torch.full((5, 3), 7.0)
    labels = torch.tensor([0, 1, 2, 0, 1])
    assert fit_temperature(logits, labels) == 1.0
    assert fit_temperature(logits, labels, bounds=(2.0, 3.0)) == 2.0


def test_a_single_image_is_fitted_too():
    logits = torch.tensor([[3.0, 1.0, 0.0]])
    assert fit_temperature(logits, torch.tensor([0])) == 0.01
    assert fit_temperature(logits, torch.tensor([2])) == 100.0
    # The label's logit at the mean of the others' weights: both ways lose at first.
    inverse = brentq(slow_slope, 1e-3, 1e3, args=(np.array([[3.0, 2.0, 0.0]]), np.array([1])))
    found = fit_temperature(torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([1]))
    assert found == pytest.approx(1 / inverse, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_widened_and_not_rounded_further(dtype):
    logits, labels = noisy(200, 5, 2.0, seed=1)
    logits = logits.to(dtype)
    assert fit_temperature(logits, labels) == fit_temperature(logits.double(), labels)


def test_blocks_of_images_change_nothing(monkeypatch):
    logits, labels = noisy(200, 5, 2.0, seed=1)
    whole = fit_temperature(logits, labels)
    monkeypatch.setattr(checks, "_BLOCK", 64)
    assert fit_temperature(logits, labels) == pytest.approx(whole, rel=1e-9)


def test_what_cannot_be_fitted_is_refused():
    logits, labels = noisy(5, 3, 1.0, seed=0)
    with pytest.raises(DataError, match=r"labels from 0 to 2, found 3\."):
        fit_temperature(logits, labels.clamp_min(2) + 1)
