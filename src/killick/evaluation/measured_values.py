"""From outcomes to numbers: a value for each reference, and the mean over references apart."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from killick import metrics
from killick.evaluation.outputs import Values

BINS = 15
# Every calibration error here is that of the top label over the whole set.
_BINNED = f"top label, {BINS} equal-width bins"
SMOOTH = "top label, reflected kernel, bandwidth as in relplot 1.0.3"
SCORES = ("energy", "max_softmax", "max_logit", "entropy")
DISTANCE = "residual_distance"
MARGINAL_SCORES = ("spread", "mutual_information")
DETECTION = "out-of-distribution positive, raw scores"


@dataclass(frozen=True)
class Measure:
    """A number about a set.

    Attributes:
        metric: Its name.
        members: Its value from each reference; the first one is the value that counts.
        estimator: How it was computed, where there are several ways.
        scaling: "temperature" if logits were divided by one.
        score: For detection: by which score.
        interval: Of the first value, where one was asked for.
        reference: Which one, where the number is about a single reference.
    """

    metric: str
    members: list[float]
    estimator: str = ""
    scaling: str = ""
    score: str = ""
    interval: tuple[float, float] | None = None
    reference: int | None = None

    def columns(self) -> dict[str, Any]:
        """As a row has it."""
        several = len(self.members) > 1
        return {
            "metric": self.metric,
            "estimator": self.estimator,
            "scaling": self.scaling,
            "score": self.score,
            "reference": self.reference,
            "value": self.members[0],
            "std": torch.tensor(self.members, dtype=torch.float64).std().item() if several else "",
            "members": " ".join(f"{member:.7g}" for member in self.members) if several else "",
            "low": "" if self.interval is None else self.interval[0],
            "high": "" if self.interval is None else self.interval[1],
        }


def measure_accuracy(values: Values, classes: int) -> Iterable[Measure]:
    """How often it is right, how surprised it is, and whether it knows which answers to trust."""
    names = ("top1", "top5", "nll", "brier") if classes > 5 else ("top1", "nll", "brier")
    for name in names:
        yield Measure(name, values[name].double().mean(1).tolist())
    yield Measure("aurc", _each(metrics.aurc, values["confidence"], values["top1"]))


def measure_calibration(
    values: Values, interval: torch.Generator | None = None, fitted_on: str | None = None
) -> Iterable[Measure]:
    """How far confidence is from accuracy.

    Args:
        values: Outcomes.
        interval: A generator, for a bootstrap interval of the smooth error.
        fitted_on: Of the logits divided by the temperature that was fitted on this set.
    """
    suffix = "" if fitted_on is None else "@temperature"
    confidence, correct = values[f"confidence{suffix}"], values["top1"]

    def make(metric: str, members: list[float], estimator: str = "", **more: Any) -> Measure:
        if fitted_on is None:
            return Measure(metric, members, estimator, **more)
        how = f"{estimator}; " if estimator else ""
        how += f"fitted on {fitted_on}"
        return Measure(metric, members, how, scaling="temperature", **more)

    ece = partial(metrics.ece, bins=BINS)
    rms = partial(metrics.rms_ece, bins=BINS)
    yield make("ece", _each(ece, confidence, correct), _BINNED)
    yield make("rms_ece", _each(rms, confidence, correct), _BINNED)
    bounds = None
    if interval is not None:
        low, high = metrics.smooth_ece_interval(confidence[0], correct[0], generator=interval)
        bounds = (float(low), float(high))
    smooth = _each(metrics.smooth_ece, confidence, correct)
    yield make("smooth_ece", smooth, SMOOTH, interval=bounds)
    if fitted_on is not None:
        for name in ("nll", "brier"):
            yield make(name, values[f"{name}{suffix}"].double().mean(1).tolist())
        yield make("aurc", _each(metrics.aurc, confidence, correct))


def measure_detection(inside: Values, outside: Values, scores: Iterable[str]) -> Iterable[Measure]:
    """How well a score tells pictures of the data from others."""
    for score in scores:
        pairs = list(zip(inside[score], outside[score], strict=True))
        for name, compute in (
            ("auroc", metrics.auroc),
            ("aupr_out", partial(metrics.aupr, positive="out")),
            ("aupr_in", partial(metrics.aupr, positive="in")),
            ("fpr_at_95_tpr_in", metrics.fpr_at_tpr_in),
            ("fpr_at_95_tpr_out", metrics.fpr_at_tpr_out),
        ):
            found = [float(compute(ours, theirs)) for ours, theirs in pairs]
            yield Measure(name, found, DETECTION, score=score)


def measure_references(single: Values, marginal: Values) -> Iterable[Measure]:
    """What the choice of the reference decides: each on its own, and how they disagree."""
    for number in range(len(single["top1"])):
        for name in ("top1", "nll", "brier"):
            value = single[name][number].double().mean().item()
            yield Measure(f"{name} of one reference", [value], reference=number)
    votes = (single["prediction"] != marginal["prediction"]).double().mean(0)
    yield Measure("disagreement", [votes.mean().item()])
    information = marginal["mutual_information"][0].double()
    yield Measure("mutual_information", [information.mean().item()])
    wrong = marginal["top1"][0] == 0
    if bool(wrong.any()) and not bool(wrong.all()):
        for score in MARGINAL_SCORES:
            found = metrics.auroc(marginal[score][0][~wrong], marginal[score][0][wrong])
            yield Measure("auroc of errors", [float(found)], "errors positive", score=score)


def _each(compute: Callable[[Tensor, Tensor], float], first: Tensor, second: Tensor) -> list[float]:
    return [float(compute(a, b)) for a, b in zip(first, second, strict=True)]
