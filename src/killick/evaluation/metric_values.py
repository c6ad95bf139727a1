"""From per-image values to metrics: every registered metric, one value for each reference."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from killick.evaluation.outputs import Values
from killick.metrics import METRICS, SCORES, Metric, auroc

RESIDUAL = "residual_distance"
MEMBER_SCORES = tuple(key for key, score in SCORES.items() if score.input == "members")


@dataclass(frozen=True)
class MetricValue:
    """A metric of a set.

    Attributes:
        metric: Its key.
        members: Its value for each reference; the first is the one that counts.
        estimator: How it was computed, where there are several ways.
        scaling: "temperature" if logits were divided by one.
        fitted_on: The set that the temperature or threshold was fitted on.
        score: The OOD score, for detection.
        interval: Of the first value, if there is one.
        reference: Which one, where the number is about a single reference.
    """

    metric: str
    members: list[float]
    estimator: str = ""
    scaling: str = ""
    fitted_on: str = ""
    score: str = ""
    interval: tuple[float, float] | None = None
    reference: int | None = None

    def columns(self) -> dict[str, Any]:
        """The columns of its row."""
        several = len(self.members) > 1
        return {
            "metric": self.metric,
            "estimator": self.estimator,
            "scaling": self.scaling,
            "fitted_on": self.fitted_on,
            "score": self.score,
            "reference": self.reference,
            "value": self.members[0],
            "std": torch.tensor(self.members, dtype=torch.float64).std().item() if several else "",
            "members": " ".join(f"{member:.7g}" for member in self.members) if several else "",
            "low": "" if self.interval is None else self.interval[0],
            "high": "" if self.interval is None else self.interval[1],
        }


def metrics_for(suites: Iterable[str], classes: int, *, scaled: bool = False) -> list[Metric]:
    """The metrics of labeled images, for these suites and this number of classes.

    Args:
        suites: Those of the evaluation.
        classes: Of the set.
        scaled: Those that are also computed of logits divided by a temperature.
    """
    chosen = ("", *suites)
    return [
        metric
        for _, metric in METRICS.items()
        if metric.input in ("logits", "confidence")
        and metric.suite in chosen
        and classes >= metric.min_classes
        and (metric.scaled or not scaled)
    ]


def compute_metrics(
    values: Values,
    metrics: Iterable[Metric],
    interval: torch.Generator | None = None,
    fitted_on: str = "",
) -> Iterator[MetricValue]:
    """Metrics of labeled images.

    Args:
        values: Per-image values, `(references, n)` each.
        metrics: Which.
        interval: A generator, for bootstrap intervals.
        fitted_on: Compute them of logits divided by the temperature that was fitted on this set.
    """
    suffix, scaling = ("@temperature", "temperature") if fitted_on else ("", "")
    confidence, correct = values[f"confidence{suffix}"], values["top1"].bool()
    for metric in metrics:
        bounds = None
        if metric.input == "logits":
            members = values[f"{metric.key}{suffix}"].double().mean(1).tolist()
        else:
            assert metric.compute is not None
            pairs = zip(confidence, correct, strict=True)
            members = [float(metric.compute(*pair)) for pair in pairs]
            if interval is not None and metric.interval is not None:
                low, high = metric.interval(confidence[0], correct[0], generator=interval)
                bounds = (float(low), float(high))
        if all(map(math.isfinite, members)):  # a metric can be undefined for a set
            about = (metric.estimator, scaling, fitted_on)
            yield MetricValue(metric.key, members, *about, interval=bounds)


def compute_detection(
    inside: Values, outside: Values, scores: Iterable[str]
) -> Iterator[MetricValue]:
    """How well each score separates in-distribution from OOD images."""
    for score in scores:
        pairs = list(zip(inside[score], outside[score], strict=True))
        for key, metric in METRICS.items():
            if metric.input == "scores" and metric.compute is not None:
                members = [float(metric.compute(*pair)) for pair in pairs]
                yield MetricValue(key, members, metric.estimator, score=score)


def compare_references(single: Values, marginal: Values) -> Iterator[MetricValue]:
    """Each reference alone, and how much they disagree."""
    for number in range(len(single["top1"])):
        for name in ("top1", "nll", "brier"):
            value = single[name][number].double().mean().item()
            yield MetricValue(name, [value], reference=number)
    differs = (single["prediction"] != marginal["prediction"]).double().mean(0)
    yield MetricValue("disagreement", [differs.mean().item()])
    information = marginal["mutual_information"][0].double()
    yield MetricValue("mutual_information", [information.mean().item()])
    wrong = marginal["top1"][0] == 0
    if bool(wrong.any()) and not bool(wrong.all()):
        for score in MEMBER_SCORES:
            found = auroc(marginal[score][0][~wrong], marginal[score][0][wrong])
            yield MetricValue("error_auroc", [float(found)], score=score)
