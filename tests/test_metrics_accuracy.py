"""Accuracy, likelihood and Brier score against loops over images, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, top_k_accuracy_score
from torch import Tensor
from torch.nn.functional import cross_entropy

from killick.errors import DataError, DtypeError, ShapeError
from killick.metrics import brier, hits, nll, nll_per_image, squared_error, top_k
from killick.metrics import input_checks as checks

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def predictions(n: int = 60, classes: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits, torch.randint(classes, (n,), generator=g)


def slow_hit(row: list[float], label: int, k: int) -> bool:
    """Classes by falling logit, the lower index first among equals; is the label in the first k?"""
    ranking = sorted(range(len(row)), key=lambda c: (-row[c], c))
    return label in ranking[:k]


def slow_nll(row: list[float], label: int) -> float:
    top = max(row)
    return top + math.log(math.fsum(math.exp(v - top) for v in row)) - row[label]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_hits_are_those_of_a_ranking(k, dtype):
    logits, labels = predictions()
    logits = logits.to(dtype)
    expected = [
        slow_hit(row, label, k) for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
    ]
    assert hits(logits, labels, k).tolist() == expected
    assert top_k(logits, labels, k) == np.mean(expected)


@given(st.lists(st.integers(0, 2), min_size=4, max_size=4), st.integers(0, 3), st.integers(1, 4))
def test_among_equal_logits_the_lower_class_ranks_higher(row, label, k):
    found = hits(torch.tensor([row], dtype=torch.float32), torch.tensor([label]), k)
    assert found.tolist() == [slow_hit([float(v) for v in row], label, k)]


def test_top_k_is_that_of_scikit_learn():
    logits, labels = predictions()
    for k in (1, 3, 6):
        expected = top_k_accuracy_score(labels, logits, k=k, labels=range(7))
        assert top_k(logits, labels, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nll_per_image_is_minus_the_logarithm_of_the_labels_probability(dtype):
    logits, labels = predictions()
    logits = logits.to(dtype)
    found = nll_per_image(logits, labels)
    expected = list(map(slow_nll, logits.tolist(), labels.tolist()))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert nll(logits, labels) == pytest.approx(np.mean(expected), abs=1e-13)


def test_the_likelihood_is_that_of_torch_and_of_scikit_learn():
    logits, labels = predictions()
    assert nll(logits, labels) == pytest.approx(float(cross_entropy(logits, labels)), abs=1e-13)
    expected = log_loss(labels, logits.softmax(1), labels=range(7))
    assert nll(logits.softmax(1).log(), labels) == pytest.approx(expected, abs=1e-12)


def test_the_likelihood_of_logits_far_from_zero_is_not_rounded_away():
    logits, labels = predictions()
    logits = logits.float().round(decimals=1)
    shifted = logits + 2.0**20  # float32 keeps eighths here
    expected = nll(shifted.double() - 2.0**20, labels)
    assert nll(shifted, labels) == pytest.approx(expected, abs=1e-9)


def test_certain_predictions_cost_nothing_or_very_much():
    logits = torch.tensor([[800.0, 0.0], [800.0, 0.0]])
    assert nll_per_image(logits, torch.tensor([0, 1])).tolist() == [0.0, 800.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_brier_score_sums_squares_over_classes(dtype):
    logits, labels = predictions()
    probs = logits.softmax(1).to(dtype)
    expected = [
        math.fsum((p - (c == label)) ** 2 for c, p in enumerate(row))
        for row, label in zip(probs.tolist(), labels.tolist(), strict=True)
    ]
    np.testing.assert_allclose(squared_error(probs, labels), expected, rtol=0, atol=1e-14)
    assert brier(probs, labels) == pytest.approx(np.mean(expected), abs=1e-14)


def test_the_brier_score_of_all_wrong_and_sure_is_two():
    probs = torch.eye(3)
    assert brier(probs, torch.tensor([0, 1, 2])) == 0.0
    assert brier(probs, torch.tensor([1, 2, 0])) == 2.0


def test_blocks_of_images_change_nothing(monkeypatch):
    logits, labels = predictions()
    whole = nll_per_image(logits, labels), squared_error(logits.softmax(1), labels)
    monkeypatch.setattr(checks, "_BLOCK", 50)  # seven images of seven classes
    parts = nll_per_image(logits, labels), squared_error(logits.softmax(1), labels)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


@given(st.permutations(range(12)))
def test_means_ignore_the_order_of_images(order):
    logits, labels = predictions(12)
    assert nll(logits[order], labels[order]) == pytest.approx(nll(logits, labels), abs=1e-14)
    assert top_k(logits[order], labels[order], 2) == top_k(logits, labels, 2)


def test_inputs_with_gradients_are_taken_without():
    logits, labels = predictions()
    assert not nll_per_image(logits.requires_grad_(), labels).requires_grad
    assert not squared_error(logits.softmax(1), labels).requires_grad


def test_logits_of_a_wrong_kind_are_refused():
    logits, labels = predictions()
    with pytest.raises(DtypeError, match=r"expected logits as a tensor of floats, found ndarray\."):
        nll(logits.numpy(), labels)
    with pytest.raises(DtypeError, match=r"as a tensor of floats, found torch\.int64\."):
        nll(logits.long(), labels)
    with pytest.raises(ShapeError, match=r"shape \(n, classes\), found \(60,\)\."):
        nll(logits[:, 0], labels)
    with pytest.raises(ShapeError, match=r"found \(0, 7\)\."):
        nll(logits[:0], labels[:0])
    logits[3, 1] = math.nan
    with pytest.raises(DataError, match=r"finite logits, found NaN or infinity\."):
        nll(logits, labels)


def test_labels_that_do_not_fit_are_refused():
    logits, labels = predictions()
    with pytest.raises(DtypeError, match=r"tensor of class indices, found torch\.float32\."):
        top_k(logits, labels.float())
    with pytest.raises(ShapeError, match=r"labels of shape \(60,\), found"):
        top_k(logits, labels[:5])
    with pytest.raises(DataError, match=r"labels from 0 to 6, found 7\."):
        top_k(logits, labels.clamp_min(6) + 1)
    with pytest.raises(DataError, match=r"labels from 0 to 6, found -1\."):
        top_k(logits, labels.clamp_max(-1))


def test_logits_are_not_taken_for_probabilities():
    logits, labels = predictions()
    with pytest.raises(DataError, match=r"probs that sum to 1 in each row"):
        brier(logits, labels)
    with pytest.raises(DataError, match=r"Pass logits\.softmax\(1\)\."):
        brier(torch.tensor([[0.5, 0.5], [0.25, 0.25]]), torch.tensor([0, 1]))
