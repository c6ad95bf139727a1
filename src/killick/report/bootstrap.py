"""The bootstrap over images: what each number about a model would be in resampled sets.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from killick import metrics
from killick.metrics import cosine_series as cosines
from killick.report.table_cells import LABELLED, MARGINAL, OOD, SINGLE, Cell
from killick.results.predictions import Answers, Array

RESAMPLES = 1000
_ENTRIES = 1 << 23  # of a matrix of draws that are worked on at a time: 32 MB
_LEAST_BANDWIDTH = 2 / 1024  # as `smooth_ece` has it, and its step
_BANDWIDTH_STEP = 1 / 1024
_SHARE = 0.95  # of the images in distribution that are accepted
Place = tuple[str, ...]


class Draws:
    """How often each image is taken, the same for the same images whoever asks.

    Args:
        resamples: How many sets are drawn.
        seed: Of the draws.
    """

    def __init__(self, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.resamples, self._seed = resamples, seed
        self._made: dict[tuple[str, int], Tensor] = {}

    def counts(self, images: str, count: int) -> Tensor:
        """`(resamples, count)`, uint8, each line of which sums to `count`.

        Args:
            images: A name for them: other images are drawn independently.
            count: How many there are.
        """
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
    """What the numbers about a model would be in resampled sets.

    Attributes:
        values: For each cell `(resamples,)`.
        places: For each set, known by a cell's last four parts, which images it holds and how they
            were asked about. Only numbers of equal places are paired.
        counts: Of the images of each set, known likewise.
    """

    values: dict[Cell, Tensor] = field(default_factory=dict)
    places: dict[tuple[str, str, str, int], Place] = field(default_factory=dict)
    counts: dict[tuple[str, str, str, int], int] = field(default_factory=dict)

    @cached_property
    def inferences(self) -> frozenset[str]:
        """Those that there are numbers of."""
        return frozenset(cell.inference for cell in self.values)


def resample(
    answers: Sequence[Answers], draws: Draws, errors: Mapping[Cell, float] | None = None
) -> Resampled:
    """What all numbers about one model would be in resampled sets.

    Args:
        answers: Of one model, from one evaluation.
        draws: Shared by the models that are compared.
        errors: Smooth calibration errors that are known already, which save finding bandwidths.
            Those of other sets are then not resampled: no number is asked of them.
    """
    found = Resampled()
    groups: dict[tuple[str, int], list[Answers]] = {}
    for each in answers:
        if each.about.get("suite") in LABELLED and "correct" in each.single:
            groups.setdefault((_images(each), each.count), []).append(each)
    for (images, count), sets in groups.items():
        if count:
            _resample_labelled(found, sets, draws, images, errors)
    clean = next((each for each in answers if each.about.get("suite") == "clean"), None)
    for each in answers:
        if clean is not None and clean.count and each.about.get("suite") == OOD and each.count:
            _resample_detection(found, clean, each, draws)
    return found


def place_of(answers: Answers) -> Place:
    """Which images a set holds, with their labels, and how they were asked about."""
    return (*answers.place, _digest_of(answers.single.get("label")))


def _images(answers: Answers) -> str:
    """A name for the images that a set was made of.

    Equal labels in equal order: the same pictures, corrupted or not, also where published files
    have digests of their own for each corruption.
    """
    return _digest_of(answers.single.get("label"))


def _digest_of(labels: Array | None) -> str:
    if labels is None:
        return ""
    return hashlib.sha256(labels.astype(np.int64).tobytes()).hexdigest()[:16]


def _key(answers: Answers) -> tuple[str, str, str, int]:
    """The last four parts of a set's cells."""
    about = answers.about
    suite = str(about["suite"])
    corruption, severity = str(about.get("corruption") or ""), about.get("severity") or 0
    return suite, str(about["set"]) if suite == OOD else "", corruption, int(severity)


def _asked(answers: Answers) -> Iterator[tuple[str, dict[str, Array]]]:
    yield SINGLE, answers.single
    if answers.marginal:
        yield MARGINAL, answers.marginal


def _resample_labelled(
    found: Resampled,
    sets: Sequence[Answers],
    draws: Draws,
    images: str,
    errors: Mapping[Cell, float] | None,
) -> None:
    """Accuracy, likelihood and calibration of sets that were made of the same images."""
    linear: dict[Cell, Array] = {}
    smooth: dict[Cell, tuple[Tensor, Tensor, float]] = {}
    for each in sets:
        key = _key(each)
        found.places[key], found.counts[key] = place_of(each), each.count
        for inference, values in _asked(each):
            linear[Cell(inference, "top1", *key)] = values["correct"]
            linear[Cell(inference, "nll", *key)] = values["nll"]
            cell = Cell(inference, "smooth_ece", *key)
            if errors is not None and cell not in errors:
                continue
            confidence = torch.from_numpy(values["confidence"].astype(np.float64)).clamp(0, 1)
            correct = torch.from_numpy(values["correct"])
            error = metrics.smooth_ece(confidence, correct) if errors is None else errors[cell]
            smooth[cell] = confidence, confidence - correct.double(), _bandwidth(error)
    columns = torch.from_numpy(np.stack(list(linear.values()), 1).astype(np.float32))
    parts: dict[Cell, list[Tensor]] = {cell: [] for cell in (*linear, *smooth)}
    for weights in draws.weights(images, sets[0].count):
        means = (weights @ columns).double().unbind(1)
        for cell, mean in zip(linear, means, strict=True):
            parts[cell].append(mean)
        for cell, (confidence, residuals, bandwidth) in smooth.items():
            parts[cell].append(smooth_errors(confidence, residuals, bandwidth, weights))
    found.values.update({cell: torch.cat(pieces) for cell, pieces in parts.items()})


def _bandwidth(error: float) -> float:
    """The automatic bandwidth, which is where the error equals it, rounded up."""
    return max(_LEAST_BANDWIDTH, math.ceil(error / _BANDWIDTH_STEP) * _BANDWIDTH_STEP)


def smooth_errors(
    confidence: Tensor, residuals: Tensor, bandwidth: float, weights: Tensor
) -> Tensor:
    """The smooth calibration error at a bandwidth for each line of weights.

    Args:
        confidence: Of each image, float64.
        residuals: Confidence minus correctness.
        bandwidth: Of the kernel, a reflected Gaussian.
        weights: `(resamples, n)`, float32, each line of which sums to one.
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


def _resample_detection(found: Resampled, clean: Answers, other: Answers, draws: Draws) -> None:
    """How well the energy tells a set from the clean one.

    Some sets are made from the test images. Nothing of a picture is left in them that its energy
    could depend on alike, so both sides are drawn independently.
    """
    key = _key(other)
    found.places[key] = (*place_of(clean), *place_of(other))
    found.counts[key] = other.count
    name = f"{other.about['set']} {other.about.get('pictures', '')}"
    inside, outside = draws.counts(_images(clean), clean.count), draws.counts(name, other.count)
    for (inference, ours), (_, theirs) in zip(_asked(clean), _asked(other), strict=False):
        scores = ours["energy"], theirs["energy"]
        found.values[Cell(inference, "auroc", *key)] = areas(*scores, inside, outside)
        rates = false_rates(*scores, inside, outside)
        found.values[Cell(inference, "fpr_at_95_tpr_in", *key)] = rates


def areas(ours: Array, theirs: Array, inside: Tensor, outside: Tensor) -> Tensor:
    """AUROC in each resample, to first order.

    Args:
        ours: Scores of images in distribution, `(n,)`.
        theirs: Of the others, `(m,)`.
        inside: How often each of ours is drawn, `(resamples, n)`.
        outside: How often each of theirs is, `(resamples, m)`.
    """
    beaten, lost = _placements(theirs, ours), 1 - _placements(ours, theirs)
    return _means(outside, beaten) + _means(inside, lost) - float(beaten.mean())


def _placements(scores: Array, others: Array) -> Array:
    """The share of the others that each score beats; of equals, half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    equal_or_below = np.searchsorted(ordered, scores, side="right")
    placed: Array = (below + equal_or_below) / (2 * len(ordered))
    return placed


def _means(counts: Tensor, values: Array) -> Tensor:
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
