"""Temperature scaling: logits are divided by one number, fitted to calibrate them."""

import math

import torch
from torch import Tensor

from killick.metrics.input_checks import blocks, check_logits
from killick.metrics.metric_registry import Metric, register_metric

_PRECISION = 1e-10


def fit_temperature(
    logits: Tensor, labels: Tensor, bounds: tuple[float, float] = (0.01, 100.0)
) -> float:
    """The temperature T at which `nll(logits / T, labels)` is least (Guo et al. 2017).

    The likelihood is convex in 1 / T, so there is one minimum: Newton's method finds it, held
    inside a bracket, in float64, without chance. If all labels have the highest logit, the colder
    the better, and the lower bound comes back; if logits speak against the labels, the upper one;
    if every row is constant, any temperature is as good, and it is 1.

    Args:
        logits: Of images not trained on, `(n, classes)`.
        labels: Class indices, `(n,)`.
        bounds: The lowest and the highest temperature.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
        >>> round(fit_temperature(logits, torch.tensor([0, 0, 0, 1])), 6)  # 2 / log(3)
        1.820478
    """
    check_logits(logits, labels)
    coldest, hottest = bounds
    low, high = 1 / hottest, 1 / coldest  # of the inverse temperature
    against, colder = _slope(logits, labels, low)[0] >= 0, _slope(logits, labels, high)[0] <= 0
    if against and colder:
        return min(max(1.0, coldest), hottest)
    if against or colder:
        return hottest if against else coldest
    inverse, last = min(max(1.0, low), high), high - low
    for _ in range(200):
        slope, curvature = _slope(logits, labels, inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = -slope / curvature if curvature > 0 else math.inf
        # Newton's step, unless it leaves the bracket or does not shrink.
        if not (low <= inverse + step <= high and abs(step) <= 0.5 * last):
            step = math.sqrt(low * high) - inverse
        inverse, last = inverse + step, abs(step)
        if last <= _PRECISION * inverse:
            break
    return 1 / inverse


def _slope(logits: Tensor, labels: Tensor, inverse: float) -> tuple[float, float]:
    """The first and second derivative of the likelihood's negative logarithm in 1 / T."""
    first = torch.zeros((), dtype=torch.float64, device=logits.device)
    second = torch.zeros_like(first)
    for block, own in blocks(logits, labels):
        ahead = block - block.gather(1, own[:, None])  # how far each class is ahead of the label
        weights = (inverse * ahead).softmax(1)
        mean = (weights * ahead).sum(1)
        first += mean.sum()
        second += ((weights * ahead.square()).sum(1) - mean.square()).clamp_min(0).sum()
    return float(first), float(second)


_ABOUT = "temperature that logits are divided by, fitted on validation images"
register_metric(Metric("temperature", "temperature", _ABOUT, 0, summary=False))
