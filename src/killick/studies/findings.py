"""Results of a study's jobs, and the findings made from them: a headline, figures, tables, checks."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from killick.errors import DataError
from killick.report.figures import Figure, Missing, Style
from killick.report.formatting import signed, signless
from killick.report.intervals import ENOUGH_SEEDS, Interval, no_interval, t_interval
from killick.report.report_data import ReportData, make_report_data
from killick.report.statistics import Estimate, between
from killick.report.summary_metrics import SummaryMetric, find_summary_metric
from killick.report.tables import TextTable
from killick.results.measurements import Record, read_measured
from killick.results.run_folder import Run
from killick.studies.study import Plan

NONE = "–"
# A protocol looks the same in all studies.
_STYLES = {
    "standard": Style("arm-0", "-", "o"),
    "anchored": Style("arm-1", (0, (6, 2)), "s"),
    "masked-label": Style("arm-2", "-", "^"),
    "masked-uniform": Style("arm-3", (0, (2, 1.5)), "D"),
    "finetuned": Style("arm-4", (0, (7, 2, 1.5, 2)), "v"),
}
_OTHER = Style("arm-5", (0, (2, 1.5)), "P")


@dataclass(frozen=True)
class Check:
    """A property that must hold if the method ran as intended.

    Attributes:
        what: In a sentence.
        holds: None where these results cannot decide it.
        found: The numbers.
    """

    what: str
    holds: bool | None
    found: str

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return {True: "holds", False: "DOES NOT HOLD", None: "undecided"}[self.holds]


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        headline: One sentence, from the numbers.
        figures: Drawn.
        tables: With the paper's values beside ours.
        checks: See `Check`.
        notes: Limits, a line each.
    """

    headline: str
    figures: tuple[Figure | Missing, ...] = ()
    tables: tuple[TextTable, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Results:
    """The results of a study's finished jobs.

    Attributes:
        plan: What was run.
        report: All finished arms, as a report has them.
        factors: The factor levels of each arm, by its name.
        measured: The records of all jobs, with their arm, seed and factors.
    """

    plan: Plan
    report: ReportData
    factors: Mapping[str, Mapping[str, Any]]
    measured: tuple[Record, ...]

    def arm(self, **factors: Any) -> str | None:
        """The name of the first finished arm with these factors; None if there is none."""
        return next(iter(self.arms(**factors)), None)

    def arms(self, **factors: Any) -> list[str]:
        """The names of the finished arms with these factors, in the order of the plan."""
        return [
            name
            for name, own in self.factors.items()
            if all(_has_level(own, key, value) for key, value in factors.items())
        ]

    def levels(self, factor: str) -> list[Any]:
        """The values of a factor among finished arms, in the order of the plan."""
        return list(dict.fromkeys(own[factor] for own in self.factors.values() if factor in own))

    def number(self, arm: str | None, measure: str) -> Estimate | None:
        """A measure of an arm, by its key; None if there is none."""
        return None if arm is None else self.report.table.get(arm, {}).get(measure)

    def values(self, arm: str | None, measure: str) -> dict[int, float]:
        """A measure of an arm for each seed."""
        number = self.number(arm, measure)
        return {} if number is None else number.values

    def difference(self, arm: str | None, base: str | None, measure: str) -> Interval | None:
        """A measure of an arm minus that of another; None if one is missing."""
        if arm is None or base is None:
            return None
        return between(self.report.comparison, arm, base, measure)

    def compare(self, arm: str | None, base: str | None, measure: str) -> str:
        """A difference with its interval and verdict, for a sentence."""
        column = find_measure(measure)
        found = self.difference(arm, base, measure)
        text = format_difference(found, column.factor, column.digits)
        return f"{text} ({verdict(found, column.higher_is_better)})"

    def records(self, **known: Any) -> list[Record]:
        """The records with these values."""
        return [
            record
            for record in self.measured
            if all(key in record and record[key] == value for key, value in known.items())
        ]

    def style(self, protocol: str) -> Style:
        """How a protocol is drawn."""
        return _STYLES.get(protocol, _OTHER)

    @property
    def classes(self) -> int:
        """Classes of the training data."""
        for run in self.report.comparison.runs.values():
            config = json.loads((run.folder / "model" / "config.json").read_text(encoding="utf-8"))
            if isinstance(config.get("class_names"), list):
                return len(config["class_names"])
        raise DataError("no finished model of the study has class names.")

    @property
    def images(self) -> int:
        """Images of the clean test set."""
        rows = (row for run in self.report.comparison.runs.values() for row in run.rows)
        return next(int(row["count"]) for row in rows if row["suite"] == "clean")

    @property
    def seeds(self) -> int:
        """Seeds of the arm that has most."""
        return max(len(arm.seeds) for arm in self.report.comparison.arms)


def make_results(plan: Plan, runs: Sequence[Run]) -> Results:
    """The results in finished runs, each of which names its arm."""
    planned = {each.arm.name: dict(each.factors) for each in plan.study_arms}
    extra = {
        str(run.job["arm"]): dict(run.job["factors"])
        for run in runs
        if isinstance(run.job.get("factors"), dict)
    }
    names = {str(run.job.get("arm")) for run in runs}
    factors = {name: own for name, own in {**planned, **extra}.items() if name in names}
    measuring = {"measure": plan.study.measure, **plan.measure_options}
    measured = [
        {
            **factors.get(str(run.job["arm"]), {}),
            **record,
            "arm": str(run.job["arm"]),
            "seed": int(run.job["seed"]),
        }
        for run in runs
        for record in read_measured(run.folder, measuring)
    ]
    return Results(plan, make_report_data(runs), factors, tuple(measured))


def _has_level(own: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether an arm has a level; `also` names a second protocol that it stands for."""
    if key == "protocol" and "also" in own and own["also"] == value:
        return True
    return key in own and own[key] == value


def find_measure(key: str) -> SummaryMetric:
    """The measure with a key."""
    return find_summary_metric(key)


def format_mean(values: Iterable[float], factor: float = 100, digits: int = 1) -> str:
    """The mean of some values, with their standard deviation if there are several.

    Example:
        >>> format_mean([0.5, 0.52])
        '51.0 ± 1.4'
    """
    found = [factor * value for value in values]
    if not found:
        return NONE
    text = signless(statistics.fmean(found), digits)
    if len(found) > 1:
        text += f" ± {signless(statistics.stdev(found), digits)}"
    return text


def format_difference(found: Interval | None, factor: float = 100, digits: int = 1) -> str:
    """A difference with its interval.

    Example:
        >>> format_difference(Interval(0.02, 0.01, 0.03, ""))
        '+2.0 [+1.0, +3.0]'
    """
    if found is None:
        return NONE
    text = signed(factor * found.value, digits)
    if found.low is not None and found.high is not None:
        low, high = (signed(factor * end, digits) for end in (found.low, found.high))
        text += f" [{low}, {high}]"
    return text


def verdict(found: Interval | None, higher_is_better: bool = True) -> str:
    """Whether a difference is better, worse or not significant.

    It is significant if its interval excludes 0 and the seeds agree. With few seeds the interval is
    over images and says nothing about other seeds.

    Example:
        >>> verdict(Interval(0.02, 0.01, 0.03, "", (0.021, 0.019)))
        'better in these 2 seeds'
        >>> verdict(Interval(0.02, 0.01, 0.03, "", (0.06, -0.02)))
        'not significant'
    """
    if found is None:
        return "unknown"
    if not found.significant or not found.seeds_agree:
        return "not significant"
    word = "better" if (found.value > 0) == higher_is_better else "worse"
    seeds = len(found.by_seed)
    if not seeds or seeds >= ENOUGH_SEEDS:
        return word
    return f"{word} in {'one seed' if seeds == 1 else f'these {seeds} seeds'}"


def paired_difference(one: Mapping[int, float], other: Mapping[int, float]) -> Interval | None:
    """The mean difference over the seeds that both have, with its interval."""
    gaps = [one[seed] - other[seed] for seed in one if seed in other]
    if not gaps:
        return None
    if len(gaps) < 2 or statistics.stdev(gaps) < 1e-9:  # equal accuracies have no spread
        return no_interval(gaps[0], "one seed, or seeds without spread")
    return replace(t_interval(gaps), by_seed=tuple(gaps))
