"""Accuracy, log-likelihood and Brier score: for each image, and as means over images."""

from functools import partial

import torch
from torch import Tensor

from killick.metrics.input_checks import blocks, check_logits, check_probs
from killick.metrics.metric_registry import Metric, register_metric


def hits(logits: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """Whether the label is among the `k` highest classes, for each image.

    Among equal logits the class with the lower index ranks higher, as in `argmax`.

    Args:
        logits: Or probabilities, `(n, classes)`.
        labels: Class indices, `(n,)`.
        k: The number of most probable classes.
    """
    check_logits(logits, labels)
    return _hits(logits, labels.to(logits.device, torch.long), k)


def top_k(logits: Tensor, labels: Tensor, k: int = 1) -> float:
    """The share of images whose label is among the `k` highest classes; ties as in `hits`.

    Example:
        >>> top_k(torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]]), torch.tensor([1, 2]))
        0.5
    """
    return float(hits(logits, labels, k).double().mean())


def nll_per_image(logits: Tensor, labels: Tensor) -> Tensor:
    """The negative log-likelihood of the label, for each image, in float64."""
    check_logits(logits, labels)
    return torch.cat([_nll_per_image(*block) for block in blocks(logits, labels)])


def nll(logits: Tensor, labels: Tensor) -> float:
    """The mean negative log-likelihood, in nats.

    Averaged probabilities, as of several references, are passed as their logarithm.

    Example:
        >>> round(nll(torch.zeros(3, 10), torch.tensor([0, 4, 9])), 6)
        2.302585
    """
    return float(nll_per_image(logits, labels).mean())


def squared_error(probs: Tensor, labels: Tensor) -> Tensor:
    """The sum over classes of (probability - truth) squared, for each image, in float64."""
    check_probs(probs, labels)
    return torch.cat([_squared_error(*block) for block in blocks(probs, labels)])


def brier(probs: Tensor, labels: Tensor) -> float:
    """The mean Brier score over all classes, from 0 to 2.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0]))
        0.5
    """
    return float(squared_error(probs, labels).mean())


# The formulas, for inputs that are known to be good: logits `(..., n, classes)`, labels `(n,)`.


def _own(values: Tensor, labels: Tensor) -> Tensor:
    """The label's column, with an axis of one class."""
    return values.gather(-1, labels.expand(values.shape[:-1])[..., None])


def _hits(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    if k == 1:
        return logits.argmax(-1) == labels
    own = _own(logits, labels)
    lower = torch.arange(logits.shape[-1], device=logits.device) < labels[:, None]
    return ((logits > own) | ((logits == own) & lower)).sum(-1) < k


def _nll_per_image(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.double()
    return logits.logsumexp(-1) - _own(logits, labels)[..., 0]


def _squared_error(probs: Tensor, labels: Tensor) -> Tensor:
    return probs.square().sum(-1) - 2 * _own(probs, labels)[..., 0] + 1


def _brier(logits: Tensor, labels: Tensor) -> Tensor:
    return _squared_error(logits.log_softmax(-1).exp(), labels)


_TOP1 = "share of images whose predicted class is right"
_TOP5 = "share of images whose label is among the five highest classes (six classes or more)"
_NLL = "mean negative log-likelihood of the label"
_BRIER = "squared distance of the probabilities from the one-hot label, from 0 to 2"
_top1, _top5 = partial(_hits, k=1), partial(_hits, k=5)
for _metric in (
    Metric("top1", "accuracy", _TOP1, +1, "%", "logits", _top1, "top-1", scaled=False),
    Metric(
        *("top5", "top-5 accuracy", _TOP5, +1, "%", "logits", _top5, "top-5"),
        scaled=False,
        min_classes=6,
        summary=False,
    ),
    Metric("nll", "negative log-likelihood", _NLL, -1, "nats", "logits", _nll_per_image, "NLL"),
    Metric("brier", "Brier score", _BRIER, -1, "", "logits", _brier, "Brier", summary=False),
):
    register_metric(_metric)
