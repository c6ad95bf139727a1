"""Metrics for torchmetrics (extra `torchmetrics`): smooth ECE, and OOD detection by energy.

Both take logits `(n, classes)` and labels `(n,)`, so they fit into one `MetricCollection`. A label
below 0 marks an OOD image. The value is that of all batches of all processes, not a mean over them:

    metrics = MetricCollection([SmoothCalibrationError(), EnergyAUROC()])
    metrics.update(logits, labels)
    metrics.compute()
"""

import math
from typing import Any

import torch
from torch import Tensor

from killick.errors import DtypeError, ShapeError, import_library
from killick.metrics import auroc, energy, smooth_ece
from killick.metrics.input_checks import check_logits

import_library("torchmetrics", "torchmetrics", "killick.integrations.torchmetrics")
from torchmetrics import Metric  # noqa: E402
from torchmetrics.utilities import dim_zero_cat  # noqa: E402


class SmoothCalibrationError(Metric):
    """The smooth calibration error, as `killick.metrics.smooth_ece`; OOD images do not count.

    NaN without any image that counts.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    confidence: list[Tensor]
    correct: list[Tensor]

    def __init__(self, bandwidth: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.bandwidth = bandwidth
        # Floats both: what a process without any images sends is an empty tensor of floats.
        self.add_state("confidence", default=[], dist_reduce_fx="cat")
        self.add_state("correct", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: logits and labels."""
        known = _find_known(preds, target)
        if bool(known.any()):
            check_logits(preds[known], target[known])
            confidence, label = preds[known].detach().float().softmax(1).max(1)
            self.confidence.append(confidence)
            self.correct.append((label == target[known]).float())

    def compute(self) -> Tensor:
        """The error over all batches."""
        confidence, correct = _join(self.confidence), _join(self.correct)
        if not len(confidence):
            return torch.tensor(math.nan, device=self.device)
        # A softmax can round to just above 1.
        found = smooth_ece(confidence.clamp(0, 1), correct, self.bandwidth)
        return torch.tensor(found, device=self.device)


class EnergyAUROC(Metric):
    """How well energies tell OOD images from others, as `killick.metrics.auroc` of `energy`.

    NaN unless there are images of both kinds.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    inside: list[Tensor]
    outside: list[Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("inside", default=[], dist_reduce_fx="cat")
        self.add_state("outside", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: logits, and labels that are below 0 for OOD images."""
        known = _find_known(preds, target)
        for place, chosen in ((self.inside, known), (self.outside, ~known)):
            if bool(chosen.any()):
                place.append(energy(preds[chosen].detach()).float())

    def compute(self) -> Tensor:
        """The AUROC over all batches."""
        inside, outside = _join(self.inside), _join(self.outside)
        found = auroc(inside, outside) if len(inside) and len(outside) else math.nan
        return torch.tensor(found, device=self.device)


def _find_known(preds: Tensor, target: Tensor) -> Tensor:
    """Which images have a class of the model."""
    if len(preds):  # a process may have an empty batch
        check_logits(preds)
    if target.shape != preds.shape[:1]:
        raise ShapeError(f"expected labels of shape ({len(preds)},), found {tuple(target.shape)}.")
    if target.is_floating_point() or target.dtype == torch.bool:
        raise DtypeError(f"expected labels as class indices, found {target.dtype}.")
    return target >= 0


def _join(state: list[Tensor] | Tensor) -> Tensor:
    """One tensor of a state: a list, or after an exchange between processes a tensor."""
    return dim_zero_cat(state) if len(state) else torch.empty(0)
