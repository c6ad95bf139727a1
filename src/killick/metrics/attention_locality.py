"""Measures of attention heads, and their summary: a minimum is never given alone."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from killick.metrics.metric_registry import Metric, register_metric

LOCAL = 0.1  # heads with a distance below are local
_MOST_LOCAL = 3  # heads whose diagonal mass is given


class HeadSummary(NamedTuple):
    """The distances of some heads."""

    minimum: float
    mean: float
    median: float
    local: int  # heads below `LOCAL`
    heads: int  # all of them
    diagonal_mass: float  # of the three most local heads: near 1, they look at their own patch
    prefix_mass: float  # the mean over heads


def summarize_heads(
    distances: Sequence[float], diagonal_mass: Sequence[float], prefix_mass: Sequence[float]
) -> HeadSummary:
    """Summarize heads by their mean attention distance.

    Example:
        >>> summarize_heads([0.05, 0.4], [0.75, 0.25], [0.25, 0.75])._asdict()
        {'minimum': 0.05, 'mean': 0.225, 'median': 0.225, 'local': 1, 'heads': 2, \
'diagonal_mass': 0.5, 'prefix_mass': 0.5}
    """
    nearest = sorted(zip(distances, diagonal_mass, strict=True))[:_MOST_LOCAL]
    return HeadSummary(
        min(distances),
        statistics.fmean(distances),
        statistics.median(distances),
        sum(distance < LOCAL for distance in distances),
        len(distances),
        statistics.fmean(own for _, own in nearest),
        statistics.fmean(prefix_mass),
    )


for _key, _title, _about in (
    ("distance", "attention distance", "mean distance from a patch to those it looks at"),
    (
        "distance_off_diagonal",
        "distance off the diagonal",
        "likewise, without the weight of the patch itself",
    ),
    ("entropy", "attention entropy", "entropy of attention over patches; 1: uniform, 0: one patch"),
    ("diagonal_mass", "diagonal mass", "share of attention that a patch pays to itself"),
    ("prefix_mass", "prefix mass", "share of attention that goes to class and register tokens"),
    ("norm_mean", "token norm", "mean norm of the patch tokens that leave a block"),
    ("norm_max", "largest token norm", "the largest of these norms: artifact tokens"),
    ("change", "change by doubling", "largest change of a head's distance by doubling the images"),
):
    register_metric(
        Metric(f"attention_{_key}", _title, _about, 0, suite="attention", summary=False)
    )
