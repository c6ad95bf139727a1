"""95 % intervals of a difference between two arms that share seeds or test images.

- Student's t over the differences by seed: how far other seeds might lie. It needs several seeds.
  Where predictions are there, the variance over images is added: seeds share their test images.
- The bootstrap over images: how far other images might lie, for these trained models. It is
  centered on the value, with 1.96 standard deviations of the resampled differences to either side:
  percentiles would lie off-center for calibration errors, which grow under resampling.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats
from torch import Tensor

ENOUGH_SEEDS = 5  # from here on intervals are over seeds
FEWEST = 30  # images that a bootstrap needs
_NORMAL = 1.96


@dataclass(frozen=True)
class Interval:
    """A difference and its 95 % interval."""

    value: float  # the difference itself
    low: float | None  # None where no interval can be computed, as `high`
    high: float | None  # at least `low`
    method: str  # how the interval was computed, or why there is none

    @property
    def significant(self) -> bool:
        """Whether there is an interval and it excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def reach(self) -> tuple[float, float]:
        """How far the interval goes below and above the value; 0 without an interval."""
        if self.low is None or self.high is None:
            return 0.0, 0.0
        return self.value - self.low, self.high - self.value


def t_interval(
    differences: Sequence[float], resampled: Tensor | None = None, images: int = 0
) -> Interval:
    """Student's t over the paired differences by seed, at least two.

    `resampled` is their mean in resampled test sets of so many `images`, whose variance is added.
    """
    count = len(differences)
    value = statistics.fmean(differences)
    error, method = statistics.stdev(differences) / math.sqrt(count), f"paired t over {count} seeds"
    if resampled is not None and images >= FEWEST:
        error = math.hypot(error, float(resampled.double().std(correction=1)))
        method += f" and {images:,} images"
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    return Interval(value, value - reach, value + reach, method)


def bootstrap_interval(differences: Sequence[float], resampled: Tensor, images: int) -> Interval:
    """An interval around the mean over seeds, from the same difference in each resample."""
    value, seeds = statistics.fmean(differences), len(differences)
    if images < FEWEST:
        return no_interval(value, f"no interval: {images} images are too few, {FEWEST} are needed")
    reach = _NORMAL * float(resampled.double().std(correction=1))
    method = f"paired bootstrap over {images:,} images, {seeds} seed{'s' * (seeds > 1)}"
    method += "; other seeds may differ more"
    return Interval(value, value - reach, value + reach, method)


def no_interval(value: float, reason: str) -> Interval:
    """A difference without an interval."""
    return Interval(value, None, None, reason)
