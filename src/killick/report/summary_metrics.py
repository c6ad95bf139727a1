"""The columns of summary tables: registered metrics over clean, corrupted, shifted and OOD sets."""

from dataclasses import dataclass, replace

from killick.errors import check_option
from killick.metrics import METRICS, Metric
from killick.report.conditions import MARGINAL, OOD, SHIFT, SINGLE, SYNTHETIC_OOD, TEMPERATURE
from killick.report.formatting import signed, signless
from killick.report.intervals import Interval


@dataclass(frozen=True)
class SummaryMetric:
    """A metric over some test sets: a column of the table of arms."""

    key: str  # its name in `summary.csv`: "corrupted_top1"
    title: str  # for tables and figures: "corrupted accuracy"
    metric: Metric  # its entry, with unit, direction and format
    suite: str = "clean"  # on which test sets it is the mean
    severity: int = 0  # the only one that counts; 0 for all
    scaling: str = ""  # "temperature", or empty
    inference: str = SINGLE  # "single", from the first reference, or "marginal", the mean over all

    @property
    def higher_is_better(self) -> bool:
        """The direction of the metric."""
        return self.metric.direction > 0

    def show(self, value: float, *, sign: bool = False) -> str:
        """A value in the metric's unit, without it."""
        return (signed if sign else signless)(self.metric.factor * value, self.metric.digits)

    def verdict(self, difference: Interval | None) -> str:
        """Whether a difference is "better" or "worse"; empty if it is not significant."""
        if difference is None or not difference.significant or not self.metric.direction:
            return ""
        return "better" if (difference.value > 0) == self.higher_is_better else "worse"


def summary_metrics() -> tuple[SummaryMetric, ...]:
    """All columns: first from the first reference, then from the mean over all references."""
    found = []
    for key, metric in METRICS.items():
        if not metric.summary or metric.input == "derived":
            continue
        title = metric.title
        if metric.input == "scores":
            made = f"synthetic OOD {title}"
            found.append(SummaryMetric(f"ood_{key}", f"OOD {title}", metric, OOD))
            found.append(SummaryMetric(f"{SYNTHETIC_OOD}_{key}", made, metric, SYNTHETIC_OOD))
            continue
        sets = [
            SummaryMetric(f"clean_{key}", f"clean {title}", metric),
            SummaryMetric(f"corrupted_{key}", f"corrupted {title}", metric, "corruptions"),
            SummaryMetric(f"shift_{key}", f"shifted {title}", metric, SHIFT),
        ]
        if key == "top1":
            hardest = f"{title} at severity 5"
            sets.append(SummaryMetric(f"severity5_{key}", hardest, metric, "corruptions", 5))
            sets.append(SummaryMetric(f"cbar_{key}", f"C-bar {title}", metric, "cbar"))
        if metric.scaled:
            sets += [_variant(each, "with a temperature", scaling=TEMPERATURE) for each in sets]
        found += sets
    return (*found, *(_variant(each, "mean over references", inference=MARGINAL) for each in found))


def _variant(metric: SummaryMetric, words: str, **changes: str) -> SummaryMetric:
    (suffix,) = changes.values()
    key, title = f"{metric.key}_{suffix}", f"{metric.title}, {words}"
    return replace(metric, key=key, title=title, **changes)  # type: ignore[arg-type]


def find_summary_metric(key: str) -> SummaryMetric:
    """The column with this key."""
    known = {each.key: each for each in summary_metrics()}
    check_option("the metric", key, known)
    return known[key]
