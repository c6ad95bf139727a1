"""The metrics of a test set, and how each is computed from per-image values."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from killick.evaluation.classifier import Classifier
from killick.evaluation.evaluation_settings import EvaluationSettings
from killick.evaluation.outputs import Outputs, Values
from killick.evaluation.test_sets import TestSet
from killick.metrics import METRICS, SCORES, auroc

RESIDUAL = "residual_distance"
TEST_SET = "the test set"  # what a threshold is fitted on without validation images


@dataclass(frozen=True)
class Measure:
    """A number that is measured on a test set: columns of its row."""

    suite: str
    inference: str
    metric: str
    estimator: str = ""
    scaling: str = ""
    fitted_on: str = ""
    score: str = ""
    reference: int | None = None


class Fitted(NamedTuple):
    """What was fitted on validation images; without them, a threshold on the clean test set."""

    threshold: float | None
    temperatures: Mapping[str, float]  # by inference


def plan_measures(
    test: TestSet,
    inference: str,
    classifier: Classifier,
    settings: EvaluationSettings,
    fitted_on: str,
) -> Iterator[Measure]:
    """All numbers of a test set, for "single" or "marginal" inference.

    `fitted_on` is the validation set; empty if there is none.
    """
    suite, single = test.suite, inference == "single"
    if test.attack is not None and not single:
        return  # only the first reference is attacked
    calibrates = "calibration" in settings.suites
    if test.alignment is None:
        kinds = ("logits", "images") if single else ("logits", "members")
        for score, entry in SCORES.items():
            if entry.input in kinds and (score != RESIDUAL or classifier.bank is not None):
                for key, metric in METRICS.items():
                    if metric.input == "scores":
                        yield Measure(suite, inference, key, metric.estimator, score=score)
    else:
        classes, suites = len(test.alignment.kept), ("", *settings.suites)
        for key, metric in METRICS.items():
            takes = metric.input in ("logits", "confidence")
            if takes and metric.suite in suites and classes >= metric.min_classes:
                yield Measure(suite, inference, key, metric.estimator)
                if metric.scaled and calibrates and fitted_on:
                    about = (metric.estimator, "temperature", fitted_on)
                    yield Measure(suite, inference, key, *about)
        if "conformal" in settings.suites and fitted_on:
            for key, metric in METRICS.items():
                if metric.suite == "conformal":
                    yield Measure(suite, inference, key, metric.estimator, fitted_on=fitted_on)
    if single and suite in ("clean", "ood"):
        about = (f"threshold at {100 * settings.acceptance:g} %", "", fitted_on or TEST_SET)
        yield Measure(suite, inference, "accepted", *about, "energy")
        if suite == "clean":
            yield Measure(suite, inference, "threshold", *about, "energy")
    if suite == "clean" and calibrates and fitted_on:
        yield Measure(suite, inference, "temperature")
    wanted = suite == "clean" and "multiplicity" in settings.suites and classifier.several
    if wanted and (not single or classifier.outputs == 1):
        for key in ("ambiguity", "discrepancy"):
            yield Measure("multiplicity", inference, key)
    if suite == "clean" and not single and "references" in settings.suites:
        for number in range(classifier.outputs):
            for key in ("top1", "nll", "brier"):
                yield Measure("references", inference, key, reference=number)
        for key in ("disagreement", "mutual_information"):
            yield Measure("references", inference, key)
        for score, entry in SCORES.items():
            if entry.input == "members":
                yield Measure("references", inference, "error_auroc", score=score)


def compute_measure(
    measure: Measure, outputs: Outputs, inside: Outputs | None, fitted: Fitted
) -> list[float]:
    """The value for each reference, the first one first; empty if it is undefined for these images.

    `inside` are the outputs for the clean test set, which OOD images are compared with.
    """
    metric, values = METRICS.find(measure.metric), outputs.values[measure.inference]
    if measure.suite == "references":
        found = _compare_references(measure, outputs)
    elif measure.suite == "multiplicity":
        found = [_disagree(measure.metric, outputs)]
    elif metric.key in ("threshold", "accepted"):
        assert fitted.threshold is not None
        accepted = (values["energy"] <= fitted.threshold).double().mean(1).tolist()
        found = accepted if metric.key == "accepted" else [fitted.threshold]
    elif metric.key == "temperature":
        found = [fitted.temperatures[measure.inference]]
    elif metric.suite == "conformal":
        found = values[metric.key].double().mean(1).tolist()
    elif metric.input == "logits":
        suffix = "@temperature" if measure.scaling else ""
        found = values[f"{metric.key}{suffix}"].double().mean(1).tolist()
    else:
        assert metric.compute is not None
        if metric.input == "confidence":
            pairs = _confidence_pairs(values, measure)
        else:
            assert inside is not None
            ours = inside.values[measure.inference]
            pairs = list(zip(ours[measure.score], values[measure.score], strict=True))
        found = [float(metric.compute(*pair)) for pair in pairs]
    return found if all(map(math.isfinite, found)) else []


def compute_interval(measure: Measure, outputs: Outputs, seed: int) -> tuple[float, float] | None:
    """A bootstrap interval of the first value, if the metric has one."""
    metric = METRICS.find(measure.metric)
    if metric.interval is None or measure.scaling or measure.suite not in ("clean", "shift"):
        return None
    first = _confidence_pairs(outputs.values[measure.inference], measure)[0]
    low, high = metric.interval(*first, generator=torch.Generator().manual_seed(seed))
    return float(low), float(high)


def _confidence_pairs(values: Values, measure: Measure) -> list[tuple[Any, Any]]:
    """Confidence and correctness for each reference."""
    confidence = values["confidence@temperature" if measure.scaling else "confidence"]
    return list(zip(confidence, values["top1"].bool(), strict=True))


def value_columns(
    members: list[float], interval: tuple[float, float] | None = None
) -> dict[str, Any]:
    """The columns of a row for a value, its spread over references, and its interval."""
    several = len(members) > 1
    low, high = ("", "") if interval is None else interval
    return {
        "value": members[0],
        "std": torch.tensor(members, dtype=torch.float64).std().item() if several else "",
        "members": " ".join(f"{member:.7g}" for member in members) if several else "",
        "low": low,
        "high": high,
    }


def _compare_references(measure: Measure, outputs: Outputs) -> list[float]:
    """Each reference alone, and how much they disagree."""
    single, marginal = outputs.values["single"], outputs.values["marginal"]
    if measure.reference is not None:
        return [single[measure.metric][measure.reference].double().mean().item()]
    if measure.metric == "disagreement":
        differs = (single["prediction"] != marginal["prediction"]).double().mean(0)
        return [differs.mean().item()]
    if measure.metric == "mutual_information":
        return [marginal["mutual_information"][0].double().mean().item()]
    wrong, score = marginal["top1"][0] == 0, marginal[measure.score][0]
    if not bool(wrong.any()) or bool(wrong.all()):
        return []
    return [float(auroc(score[~wrong], score[wrong]))]


def _disagree(metric: str, outputs: Outputs) -> float:
    """Where any member, or the most different one, disagrees with the prediction."""
    first, *others = outputs.values["single"]["prediction"]
    members = outputs.values["members"]["prediction"] if not others else torch.stack(others)
    differs = (members != first).double()
    return float(differs.amax(0).mean() if metric == "ambiguity" else differs.mean(1).max())
