"""OOD scores: higher is farther from the training data, for all of them.

The public functions give float64 of shape `(n,)`, computed in float64 from whatever came in. What
saturated before stays so: a softmax in float32 is exactly 1 for many images, and those are tied.
"""

import torch
from torch import Tensor

from killick.metrics.input_checks import blocks, check_logits, check_probs
from killick.metrics.metric_registry import Metric, OODScore, register_metric, register_score


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The free energy `-T logsumexp(logits / T)` of each image (Liu et al. 2020).

    Example:
        >>> energy(torch.tensor([[0.0, 0.0], [9.0, 0.0]])).round(decimals=4).tolist()
        [-0.6931, -9.0001]
    """
    check_logits(logits)
    return torch.cat([temperature * energy_of(b / temperature) for (b,) in blocks(logits)])


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
    return torch.cat([entropy_of(block) for (block,) in blocks(probs)])


# The formulas, in the precision of their input: logits `(..., n, classes)`.


def energy_of(logits: Tensor) -> Tensor:
    """The free energy; the inputs are not checked."""
    return -logits.logsumexp(-1)


def entropy_of(probs: Tensor) -> Tensor:
    """The entropy over the last axis; the inputs are not checked."""
    terms: Tensor = torch.special.entr(probs)
    return terms.sum(-1)


def _spread(members: Tensor) -> Tensor:
    return members.softmax(-1).std(0).mean(-1)


def _mutual_information(members: Tensor) -> Tensor:
    """Entropy of the mean prediction minus the mean entropy, over references."""
    probs = members.softmax(-1)
    return (entropy_of(probs.mean(0)) - entropy_of(probs).mean(0)).clamp_min(0)


for _score in (
    OODScore("energy", "energy", "minus the logsumexp of the logits", compute=energy_of),
    OODScore(
        "max_softmax",
        "max softmax",
        "minus the probability of the predicted class",
        compute=lambda logits: -logits.softmax(-1).amax(-1),
    ),
    OODScore(
        "max_logit", "max logit", "minus the highest logit", compute=lambda logits: -logits.amax(-1)
    ),
    OODScore(
        "entropy",
        "entropy",
        "entropy of the predicted distribution",
        compute=lambda logits: entropy_of(logits.softmax(-1)),
    ),
    OODScore(
        "residual_distance",
        "residual",
        "distance to the nearest residual of training (anchored models)",
        "images",
    ),
    OODScore(
        "spread",
        "spread",
        "mean standard deviation of the probabilities over references (anchored models)",
        "members",
        _spread,
    ),
    OODScore(
        "mutual_information",
        "mutual inf.",
        "mutual information of prediction and reference (anchored models)",
        "members",
        _mutual_information,
    ),
):
    register_score(_score)

# What the suites `references` and `multiplicity` report.
for _key, _title, _about, _direction, _unit in (
    ("disagreement", "disagreement", "predictions of one reference that differ from all's", 0, "%"),
    ("ambiguity", "ambiguity", "images on which any member differs from the prediction", 0, "%"),
    ("discrepancy", "discrepancy", "images on which the most different member does so", 0, "%"),
    ("mutual_information", "mutual information", "mean over images, of the score", 0, ""),
    ("error_auroc", "error AUROC", "probability that an error has a higher score", 1, "%"),
):
    register_metric(Metric(_key, _title, _about, _direction, _unit, summary=False))
