"""Per-image values of a classifier's outputs: predictions, confidences, metrics and OOD scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed

from killick.metrics import METRICS, SCORES
from killick.runtime.processes import Processes

Values = dict[str, Tensor]
Part = dict[str, Values]  # by inference


@dataclass(frozen=True)
class Outputs:
    """The values of all images of a set, in their order."""

    # "single": for each reference alone, each value `(references, n)`. "marginal": for the
    # mean of the logits over all references, `(1, n)`; missing with one reference.
    # "members": for the suite multiplicity, the predictions of draws, views or networks that a
    # prediction is the mean of, `(members, n)`; missing if it is none
    values: Part
    # some of the images as they were shown, uint8, by number
    images: dict[int, Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of images."""
        return self.values["single"]["confidence"].shape[1]


def summarize_logits(
    members: Tensor,
    labels: Tensor | None = None,
    temperatures: Mapping[str, float] | None = None,
    aligned: Tensor | None = None,
) -> Part:
    """The values of some images, from logits `(references, n, classes)`, on their device.

    OOD scores are those of all logits; predictions are of the set's own classes, `aligned`. With
    temperatures there are also the values of scaled logits, under names that end in `@temperature`.
    """
    own, temperatures = members if aligned is None else aligned, temperatures or {}
    single = {**_scores(members), **_predictions(own, labels, temperatures.get("single"))}
    if len(members) == 1:
        return {"single": single}
    mean, own = members.mean(0, keepdim=True), own.mean(0, keepdim=True)
    marginal = {**_scores(mean), **_predictions(own, labels, temperatures.get("marginal"))}
    for key, score in SCORES.items():
        if score.input == "members" and score.compute is not None:
            marginal[key] = score.compute(members)[None]
    return {"single": single, "marginal": marginal}


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
    processes: Processes,
    images: dict[int, Tensor] | None = None,
) -> Outputs:
    """The outputs of a whole set from those of batches, of every process.

    `numbers` are those of this process's images in the set, in the order of `parts`; each value has
    its images along the second axis.
    """
    own = [
        {
            kind: {name: value.cpu() for name, value in values.items()}
            for kind, values in part.items()
        }
        for part in parts
    ]
    held = [(numbers, own, images or {})]
    if processes.count > 1:
        held *= processes.count
        distributed.all_gather_object(held, held[0])
    every = [part for _, own, _ in held for part in own]
    order = torch.cat([numbers for numbers, _, _ in held]).argsort()
    values = {
        kind: {name: torch.cat([p[kind][name] for p in every], 1)[:, order] for name in first}
        for kind, first in every[0].items()
    }
    return Outputs(values, {n: image for _, _, kept in held for n, image in kept.items()})
