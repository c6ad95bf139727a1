"""Binned calibration: confidence against accuracy in bins of equal width or of equal mass.

A bin holds its left edge and not its right one, except the last, which holds both: a confidence of
exactly 1 belongs to the last bin. (torchmetrics puts those into a bin of their own.)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from killick.errors import check_option
from killick.metrics.input_checks import check_pairs
from killick.metrics.metric_registry import Metric, register_metric


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram shows, one number for each bin; NaN means in an empty bin."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor
    edges: Tensor


def reliability(
    confidence: Tensor, correct: Tensor, bins: int = 15, binning: str = "width"
) -> Reliability:
    """The mean confidence, the accuracy and the number of images in each bin.

    Args:
        confidence: The probability of the predicted class, `(n,)`.
        correct: Whether the prediction was right, `(n,)`.
        bins: How many.
        binning: `width`: the same width, from 0 to 1. `mass`: the same number of images, to within
            one; equal confidences stay together, whatever the order, so that with ties bins can be
            uneven or empty.
    """
    confidence, correct = check_pairs(confidence, correct)
    confidence = confidence.double()
    check_option("binning", binning, ["width", "mass"])
    count = torch.arange(bins + 1, device=confidence.device)
    if binning == "width":
        edges = count.double() / bins
    else:
        ordered, n = confidence.sort().values, len(confidence)
        edges = ordered[(count * n // bins).clamp_max(n - 1)]
    # A bin's number is that of its left edge: how many inner edges are at or below.
    place = torch.bucketize(confidence, edges[1:-1].contiguous(), right=True)
    size = torch.bincount(place, minlength=bins)
    mean = torch.bincount(place, confidence, minlength=bins) / size
    accuracy = torch.bincount(place, correct.double(), minlength=bins) / size
    return Reliability(mean, accuracy, size, edges)


def ece(
    confidence: Tensor, correct: Tensor, bins: int = 15, norm: str = "l1", binning: str = "width"
) -> float:
    """The expected calibration error: the gap between confidence and accuracy, over bins.

    Args:
        confidence: The probability of the predicted class, `(n,)`.
        correct: Whether the prediction was right, `(n,)`.
        bins: How many.
        norm: `l1`: the mean gap, each bin weighted by its images. `l2`: the root of the mean
            squared gap. `max`: the largest gap of a bin that has images.
        binning: `width` or `mass`, see `reliability`.

    Example:
        >>> ece(torch.tensor([0.75, 0.75, 0.75, 0.75]), torch.tensor([1, 1, 0, 0]))
        0.25
    """
    check_option("norm", norm, ["l1", "l2", "max"])
    found = reliability(confidence, correct, bins, binning)
    gap = (found.confidence - found.accuracy).abs().nan_to_num()
    share = found.count.double() / found.count.sum()
    if norm == "max":
        return float(gap.max())
    if norm == "l1":
        return float((share * gap).sum())
    return math.sqrt(float((share * gap.square()).sum()))


def rms_ece(confidence: Tensor, correct: Tensor, bins: int = 15, binning: str = "width") -> float:
    """The root mean squared calibration error: `ece` with `norm="l2"`."""
    return ece(confidence, correct, bins, "l2", binning)


for _compute, _title, _short, _about in (
    (ece, "calibration error (15 bins)", "ECE", "expected calibration error"),
    (rms_ece, "RMS calibration error", "RMS ECE", "root mean squared ECE"),
):
    register_metric(
        Metric(
            _compute.__name__,
            _title,
            f"{_about} of the top label, 15 bins of equal width",
            -1,
            input="confidence",
            compute=_compute,
            short=_short,
            suite="calibration",
            estimator="top label, 15 equal-width bins",
            summary=_compute is ece,
        )
    )
