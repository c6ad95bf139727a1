"""One record for each image, with the same fields in every format."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from killick.core.image_model import Threshold
from killick.core.inference import Prediction
from killick.data.decoding import printable
from killick.deploy.image_paths import InputImage


@dataclass(frozen=True, slots=True)
class ClassProbability:
    """A class, by name where it has one and by number, and its probability."""

    label: str
    index: int
    probability: float


@dataclass(frozen=True, slots=True)
class Record:
    """The prediction for one image.

    Attributes:
        image: Its path, as it was given or found.
        label: The most likely class: its name, or its number where classes have no names.
        index: The number of that class.
        confidence: Its probability.
        uncertainty: The entropy of all probabilities divided by the largest possible one: 0 is
            certain, 1 is a uniform distribution.
        energy: Higher is more out-of-distribution.
        std: The standard deviation of the label's probability over references, where there are
            several.
        in_distribution: Whether the energy is at most the threshold that is stored with the model;
            None without one.
        fitted_on: What that threshold was fitted on.
        refused: The share of each given OOD set that it refuses, as measured when it was stored.
        top: The most likely classes, if requested.
        probabilities: Of all classes, in their order, if requested.
        error: Why there is no prediction; then there is nothing else.
    """

    image: str
    label: str | None = None
    index: int | None = None
    confidence: float | None = None
    uncertainty: float | None = None
    energy: float | None = None
    std: float | None = None
    in_distribution: bool | None = None
    fitted_on: str | None = None
    refused: Mapping[str, float] | None = None
    top: tuple[ClassProbability, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON, without fields that were not requested or do not exist."""
        if self.error is not None:
            return {"image": self.image, "error": self.error}
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["top"] = [asdict(each) for each in self.top]
        found["probabilities"] = list(self.probabilities)
        for name in ("std", "fitted_on", "refused", "top", "probabilities", "error"):
            if found[name] in (None, [], {}):
                del found[name]
        return found


def make_records(
    images: Sequence[InputImage],
    prediction: Prediction | None,
    class_names: tuple[str, ...] | None,
    threshold: Threshold | None = None,
    *,
    top: int = 0,
    probabilities: bool = False,
) -> list[Record]:
    """The records of images, in order, unreadable ones among them.

    `prediction` is for those that are readable; None if there are none.
    """
    found: Iterator[dict[str, Any] | None] = iter(())
    if prediction is not None:
        found = _fields(prediction, class_names, top, probabilities)
    about: dict[str, Any] = {}
    if threshold is not None:
        about = {"fitted_on": threshold.fitted_on, "refused": dict(threshold.refused)}
    records: list[Record] = []
    for image in images:
        if image.problem is not None:
            records.append(Record(image.path, error=image.problem))
        elif (values := next(found)) is not None:
            records.append(Record(image.path, **values, **about))
        else:
            reason = "the model returns NaN or infinity. Check how it was trained or exported."
            problem = f"cannot label {printable(image.path)}: {reason}"
            records.append(Record(image.path, error=problem))
    return records


def normalized_entropy(probs: Tensor) -> Tensor:
    """The entropy of each row of `(n, classes)`, divided by that of equal probabilities.

    Example:
        >>> normalized_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist()
        [0.0, 1.0]
    """
    entropy: Tensor = torch.special.entr(probs.double()).sum(1)
    return (entropy / math.log(probs.shape[1])).clamp(0, 1)


def _fields(
    found: Prediction, names: tuple[str, ...] | None, top: int, probabilities: bool
) -> Iterator[dict[str, Any] | None]:
    """The fields of each record, or None where they are not finite."""
    assert found.probs is not None
    assert found.energy is not None
    # Whole batches to numbers at once; one by one takes longer than a small network.
    probs, energy = found.probs.cpu(), found.energy.cpu()
    order = probs.sort(stable=True, dim=1, descending=True)  # of equals the first comes first
    columns = {"uncertainty": normalized_entropy(probs).tolist(), "energy": energy.tolist()}
    if found.std is not None:
        columns["std"] = found.std.cpu().gather(1, order.indices[:, :1])[:, 0].tolist()
    if found.in_distribution is not None:
        columns["in_distribution"] = found.in_distribution.tolist()
    if probabilities:
        columns["probabilities"] = [tuple(row) for row in probs.tolist()]
    kept = max(top, 1)
    likely, shares = order.indices[:, :kept].tolist(), order.values[:, :kept].tolist()
    for i, finite in enumerate((probs.isfinite().all(1) & energy.isfinite()).tolist()):
        if not finite:
            yield None
            continue
        classes = [
            ClassProbability(str(index) if names is None else names[index], index, share)
            for index, share in zip(likely[i], shares[i], strict=True)
        ]
        first = {"label": classes[0].label, "index": likely[i][0], "confidence": shares[i][0]}
        others = {name: values[i] for name, values in columns.items()}
        yield {**first, **others, "top": tuple(classes[:top])}
