"""Detection against counts of pairs, loops over all thresholds, scikit-learn and pytorch-ood."""

import math
import warnings
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from killick.errors import DataError, DtypeError, OptionError, ShapeError
from killick.metrics import aupr, auroc, fpr_at_tpr_in, fpr_at_tpr_out, roc, threshold

few = st.integers(-3, 3).map(float) | st.sampled_from([math.inf, -math.inf, 0.1, -0.0])
scores = st.lists(few, min_size=1, max_size=15)
SETS = {
    "normal": lambda g: (torch.randn(300, generator=g), torch.randn(120, generator=g) + 1),
    "coarse": lambda g: (
        torch.randn(300, generator=g).round(),
        torch.randn(80, generator=g).round(),
    ),
    "bfloat16": lambda g: (
        torch.randn(200, generator=g).bfloat16(),
        (torch.randn(200, generator=g) + 0.5).bfloat16(),
    ),
    "float64": lambda g: (
        torch.randn(50, generator=g, dtype=torch.float64),
        torch.randn(90, generator=g, dtype=torch.float64) + 0.2,
    ),
    "mixed": lambda g: (
        torch.randn(50, generator=g),
        torch.randn(90, generator=g, dtype=torch.float64) + 0.2,
    ),
    "integers": lambda g: (
        torch.randint(9, (60,), generator=g),
        torch.randint(3, 12, (40,), generator=g),
    ),
    "far": lambda g: (torch.randn(300, generator=g) + 1e6, torch.randn(120, generator=g) + 1e6 + 1),
    "apart": lambda g: (torch.zeros(9), torch.ones(5)),
    "equal": lambda g: (torch.ones(9), torch.ones(5)),
    "reversed": lambda g: (torch.ones(9), torch.zeros(5)),
    "single": lambda g: (torch.tensor([0.5]), torch.tensor([0.7])),
}


@pytest.fixture(params=SETS)
def pair(request) -> tuple[Tensor, Tensor]:
    return SETS[request.param](torch.Generator().manual_seed(0))


def float64(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def labelled(inside: Tensor, outside: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Labels (1 is out of distribution) and scores in one array each."""
    labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    return labels, np.r_[inside.double().numpy(), outside.double().numpy()]


def slow_auroc(inside: list[float], outside: list[float]) -> float:
    won = sum((o > i) + 0.5 * (o == i) for o in outside for i in inside)
    return won / (len(inside) * len(outside))


def slow_precision(positive: list[float], negative: list[float]) -> float:
    """The sum over falling thresholds of precision times the recall gained."""
    area = last = 0.0
    for limit in sorted({*positive, *negative}, reverse=True):
        found = sum(p >= limit for p in positive)
        precision = found / (found + sum(n >= limit for n in negative))
        area += precision * (found / len(positive) - last)
        last = found / len(positive)
    return area


def slow_fpr(positive: list[float], negative: list[float], share: float) -> float:
    """Of all thresholds that flag at least this share of positives: the fewest negatives."""
    rates = []
    for limit in {*positive, *negative}:
        if sum(p >= limit for p in positive) / len(positive) >= share:
            rates.append(sum(n >= limit for n in negative) / len(negative))
    return min(rates)


def minus(values: list[float]) -> list[float]:
    return [-v for v in values]


def test_auroc_counts_pairs(pair):
    inside, outside = pair
    expected = slow_auroc(inside.tolist(), outside.tolist())
    assert auroc(inside, outside) == pytest.approx(expected, abs=1e-15)
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(*labelled(*pair)), abs=1e-12)


@pytest.mark.parametrize("positive", ["out", "in"])
def test_aupr_is_the_average_precision(pair, positive):
    inside, outside = pair
    labels, values = labelled(*pair)
    if positive == "out":
        expected = slow_precision(outside.tolist(), inside.tolist())
        second = average_precision_score(labels, values)
    else:
        expected = slow_precision(minus(inside.tolist()), minus(outside.tolist()))
        second = average_precision_score(1 - labels, -values)
    assert aupr(inside, outside, positive) == pytest.approx(expected, abs=1e-13)
    assert aupr(inside, outside, positive) == pytest.approx(second, abs=1e-12)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.8, 0.95, 0.99, 1.0])
def test_both_false_positive_rates_are_those_of_loops_over_thresholds(pair, share):
    inside, outside = pair
    flagged = slow_fpr(outside.tolist(), inside.tolist(), share)
    accepted = slow_fpr(minus(inside.tolist()), minus(outside.tolist()), share)
    assert fpr_at_tpr_out(inside, outside, share) == flagged
    assert fpr_at_tpr_in(inside, outside, share) == accepted


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_both_false_positive_rates_are_on_scikit_learns_curves(pair, share):
    labels, values = labelled(*pair)
    false, true, _ = roc_curve(labels, values, drop_intermediate=False)
    assert fpr_at_tpr_out(*pair, share) == pytest.approx(false[true >= share].min(), abs=1e-15)
    false, true, _ = roc_curve(1 - labels, -values, drop_intermediate=False)
    assert fpr_at_tpr_in(*pair, share) == pytest.approx(false[true >= share].min(), abs=1e-15)


def test_pytorch_ood_agrees_and_reads_the_rate_as_of_the_out_of_distribution(pair):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functional = import_module("pytorch_ood.metrics.functional")
    labels, values = map(torch.from_numpy, labelled(*pair))
    found = functional.fpr_at_tpr(values, -labels.long())
    assert fpr_at_tpr_out(*pair) == pytest.approx(float(found), abs=1e-12)


def test_the_two_readings_differ():
    g = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(1000, generator=g), 3 * torch.randn(1000, generator=g) + 1
    assert abs(fpr_at_tpr_in(inside, outside) - fpr_at_tpr_out(inside, outside)) > 0.1


@given(scores, scores)
def test_any_scores_give_what_loops_give(inside, outside):
    a, b = float64(inside), float64(outside)
    assert auroc(a, b) == pytest.approx(slow_auroc(inside, outside), abs=1e-15)
    assert aupr(a, b) == pytest.approx(slow_precision(outside, inside), abs=1e-14)
    expected = slow_precision(minus(inside), minus(outside))
    assert aupr(a, b, "in") == pytest.approx(expected, abs=1e-14)
    assert fpr_at_tpr_out(a, b, 0.7) == slow_fpr(outside, inside, 0.7)
    assert fpr_at_tpr_in(a, b, 0.7) == slow_fpr(minus(inside), minus(outside), 0.7)


@given(scores, scores)
def test_swapping_the_two_kinds_gives_the_rest_to_one(inside, outside):
    a, b = float64(inside), float64(outside)
    assert auroc(a, b) == pytest.approx(1 - auroc(b, a), abs=1e-15)
    assert fpr_at_tpr_in(a, b) == fpr_at_tpr_out(-b, -a)


@given(scores, scores, st.randoms(use_true_random=False))
def test_order_and_rising_maps_change_nothing(inside, outside, random):
    a, b = float64(inside), float64(outside)
    random.shuffle(inside)
    random.shuffle(outside)
    c, d = 5 * float64(inside).atan() + 1e6, 5 * float64(outside).atan() + 1e6
    assert len({*c.tolist(), *d.tolist()}) == len({*a.tolist(), *b.tolist()})
    for metric in (auroc, fpr_at_tpr_in, fpr_at_tpr_out):
        assert metric(a, b) == metric(c, d)
    assert aupr(a, b) == pytest.approx(aupr(c, d), abs=1e-15)
    assert aupr(a, b, "in") == pytest.approx(aupr(c, d, "in"), abs=1e-15)


@given(scores, st.floats(0.01, 1))
def test_the_threshold_is_the_smallest_that_accepts_enough(inside, share):
    found = threshold(float64(inside), share)
    accepted = [sum(i <= limit for i in inside) / len(inside) for limit in sorted(set(inside))]
    enough = [limit for limit, a in zip(sorted(set(inside)), accepted, strict=True) if a >= share]
    assert found == enough[0]


@pytest.mark.parametrize("n", [1, 7, 20, 100, 1000, 100_003])
def test_a_share_of_so_many_scores_is_not_rounded_up(n):
    ordered = torch.arange(float(n))
    for count in range(1, n + 1, max(1, n // 100)):  # 0.07 * 100 is more than 7
        assert threshold(ordered, count / n) == count - 1
        above = math.nextafter(count / n, 2)
        if above <= 1:
            assert threshold(ordered, above) == count


def test_raw_energies_far_from_zero_are_ranked_as_they_are():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(500, generator=g), torch.randn(500, generator=g) + 0.7
    assert auroc(a.double() + 30, b.double() + 30) == auroc(a, b)


def test_without_points_left_out_the_curve_is_scikit_learns(pair):
    labels, values = labelled(*pair)
    false, true, limits = roc_curve(labels, values, drop_intermediate=False)
    curve = roc(*pair, points=2000)
    np.testing.assert_allclose(curve.false_positive, false, atol=1e-15)
    np.testing.assert_allclose(curve.true_positive, true, atol=1e-15)
    np.testing.assert_array_equal(curve.threshold, limits)
    area = np.trapezoid(curve.true_positive, curve.false_positive)
    assert area == pytest.approx(auroc(*pair), abs=1e-12)


@pytest.mark.parametrize("points", [5, 6, 50, 201])
def test_a_thinned_curve_is_part_of_the_whole_and_has_no_large_gaps(points):
    g = torch.Generator().manual_seed(0)
    pair = torch.randn(20_000, generator=g), torch.randn(300, generator=g) + 1
    thin, whole = roc(*pair, points=points), roc(*pair, points=100_000)
    assert 3 <= len(thin.threshold) <= points
    every = set(zip(whole.false_positive.tolist(), whole.true_positive.tolist(), strict=True))
    kept = list(zip(thin.false_positive.tolist(), thin.true_positive.tolist(), strict=True))
    assert set(kept) <= every
    assert (kept[0], kept[-1]) == ((0.0, 0.0), (1.0, 1.0))
    if points > 6:
        step = 1 / ((points - 1) // 2 - 1) + 1 / 300
        for rate in (thin.false_positive, thin.true_positive):
            assert rate.diff().min() >= 0
            assert rate.diff().max() <= step + 1e-12


def test_a_single_pair_of_scores_can_be_thinned():
    curve = roc(torch.tensor([1.0]), torch.tensor([2.0]), points=5)
    assert curve.true_positive.tolist() == [0.0, 1.0, 1.0]


def test_scores_with_gradients_are_taken_without():
    a, b = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    assert 0 <= auroc(a, b) <= 1
    assert not roc(a, b).threshold.requires_grad


@pytest.mark.parametrize("metric", [auroc, aupr, fpr_at_tpr_in, fpr_at_tpr_out, roc])
def test_scores_that_cannot_be_ordered_are_refused(metric):
    good = torch.arange(3.0)
    bad = torch.tensor([0.0, math.nan])
    with pytest.raises(DataError, match=r"expected in_scores that can be ordered, found NaN"):
        metric(bad, good)
    with pytest.raises(DataError, match=r"out_scores that can be ordered, found NaN\."):
        metric(good, bad)
    with pytest.raises(DataError, match=r"at least one number in in_scores, found none\."):
        metric(good[:0], good)
    with pytest.raises(DataError, match=r"at least one number in out_scores, found none\."):
        metric(good, good[:0])
    with pytest.raises(ShapeError, match=r"out_scores of shape \(n,\), found \(3, 1\)\."):
        metric(good, good[:, None])
    with pytest.raises(DtypeError, match=r"in_scores as a torch\.Tensor, found list\."):
        metric([1.0], good)


def test_odd_options_are_refused():
    good = torch.arange(3.0)
    with pytest.raises(OptionError, match=r"positive to be one of 'out', 'in', found 'ood'"):
        aupr(good, good, "ood")
    for share in (0.0, 1.5, math.nan):
        with pytest.raises(OptionError, match=rf"above 0 and at most 1, found {share}"):
            threshold(good, share)
        with pytest.raises(OptionError, match=rf"above 0 and at most 1, found {share}"):
            fpr_at_tpr_in(good, good, share)
        with pytest.raises(OptionError, match=rf"above 0 and at most 1, found {share}"):
            fpr_at_tpr_out(good, good, share)
