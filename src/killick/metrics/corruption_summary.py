"""The mean corruption error, of numbers kept as `{(corruption, severity): number}`."""

from collections.abc import Iterable, Mapping

from killick.corruptions.suites import SEVERITIES, SUITES
from killick.errors import DataError
from killick.metrics.metric_registry import Metric, register_metric

Errors = Mapping[tuple[str, int], float]


def mce(errors: Errors, baseline_errors: Errors, names: Iterable[str] = SUITES["c15"]) -> float:
    """The mean corruption error: errors over those of a baseline, for each corruption, averaged.

    1 is as good as the baseline (Hendrycks and Dietterich 2019, who took AlexNet and write it in
    percent). Errors are summed over severities before they are divided.

    Args:
        errors: A share of errors for each corruption and severity.
        baseline_errors: The same of the network to compare with; say which when you report.
        names: Of the corruptions; the 15 of the benchmark by default.
    """
    return relative_mce(errors, 0.0, baseline_errors, 0.0, names)


def relative_mce(
    errors: Errors,
    clean_error: float,
    baseline_errors: Errors,
    baseline_clean_error: float,
    names: Iterable[str] = SUITES["c15"],
) -> float:
    """`mce` of what corruptions add to the error on clean images, the share `clean_error`."""
    ratios = []
    for name in names:
        baseline = _sum(baseline_errors, name, baseline_clean_error)
        if baseline == 0:
            raise DataError(f"the baseline has no errors on {name} to divide by. Take another.")
        ratios.append(_sum(errors, name, clean_error) / baseline)
    return sum(ratios) / len(ratios)


def _sum(errors: Errors, name: str, clean_error: float) -> float:
    """Over the five severities; all must be there."""
    for severity in SEVERITIES:
        if (name, severity) not in errors:
            raise DataError(f"no error is given for {name} at severity {severity}.")
    return sum(errors[name, severity] - clean_error for severity in SEVERITIES)


_ABOUT = "mean over the 15 corruptions of the error relative to a --baseline"
register_metric(Metric("mce", "mean corruption error", _ABOUT, -1, "%", short="mCE"))
