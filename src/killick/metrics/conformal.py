"""Split conformal prediction: sets of classes that hold the label with a chosen probability.

Each class of an image has a score, and a set holds the classes with a score up to a quantile of the
labels' scores on calibration images. Methods:

- `thr`: one minus the probability (Sadinle et al. 2019), the smallest sets;
- `aps`: the probability of all classes before this one, and a random part of its own (Romano et al.
  2020), sets that adapt to the image;
- `raps`: the same plus 0.01 for each rank beyond 5, the values in the authors' code (Angelopoulos et
  al. 2021), adaptive sets without long tails.
"""

import math
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from killick.errors import check_option
from killick.metrics.metric_registry import Metric, register_metric

ALPHA = 0.1
METHODS = ("thr", "aps", "raps")
_PENALTY, _FREE = 0.01, 5  # of `raps`: for each rank beyond, and ranks without penalty


def conformal_scores(logits: Tensor, method: str, uniform: Tensor) -> Tensor:
    """The score of each class, in float64, like `logits`; lower is more likely.

    Among equal probabilities the class with the lower index comes first.

    Args:
        logits: `(..., n, classes)`.
        method: "thr", "aps" or "raps".
        uniform: A random number from 0 to 1 for each image, `(n,)`; "thr" needs none.
    """
    check_option("the conformal method", method, METHODS)
    probs = logits.double().softmax(-1)
    if method == "thr":
        return 1 - probs
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    scores = ordered.cumsum(-1) - (1 - uniform.double())[:, None] * ordered
    if method == "raps":
        rank = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
        scores += _PENALTY * (rank - _FREE).clamp_min(0)
    return torch.empty_like(scores).scatter_(-1, order, scores)


def conformal_quantile(scores: Tensor, alpha: float = ALPHA) -> float:
    """The highest score in sets that hold the label with probability `1 - alpha`.

    It is the `ceil((n + 1) (1 - alpha))`-th lowest of the labels' scores `(n,)` on calibration
    images, and infinite if these are too few.

    Example:
        >>> conformal_quantile(torch.arange(1.0, 20.0), alpha=0.1)
        18.0
    """
    n = len(scores)
    place = math.ceil((n + 1) * (1 - Fraction(str(alpha))))  # exact, without rounding up 18 to 19
    return float(scores.double().sort().values[place - 1]) if place <= n else math.inf


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


for _key in METHODS:
    _name, _share = _key.upper(), f"{1 - ALPHA:.0%}".replace("%", " %")
    _how = f"{_name} at alpha {ALPHA:g}"
    _how += f" (lambda {_PENALTY:g}, k {_FREE})" if _key == "raps" else ""
    for _metric in (
        Metric(
            f"conformal_{_key}_coverage",
            f"{_name} coverage",
            f"share of conformal {_name} sets that hold the label; {_share} on data like validation",
            *(0, "%"),
            suite="conformal",
            estimator=_how,
            summary=False,
        ),
        Metric(
            f"conformal_{_key}_size",
            f"{_name} size",
            f"mean number of classes in conformal {_name} sets",
            -1,
            suite="conformal",
            estimator=_how,
            summary=False,
        ),
    ):
        register_metric(_metric)
