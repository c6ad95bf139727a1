"""The bootstrap over images: the numbers about a model in resampled test sets.

One draw counts how often each image is taken. All models, corruptions and severities get the same
draws, as image i of every corrupted set comes from clean image i: differences between models are
then paired, image by image. Nothing here loops over images or resamples.

- Accuracy and likelihood are means over images.
- The smooth calibration error keeps the bandwidth of the full sample. Its cosine coefficients are
  then linear in the draw, and few, as the kernel damps the rest.
- AUROC is linear in the draw to first order, by each image's share of the other side that it beats.
- The false positive rate takes the threshold of each resample.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from killick.metrics import cosine_series as cosines
from killick.report.conditions import (
    LABELED,
    MARGINAL,
    OOD,
    OTHER_SETS,
    SHIFT,
    SINGLE,
    Condition,
    suite_of,
)
from killick.results.predictions import Array, Predictions

RESAMPLES = 1000
_ENTRIES = 1 << 23  # of a matrix of draws that are worked on at a time: 32 MB
_LEAST_BANDWIDTH = 2 / 1024  # as in `smooth_ece`, and its step
_BANDWIDTH_STEP = 1 / 1024
_SHARE = 0.95  # of the in-distribution images that are accepted


class BootstrapDraws:
    """How often each image is taken: the same counts for the same images."""

    def __init__(self, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.resamples, self._seed = resamples, seed
        self._made: dict[tuple[str, int], Tensor] = {}

    def counts(self, images: str, count: int) -> Tensor:
        """`(resamples, count)`, uint8, each line of which sums to `count`; by name independent."""
        if (images, count) not in self._made:
            self._made[images, count] = self._draw(images, count)
        return self._made[images, count]

    def weights(self, images: str, count: int) -> Iterator[Tensor]:
        """The counts over `count`, float32, some lines at a time: each line sums to one."""
        for part in self.counts(images, count).split(max(1, _ENTRIES // count)):
            yield part.float() / count

    def _draw(self, images: str, count: int) -> Tensor:
        digest = hashlib.sha256(f"{self._seed} {count} {images}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
        counts = torch.zeros(self.resamples, count, dtype=torch.uint8)
        one = torch.ones((), dtype=torch.uint8)
        for part in counts.split(max(1, _ENTRIES // count)):
            taken = torch.randint(count, part.shape, generator=generator)
            part.scatter_add_(1, taken, one.expand(part.shape))
        return counts


@dataclass(frozen=True)
class Resampled:
    """A number about a model in resampled test sets."""

    values: Tensor  # `(resamples,)`
    images: tuple[str, ...]  # which images, see `images_of`; only equal images are paired
    count: int  # of the images


def resample(
    predictions: Sequence[Predictions], draws: BootstrapDraws, errors: Mapping[Condition, float]
) -> dict[Condition, Resampled]:
    """All numbers about one model, from one evaluation, in resampled test sets.

    `errors` are the smooth calibration errors of the test sets, for their bandwidths. Images of a
    stream are left out: they cannot be paired with those of another evaluation.
    """
    predictions = [each for each in predictions if each.about.get("access") != "stream"]
    found: dict[Condition, Resampled] = {}
    groups: dict[tuple[str, int], list[Predictions]] = defaultdict(list)
    for each in predictions:
        labeled = each.about.get("suite") in (*LABELED, SHIFT) and "correct" in each.single
        if labeled and each.count:
            groups[_label_digest(each), each.count].append(each)
    for (name, _), sets in groups.items():
        found |= _resample_labeled(sets, draws, name, errors)
    clean = next((each for each in predictions if each.about.get("suite") == "clean"), None)
    for each in predictions:
        if clean is not None and clean.count and each.about.get("suite") == OOD and each.count:
            found |= _resample_detection(clean, each, draws)
    return found


def images_of(predictions: Predictions) -> tuple[str, ...]:
    """Which images a test set holds, with their labels and how they were preprocessed."""
    return (*predictions.place, _label_digest(predictions))


def _label_digest(predictions: Predictions) -> str:
    """A name for the images that a test set was made of, corrupted or not."""
    labels = predictions.single.get("label")
    if labels is None:
        return ""
    return hashlib.sha256(labels.astype(np.int64).tobytes()).hexdigest()[:16]


def _condition(predictions: Predictions, inference: str, metric: str) -> Condition:
    about = predictions.about
    suite, corruption = suite_of(about), str(about.get("corruption") or "")
    severity = int(about.get("severity") or 0)
    name = str(about["set"]) if suite in OTHER_SETS else ""
    return Condition(inference, metric, suite, name, corruption, severity)


def _by_inference(predictions: Predictions) -> Iterator[tuple[str, dict[str, Array]]]:
    yield SINGLE, predictions.single
    if predictions.marginal:
        yield MARGINAL, predictions.marginal


def _resample_labeled(
    sets: list[Predictions], draws: BootstrapDraws, name: str, errors: Mapping[Condition, float]
) -> dict[Condition, Resampled]:
    """Accuracy, likelihood and calibration of sets that were made of the same images."""
    images: dict[Condition, tuple[str, ...]] = {}
    linear: dict[Condition, Array] = {}
    smooth: dict[Condition, tuple[Tensor, Tensor, float]] = {}
    for each in sets:
        for inference, values in _by_inference(each):
            metrics = ("top1", "nll", "smooth_ece")
            top1, nll, ece = (_condition(each, inference, metric) for metric in metrics)
            images |= dict.fromkeys((top1, nll, ece), images_of(each))
            linear[top1], linear[nll] = values["correct"], values["nll"]
            if ece in errors:
                confidence = torch.from_numpy(values["confidence"].astype(np.float64)).clamp(0, 1)
                residuals = confidence - torch.from_numpy(values["correct"]).double()
                smooth[ece] = confidence, residuals, _bandwidth(errors[ece])
    columns = torch.from_numpy(np.stack(list(linear.values()), 1).astype(np.float32))
    parts: dict[Condition, list[Tensor]] = {condition: [] for condition in (*linear, *smooth)}
    for weights in draws.weights(name, sets[0].count):
        means = (weights @ columns).double().unbind(1)
        for condition, mean in zip(linear, means, strict=True):
            parts[condition].append(mean)
        for condition, arguments in smooth.items():
            parts[condition].append(smooth_errors(*arguments, weights))
    return {
        condition: Resampled(torch.cat(pieces), images[condition], sets[0].count)
        for condition, pieces in parts.items()
    }


def _bandwidth(error: float) -> float:
    """The automatic bandwidth, which is where the error equals it, rounded up."""
    return max(_LEAST_BANDWIDTH, math.ceil(error / _BANDWIDTH_STEP) * _BANDWIDTH_STEP)


def smooth_errors(
    confidence: Tensor, residuals: Tensor, bandwidth: float, weights: Tensor
) -> Tensor:
    """The smooth calibration error at a bandwidth, for each line of weights, which sums to one.

    `residuals` are confidence minus correctness; `weights` are `(resamples, n)`.
    """
    # Of coefficients beyond these less than 1e-4 is left; four steps in a bandwidth resolve it.
    number = torch.arange(math.ceil(1.4 / bandwidth) + 1, dtype=torch.float64)
    damping = torch.exp(-0.5 * (math.pi * bandwidth * number).square())
    damping[1:] *= 2
    waves = torch.cos(math.pi * confidence[:, None] * number) * residuals[:, None]
    series = weights @ (waves * damping).float()
    places = torch.linspace(0, 1, max(32, math.ceil(4 / bandwidth)) + 1, dtype=torch.float64)
    curves = series @ torch.cos(math.pi * number[:, None] * places).float()
    errors: Tensor = cosines.integrate_absolute(curves.double())
    return errors.clamp_max_(1.0)


def _resample_detection(
    clean: Predictions, other: Predictions, draws: BootstrapDraws
) -> dict[Condition, Resampled]:
    """How well the energy separates an OOD set from the clean test set, drawn independently."""
    images = (*images_of(clean), *images_of(other))
    name = f"{other.about['set']} {other.about.get('images', '')}"
    inside = draws.counts(_label_digest(clean), clean.count)
    outside = draws.counts(name, other.count)
    found = {}
    for (inference, ours), (_, theirs) in zip(
        _by_inference(clean), _by_inference(other), strict=False
    ):
        for metric, compute in (("auroc", areas), ("fpr_at_95_tpr_in", false_rates)):
            values = compute(ours["energy"], theirs["energy"], inside, outside)
            condition = _condition(other, inference, metric)
            found[condition] = Resampled(values, images, other.count)
    return found


def areas(ours: Array, theirs: Array, inside: Tensor, outside: Tensor) -> Tensor:
    """AUROC in each resample, to first order, from in-distribution and OOD scores.

    `inside` and `outside` are how often each is drawn, `(resamples, n)` and `(resamples, m)`.
    """
    beaten, lost = placements(theirs, ours), 1 - placements(ours, theirs)
    return drawn_means(outside, beaten) + drawn_means(inside, lost) - float(beaten.mean())


def placements(scores: Array, others: Array) -> Array:
    """The share of the others that each score beats; of equals, half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    equal_or_below = np.searchsorted(ordered, scores, side="right")
    placed: Array = (below + equal_or_below) / (2 * len(ordered))
    return placed


def drawn_means(counts: Tensor, values: Array) -> Tensor:
    """The mean of the values in each resample, `(resamples,)`."""
    column = torch.from_numpy(values.astype(np.float32))
    parts = counts.split(max(1, _ENTRIES // counts.shape[1]))
    return torch.cat([part.float() @ column for part in parts]).double() / counts.shape[1]


def false_rates(ours: Array, theirs: Array, inside: Tensor, outside: Tensor) -> Tensor:
    """In each resample the share of the others accepted when 95 % of ours are; see `areas`."""
    order, other_order = np.argsort(ours, kind="stable"), np.argsort(theirs, kind="stable")
    accepted = np.searchsorted(theirs[other_order], ours[order], side="right")
    needed = math.ceil(_SHARE * len(ours) - 1e-9)
    rates = []
    size = max(1, _ENTRIES // max(len(ours), len(theirs)))
    for mine, others in zip(inside.split(size), outside.split(size), strict=True):
        drawn = mine[:, torch.from_numpy(order)].int().cumsum(1)
        last = (drawn < needed).sum(1)  # the first image up to which enough are accepted
        total = others[:, torch.from_numpy(other_order)].int().cumsum(1)
        total = torch.cat([total.new_zeros(len(total), 1), total], 1)
        reached = torch.from_numpy(accepted)[last]
        rates.append(total.gather(1, reached[:, None])[:, 0].double() / len(theirs))
    return torch.cat(rates)
