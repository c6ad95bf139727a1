"""What is kept of a model's answer to an image: a few numbers, from which all metrics follow."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed

from killick.errors import OutputError
from killick.metrics import METRICS, SCORES
from killick.runtime.processes import Processes

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Outcomes:
    """The answers to all images of a set, in their order.

    Attributes:
        single: From each reference on its own: each value `(references, n)`.
        marginal: From the mean of the logits over all references, `(1, n)`; None with one.
        pictures: Some of the images as they were shown, uint8, by number.
    """

    single: Values
    marginal: Values | None
    pictures: dict[int, Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Images."""
        return self.single["confidence"].shape[1]


def observe(
    members: Tensor,
    labels: Tensor | None = None,
    temperatures: tuple[float, float] | None = None,
    aligned: Tensor | None = None,
) -> tuple[Values, Values | None]:
    """The numbers to keep, from logits `(references, n, classes)`; on their device.

    Args:
        members: Logits from each reference. Scores are of all of them, so that they are the same
            for a set with some of the classes, with others or with none.
        labels: None where the images belong to no class.
        temperatures: To divide logits by, for single references and for their mean; adds the values
            of scaled predictions under names that end in `@temperature`.
        aligned: The logits of the set's own classes, where these are others; answers are of these.
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
    """The OOD scores of each image."""
    return {
        key: score.compute(logits)
        for key, score in SCORES.items()
        if score.input == "logits" and score.compute is not None
    }


def _predictions(logits: Tensor, labels: Tensor | None, temperature: float | None) -> Values:
    """Predicted class and confidence; with labels, also the per-image metrics."""
    values = {"prediction": logits.argmax(-1), "confidence": _confidence(logits)}
    if labels is not None:
        values["label"] = labels.expand(len(logits), -1)
        scaled = None if temperature is None else logits / temperature
        if scaled is not None:
            values["confidence@temperature"] = _confidence(scaled)
        for key, metric in METRICS.items():
            if metric.input != "logits" or metric.compute is None:
                continue
            values[key] = metric.compute(logits, labels)
            if scaled is not None and metric.scaled:
                values[f"{key}@temperature"] = metric.compute(scaled, labels)
    return values


def _confidence(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1).exp().amax(-1).clamp_max(1)


def collect(
    parts: Sequence[tuple[Values, Values | None]],
    numbers: Tensor,
    count: int,
    processes: Processes,
    what: str,
    pictures: dict[int, Tensor] | None = None,
) -> Outcomes:
    """The outcomes of a whole set from those of batches, of every process.

    Args:
        parts: In the order of `numbers`.
        numbers: Which images of the set this process had.
        count: Images of the set.
        processes: This one and the others.
        what: The set, for messages.
        pictures: Some of this process's images, by number.

    Raises:
        OutputError: If any logit was NaN or infinite.
    """
    single = {name: torch.cat([part[0][name] for part in parts], 1).cpu() for name in _names(parts)}
    marginal = None
    if parts and parts[0][1] is not None:
        names = list(parts[0][1])
        marginal = {name: torch.cat([p[1][name] for p in parts], 1).cpu() for name in names}  # type: ignore[index]
    if processes.count > 1:
        gathered: list[tuple[Tensor, Values, Values | None, dict[int, Tensor]]]
        gathered = [None] * processes.count  # type: ignore[list-item]
        distributed.all_gather_object(gathered, (numbers, single, marginal, pictures or {}))
        held = [part for part in gathered if len(part[0])]
        pictures = {number: image for part in held for number, image in part[3].items()}
        numbers = torch.cat([part[0] for part in held])
        single = {name: torch.cat([p[1][name] for p in held], 1) for name in held[0][1]}
        if held[0][2] is not None:
            marginal = {name: torch.cat([p[2][name] for p in held], 1) for name in held[0][2]}  # type: ignore[index]
    order = numbers.argsort()
    assert len(order) == count
    single = {name: value[:, order] for name, value in single.items()}
    if marginal is not None:
        marginal = {name: value[:, order] for name, value in marginal.items()}
    bad = ~single["energy"].isfinite()
    if "nll" in single:
        bad |= ~single["nll"].isfinite()
    if bool(bad.any()):
        place = int(bad.any(0).nonzero()[0, 0])
        raise OutputError(
            f"expected finite logits, found NaN or infinity for {int(bad.any(0).sum())} of"
            f" {count} images of {what}, first for number {place}. Check the weights, and"
            " --precision float32."
        )
    return Outcomes(single, marginal, pictures or {})


def _names(parts: Sequence[tuple[Values, Values | None]]) -> list[str]:
    return list(parts[0][0]) if parts else []
