"""Every metric gives on a GPU what it gives on the CPU."""

import dataclasses

import pytest
import torch
from torch import Tensor

from killick import metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def calls(device: str) -> dict[str, object]:
    """All metrics of the same made-up predictions, on a device."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3000, 10, generator=g)
    labels = (0.7 * logits).softmax(1).multinomial(1, generator=g)[:, 0].to(device)
    logits = logits.to(device)
    probs = logits.softmax(1)
    confidence, predicted = probs.max(1)
    correct = predicted == labels
    inside, outside = logits[:2000, 0].round(decimals=1), logits[2000:, 1] + 1
    found: dict[str, object] = {
        "hits": metrics.hits(logits, labels, 3),
        "nll": metrics.nll(logits, labels),
        "brier": metrics.brier(probs, labels),
        "energy": metrics.energy(logits, 2.0),
        "max_softmax": metrics.max_softmax(probs),
        "max_logit": metrics.max_logit(logits),
        "entropy": metrics.entropy(probs),
        "ece": metrics.ece(confidence, correct),
        "ece, mass": metrics.ece(confidence, correct, norm="l2", binning="mass"),
        "smooth_ece": metrics.smooth_ece(confidence, correct),
        "smooth_reliability": metrics.smooth_reliability(confidence, correct, 0.05),
        "auroc": metrics.auroc(inside, outside),
        "aupr": metrics.aupr(inside, outside),
        "aupr, in": metrics.aupr(inside, outside, "in"),
        "fpr_at_tpr_in": metrics.fpr_at_tpr_in(inside, outside),
        "fpr_at_tpr_out": metrics.fpr_at_tpr_out(inside, outside),
        "threshold": metrics.threshold(inside),
        "roc": metrics.roc(inside, outside, 100),
        "risk_coverage": metrics.risk_coverage(confidence, correct),
        "e_aurc": metrics.e_aurc(confidence, correct),
        "fit_temperature": metrics.fit_temperature(logits, labels),
    }
    # The generator is on the CPU, so the draws are the same for both.
    found["interval"] = metrics.smooth_ece_interval(confidence, correct, resamples=40, generator=g)
    return found


def numbers(value: object) -> Tensor:
    """All numbers of a result in a row."""
    if isinstance(value, Tensor):
        return value.double().cpu().flatten()
    if dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return torch.cat([numbers(part) for part in parts])
    return torch.tensor(value, dtype=torch.float64).flatten()


def test_a_gpu_gives_what_the_cpu_gives():
    here, there = calls("cpu"), calls("cuda")
    for name, value in here.items():
        torch.testing.assert_close(
            numbers(there[name]), numbers(value), rtol=0, atol=1e-5, equal_nan=True, msg=name
        )


def test_an_interval_can_be_drawn_on_the_gpu():
    confidence = torch.linspace(0.5, 1, 2000, device="cuda")
    correct = torch.arange(2000, device="cuda") % 3 > 0
    low, high = metrics.smooth_ece_interval(confidence, correct, resamples=50)
    assert low < metrics.smooth_ece(confidence, correct) < high
