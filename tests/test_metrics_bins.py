"""Binned calibration against a loop over images, and against torchmetrics."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from killick.errors import DataError, DtypeError, OptionError, ShapeError
from killick.metrics import ece, reliability, rms_ece

NORMS = ["l1", "l2", "max"]
BINNINGS = ["width", "mass"]

confidences = st.lists(
    st.sampled_from([0.0, 0.2, 0.25, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=30
)


def pairs(n: int = 500, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    confidence = torch.rand(n, generator=g, dtype=torch.float64).sqrt()
    return confidence, torch.rand(n, generator=g) < confidence - 0.1


def slow_bins(c: list[float], y: list[bool], bins: int, binning: str) -> list[list[int]]:
    """The numbers of the images in each bin."""
    ordered = sorted(c)
    groups: list[list[int]] = [[] for _ in range(bins)]
    for i, value in enumerate(c):
        place = 0
        for b in range(1, bins):
            start = b / bins if binning == "width" else ordered[b * len(c) // bins]
            if value >= start:
                place = b
        groups[place].append(i)
    return groups


def slow_ece(c: list[float], y: list[bool], bins: int, norm: str, binning: str) -> float:
    total = worst = 0.0
    for group in slow_bins(c, y, bins, binning):
        if group:
            gap = abs(math.fsum(c[i] - y[i] for i in group)) / len(group)
            total += len(group) / len(c) * (gap**2 if norm == "l2" else gap)
            worst = max(worst, gap)
    return {"l1": total, "l2": math.sqrt(total), "max": worst}[norm]


@pytest.mark.parametrize("binning", BINNINGS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bins", [1, 2, 15, 40])
def test_ece_is_that_of_a_loop(bins, norm, binning):
    c, y = pairs()
    expected = slow_ece(c.tolist(), y.tolist(), bins, norm, binning)
    assert ece(c, y, bins, norm, binning) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("binning", BINNINGS)
@pytest.mark.parametrize("norm", NORMS)
@given(data=st.data(), c=confidences)
def test_ece_is_that_of_a_loop_with_ties_and_at_edges(norm, binning, data, c):
    y = data.draw(st.lists(st.booleans(), min_size=len(c), max_size=len(c)))
    found = ece(torch.tensor(c, dtype=torch.float64), torch.tensor(y), 5, norm, binning)
    assert found == pytest.approx(slow_ece(c, y, 5, norm, binning), abs=1e-12)
    assert 0 <= found <= 1


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bins", [1, 10, 15, 20])
def test_ece_is_that_of_torchmetrics(bins, norm):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchmetrics.functional.classification import multiclass_calibration_error
    g = torch.Generator().manual_seed(3)
    probs = (2 * torch.randn(800, 4, generator=g, dtype=torch.float64)).softmax(1)
    labels = torch.randint(4, (800,), generator=g)
    top = probs.max(1)
    expected = multiclass_calibration_error(probs, labels, 4, n_bins=bins, norm=norm)
    found = ece(top.values, top.indices == labels, bins, norm)
    assert found == pytest.approx(float(expected), abs=1e-6)  # theirs is float32


def test_a_confidence_of_one_is_in_the_last_bin_with_its_neighbours():
    found = reliability(torch.tensor([1.0, 0.95]), torch.tensor([True, False]), 10)
    assert found.count.tolist() == [0] * 9 + [2]


def test_a_bin_holds_its_left_edge():
    found = reliability(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), torch.ones(5), 4)
    assert found.count.tolist() == [1, 1, 1, 2]
    assert found.edges.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_bins_of_equal_mass_differ_by_one_image_at_most():
    c, y = pairs(503)
    found = reliability(c, y, 15, "mass")
    assert found.count.sum() == 503
    assert found.count.max() - found.count.min() == 1
    assert found.edges[0] == c.min()
    assert found.edges[-1] == c.max()


@pytest.mark.parametrize("binning", BINNINGS)
def test_the_diagram_is_that_of_a_loop_and_nan_where_a_bin_is_empty(binning):
    c, y = pairs(40)
    found = reliability(c, y, 12, binning)
    for b, group in enumerate(slow_bins(c.tolist(), y.tolist(), 12, binning)):
        assert found.count[b] == len(group)
        mean = np.mean([c[i] for i in group]) if group else math.nan
        right = np.mean([float(y[i]) for i in group]) if group else math.nan
        assert float(found.confidence[b]) == pytest.approx(mean, abs=1e-14, nan_ok=True)
        assert float(found.accuracy[b]) == pytest.approx(right, abs=1e-14, nan_ok=True)


def test_more_bins_of_equal_mass_than_images_leave_some_empty():
    found = reliability(torch.tensor([0.3, 0.6]), torch.tensor([1, 0]), 5, "mass")
    assert sorted(found.count.tolist()) == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("binning", BINNINGS)
@pytest.mark.parametrize("norm", NORMS)
@given(data=st.data())
def test_the_order_of_images_does_not_matter(norm, binning, data):
    c = torch.tensor([0.1, 0.2, 0.2, 0.2, 0.5, 0.5, 0.9, 1.0], dtype=torch.float64)
    y = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0])
    order = data.draw(st.permutations(range(8)))
    found = ece(c[order], y[order], 3, norm, binning)
    assert found == pytest.approx(ece(c, y, 3, norm, binning), abs=1e-14)


def test_extremes():
    ones = torch.ones(7)
    assert ece(ones, ones) == 0.0
    assert ece(ones, 0 * ones) == 1.0
    assert ece(torch.tensor([0.25]), torch.tensor([True])) == 0.75


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8, torch.float32])
def test_correctness_may_be_booleans_or_zeros_and_ones(kind):
    c, y = pairs()
    assert ece(c, y.to(kind)) == ece(c, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_widened_and_not_rounded_further(dtype):
    c, y = pairs()
    c = c.to(dtype)
    assert ece(c, y) == ece(c.double(), y)


def test_the_root_mean_square_is_the_second_norm():
    c, y = pairs()
    assert rms_ece(c, y, 20) == ece(c, y, 20, norm="l2")
    assert rms_ece(c, y, 20, "mass") == ece(c, y, 20, "l2", "mass")


def test_pairs_that_do_not_fit_are_refused():
    c, y = pairs(4)
    with pytest.raises(ShapeError, match=r"as many confidences as outcomes, found 4 and 3\."):
        ece(c, y[:3])
    with pytest.raises(DtypeError, match=r"labels as a tensor of class indices, found torch\.bool"):
        ece(c[:, None], y)
    with pytest.raises(ShapeError, match=r"confidence of shape \(n,\), found \(4, 1, 1\)\."):
        ece(c[:, None, None], y)
    with pytest.raises(DataError, match=r"at least one number in confidence, found none\."):
        ece(c[:0], y[:0])
    with pytest.raises(DtypeError, match=r"confidence as a torch\.Tensor, found list\."):
        ece([0.5], y)
    with pytest.raises(DtypeError, match=r"as floats, found torch\.bool\. The order of arguments"):
        ece(y, c)


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf])
def test_confidences_out_of_range_are_refused(value):
    c, y = pairs(4)
    c[2] = value
    with pytest.raises(DataError, match=r"from 0 to 1, found .* Pass prob"):
        ece(c, y)


def test_odd_outcomes_and_options_are_refused():
    c, y = pairs(4)
    with pytest.raises(DataError, match=r"correct as zeros and ones"):
        ece(c, torch.tensor([2, 1, 0, 1]))
    with pytest.raises(OptionError, match=r"norm to be one of 'l1', 'l2', 'max', found 'l3'"):
        ece(c, y, norm="l3")
    with pytest.raises(OptionError, match=r"binning to be one of 'width', 'mass', found 'widths'"):
        ece(c, y, binning="widths")
