"""Summaries over corruptions and severities, of numbers kept as `{(corruption, severity): number}`.

The numbers may be accuracies, errors or anything else that was measured on corrupted images. No
summary is taken over a table with holes: the first missing cell is named.
"""

from collections.abc import Iterable, Mapping, Sequence

from killick.corruptions.suites import SEVERITIES, SUITES
from killick.errors import DataError
from killick.metrics.metric_registry import Metric, register_metric

Cells = Mapping[tuple[str, int], float]

# All 19 of Hendrycks and Dietterich (2019), and the 15 that their mean is taken over.
ALL_COMMON, BENCHMARK = SUITES["c"], SUITES["c15"]


def by_severity(cells: Cells, names: Iterable[str] | None = None) -> dict[int, float]:
    """The mean over corruptions at each severity that is in the table.

    Args:
        cells: A number for each corruption and severity.
        names: Of the corruptions; all that are in the table by default.

    Example:
        >>> by_severity({("fog", 1): 0.9, ("fog", 2): 0.75, ("snow", 1): 0.7, ("snow", 2): 0.25})
        {1: 0.8, 2: 0.5}
    """
    chosen = _names(cells, names)
    severities = sorted({severity for name, severity in cells if name in chosen})
    _check_complete(cells, chosen, severities, "the table")
    return {s: sum(cells[name, s] for name in chosen) / len(chosen) for s in severities}


def mean_over(
    cells: Cells, names: Iterable[str] | None = None, severities: Sequence[int] = SEVERITIES
) -> float:
    """The mean over corruptions and severities.

    Args:
        cells: A number for each corruption and severity.
        names: Of the corruptions; all that are in the table by default.
        severities: All five by default.
    """
    chosen = _names(cells, names)
    _check_complete(cells, chosen, severities, "the table")
    total = sum(cells[name, severity] for name in chosen for severity in severities)
    return total / (len(chosen) * len(severities))


def mce(errors: Cells, baseline_errors: Cells, names: Iterable[str] = BENCHMARK) -> float:
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
    errors: Cells,
    clean_error: float,
    baseline_errors: Cells,
    baseline_clean_error: float,
    names: Iterable[str] = BENCHMARK,
) -> float:
    """The same of what corruptions add to the error on clean images.

    Args:
        errors: A share of errors for each corruption and severity.
        clean_error: The share of errors on the clean images.
        baseline_errors: The same of the network to compare with; say which when you report.
        baseline_clean_error: Its share of errors on the clean images.
        names: Of the corruptions; the 15 of the benchmark by default.
    """
    chosen = _names(errors, names)
    _check_complete(errors, chosen, SEVERITIES, "errors")
    _check_complete(baseline_errors, chosen, SEVERITIES, "baseline_errors")
    ratios = []
    for name in chosen:
        own = sum(errors[name, s] - clean_error for s in SEVERITIES)
        other = sum(baseline_errors[name, s] - baseline_clean_error for s in SEVERITIES)
        if other == 0:
            raise DataError(
                f"expected a baseline that errs more on {name} than on clean images (or at all),"
                " found no difference: nothing can be divided by it. Take another baseline."
            )
        ratios.append(own / other)
    return sum(ratios) / len(ratios)


def _names(cells: Cells, names: Iterable[str] | None) -> list[str]:
    """The corruptions asked for, each once, in their order; those of the table by default."""
    chosen = list(dict.fromkeys(name for name, _ in cells) if names is None else names)
    if not chosen:
        raise DataError("expected at least one corruption to average over, found none.")
    return chosen


def _check_complete(
    cells: Cells, names: Iterable[str], severities: Iterable[int], where: str
) -> None:
    """Refuse a table with a hole, naming the first."""
    for name in names:
        for severity in severities:
            if (name, severity) not in cells:
                raise DataError(
                    f"expected a number for every corruption and severity in {where}, found none"
                    f" for {name!r} at severity {severity}. Measure it, or leave the corruption out"
                    " by names=."
                )


register_metric(
    Metric(
        "mce",
        "mean corruption error",
        "mean over the 15 corruptions of the error relative to a --baseline",
        -1,
        "%",
        short="mCE",
    )
)
