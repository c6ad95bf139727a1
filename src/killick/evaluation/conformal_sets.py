"""Conformal sets in an evaluation: quantiles from validation images, coverage and size on others."""

from collections.abc import Mapping

from torch import Tensor

from killick.metrics import conformal_quantile, conformal_scores
from killick.metrics.conformal import METHODS


def fit_conformal(logits: Tensor, labels: Tensor, uniform: Tensor) -> dict[str, float]:
    """The quantile of each conformal method, from logits `(n, classes)` of calibration images."""
    own = labels[:, None]
    scores = {method: conformal_scores(logits, method, uniform) for method in METHODS}
    return {
        method: conformal_quantile(each.gather(1, own)[:, 0]) for method, each in scores.items()
    }


def conformal_values(
    logits: Tensor, labels: Tensor, quantiles: Mapping[str, float], uniform: Tensor
) -> dict[str, Tensor]:
    """Whether the conformal set of each image holds its label, and the size of the set."""
    values = {}
    for method, quantile in quantiles.items():
        inside = conformal_scores(logits, method, uniform) <= quantile
        own = labels.expand(inside.shape[:-1])[..., None]
        values[f"conformal_{method}_coverage"] = inside.gather(-1, own)[..., 0]
        values[f"conformal_{method}_size"] = inside.sum(-1)
    return values
