"""The sentence at the top of a report."""

from killick.report.comparison import Comparison
from killick.report.formatting import capitalize, count_words, signed, signless
from killick.report.report_data import ReportData
from killick.report.statistics import Estimate, mean_title, restrict
from killick.report.summary_metrics import SummaryMetric, find_summary_metric

# The first of these that both arms have is compared.
_COMPARED = ("corrupted_top1", "cbar_top1", "clean_top1", "ood_auroc")
_DESCRIBED = ("clean_top1", "corrupted_top1", "cbar_top1", "ood_auroc", "corrupted_smooth_ece")


def headline(data: ReportData) -> str:
    """The main arm against the baseline in the metric that matters most; of one arm its numbers."""
    comparison, arm = data.comparison, data.main_arm
    ours, name = data.table[arm.name], capitalize(arm.name)
    if comparison.baseline is None:
        metrics = [find_summary_metric(key) for key in _DESCRIBED if key in ours]
        words = [f"{_value(ours[m.key], m)} {_title(comparison, m)}" for m in metrics]
        return f"{name}: {', '.join(words) or 'no numbers'} ({count_words(len(arm.runs), 'seed')})."
    theirs = data.table[comparison.baseline.name]
    for key in _COMPARED:
        if key in ours and key in theirs and (gap := ours[key].difference) is not None:
            metric = find_summary_metric(key)
            seeds = [seed for seed in ours[key].values if seed in theirs[key].values]
            mine, base = (_value(restrict(line[key], seeds), metric) for line in (ours, theirs))
            points = " points" if metric.unit == "%" else ""
            change = f"{signed(metric.factor * gap.value, metric.digits)}{points}"
            if gap.low is not None and gap.high is not None:
                ends = (signed(metric.factor * end, metric.digits) for end in (gap.low, gap.high))
                change += f", 95 % interval {' to '.join(ends)}"
                change += "" if gap.significant else ", not significant"
            else:
                change += ", no interval"
            return (
                f"{name} has {mine} {_title(comparison, metric)}, {comparison.baseline.name}"
                f" {base} ({change}; {count_words(len(seeds), 'seed')})."
            )
    return f"{name} and {comparison.baseline.name} have no metric in common."


def _title(comparison: Comparison, metric: SummaryMetric) -> str:
    mean = mean_title(comparison) if metric.suite == "corruptions" else ""
    return f"{metric.title} ({mean})" if mean else metric.title


def _value(estimate: Estimate, metric: SummaryMetric) -> str:
    """Mean and spread: "83.1 ± 0.4 %"."""
    text = signless(metric.factor * estimate.mean, metric.digits)
    if estimate.spread is not None:
        text += f" ± {signless(metric.factor * estimate.spread, metric.digits)}"
    return f"{text} {metric.unit}".rstrip()
