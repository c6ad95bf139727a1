"""Scores of being out of distribution against loops; all rise towards the unknown."""

import math
from importlib import import_module

import numpy as np
import pytest
import torch
from scipy.special import entr, logsumexp

from killick.errors import DataError
from killick.metrics import energy, entropy, max_logit, max_softmax
from killick.metrics import input_checks as checks

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def draw(n: int = 50, classes: int = 6) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return 4 * torch.randn(n, classes, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 1000.0])
def test_energy_is_minus_the_tempered_logarithm_of_the_sum(temperature, dtype):
    logits = draw().to(dtype)
    expected = [
        -temperature * math.log(math.fsum(math.exp(v / temperature) for v in row))
        for row in logits.tolist()
    ]
    found = energy(logits, temperature)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_energy_does_not_overflow_and_keeps_small_differences_of_large_logits():
    logits = draw().float() + 2.0**17
    expected = -logsumexp(logits.double().numpy(), axis=1)
    np.testing.assert_allclose(energy(logits), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_others_are_minus_the_highest_and_the_entropy(dtype):
    logits = draw().to(dtype)
    probs = draw().softmax(1).to(dtype)
    assert max_logit(logits).tolist() == [-max(row) for row in logits.tolist()]
    assert max_softmax(probs).tolist() == [-max(row) for row in probs.tolist()]
    np.testing.assert_allclose(
        entropy(probs), entr(probs.double().numpy()).sum(1), rtol=0, atol=1e-14
    )


def test_a_certain_prediction_has_no_entropy_and_a_uniform_one_the_most():
    found = entropy(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
    assert found.tolist() == [0.0, pytest.approx(math.log(4))]


def test_a_flat_prediction_scores_higher_than_a_sharp_one_everywhere():
    logits = torch.tensor([[9.0, 0.0, 0.0], [1.0, 0.9, 0.8]])
    for scores in (energy(logits), max_logit(logits), max_softmax(logits.softmax(1))):
        assert scores[1] > scores[0]
    assert entropy(logits.softmax(1))[1] > entropy(logits.softmax(1))[0]


def test_scores_are_those_of_pytorch_ood():
    import_module("pytorch_ood")
    from pytorch_ood.detector import EnergyBased, MaxLogit, MaxSoftmax

    logits = draw().float()
    np.testing.assert_allclose(energy(logits), EnergyBased.score(logits), atol=1e-5)
    np.testing.assert_allclose(energy(logits, 3.0), EnergyBased.score(logits, t=3.0), atol=1e-5)
    np.testing.assert_allclose(max_softmax(logits.softmax(1)), MaxSoftmax.score(logits), atol=1e-6)
    np.testing.assert_allclose(max_logit(logits), MaxLogit.score(logits), atol=1e-6)


def test_blocks_of_images_change_nothing(monkeypatch):
    logits = draw()
    whole = energy(logits), entropy(logits.softmax(1))
    monkeypatch.setattr(checks, "_BLOCK", 20)
    parts = energy(logits), entropy(logits.softmax(1))
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_what_cannot_be_scored_is_refused():
    logits = draw()
    with pytest.raises(DataError, match=r"sum to 1 in each row"):
        max_softmax(logits)
    with pytest.raises(DataError, match=r"finite logits, found NaN or infinity\."):
        max_logit(logits / 0)
