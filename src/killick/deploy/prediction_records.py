"""One record for each image, with the same fields in every format."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from killick.core.inference import Prediction
from killick.deploy.image_paths import show_path
from killick.deploy.image_reading import LoadedImage


@dataclass(frozen=True, slots=True)
class ClassProbability:
    """A class and its probability.

    Attributes:
        label: Its name, or its number where classes have no names.
        index: Its number.
        probability: From 0 to 1.
    """

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
    top: tuple[ClassProbability, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON, without fields that were not requested or do not exist."""
        if self.error is not None:
            return {"image": self.image, "error": self.error}
        names = ("image", "label", "index", "confidence", "uncertainty", "energy")
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.std is not None:
            fields["std"] = self.std
        fields["in_distribution"] = self.in_distribution
        if self.top:
            fields["top"] = [
                {"label": each.label, "index": each.index, "probability": each.probability}
                for each in self.top
            ]
        if self.probabilities:
            fields["probabilities"] = list(self.probabilities)
        return fields


def make_records(
    loaded: Sequence[LoadedImage],
    prediction: Prediction | None,
    class_names: tuple[str, ...] | None,
    *,
    top: int = 0,
    probabilities: bool = False,
) -> list[Record]:
    """The records of images, in order.

    Args:
        loaded: The images, unreadable ones among them.
        prediction: For those that are readable; None if there are none.
        class_names: In the order of the probabilities, if known.
        top: How many of the most likely classes to include.
        probabilities: Whether to include those of all classes.
    """
    readable = [each.path for each in loaded if each.image is not None]
    made = iter(
        _records(readable, prediction, class_names, top, probabilities) if prediction else ()
    )
    return [
        Record(each.path, error=each.problem) if each.image is None else next(made)
        for each in loaded
    ]


def normalized_entropy(probs: Tensor) -> Tensor:
    """The entropy of each row of `(n, classes)`, divided by that of equal probabilities.

    Example:
        >>> normalized_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist()
        [0.0, 1.0]
    """
    entropy: Tensor = torch.special.entr(probs.double()).sum(1)
    return (entropy / math.log(probs.shape[1])).clamp(0, 1)


def _records(
    paths: Sequence[str],
    found: Prediction,
    names: tuple[str, ...] | None,
    top: int,
    probabilities: bool,
) -> list[Record]:
    """Whole batches to numbers at once; one by one takes longer than a small network."""
    assert found.probs is not None
    assert found.energy is not None
    probs, energy, n = found.probs.cpu(), found.energy.cpu(), len(paths)
    index = probs.argmax(1)
    own = index[:, None]
    finite = (probs.isfinite().all(1) & energy.isfinite()).tolist()
    confidence, entropy = probs.gather(1, own)[:, 0].tolist(), normalized_entropy(probs).tolist()
    std = [None] * n if found.std is None else found.std.cpu().gather(1, own)[:, 0].tolist()
    inside = [None] * n if found.in_distribution is None else found.in_distribution.tolist()
    # Stable, so that the first of equals is the label here too.
    order = probs.sort(stable=True, dim=1, descending=True) if top else None
    likely = [[]] * n if order is None else order.indices[:, :top].tolist()
    shares = [[]] * n if order is None else order.values[:, :top].tolist()
    every = probs.tolist() if probabilities else [[]] * n
    energies = energy.tolist()

    def name(index: int) -> str:
        return str(index) if names is None else names[index]

    records = []
    for i, (path, best) in enumerate(zip(paths, index.tolist(), strict=True)):
        if not finite[i]:
            reason = "the model returns NaN or infinity. Check how it was trained or exported."
            records.append(Record(path, error=f"cannot label {show_path(path)}: {reason}"))
            continue
        pairs = zip(likely[i], shares[i], strict=True)
        records.append(
            Record(
                path,
                name(best),
                best,
                confidence[i],
                entropy[i],
                energies[i],
                std[i],
                inside[i],
                tuple(ClassProbability(name(k), k, share) for k, share in pairs),
                tuple(every[i]),
            )
        )
    return records
