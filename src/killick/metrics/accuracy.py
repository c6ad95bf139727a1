"""How often the prediction is right, and how much probability the truth was given.

Each comes as a mean over images and as a number for each image, which can be kept while images
stream by and averaged at the end.
"""

import torch
from torch import Tensor

from killick.errors import OptionError
from killick.metrics.input_checks import blocks, check_logits, check_probs


def hits(logits: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """Whether the label is among the `k` highest classes, for each image.

    Among equal logits the class with the lower index ranks higher, as in `argmax`, so that the
    result never depends on how a sort treats ties.

    Args:
        logits: Or probabilities, `(n, classes)`.
        labels: Class indices, `(n,)`.
        k: How many classes are looked at.
    """
    check_logits(logits, labels)
    classes = logits.shape[1]
    if not 1 <= k <= classes:
        raise OptionError(f"expected k between 1 and the {classes} classes, found {k}.")
    labels = labels.to(logits.device, torch.long)
    if k == 1:
        return logits.argmax(1) == labels
    own = logits.gather(1, labels[:, None])
    first = torch.arange(classes, device=logits.device) < labels[:, None]
    return ((logits > own) | ((logits == own) & first)).sum(1) < k


def top_k(logits: Tensor, labels: Tensor, k: int = 1) -> float:
    """The share of images whose label is among the `k` highest classes; ties as in `hits`.

    Example:
        >>> top_k(torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]]), torch.tensor([1, 2]))
        0.5
    """
    return float(hits(logits, labels, k).double().mean())


def surprise(logits: Tensor, labels: Tensor) -> Tensor:
    """The negative logarithm of the label's probability, for each image, in float64."""
    check_logits(logits, labels)
    columns = labels.to(logits.device, torch.long)[:, None]
    starts, found = 0, []
    for block in blocks(logits):
        own = block.gather(1, columns[starts : starts + len(block)])[:, 0]
        found.append(block.logsumexp(1) - own)
        starts += len(block)
    return torch.cat(found)


def nll(logits: Tensor, labels: Tensor) -> float:
    """The mean negative log-likelihood, in nats.

    Averaged probabilities, as of several references, are passed as their logarithm.

    Example:
        >>> round(nll(torch.zeros(3, 10), torch.tensor([0, 4, 9])), 6)
        2.302585
    """
    return float(surprise(logits, labels).mean())


def squared_error(probs: Tensor, labels: Tensor) -> Tensor:
    """The sum over classes of (probability - truth) squared, for each image, in float64."""
    check_probs(probs, labels)
    columns = labels.to(probs.device, torch.long)[:, None]
    starts, found = 0, []
    for block in blocks(probs):
        own = columns[starts : starts + len(block)]
        truth = torch.zeros_like(block).scatter_(1, own, 1.0)
        found.append((block - truth).square().sum(1))
        starts += len(block)
    return torch.cat(found)


def brier(probs: Tensor, labels: Tensor) -> float:
    """The mean Brier score over all classes, from 0 to 2.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0]))
        0.5
    """
    return float(squared_error(probs, labels).mean())
