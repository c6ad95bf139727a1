"""One record for each picture: what is said of it, by the same names in every format."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from killick.deploy.image_classifier import Answered
from killick.deploy.image_paths import show_path
from killick.deploy.image_reading import Seen


@dataclass(frozen=True, slots=True)
class Likely:
    """A class, and how likely it is.

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
    """What is said of one picture.

    Attributes:
        image: Its path, as it was given or found.
        label: The likeliest class: its name, or its number where classes have no names.
        index: The number of that class.
        confidence: Its probability.
        uncertainty: The entropy of all probabilities, as a part of the largest possible one, that
            of a guess: 0 is certain, 1 knows nothing.
        energy: Higher is more out-of-distribution.
        std: The standard deviation of the label's probability over references, where there are
            several.
        in_distribution: Whether the energy is at most the threshold that is stored with the model;
            None without one.
        top: The likeliest classes, if asked for.
        probabilities: Of all classes, in their order, if asked for.
        error: Why there is no answer; then there is nothing else.
    """

    image: str
    label: str | None = None
    index: int | None = None
    confidence: float | None = None
    uncertainty: float | None = None
    energy: float | None = None
    std: float | None = None
    in_distribution: bool | None = None
    top: tuple[Likely, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON: what was not asked for, or cannot be, is left out."""
        if self.error is not None:
            return {"image": self.image, "error": self.error}
        fields: dict[str, Any] = {
            "image": self.image,
            "label": self.label,
            "index": self.index,
            "confidence": self.confidence,
            "uncertainty": self.uncertainty,
            "energy": self.energy,
        }
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
    seen: Sequence[Seen],
    answered: Answered | None,
    class_names: tuple[str, ...] | None,
    *,
    top: int = 0,
    probabilities: bool = False,
) -> list[Record]:
    """The records of pictures, in order.

    Args:
        seen: The pictures, broken ones among them.
        answered: What is said of those that are not broken; None if all are.
        class_names: In the order of the probabilities, if known.
        top: How many of the likeliest classes to name.
        probabilities: Whether to tell those of all classes.
    """
    said = iter(()) if answered is None else _rows(answered, top, probabilities)
    return [
        Record(each.path, error=each.problem)
        if each.image is None
        else _record(each.path, next(said), class_names)
        for each in seen
    ]


def measure_uncertainty(probs: Tensor) -> Tensor:
    """The entropy of each row of `(n, classes)`, divided by that of equal probabilities.

    Example:
        >>> measure_uncertainty(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist()
        [0.0, 1.0]
    """
    probs = probs.double()
    entropy: Tensor = -torch.special.xlogy(probs, probs).sum(1)
    share = (entropy / math.log(probs.shape[1])).clamp(0, 1)
    return share.abs()  # of one that is certain it would be -0


class _Said(NamedTuple):
    """What is said of one picture, as plain numbers."""

    finite: bool
    best: int
    confidence: float
    uncertainty: float
    energy: float
    std: float | None
    in_distribution: bool | None
    top: list[tuple[int, float]]
    probabilities: list[float]


def _rows(answered: Answered, top: int, probabilities: bool) -> Iterator[_Said]:
    """Whole batches to numbers at once; one by one they would take longer than a small network."""
    probs, energy = answered.probs, answered.energy
    n, index = len(probs), probs.argmax(1)
    own = index[:, None]
    finite = probs.isfinite().all(1) & energy.isfinite()
    std = None if answered.std is None else answered.std.gather(1, own)[:, 0].tolist()
    inside = None if answered.in_distribution is None else answered.in_distribution.tolist()
    likeliest: list[list[tuple[int, float]]] = [[]] * n
    if top:
        # Stable, so that the first of equals is the label here too.
        order = probs.sort(stable=True, dim=1, descending=True)
        pairs = zip(order.indices[:, :top].tolist(), order.values[:, :top].tolist(), strict=True)
        likeliest = [list(zip(*pair, strict=True)) for pair in pairs]
    return map(
        _Said,
        finite.tolist(),
        index.tolist(),
        probs.gather(1, own)[:, 0].tolist(),
        measure_uncertainty(probs).tolist(),
        energy.tolist(),
        std or [None] * n,
        inside or [None] * n,
        likeliest,
        probs.tolist() if probabilities else [[]] * n,
    )


def _record(path: str, said: _Said, names: tuple[str, ...] | None) -> Record:
    if not said.finite:
        told = f"cannot label {show_path(path)}: expected finite numbers from the model, found NaN"
        return Record(path, error=f"{told} or infinity. Check how it was trained or exported.")

    def name(index: int) -> str:
        return str(index) if names is None else names[index]

    return Record(
        path,
        name(said.best),
        said.best,
        said.confidence,
        said.uncertainty,
        said.energy,
        said.std,
        said.in_distribution,
        tuple(Likely(name(index), index, probability) for index, probability in said.top),
        tuple(said.probabilities),
    )
