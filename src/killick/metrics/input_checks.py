"""What every metric asks of its input, checked in one place and in about one pass.

Whatever dtype comes in is widened without rounding: sums are taken in float64. A confidence that
was computed in bfloat16 keeps its eight bits, though; widening does not bring back what was lost.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from killick.errors import DataError, DtypeError, OptionError, ShapeError

# Numbers that are widened to float64 at a time, so that logits of 1,000 classes do not double.
_BLOCK = 1 << 20


def check_pairs(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Confidences as they came and correctness as booleans, one of each for every image.

    Args:
        confidence: The probability of the predicted class, `(n,)`, in [0, 1].
        correct: Whether the prediction was right, `(n,)`, booleans or zeros and ones.
    """
    confidence, correct = _check_outcomes(confidence, correct)
    low, high = confidence.aminmax()
    if not (low >= 0 and high <= 1):  # so it is with NaN
        place = int((~((confidence >= 0) & (confidence <= 1))).nonzero()[0])
        raise DataError(
            f"expected confidences from 0 to 1, found {float(confidence[place])} at number {place}."
            " Pass probabilities, such as logits.softmax(1).amax(1)."
        )
    return confidence, correct


def check_ranked(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """The same where only the order of the confidences counts: any numbers but NaN."""
    confidence, correct = _check_outcomes(confidence, correct)
    return check_scores(confidence, "confidence"), correct


def check_scores(scores: Tensor, name: str) -> Tensor:
    """Scores as float32 or float64, unrounded; any numbers but NaN."""
    _check_vector(scores, name)
    scores = scores.detach()
    if not scores.is_floating_point():
        return scores.double()
    if bool(scores.isnan().any()):
        place = int(scores.isnan().nonzero()[0])
        raise DataError(
            f"expected {name} that can be ordered, found NaN at number {place}. Infinite scores are"
            " fine."
        )
    return scores if scores.dtype == torch.float64 else scores.float()


def check_logits(logits: Tensor, labels: Tensor | None = None, what: str = "logits") -> None:
    """Refuse logits that are not `(n, classes)` and finite, and labels that do not fit them."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise DtypeError(f"expected {what} as a tensor of floats, found {_kind(logits)}.")
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ShapeError(f"expected {what} of shape (n, classes), found {tuple(logits.shape)}.")
    if len(logits) == 0:
        raise DataError(f"expected {what} of at least one image, found none.")
    low, high = logits.detach().aminmax()
    if not (math.isfinite(low) and math.isfinite(high)):
        row = int((~logits.isfinite().all(1)).nonzero()[0])
        raise DataError(
            f"expected finite {what}, found NaN or infinity in row {row}. Leave out a class that"
            " cannot occur by indexing."
        )
    if labels is not None:
        _check_labels(labels, logits)


def check_probs(probs: Tensor, labels: Tensor | None = None) -> None:
    """Refuse what is not a distribution over classes for each image, logits above all."""
    check_logits(probs, labels, "probs")
    low, high = probs.detach().aminmax()
    # Rows in bfloat16 miss 1 by some thousandths; logits miss it by far.
    if low < 0 or high > 1.001 or bool(((probs.detach().float().sum(1) - 1).abs() > 0.02).any()):
        sums = probs.detach().float().sum(1)
        row = int(((sums - 1).abs() > 0.02).logical_or((probs < 0).any(1)).nonzero()[0])
        raise DataError(
            "expected probs from 0 to 1 that sum to 1 in each row, found a sum of"
            f" {float(sums[row]):.4g} and a least value of {float(probs[row].min()):.4g} in row"
            f" {row}. Pass logits.softmax(1)."
        )


def check_share(name: str, value: float) -> None:
    """Refuse a share that is not above 0 and at most 1."""
    if not 0 < value <= 1:
        raise OptionError(f"expected {name} above 0 and at most 1, found {value}.")


def blocks(rows: Tensor) -> Iterator[Tensor]:
    """The rows of a matrix in float64, some at a time."""
    for block in rows.detach().split(max(1, _BLOCK // rows.shape[1])):
        yield block.double()


def _check_outcomes(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Two rows of one length, the second of booleans, on one device."""
    _check_vector(confidence, "confidence")
    _check_vector(correct, "correct")
    if len(confidence) != len(correct):
        raise ShapeError(
            f"expected as many confidences as outcomes, found {len(confidence)} and {len(correct)}."
        )
    if not confidence.is_floating_point():
        raise DtypeError(
            f"expected confidence as floats, found {confidence.dtype}. The order of arguments is"
            " (confidence, correct)."
        )
    correct = correct.detach().to(confidence.device)
    if correct.dtype != torch.bool:
        odd = (correct != 0) & (correct != 1)
        if bool(odd.any()):
            place = int(odd.nonzero()[0])
            raise DataError(
                "expected correct as booleans or zeros and ones, found"
                f" {correct[place].item()} at number {place}. Pass predictions == labels."
            )
        correct = correct.bool()
    return confidence.detach(), correct


def _check_vector(values: Tensor, name: str) -> None:
    """Refuse what is not a row of numbers, and an empty one."""
    if not isinstance(values, Tensor):
        raise DtypeError(
            f"expected {name} as a torch.Tensor, found {_kind(values)}. An array becomes one by"
            " torch.from_numpy, a list by torch.tensor."
        )
    if values.ndim != 1:
        raise ShapeError(f"expected {name} of shape (n,), found {tuple(values.shape)}.")
    if len(values) == 0:
        raise DataError(f"expected at least one number in {name}, found none.")


def _check_labels(labels: Tensor, logits: Tensor) -> None:
    """Refuse labels that are not a class index for each row."""
    n, classes = logits.shape
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise DtypeError(f"expected labels as a tensor of class indices, found {_kind(labels)}.")
    if labels.shape != (n,):
        raise ShapeError(
            f"expected labels of shape ({n},), one for each image, found {tuple(labels.shape)}."
        )
    low, high = labels.aminmax()
    if low < 0 or high >= classes:
        odd = int(low if low < 0 else high)
        raise DataError(f"expected labels from 0 to {classes - 1}, found {odd}.")


def _kind(value: object) -> str:
    """What a thing is, for a message."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
