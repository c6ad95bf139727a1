"""Results of a study's jobs, and the findings made from them: a headline, figures and tables.

Studies import this module and `plots`, and stay free of torch and matplotlib until they are run.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.report.formatting import signed, signless
from killick.report.tables import TextTable
from killick.results.measurements import Record, read_measured
from killick.results.run_folder import Run
from killick.studies.study import Plan

if TYPE_CHECKING:
    from killick.report.figures import Figure
    from killick.report.intervals import Interval
    from killick.report.report_data import ReportData
    from killick.report.statistics import Estimate
    from killick.report.summary_metrics import SummaryMetric

NONE = "–"
Values = Mapping[int, float]  # by seed
Curves = Mapping[str, Mapping[Any, Values]]  # by protocol and level


@dataclass(frozen=True)
class Findings:
    """What a study found: a headline, figures and tables."""

    headline: str
    figures: "tuple[Figure, ...]" = ()
    tables: tuple[TextTable, ...] = ()


@dataclass(frozen=True)
class Results:
    """The results of a study's finished jobs."""

    plan: Plan
    report: "ReportData"  # all finished arms, as a report has them
    factors: Mapping[str, Mapping[str, Any]]  # the factor levels of each arm
    measured: tuple[Record, ...]  # by all jobs, with their arm, seed and factors

    def arm(self, **factors: Any) -> str | None:
        """The name of the first finished arm with these factors; None if there is none.

        An arm that lacks a factor does not depend on it, and stands for all its levels.
        """
        wanted = factors.items()
        arms = self.factors.items()
        return next((n for n, own in arms if all(own.get(k, v) == v for k, v in wanted)), None)

    def levels(self, factor: str) -> list[Any]:
        """The values of a factor among finished arms, in the order of the plan."""
        return list(dict.fromkeys(own[factor] for own in self.factors.values() if factor in own))

    def values(self, arm: str | None, metric: str) -> Values:
        """A summary metric of an arm, such as "corrupted_top1", by seed."""
        estimate = self.report.table.get(arm or "", {}).get(metric)
        return {} if estimate is None else estimate.values

    def format(self, arm: str | None, metric: str) -> str:
        """The same as text, in the unit of the metric."""
        column = find_metric(metric).metric
        return format_mean(self.values(arm, metric), column.factor, column.digits)

    def summarize(self, arm: str, metrics: Iterable[str]) -> dict[str, str]:
        """Several summary metrics of an arm as texts by their titles: a part of a row."""
        return {title_of(metric): self.format(arm, metric) for metric in metrics}

    def compare(self, arm: str | None, base: str | None, metric: str) -> str:
        """A summary metric of an arm minus that of another, with its interval."""
        from killick.report.statistics import between

        if arm is None or base is None or arm == base:
            return NONE
        column = find_metric(metric).metric
        gap = between(self.report.comparison, arm, base, metric)
        return format_difference(gap, column.factor, column.digits)

    def by_severity(self, suite: str, metric: str = "top1") -> dict[str, dict[int, Values]]:
        """A metric of each arm at each severity of a corrupted suite; 0 is clean."""
        from killick.report.statistics import by_severity

        found = by_severity(self.report.comparison, suite, metric)
        return {arm: {level: each.values for level, each in found[arm].items()} for arm in found}

    def by_ood_set(self) -> dict[str, dict[str, Values]]:
        """The AUROC of each arm's energy for each OOD set."""
        from killick.report.statistics import ood_by_set

        return self._by_arm(ood_by_set(self.report.comparison))

    def by_shifted_set(self, metric: str = "top1") -> dict[str, dict[str, Values]]:
        """A metric of each arm for each shifted set."""
        from killick.report.statistics import shift_by_set

        return self._by_arm(shift_by_set(self.report.comparison, metric))

    def _by_arm(
        self, found: "Mapping[str, Mapping[str, Estimate]]"
    ) -> dict[str, dict[str, Values]]:
        return {
            arm: {name: line[arm].values for name, line in found.items() if arm in line}
            for arm in self.factors
        }

    def records(self, **known: Any) -> list[Record]:
        """The records with these values."""
        return [record for record in self.measured if known.items() <= record.items()]

    def by_seed(self, metric: str, **known: Any) -> Values:
        """The mean of the records of a metric with these values, by seed."""
        found = group_values(self.records(metric=metric, **known), "seed")
        return {seed: statistics.fmean(values) for seed, values in sorted(found.items())}

    def curves(self, metric: str, by: str) -> Curves:
        """The means of the records of a metric, by protocol and level of `by`."""
        levels = dict.fromkeys(record[by] for record in self.records(metric=metric))
        return {
            protocol: {
                level: self.by_seed(metric, protocol=protocol, **{by: level}) for level in levels
            }
            for protocol in self.levels("protocol")
        }

    def spread_over(self, name: str, metric: str, **known: Any) -> Values:
        """By seed, the standard deviation of such means over draws, or what else `name` numbers."""
        found = {}
        for seed in self.by_seed(metric, **known):
            groups = group_values(self.records(metric=metric, seed=seed, **known), name)
            if len(groups) > 1:
                found[seed] = statistics.stdev(map(statistics.fmean, groups.values()))
        return found


def make_results(plan: Plan, runs: Sequence[Run]) -> Results:
    """The results in finished runs, each of which names its arm."""
    from killick.report.head_values import read_heads
    from killick.report.report_data import make_report_data

    planned = {each.arm.name: dict(each.factors) for each in plan.study_arms}
    if plan.models:
        planned = {str(run.job["arm"]): _factors_of_model(run) for run in runs}
    extra = {str(run.job["arm"]): dict(run.job["factors"]) for run in runs if "factors" in run.job}
    names = {str(run.job["arm"]) for run in runs}
    factors = {name: own for name, own in {**planned, **extra}.items() if name in names}
    measuring = {"measure": plan.study.measure, **plan.measure_options}
    measured = []
    for run in runs:
        arm, seed = str(run.job["arm"]), int(run.job["seed"])
        heads = read_heads(run)
        measured += [
            {**factors[arm], **record, "arm": arm, "seed": seed}
            for record in (
                *read_measured(run.folder, measuring),
                *([] if heads is None else heads.records()),
            )
        ]
    return Results(plan, make_report_data(runs), factors, tuple(measured))


def _factors_of_model(run: Run) -> dict[str, Any]:
    """The factors of a model that was trained elsewhere, as its rows have them."""
    protocol, target = (str(run.rows[0][name]) for name in ("protocol", "target"))
    return {"protocol": f"{protocol}-{target}" if target else protocol, "network": run.job["arm"]}


def find_metric(key: str) -> "SummaryMetric":
    """Title, unit and format of a summary metric."""
    from killick.report.summary_metrics import find_summary_metric

    return find_summary_metric(key)


def title_of(metric: str) -> str:
    """The title of a summary metric, with its unit."""
    found = find_metric(metric)
    return f"{found.title}, {found.metric.unit}".rstrip(", ")


def make_table(
    name: str, title: str, rows: Sequence[Mapping[str, str]], note: str = ""
) -> TextTable:
    """A table from rows of texts by column; the first column names the row."""
    columns = tuple(dict.fromkeys(column for row in rows for column in row))
    cells = tuple(tuple(row.get(column, NONE) for column in columns) for row in rows)
    note = f"Mean ± standard deviation over seeds; differences with 95 % intervals. {note}".strip()
    return TextTable(name, title, columns, cells, note)


def group_values(records: Iterable[Record], name: str) -> dict[Any, list[float]]:
    """The values of records by one of their coordinates."""
    found: dict[Any, list[float]] = {}
    for record in records:
        found.setdefault(record[name], []).append(record["value"])
    return found


def format_mean(values: Values, factor: float = 100, digits: int = 1) -> str:
    """The mean over seeds, with the standard deviation if there are several: "51.0 ± 1.4"."""
    found = [factor * value for value in values.values()]
    if not found:
        return NONE
    text = signless(statistics.fmean(found), digits)
    return f"{text} ± {signless(statistics.stdev(found), digits)}" if len(found) > 1 else text


def format_difference(found: "Interval | None", factor: float = 100, digits: int = 1) -> str:
    """A difference with its interval, such as "+2.0 [+1.0, +3.0]"."""
    if found is None:
        return NONE
    text = signed(factor * found.value, digits)
    if found.low is None or found.high is None:
        return text
    low, high = (signed(factor * end, digits) for end in (found.low, found.high))
    return f"{text} [{low}, {high}]"


def compare_values(one: Values, other: Values, factor: float = 100, digits: int = 1) -> str:
    """The mean difference over the seeds of both, with Student's t interval; none to itself."""
    from killick.report.intervals import no_interval, t_interval

    gaps = [one[seed] - other[seed] for seed in one if seed in other]
    if not gaps or one is other:
        return NONE
    spread = len(gaps) > 1 and statistics.stdev(gaps) > 1e-9  # equal accuracies have none
    found = t_interval(gaps) if spread else no_interval(gaps[0], "")
    return format_difference(found, factor, digits)
