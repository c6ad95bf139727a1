"""Risk against coverage: loops over all orders of ties, and independence of the order."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from killick.errors import DataError, DtypeError, ShapeError
from killick.metrics import aurc, e_aurc, risk_coverage

tied = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30)


def tensors(pairs: list[tuple[int, bool]]) -> tuple[torch.Tensor, torch.Tensor]:
    c, y = zip(*pairs, strict=True)
    return torch.tensor(c, dtype=torch.float64) / 3, torch.tensor(y)


def risks(outcomes: list[bool]) -> np.ndarray:
    """Errors among the first 1, 2, ... of a given order."""
    return np.array([outcomes[:j].count(False) / j for j in range(1, len(outcomes) + 1)])


def test_without_ties_the_curve_is_that_of_a_loop():
    g = torch.Generator().manual_seed(0)
    c, y = torch.rand(200, generator=g), torch.rand(200, generator=g) < 0.7
    order = sorted(range(200), key=lambda i: -c[i].item())
    curve = risk_coverage(c, y)
    np.testing.assert_allclose(curve.risk, risks([bool(y[i]) for i in order]), atol=1e-14)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 201) / 200, atol=1e-15)
    assert curve.confidence.tolist() == sorted(c.tolist(), reverse=True)


def test_with_ties_the_curve_is_the_mean_over_all_their_orders():
    pairs = [(2, True), (1, False), (1, True), (1, False), (0, False), (0, True), (2, False)]
    c, y = tensors(pairs)
    orders = [
        risks([pairs[i][1] for i in order])
        for order in itertools.permutations(range(7))
        if all(pairs[a][0] >= pairs[b][0] for a, b in itertools.pairwise(order))
    ]
    assert len(orders) == 2 * 6 * 2
    np.testing.assert_allclose(risk_coverage(c, y).risk, np.mean(orders, axis=0), atol=1e-14)
    assert aurc(c, y) == pytest.approx(np.mean(orders), abs=1e-14)


@given(tied, st.randoms(use_true_random=False))
def test_the_order_of_images_does_not_matter(pairs, random):
    c, y = tensors(pairs)
    random.shuffle(pairs)
    np.testing.assert_allclose(risk_coverage(*tensors(pairs)).risk, risk_coverage(c, y).risk)
    assert aurc(*tensors(pairs)) == pytest.approx(aurc(c, y), abs=1e-14)


@given(tied)
def test_a_rising_map_of_confidence_changes_nothing(pairs):
    c, y = tensors(pairs)
    assert aurc(50 * c.exp() - 1e6, y) == aurc(c, y)


@given(tied)
def test_the_excess_is_over_the_best_order_and_never_negative(pairs):
    c, y = tensors(pairs)
    best = risks(sorted(y.tolist(), reverse=True)).mean()
    assert e_aurc(c, y) == pytest.approx(aurc(c, y) - best, abs=1e-14)
    assert e_aurc(c, y) >= -1e-15
    assert e_aurc(y.double(), y) == pytest.approx(0, abs=1e-15)


def test_extremes():
    c = torch.tensor([0.2, 0.9, 0.9])
    assert aurc(c, torch.ones(3)) == 0.0
    assert aurc(c, torch.zeros(3)) == 1.0
    assert e_aurc(c, torch.zeros(3)) == 0.0
    assert aurc(torch.tensor([0.4]), torch.tensor([False])) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_only_makes_ties(dtype):
    g = torch.Generator().manual_seed(1)
    c, y = torch.rand(300, generator=g).to(dtype), torch.rand(300, generator=g) < 0.6
    assert aurc(c, y) == aurc(c.double(), y)


def test_confidences_may_be_any_numbers_but_nan():
    y = torch.tensor([True, False, True])
    assert risk_coverage(torch.tensor([-math.inf, -40.0, 7.0]), y).risk.tolist()[0] == 0.0
    with pytest.raises(DataError, match=r"confidence that can be ordered, found NaN\."):
        aurc(torch.tensor([1.0, math.nan, 2.0]), y)
    with pytest.raises(ShapeError, match=r"as many confidences as outcomes, found 2 and 3\."):
        aurc(torch.tensor([1.0, 2.0]), y)
    with pytest.raises(DtypeError, match=r"confidence as floats, found torch\.int64\."):
        aurc(torch.tensor([1, 2, 3]), y)
