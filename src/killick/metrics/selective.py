"""Selective prediction: the errors among a model's most confident predictions.

Equal confidences have no order among themselves, so the curve is the expectation over all of them:
the errors of a tie group are spread evenly over it. Nothing depends on the order of the images.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from killick.metrics.input_checks import check_pairs
from killick.metrics.metric_registry import Metric, register_metric


@dataclass(frozen=True)
class RiskCoverage:
    """Errors among the most confident predictions, for every number of them from 1 to all."""

    coverage: Tensor
    risk: Tensor
    confidence: Tensor


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """The share of errors among the surest 1, 2, ... n images, and the confidence of the last.

    Args:
        confidence: Any numbers, higher is surer, `(n,)`: a probability, or minus a score.
        correct: Whether the prediction was right, `(n,)`.

    Example:
        >>> curve = risk_coverage(torch.tensor([0.9, 0.7, 0.7]), torch.tensor([1, 0, 1]))
        >>> curve.risk.tolist()
        [0.0, 0.25, 0.3333333333333333]
    """
    confidence, correct = check_pairs(confidence, correct, ranked=True)
    ordered, order = confidence.sort(descending=True)
    wrong = (~correct[order]).double()
    _, group, size = ordered.unique_consecutive(return_inverse=True, return_counts=True)
    rate = torch.bincount(group, wrong) / size
    covered = torch.arange(1, len(ordered) + 1, device=ordered.device).double()
    return RiskCoverage(covered / len(ordered), rate[group].cumsum(0) / covered, ordered)


def aurc(confidence: Tensor, correct: Tensor) -> float:
    """The area under the risk-coverage curve: the mean of its risks (Geifman et al. 2019)."""
    return float(risk_coverage(confidence, correct).risk.mean())


def e_aurc(confidence: Tensor, correct: Tensor) -> float:
    """The excess of `aurc` over that of the best order, with all errors last; 0 is perfect.

    The best area is summed over images; Geifman et al. approximate it by an integral.
    """
    found = risk_coverage(confidence, correct)
    n = len(found.risk)
    errors = round(float(found.risk[-1]) * n)
    covered = torch.arange(1, n + 1, device=found.risk.device).double()
    best = (covered - (n - errors)).clamp_min(0) / covered
    return float((found.risk - best).mean())


_NAMES = ("aurc", "area under risk-coverage", "area under the curve of risk against coverage")
register_metric(Metric(*_NAMES, -1, input="confidence", compute=aurc, short="AURC", summary=False))
