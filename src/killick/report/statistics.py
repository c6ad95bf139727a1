"""From rows and predictions to the numbers of a report: means, spreads, differences with intervals.

All values are as in rows, shares from 0 to 1; the metrics' entries say how they are shown.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from killick.corruptions.suites import PUBLISHED, SEVERITIES, SUITES
from killick.report.comparison import Comparison
from killick.report.conditions import (
    CORRUPTED,
    OOD,
    OTHER_SETS,
    SHIFT,
    SINGLE,
    SYNTHETIC_OOD,
    Condition,
    title_of,
)
from killick.report.intervals import (
    ENOUGH_SEEDS,
    Interval,
    bootstrap_interval,
    no_interval,
    t_interval,
)
from killick.report.run_groups import ArmRuns
from killick.report.summary_metrics import SummaryMetric, find_summary_metric, summary_metrics
from killick.results.csv_text import to_csv
from killick.runtime.atomic_files import write_atomic


@dataclass(frozen=True)
class Estimate:
    """A number about an arm."""

    values: dict[int, float]  # by seed
    # to the baseline, over the seeds that both have; None for the baseline itself
    difference: Interval | None

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values.values())

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over seeds; None with one."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    def show(self, metric: SummaryMetric, *, full: bool = False) -> str:
        """The mean ± spread in the metric's unit; in full with "!" below chance and the difference."""
        text = metric.show(self.mean) + "!" * (full and self.mean < metric.metric.chance)
        text += "" if self.spread is None else f" ± {metric.show(self.spread)}"
        if (gap := self.difference) is None or not full:
            return text
        text += f"; {metric.show(gap.value, sign=True)}"
        if gap.low is None or gap.high is None:
            return text
        return f"{text} [{metric.show(gap.low, sign=True)}, {metric.show(gap.high, sign=True)}]"

    @property
    def record(self) -> tuple[object, ...]:
        """For a CSV file, see `RECORD`."""
        gap = self.difference
        ends = (None,) * 4 if gap is None else (gap.value, gap.low, gap.high, gap.method)
        return (self.mean, self.spread, len(self.values), *ends)


RECORD = (
    *("top1_mean", "top1_spread", "seeds", "difference", "difference_low", "difference_high"),
    "method",
)
_SUITES = {"corruptions": ("c", "c15"), "cbar": ("cbar-cifar", "cbar-imagenet")}  # largest first
Table = dict[str, dict[str, Estimate]]  # arm, key of the metric; absent where it cannot be computed


def mean_title(comparison: Comparison, suite: str = "corruptions") -> str:
    """Which mean is taken, as "mean of 19 corruptions"; the name of a single set; or nothing."""
    if suite in OTHER_SETS:
        metric = "top1" if suite == SHIFT else "auroc"
        names = [condition.set for condition in _common(comparison, suite, metric)]
        return names[0] if len(names) == 1 else f"mean of {len(names)} sets" if names else ""
    title, _, severities = _corrupted(comparison, suite)
    if not title or severities == list(SEVERITIES):
        return title
    words = "severity" if len(severities) == 1 else "severities"
    return f"{title} at {words} {', '.join(map(str, severities))}"


def summarize(comparison: Comparison) -> Table:
    """The metrics of all arms, with their differences to the baseline."""
    table: Table = {arm.name: {} for arm in comparison.arms}
    for metric in summary_metrics():
        conditions = _conditions_of(comparison, metric)
        for name, estimate in _by_arm(comparison, conditions).items():
            table[name][metric.key] = estimate
    return table


def by_severity(
    comparison: Comparison, suite: str = "corruptions", metric: str = "top1"
) -> dict[str, dict[int, Estimate]]:
    """A metric of each arm at each severity, mean over corruptions; 0 is clean."""
    _, names, severities = _corrupted(comparison, suite)
    conditions = {0: _common(comparison, "clean", metric)} | {
        severity: [Condition(SINGLE, metric, suite, "", name, severity) for name in names]
        for severity in severities
    }
    found: dict[str, dict[int, Estimate]] = {arm.name: {} for arm in comparison.arms}
    for severity, chosen in conditions.items():
        for name, estimate in _by_arm(comparison, chosen).items():
            found[name][severity] = estimate
    return found


def by_corruption(comparison: Comparison) -> dict[str, dict[str, Estimate]]:
    """The accuracy of each arm under each corruption, mean over severities; C-bar's come last."""
    found: dict[str, dict[str, Estimate]] = {}
    for suite in CORRUPTED:
        conditions = _common(comparison, suite, "top1")
        for name in _in_order(conditions):
            chosen = [condition for condition in conditions if condition.corruption == name]
            found[name] = _by_arm(comparison, chosen)
    return found


def ood_by_set(comparison: Comparison) -> dict[str, dict[str, Estimate]]:
    """The AUROC of each arm's energy for each OOD set; synthetic ones come last."""
    return {
        title_of(each.suite, each.set): _by_arm(comparison, [each])
        for suite in (OOD, SYNTHETIC_OOD)
        for each in _common(comparison, suite, "auroc")
    }


def shift_by_set(comparison: Comparison, metric: str) -> dict[str, dict[str, Estimate]]:
    """A metric of each arm, for each shifted set that some run was evaluated on."""
    conditions = dict.fromkeys(
        each
        for values in comparison.values.values()
        for each in values
        if (each.suite, each.metric, each.inference, each.scaling) == (SHIFT, metric, SINGLE, "")
    )
    return {condition.set: _by_arm(comparison, [condition]) for condition in conditions}


def between(comparison: Comparison, name: str, base: str, key: str) -> Interval | None:
    """The difference of a metric between an arm and a base; None where it cannot be computed."""
    arms = {arm.name: arm for arm in comparison.arms}
    conditions = _conditions_of(comparison, find_summary_metric(key))
    if name not in arms or base not in arms or not conditions:
        return None
    return _difference(comparison, arms[name], arms[base], conditions)


def show_arms(
    metric: SummaryMetric, estimates: Mapping[str, Estimate], arms: Iterable[str]
) -> list[str]:
    """A row of a table: the number of each arm, and its difference to the baseline."""
    return [estimates[arm].show(metric, full=True) if arm in estimates else "–" for arm in arms]


def write_summary(comparison: Comparison, table: Table, path: Path) -> None:
    """`summary.csv`: a line for each arm and metric."""
    seeds = sorted({seed for arm in comparison.arms for seed in arm.seeds})
    columns = ("mean", "spread", "difference", "low", "high", "how")
    heads = ["arm", "measure", *(f"seed {seed}" for seed in seeds), *columns]
    lines = []
    for arm, estimates in table.items():
        for key, estimate in estimates.items():
            values = [estimate.values.get(seed) for seed in seeds]
            mean, spread, _, *interval = estimate.record
            lines.append([arm, key, *values, mean, spread, *interval])
    write_atomic(path, to_csv(heads, lines))


def _by_arm(comparison: Comparison, conditions: Sequence[Condition]) -> dict[str, Estimate]:
    return {
        arm.name: Estimate(values, _difference(comparison, arm, comparison.baseline, conditions))
        for arm in comparison.arms
        if (values := _values(comparison, arm, conditions))
    }


def _conditions_of(comparison: Comparison, metric: SummaryMetric) -> list[Condition]:
    """The conditions that a column is the mean over; none if some run lacks one of them."""
    name, suite, inference = metric.metric.key, metric.suite, metric.inference
    found = _common(comparison, suite, name, inference, metric.scaling)
    if suite not in CORRUPTED:
        return found
    _, names, severities = _corrupted(comparison, suite)
    wanted = [
        Condition(inference, name, suite, "", corruption, severity, metric.scaling)
        for corruption in names
        for severity in severities
        if metric.severity in (0, severity)
    ]
    return wanted if set(wanted) <= set(found) else []


def _common(
    comparison: Comparison, suite: str, metric: str, inference: str = SINGLE, scaling: str = ""
) -> list[Condition]:
    """The conditions of a kind that all runs have, of those runs that have any.

    Means over several references count only where every model with references has them.
    """
    shared: dict[Condition, None] | None = None
    for values in comparison.values.values():
        kind = (suite, metric, scaling)
        there = [each for each in values if (each.suite, each.metric, each.scaling) == kind]
        if there:
            own = dict.fromkeys(each for each in there if each.inference == inference)
            shared = own if shared is None else {each: None for each in shared if each in own}
    return list(shared or ())


def _in_order(conditions: Iterable[Condition]) -> list[str]:
    """Their corruptions: published ones in the order of the suites, then others."""
    names = list(dict.fromkeys(condition.corruption for condition in conditions))
    published = [name for name in PUBLISHED if name in names]
    return [*published, *(name for name in names if name not in PUBLISHED)]


def _corrupted(comparison: Comparison, suite: str) -> tuple[str, list[str], list[int]]:
    """Which mean over corruptions all runs allow: its title, the corruptions, the severities."""
    conditions = _common(comparison, suite, "top1")
    severities = sorted({condition.severity for condition in conditions})
    there = {(condition.corruption, condition.severity) for condition in conditions}
    names = [n for n in _in_order(conditions) if all((n, s) in there for s in severities)]
    for wanted in map(SUITES.__getitem__, _SUITES[suite]):
        if set(wanted) <= set(names):
            return f"mean of {len(wanted)} corruptions", list(wanted), severities
    title = names[0] if len(names) == 1 else f"mean of {len(names)} chosen corruptions"
    return (title if names else ""), names, severities


def _values(
    comparison: Comparison, arm: ArmRuns, conditions: Sequence[Condition]
) -> dict[int, float]:
    """The mean over conditions for each seed that has all of them."""
    found = {}
    for seed in arm.seeds:
        numbers = comparison.values[arm.name, seed]
        if conditions and all(each in numbers for each in conditions):
            found[seed] = statistics.fmean(numbers[each] for each in conditions)
    return found


def _difference(
    comparison: Comparison, arm: ArmRuns, base: ArmRuns | None, conditions: Sequence[Condition]
) -> Interval | None:
    """To `base`: over seeds and images if there are enough seeds, else over images or few seeds."""
    if base is None or arm is base:
        return None
    ours, theirs = (_values(comparison, each, conditions) for each in (arm, base))
    differences = {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}
    if not differences:
        return None
    by_seed = tuple(differences.values())
    resampled, images = _over_images(comparison, arm, base, conditions, differences)
    if len(by_seed) < ENOUGH_SEEDS:
        if resampled is not None:
            return bootstrap_interval(by_seed, resampled, images)
        # Few seeds may agree by chance, as accuracies have steps: that is not certainty.
        if len(by_seed) == 1 or statistics.stdev(by_seed) <= 1e-12:
            why = "one seed" if len(by_seed) == 1 else "seeds with equal differences"
            return no_interval(statistics.fmean(by_seed), f"no interval: {why}")
    return t_interval(by_seed, resampled, images)


def _over_images(
    comparison: Comparison,
    arm: ArmRuns,
    base: ArmRuns,
    conditions: Sequence[Condition],
    seeds: Iterable[int],
) -> tuple[torch.Tensor | None, int]:
    """The mean difference in resampled test sets, and the number of images.

    None unless both arms have predictions for the same images.
    """
    resampled = []
    for seed in seeds:
        ours, theirs = (comparison.resampled[each.name, seed] for each in (arm, base))
        for each in conditions:
            if each not in ours or each not in theirs or ours[each].images != theirs[each].images:
                return None, 0
        mine, base_mean = (
            torch.stack([side[each].values for each in conditions]).mean(0)
            for side in (ours, theirs)
        )
        resampled.append(mine - base_mean)
    count = max(ours[each].count for each in conditions)
    return torch.stack(resampled).mean(0), count
