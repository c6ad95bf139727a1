"""Scores of how far out of distribution an image is: higher is farther, for all of them.

Each gives float64 of shape `(n,)`, computed in float64 from whatever came in. What saturated before
stays so: a softmax in float32 is exactly 1 for many images, and those are tied.
"""

import math

import torch
from torch import Tensor

from killick.errors import OptionError
from killick.metrics.input_checks import blocks, check_logits, check_probs


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The free energy `-T logsumexp(logits / T)` of each image (Liu et al. 2020).

    Example:
        >>> energy(torch.tensor([[0.0, 0.0], [9.0, 0.0]])).round(decimals=4).tolist()
        [-0.6931, -9.0001]
    """
    check_logits(logits)
    if not (temperature > 0 and math.isfinite(temperature)):
        raise OptionError(f"expected a temperature above 0, found {temperature}.")
    return torch.cat([-temperature * (b / temperature).logsumexp(1) for b in blocks(logits)])


def max_softmax(probs: Tensor) -> Tensor:
    """Minus the probability of the predicted class (Hendrycks and Gimpel 2017)."""
    check_probs(probs)
    return -probs.detach().amax(1).double()


def max_logit(logits: Tensor) -> Tensor:
    """Minus the highest logit (Hendrycks et al. 2022)."""
    check_logits(logits)
    return -logits.detach().amax(1).double()


def entropy(probs: Tensor) -> Tensor:
    """The entropy of the predicted distribution, in nats; a class of probability 0 adds nothing."""
    check_probs(probs)
    return torch.cat([torch.special.entr(block).sum(1) for block in blocks(probs)])
