"""Checks of the inputs of metrics, in about one pass over the data.

Whatever dtype comes in is widened without rounding: sums are taken in float64.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from killick.errors import DataError, DtypeError, ShapeError
from killick.runtime.devices import precise_device

# Numbers that are widened to float64 at a time, so that logits of 1,000 classes do not double.
_BLOCK = 1 << 20


def check_pairs(
    confidence: Tensor, correct: Tensor, *, ranked: bool = False
) -> tuple[Tensor, Tensor]:
    """Confidences and correctness, booleans or zeros and ones, one of each for every image.

    Confidences are probabilities; with `ranked` any numbers but NaN, as only their order counts. In
    their place, probabilities of all classes `(n, classes)` and labels `(n,)` may be given.
    """
    if isinstance(confidence, Tensor) and confidence.ndim == 2:
        check_probs(confidence, correct)
        confidence = confidence.detach().to(precise_device(confidence.device))
        highest, predicted = confidence.max(1)
        return highest.clamp_max(1), predicted == correct.to(confidence.device)
    _check_vector(confidence, "confidence")
    _check_vector(correct, "correct")
    if len(confidence) != len(correct):
        raise ShapeError(
            f"expected as many confidences as outcomes, found {len(confidence)} and {len(correct)}."
        )
    if not confidence.is_floating_point():
        raise DtypeError(
            f"expected confidence as floats, found {confidence.dtype}. The order of arguments is"
            " (confidence, correct), or (probs, labels)."
        )
    confidence = confidence.detach().to(precise_device(confidence.device))
    correct = correct.detach().to(confidence.device)
    if bool(((correct != 0) & (correct != 1)).any()):
        raise DataError(
            "expected correct as zeros and ones. Pass predictions == labels, or (probs, labels)."
        )
    if ranked:
        return check_scores(confidence, "confidence"), correct.bool()
    low, high = confidence.aminmax()
    if not (low >= 0 and high <= 1):  # so it is with NaN
        raise DataError(
            f"expected confidences from 0 to 1, found {float(low)} to {float(high)}. Pass"
            " probabilities, such as logits.softmax(1).amax(1)."
        )
    return confidence, correct.bool()


def check_scores(scores: Tensor, name: str) -> Tensor:
    """Scores as float32 or float64, unrounded; any numbers but NaN."""
    _check_vector(scores, name)
    scores = scores.detach().to(precise_device(scores.device))
    if bool(scores.isnan().any()):
        raise DataError(f"expected {name} that can be ordered, found NaN.")
    widened = scores.dtype == torch.float64 or not scores.is_floating_point()
    return scores.double() if widened else scores.float()


def check_logits(logits: Tensor, labels: Tensor | None = None, what: str = "logits") -> None:
    """Refuse logits that are not `(n, classes)` and finite, and labels that do not fit them."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise DtypeError(f"expected {what} as a tensor of floats, found {_kind(logits)}.")
    if logits.ndim != 2 or not logits.numel():
        raise ShapeError(f"expected {what} of shape (n, classes), found {tuple(logits.shape)}.")
    if not bool(torch.stack(logits.detach().aminmax()).isfinite().all()):
        raise DataError(f"expected finite {what}, found NaN or infinity.")
    if labels is None:
        return
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise DtypeError(f"expected labels as a tensor of class indices, found {_kind(labels)}.")
    if labels.shape != logits.shape[:1]:
        raise ShapeError(f"expected labels of shape ({len(logits)},), found {tuple(labels.shape)}.")
    low, high = labels.aminmax()
    if low < 0 or high >= logits.shape[1]:
        odd = int(low if low < 0 else high)
        raise DataError(f"expected labels from 0 to {logits.shape[1] - 1}, found {odd}.")


def check_probs(probs: Tensor, labels: Tensor | None = None) -> None:
    """Refuse what is not a distribution over classes for each image, logits above all."""
    check_logits(probs, labels, "probs")
    off = (probs.detach().float().sum(1) - 1).abs().max()
    # Rows in bfloat16 miss 1 by some thousandths; logits miss it by far.
    if probs.min() < 0 or off > 0.02:
        raise DataError("expected probs that sum to 1 in each row. Pass logits.softmax(1).")


def blocks(rows: Tensor, *labels: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of a matrix in float64, some at a time, with their labels if these are given."""
    size = max(1, _BLOCK // rows.shape[1])
    rows = rows.detach().to(precise_device(rows.device))
    parts = [rows.split(size), *(own.to(rows.device).long().split(size) for own in labels)]
    for block, *own in zip(*parts, strict=True):
        yield block.double(), *own


def _check_vector(values: Tensor, name: str) -> None:
    """Refuse what is not a row of numbers, and an empty one."""
    if not isinstance(values, Tensor):
        raise DtypeError(f"expected {name} as a torch.Tensor, found {_kind(values)}.")
    if values.ndim != 1:
        raise ShapeError(f"expected {name} of shape (n,), found {tuple(values.shape)}.")
    if len(values) == 0:
        raise DataError(f"expected at least one number in {name}, found none.")


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
