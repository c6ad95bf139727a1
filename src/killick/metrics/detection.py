"""OOD detection: separating in-distribution from out-of-distribution images by a score.

Scores are raw numbers of any range, infinity included; higher means more out of distribution, which
is the positive class. All here depends on their order alone, and equal scores are never split: a
threshold takes all of them or none.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from killick.errors import OptionError, check_option
from killick.metrics.input_checks import check_scores
from killick.metrics.metric_registry import Metric, register_metric


@dataclass(frozen=True)
class Roc:
    """The rates when everything at or above a threshold is flagged, from none to all flagged."""

    false_positive: Tensor
    true_positive: Tensor
    threshold: Tensor


def auroc(in_scores: Tensor, out_scores: Tensor) -> float:
    """The probability that an out-of-distribution image scores higher than one in distribution.

    Exact: a tie counts one half, and pairs are counted in whole numbers.

    Example:
        >>> auroc(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.0, 5.0]))
        0.9166666666666666
    """
    inside, outside = _sorted_pair(in_scores, out_scores)
    below = torch.searchsorted(inside, outside)
    up_to = torch.searchsorted(inside, outside, right=True)
    return int((below + up_to).sum()) / (2 * len(inside) * len(outside))


def aupr(in_scores: Tensor, out_scores: Tensor, positive: str = "out") -> float:
    """The average precision: the mean, over positives, of the precision at their own score.

    It depends on how many there are of each kind; compare it only at the same ratio.

    Args:
        in_scores: Of in-distribution images.
        out_scores: Of out-of-distribution images.
        positive: `out`: those are to be found, from the highest score down. `in`: the others are,
            from the lowest score up.

    Example:
        >>> aupr(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([2.0, 5.0]))
        0.8333333333333333
    """
    check_option("positive", positive, ["out", "in"])
    inside, outside = _sorted_pair(in_scores, out_scores)
    if positive == "in":
        true = torch.searchsorted(inside, inside, right=True)
        false = torch.searchsorted(outside, inside, right=True)
    else:
        true = len(outside) - torch.searchsorted(outside, outside)
        false = len(inside) - torch.searchsorted(inside, outside)
    return float((true.double() / (true + false)).mean())


def threshold(in_scores: Tensor, acceptance: float = 0.95) -> float:
    """The smallest score such that at least this share of `in_scores` is at or below it.

    Example:
        >>> threshold(torch.arange(100.0), acceptance=0.95)
        94.0
    """
    scores = check_scores(in_scores, "in_scores")
    return float(scores.kthvalue(_least_count(acceptance, len(scores))).values)


def fpr_at_tpr_in(in_scores: Tensor, out_scores: Tensor, tpr: float = 0.95) -> float:
    """The share of out-of-distribution images accepted when `tpr` of the others are.

    An image is accepted if its score is at most `threshold(in_scores, tpr)`, so that at least that
    share of in-distribution images is. In-distribution counts as positive here, as in most papers
    on detection; the other reading is `fpr_at_tpr_out`.

    Example:
        >>> fpr_at_tpr_in(torch.arange(100.0), torch.tensor([90.0, 94.0, 94.5, 99.0]))
        0.5
    """
    outside = check_scores(out_scores, "out_scores")
    return float((outside.double() <= threshold(in_scores, tpr)).double().mean())


def fpr_at_tpr_out(in_scores: Tensor, out_scores: Tensor, tpr: float = 0.95) -> float:
    """The share of in-distribution images flagged when `tpr` of the others are.

    An image is flagged if its score is at least the highest one that flags at least that share of
    out-of-distribution images.

    Example:
        >>> fpr_at_tpr_out(torch.tensor([3.0, 5.0, 5.5, 9.0]), torch.arange(100.0))
        0.75
    """
    inside = check_scores(in_scores, "in_scores")
    outside = check_scores(out_scores, "out_scores")
    return fpr_at_tpr_in(-outside, -inside, tpr)


def roc(in_scores: Tensor, out_scores: Tensor, points: int = 1000) -> Roc:
    """The receiver operating characteristic, of at most `points` points, from (0, 0) to (1, 1).

    If there are more thresholds than that, they are taken evenly from the sorted scores of both
    kinds, so that neighbors are never far apart in either rate, ties aside.

    Args:
        in_scores: Of in-distribution images.
        out_scores: Of out-of-distribution images.
        points: At least 5.
    """
    inside, outside = _sorted_pair(in_scores, out_scores)
    limits = torch.cat([inside, outside]).unique()
    if len(limits) > points - 1:
        few = (points - 1) // 2
        limits = torch.cat([_evenly(inside, few), _evenly(outside, few)]).unique()
    false = len(inside) - torch.searchsorted(inside, limits)
    true = len(outside) - torch.searchsorted(outside, limits)
    never = limits.new_full((1,), math.inf)
    return Roc(
        false_positive=_rates(false, len(inside)),
        true_positive=_rates(true, len(outside)),
        threshold=torch.cat([limits, never]).flip(0),
    )


def _rates(counts: Tensor, total: int) -> Tensor:
    """Shares from none flagged to all."""
    return torch.cat([counts, counts.new_zeros(1)]).flip(0).double() / total


def _evenly(ordered: Tensor, points: int) -> Tensor:
    """Some of the sorted scores, evenly spaced in rank, the lowest and the highest among them."""
    steps = torch.arange(points, device=ordered.device)
    return ordered[steps * (len(ordered) - 1) // (points - 1)]


def _least_count(share: float, n: int) -> int:
    """The smallest count with count / n >= share, whatever rounding does to share * n."""
    if not 0 < share <= 1:
        raise OptionError(f"expected a share above 0 and at most 1, found {share}.")
    count = max(1, math.ceil(share * n) - 1)
    while count / n < share:
        count += 1
    return count


def _sorted_pair(in_scores: Tensor, out_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Both kinds of scores, checked, in one dtype, sorted."""
    inside = check_scores(in_scores, "in_scores")
    outside = check_scores(out_scores, "out_scores").to(inside.device)
    dtype = torch.promote_types(inside.dtype, outside.dtype)
    return inside.to(dtype).sort().values, outside.to(dtype).sort().values


for _key, _title, _about, _direction, _compute in (
    ("auroc", "AUROC", "probability that an OOD image scores higher than a test image", 1, auroc),
    ("aupr_out", "AUPR, OOD", "average precision, OOD images positive", 1, aupr),
    (
        *("aupr_in", "AUPR, in-distribution"),
        *("average precision, in-distribution images positive", 1, partial(aupr, positive="in")),
    ),
    (
        *("fpr_at_95_tpr_in", "FPR at 95 % TPR"),
        *("share of OOD images accepted where 95 % of the test images are", -1, fpr_at_tpr_in),
    ),
    (
        *("fpr_at_95_tpr_out", "in-distribution rejected at 95 % TPR"),
        *("share of test images rejected where 95 % of the OOD images are", -1, fpr_at_tpr_out),
    ),
):
    register_metric(
        Metric(
            *(_key, _title, _about, _direction, "%", "scores", _compute),
            estimator="out-of-distribution positive, raw scores",
            summary=_key in ("auroc", "fpr_at_95_tpr_in"),
            chance=0.5 if _key == "auroc" else -math.inf,
        )
    )
for _key, _title, _about, _unit in (
    ("threshold", "energy threshold", "energy that 95 % (--accept) of validation images have", ""),
    ("accepted", "accepted", "share of images at or below the threshold", "%"),
):
    register_metric(Metric(_key, _title, _about, 0, _unit, summary=False))
