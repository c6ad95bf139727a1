"""The smooth calibration error of Blasiok and Nakkiran (2023), its interval and its diagram.

At a bandwidth sigma it is the integral over [0, 1] of |the mean of (confidence - correct) K(t)|, K
a Gaussian around the confidence, reflected at 0 and 1. The automatic bandwidth is where the error
equals the bandwidth, found by ten halvings of [0, 1], as relplot does it.

Estimators differ in how they treat confidences at the very ends, so a result says which it was:
`exact` is the definition above, to 1e-5; `relplot-1.0.3` and `relplot-1.0` are what those versions
of relplot give (see `legacy.py`). Without confidences within a thousandth of 0 or 1, and with some
hundred images, `exact` and `relplot-1.0.3` agree to a few 1e-4, which is the latter's precision.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from killick.errors import OptionError, check_option
from killick.metrics import cosine_series as cosines
from killick.metrics import relplot_versions as legacy
from killick.metrics.input_checks import check_pairs
from killick.metrics.metric_registry import Metric, register_metric

ESTIMATORS = ("exact", "relplot-1.0.3", "relplot-1.0")

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


def smooth_ece(
    confidence: Tensor,
    correct: Tensor,
    bandwidth: float | None = None,
    *,
    estimator: str = "exact",
) -> float:
    """The smooth calibration error of the whole set, from 0 to 1.

    It is not the mean over batches: small batches have larger errors.

    Args:
        confidence: The probability of the predicted class, `(n,)`.
        correct: Whether the prediction was right, `(n,)`.
        bandwidth: Of the kernel; found automatically by default.
        estimator: `exact`, or as a version of relplot has it: `relplot-1.0.3`, `relplot-1.0`.

    Example:
        >>> round(smooth_ece(torch.full((100,), 0.75), torch.arange(100) < 50), 6)
        0.25
    """
    check_option("estimator", estimator, ESTIMATORS)
    confidence, correct = check_pairs(confidence, correct)
    _check_bandwidth(bandwidth)
    error: Callable[[Tensor], Tensor]
    if estimator == "exact":
        error = _residual_errors(confidence, correct, bandwidth)
    else:
        points = confidence.double()
        error = legacy.ERRORS[estimator](points, points - correct.double())
    return float(error(_bandwidths(error, bandwidth, 1, confidence.device)))


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
    confidence, correct = check_pairs(confidence, correct)
    _check_bandwidth(bandwidth)
    if not 0 < level < 1:
        raise OptionError(f"expected a level between 0 and 1, found {level}.")
    if resamples < 2:
        raise OptionError(f"expected at least 2 resamples, found {resamples}.")
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
        error = _Errors(cosines.to_series(torch.stack([(counts * e).sum(1) for e in each], 1)))
        found.append(error(_bandwidths(error, bandwidth, len(counts), confidence.device)))
    errors = torch.cat(found)
    low, high = errors.quantile(errors.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return low, high


def smooth_reliability(
    confidence: Tensor, correct: Tensor, bandwidth: float | None = None, points: int = 200
) -> SmoothReliability:
    """The smoothed accuracy and density at evenly spaced confidences, to be plotted.

    Args:
        confidence: The probability of the predicted class, `(n,)`.
        correct: Whether the prediction was right, `(n,)`.
        bandwidth: Of the kernel; that of `smooth_ece` by default.
        points: Where they are evaluated, 0 and 1 included.
    """
    confidence, correct = check_pairs(confidence, correct)
    _check_bandwidth(bandwidth)
    if points < 2:
        raise OptionError(f"expected at least 2 points, found {points}.")
    if bandwidth is None:
        error = _residual_errors(confidence, correct, None)
        bandwidth = float(_bandwidths(error, None, 1, confidence.device))
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


class _Errors:
    """The calibration error at a bandwidth, for each row of residuals given as cosine series."""

    def __init__(self, series: Tensor) -> None:
        self.series = series

    def __call__(self, bandwidth: Tensor) -> Tensor:
        steps = cosines.steps_for(float(bandwidth.min()), _LEAST_STEPS)
        values = cosines.smooth(self.series, bandwidth, steps)
        return cosines.integrate_absolute(values).clamp_max(1.0)


def _residual_errors(confidence: Tensor, correct: Tensor, bandwidth: float | None) -> _Errors:
    """The error of the whole set, as a function of the bandwidth."""
    powers = cosines.sum_powers(_residuals(confidence, correct), _cells_for(bandwidth))
    return _Errors(cosines.to_series(powers)[None] / len(confidence))


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


def _bandwidths(
    error: Callable[[Tensor], Tensor], given: float | None, rows: int, device: torch.device
) -> Tensor:
    """For each row what was given, or the bandwidth that the error equals.

    The latter is rounded up to the last halving.
    """
    high = torch.ones(rows, dtype=torch.float64, device=device)
    if given is not None:
        return high * given
    low = torch.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        too_small = (middle < error(middle)) | (middle < _LEAST_TRIED)
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


def _check_bandwidth(bandwidth: float | None) -> None:
    """Refuse a bandwidth that is not positive, or too small for any grid."""
    if bandwidth is not None and not 1e-5 <= bandwidth < math.inf:
        raise OptionError(f"expected a bandwidth of at least 0.00001, found {bandwidth}.")


register_metric(
    Metric(
        "smooth_ece",
        "calibration error",
        "smooth calibration error of the top label: a kernel instead of bins",
        -1,
        "",
        "confidence",
        smooth_ece,
        short="smooth ECE",
        suite="calibration",
        estimator="top label, reflected kernel, bandwidth as in relplot 1.0.3",
        interval=smooth_ece_interval,
    )
)
