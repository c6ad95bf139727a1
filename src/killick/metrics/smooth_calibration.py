"""The smooth calibration error of Blasiok and Nakkiran (2023), its interval and its diagram.

At a bandwidth sigma it is the integral over [0, 1] of |the mean of (confidence - correct) K(t)|, K
a Gaussian around the confidence, reflected at 0 and 1. The automatic bandwidth is where the error
equals the bandwidth, found by ten halvings of [0, 1], as relplot does it.

Without confidences within a thousandth of 0 or 1, relplot 1.0.3 agrees to a few 1e-4, which is its
precision. It weighs confidences of exactly 0 or 1 otherwise, and relplot 1.0 half as much.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from killick.errors import OptionError
from killick.metrics import cosine_series as cosines
from killick.metrics.input_checks import check_pairs
from killick.metrics.metric_registry import Metric, register_metric

_HALVINGS = 10
_LEAST_TRIED = 0.001  # smaller bandwidths count as too small without being tried
_CELLS = 8192  # enough for 2 / 2**10, which is therefore the smallest that can be found
_LEAST_STEPS = 256
_BLOCK = 1 << 15  # images worked on at a time on a CPU: what its cache holds takes a fifth the time
_ROWS = 32  # resamples worked on at a time on such a grid: some tens of megabytes


@dataclass(frozen=True)
class SmoothReliability:
    """A reliability diagram without bins: accuracy and density as functions of confidence.

    Accuracy is NaN where there are no images nearby. A density of 1 is that of a uniform spread.
    """

    confidence: Tensor
    accuracy: Tensor
    density: Tensor
    bandwidth: float


def smooth_ece(confidence: Tensor, correct: Tensor, bandwidth: float | None = None) -> float:
    """The smooth calibration error of the whole set, from 0 to 1.

    It is not the mean over batches: small batches have larger errors.

    Args:
        confidence: The probability of the predicted class, `(n,)`.
        correct: Whether the prediction was right, `(n,)`.
        bandwidth: Of the kernel; found automatically by default.

    Example:
        >>> round(smooth_ece(torch.full((100,), 0.75), torch.arange(100) < 50), 6)
        0.25
    """
    confidence, correct = _check(confidence, correct, bandwidth)
    series = _series(confidence, correct, bandwidth)
    return float(_error_at(series, _bandwidths(series, bandwidth)))


def smooth_ece_interval(
    confidence: Tensor,
    correct: Tensor,
    level: float = 0.95,
    resamples: int = 200,
    generator: torch.Generator | None = None,
    bandwidth: float | None = None,
) -> tuple[float, float]:
    """A bootstrap interval of `smooth_ece`: percentiles over resampled sets of the same size.

    Each resample finds a bandwidth of its own. Resampling adds noise, which the error counts too:
    for a well calibrated model the interval lies above the estimate rather than around it. Images
    in the same 8192nd of [0, 1], and alike in being right or wrong, are drawn as one group, so the
    cost hardly depends on how many there are.

    Args:
        confidence: The probability of the predicted class, `(n,)`.
        correct: Whether the prediction was right, `(n,)`.
        level: Between the two ends.
        resamples: How many sets are drawn.
        generator: On any device; the default generator of the tensors' device without it.
        bandwidth: Of the kernel; found automatically, for each resample, by default.
    """
    confidence, correct = _check(confidence, correct, bandwidth)
    cells = _cells_for(bandwidth)
    kinds = [confidence[~correct], confidence[correct]]
    sizes = [torch.bincount(cosines.locate(c.double(), cells)[0], minlength=cells) for c in kinds]
    size = torch.cat(sizes)
    powers = [
        cosines.sum_powers(_residuals(c, torch.full_like(c, right)), cells)
        for right, c in enumerate(kinds)
    ]
    # What one image of a group adds, on the average over the group: (4, wrong or right, cells).
    each = torch.stack(powers, 1) / size.view(2, cells).clamp_min(1) / len(confidence)
    found = []
    rows = max(1, _ROWS * _CELLS // cells)
    for start in range(0, resamples, rows):
        counts = _resample(size, min(rows, resamples - start), generator).view(-1, 2, cells)
        series = cosines.to_series(torch.stack([(counts * e).sum(1) for e in each], 1))
        found.append(_error_at(series, _bandwidths(series, bandwidth)))
    errors = torch.cat(found)
    low, high = errors.quantile(errors.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return low, high


def smooth_reliability(
    confidence: Tensor, correct: Tensor, bandwidth: float | None = None, points: int = 200
) -> SmoothReliability:
    """The smoothed accuracy and density at evenly spaced confidences, to be plotted.

    Arguments as of `smooth_ece`, whose bandwidth is the default; `points` include 0 and 1.
    """
    confidence, correct = _check(confidence, correct, bandwidth)
    if bandwidth is None:
        bandwidth = float(_bandwidths(_series(confidence, correct, None), None))
    places = torch.linspace(0, 1, points, dtype=torch.float64, device=confidence.device)
    everyone = ((c, torch.ones_like(c)) for c, _ in _blocks(confidence, correct))
    density, right = (
        cosines.smooth_at(cosines.to_series(powers) / len(confidence), bandwidth, places)
        for powers in (
            cosines.sum_powers(everyone, _cells_for(bandwidth)),
            cosines.sum_powers(_blocks(confidence, correct), _cells_for(bandwidth)),
        )
    )
    nearby = density > 1e-6
    accuracy = torch.where(nearby, (right / density).clamp(0, 1), math.nan)
    return SmoothReliability(places, accuracy, density.clamp_min(0), bandwidth)


def _error_at(series: Tensor, bandwidth: Tensor) -> Tensor:
    """The calibration error at a bandwidth, for each row of residuals given as cosine series."""
    steps = cosines.steps_for(float(bandwidth.min()), _LEAST_STEPS)
    values = cosines.smooth(series, bandwidth, steps)
    return cosines.integrate_absolute(values).clamp_max(1.0)


def _series(confidence: Tensor, correct: Tensor, bandwidth: float | None) -> Tensor:
    """The residuals of the whole set as a cosine series."""
    powers = cosines.sum_powers(_residuals(confidence, correct), _cells_for(bandwidth))
    return cosines.to_series(powers)[None] / len(confidence)


def _blocks(confidence: Tensor, correct: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Confidence and correctness in float64, some at a time."""
    size = _BLOCK if confidence.device.type == "cpu" else len(confidence)
    for points, right in zip(confidence.split(size), correct.split(size), strict=True):
        yield points.double(), right.double()


def _residuals(confidence: Tensor, correct: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Confidence, and confidence minus correctness, some at a time."""
    for points, right in _blocks(confidence, correct):
        yield points, points - right


def _cells_for(bandwidth: float | None) -> int:
    """Cells of a grid fine enough for a bandwidth, or for any that can be found."""
    return _CELLS if bandwidth is None else cosines.steps_for(bandwidth, _CELLS)


def _bandwidths(series: Tensor, given: float | None) -> Tensor:
    """For each row what was given, or the bandwidth that the error equals, rounded up."""
    high = torch.ones(len(series), dtype=torch.float64, device=series.device)
    if given is not None:
        return high * given
    low = torch.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        too_small = (middle < _error_at(series, middle)) | (middle < _LEAST_TRIED)
        low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
    return high


def _resample(sizes: Tensor, rows: int, generator: torch.Generator | None) -> Tensor:
    """How often each group is drawn in as many draws as there are images, `(rows, groups)`.

    A multinomial draw by splitting: the draws that fall to a half of the groups are binomial, and
    so on down to single groups. The number of groups must be a power of two.
    """
    where = sizes.device if generator is None else generator.device
    levels = [sizes.double().to(where)]
    while len(levels[-1]) > 1:
        levels.append(levels[-1].view(-1, 2).sum(1))
    counts = levels[-1].expand(rows, 1)
    for above, below in zip(levels[:0:-1], levels[-2::-1], strict=True):
        share = (below[::2] / above).nan_to_num()  # nothing is drawn from what is empty
        left = torch.binomial(counts, share.expand_as(counts), generator=generator)
        counts = torch.stack([left, counts - left], dim=-1).flatten(1)
    return counts.to(sizes.device)


def _check(confidence: Tensor, correct: Tensor, bandwidth: float | None) -> tuple[Tensor, Tensor]:
    """Refuse a bandwidth that is not positive, or too small for any grid."""
    if bandwidth is not None and not 1e-5 <= bandwidth < math.inf:
        raise OptionError(f"expected a bandwidth of at least 0.00001, found {bandwidth}.")
    return check_pairs(confidence, correct)


_ABOUT = "smooth calibration error of the top label: a kernel instead of bins"
register_metric(
    Metric(
        *("smooth_ece", "calibration error", _ABOUT, -1, "", "confidence", smooth_ece),
        *("smooth ECE", "calibration"),
        estimator="top label, reflected kernel, bandwidth as in relplot 1.0.3",
        interval=smooth_ece_interval,
    )
)
