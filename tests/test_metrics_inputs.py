"""Metrics of `(confidence, correct)` also take `(probs, labels)`."""

import pytest
import torch

from killick import metrics
from killick.errors import DataError, DtypeError, ShapeError

BOTH = ("ece", "rms_ece", "smooth_ece", "aurc", "e_aurc")


def probs_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(200, 5, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(5, (200,), generator=generator)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_probs_and_labels_give_what_confidence_and_correctness_give(name, dtype):
    probs, labels = probs_and_labels()
    confidence = torch.tensor([max(row) for row in probs.tolist()], dtype=torch.float64)
    correct = [row.index(max(row)) == k for row, k in zip(probs.tolist(), labels, strict=True)]
    metric = getattr(metrics, name)
    assert metric(probs, labels.to(dtype)) == metric(confidence, torch.tensor(correct))


def test_curves_take_probs_and_labels_too():
    probs, labels = probs_and_labels()
    confidence, predicted = probs.max(1)
    for curve in (metrics.reliability, metrics.smooth_reliability, metrics.risk_coverage):
        ours, theirs = curve(probs, labels), curve(confidence, predicted == labels)
        assert torch.equal(ours.confidence.nan_to_num(), theirs.confidence.nan_to_num())


@pytest.mark.parametrize("name", BOTH)
def test_what_is_neither_is_refused(name):
    probs, labels = probs_and_labels()
    metric = getattr(metrics, name)
    with pytest.raises(DataError, match="sum to 1"):
        metric(probs.log(), labels)  # logits
    with pytest.raises(DtypeError, match="class indices"):
        metric(probs, probs.argmax(1) == labels)  # probabilities, but correctness
    with pytest.raises(DataError, match="zeros and ones"):
        metric(probs.amax(1), labels)  # confidences, but labels
    with pytest.raises(ShapeError, match="labels of shape"):
        metric(probs, labels[:3])
    with pytest.raises(DataError, match="from 0 to 4, found 5"):
        metric(probs, labels + 1)
