"""Intervals of a difference between two arms, both of which saw the same seeds or images.

- Student's t over the differences by seed tells how far other seeds might lie. It needs several.
- The bootstrap over images tells how far other images might lie, for these trained models. It is
  centred on the value, with 1.96 standard deviations of the resampled differences to either side:
  percentiles would lie off-centre for calibration errors, which grow under resampling.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

ENOUGH_SEEDS = 5  # from here on the seeds speak for themselves
FEWEST = 30  # images, for a bootstrap to mean anything
_NORMAL = 1.96


@dataclass(frozen=True)
class Interval:
    """A difference, and between which numbers it lies with 95 % confidence.

    Attributes:
        value: The difference itself.
        low: None where no interval can be had, as the next.
        high: At least `low`.
        how: How it was found, or why there is none.
        by_seed: The same difference for each seed.
    """

    value: float
    low: float | None
    high: float | None
    how: str
    by_seed: tuple[float, ...] = ()

    @property
    def tells(self) -> bool:
        """Whether the sign of the difference is certain: an interval is there, and without 0."""
        if self.low is None or self.high is None:
            return False
        return self.low > 0 or self.high < 0

    @property
    def agrees(self) -> bool:
        """Whether the seeds speak with one voice; one seed has nobody to disagree with.

        All are on one side of 0, and nearer to each other than their mean is to it.
        """
        if len(self.by_seed) < 2:
            return True
        one_side = min(self.by_seed) > 0 or max(self.by_seed) < 0
        return one_side and statistics.stdev(self.by_seed) < abs(statistics.fmean(self.by_seed))


def t_interval(differences: Sequence[float], remark: str = "") -> Interval:
    """Student's t over the paired differences by seed, two at least.

    Args:
        differences: One for each seed.
        remark: What else to say of how it was found.
    """
    count = len(differences)
    value = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(count)
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    return Interval(value, value - reach, value + reach, f"paired t over {count} seeds{remark}")


def bootstrap_interval(value: float, resampled: Tensor, images: int, seeds: int) -> Interval:
    """An interval around `value` from the same difference in resampled sets of images.

    Args:
        value: The difference in the images as they are.
        resampled: The difference in each resample, `(resamples,)`.
        images: How many there are in a set.
        seeds: Over how many the difference is a mean.
    """
    if images < FEWEST:
        return no_interval(value, f"{images} images are too few for an interval")
    reach = _NORMAL * float(resampled.double().std(correction=1))
    words = f"{seeds} seed" if seeds == 1 else f"{seeds} seeds"
    how = f"paired bootstrap over {images:,} images in {words}"
    return Interval(value, value - reach, value + reach, how)


def no_interval(value: float, why: str) -> Interval:
    """A difference alone."""
    return Interval(value, None, None, why)


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    """The mean of equally long tensors."""
    return torch.stack(list(tensors)).mean(0)
