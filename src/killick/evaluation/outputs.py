"""Per-image values of a classifier's outputs: predictions, confidences, metrics and OOD scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed

from killick.errors import OutputError
from killick.metrics import METRICS, SCORES
from killick.runtime.processes import Processes

Values = dict[str, Tensor]
Part = tuple[Values, Values | None]


@dataclass(frozen=True)
class Outputs:
    """The values of all images of a set, in their order.

    Attributes:
        single: For each reference alone: each value `(references, n)`.
        marginal: For the mean of the logits over all references, `(1, n)`; None with one.
        images: Some of the images as they were shown, uint8, by number.
    """

    single: Values
    marginal: Values | None
    images: dict[int, Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of images."""
        return self.single["confidence"].shape[1]

    def values(self, inference: str) -> Values:
        """Those of "single" or "marginal" inference."""
        found = self.single if inference == "single" else self.marginal
        assert found is not None
        return found


def summarize_logits(
    members: Tensor,
    labels: Tensor | None = None,
    temperatures: tuple[float, float] | None = None,
    aligned: Tensor | None = None,
) -> Part:
    """The values of some images, from logits `(references, n, classes)`, on their device.

    Args:
        members: The logits for each reference. OOD scores are computed of all of them.
        labels: None for OOD images.
        temperatures: For single references and for their mean; adds the values of scaled logits
            under names that end in `@temperature`.
        aligned: The logits of the set's own classes, if these are others than the model's.
    """
    own = members if aligned is None else aligned
    first, second = (None, None) if temperatures is None else temperatures
    single = {**_scores(members), **_predictions(own, labels, first)}
    if len(members) == 1:
        return single, None
    mean, own = members.mean(0, keepdim=True), own.mean(0, keepdim=True)
    marginal = {**_scores(mean), **_predictions(own, labels, second)}
    for key, score in SCORES.items():
        if score.input == "members" and score.compute is not None:
            marginal[key] = score.compute(members)[None]
    return single, marginal


def _scores(logits: Tensor) -> Values:
    return {
        key: score.compute(logits)
        for key, score in SCORES.items()
        if score.input == "logits" and score.compute is not None
    }


def _predictions(logits: Tensor, labels: Tensor | None, temperature: float | None) -> Values:
    """Predicted class and confidence; with labels, also the per-image metrics."""
    values = {"prediction": logits.argmax(-1), "confidence": _confidence(logits)}
    if labels is None:
        return values
    values["label"] = labels.expand(len(logits), -1)
    scaled = None if temperature is None else logits / temperature
    if scaled is not None:
        values["confidence@temperature"] = _confidence(scaled)
    for key, metric in METRICS.items():
        if metric.input == "logits" and metric.compute is not None:
            values[key] = metric.compute(logits, labels)
            if scaled is not None and metric.scaled:
                values[f"{key}@temperature"] = metric.compute(scaled, labels)
    return values


def _confidence(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1).exp().amax(-1).clamp_max(1)


def collect_outputs(
    parts: Sequence[Part],
    numbers: Tensor,
    count: int,
    processes: Processes,
    title: str,
    images: dict[int, Tensor] | None = None,
) -> Outputs:
    """The outputs of a whole set from those of batches, of every process.

    Args:
        parts: In the order of `numbers`.
        numbers: Which images of the set this process had.
        count: Images of the set.
        processes: This one and the others.
        title: Of the set, for messages.
        images: Some of this process's images, by number.

    Raises:
        OutputError: If any logit was NaN or infinite.
    """
    single = _joined([{k: v.cpu() for k, v in part[0].items()} for part in parts])
    marginal = _joined([{k: v.cpu() for k, v in (part[1] or {}).items()} for part in parts])
    images = images or {}
    if processes.count > 1:
        gathered: list[tuple[Tensor, Values, Values, dict[int, Tensor]]]
        gathered = [None] * processes.count  # type: ignore[list-item]
        distributed.all_gather_object(gathered, (numbers, single, marginal, images))
        held = [part for part in gathered if len(part[0])]
        images = {number: image for part in held for number, image in part[3].items()}
        numbers = torch.cat([part[0] for part in held])
        single = _joined([part[1] for part in held])
        marginal = _joined([part[2] for part in held])
    order = numbers.argsort()
    assert len(order) == count
    single = {name: value[:, order] for name, value in single.items()}
    marginal = {name: value[:, order] for name, value in marginal.items()}
    bad = ~single["energy"].isfinite()
    if "nll" in single:
        bad |= ~single["nll"].isfinite()
    if bool(bad.any()):
        place = int(bad.any(0).nonzero()[0, 0])
        raise OutputError(
            f"expected finite logits, found NaN or infinity for {int(bad.any(0).sum())} of"
            f" {count} images of {title}, first for number {place}. Check the weights, and"
            " --precision float32."
        )
    return Outputs(single, marginal or None, images)


def _joined(parts: Sequence[Values]) -> Values:
    return (
        {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]} if parts else {}
    )
