"""Accuracy and loss of a model on a set: every image counted once, by however many processes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from killick.core.anchored import evaluating
from killick.data.batches import View, read_all
from killick.data.image_set import ImageSet
from killick.runtime.processes import Processes


@dataclass(frozen=True)
class ValidationScore:
    """How a model does on a set.

    Attributes:
        accuracy: Share of correct predictions.
        loss: Mean cross-entropy.
        count: Images.
    """

    accuracy: float
    loss: float
    count: int


class ValidationSet:
    """A set to validate or test on: kept on the device if it is small, else read each time.

    Each process has its part of it.

    Args:
        images: The set.
        view: Preprocessing of an image.
        processes: This one and the others.
        resident: Whether it is kept on the device.
        workers: Processes that read it.
        batch: Images of a forward pass.
    """

    def __init__(
        self,
        images: ImageSet,
        view: View,
        processes: Processes,
        *,
        resident: bool,
        workers: int = 0,
        batch: int = 500,
    ) -> None:
        own = torch.arange(processes.rank, len(images), processes.count)
        self.name, self.count = images.name, len(images)
        self._images, self._labels = images.part(own), images.labels[own]
        self._view, self._device = view, processes.device
        self._workers, self._batch = workers, batch
        self._kept: list[Tensor] | None = None
        if resident:
            self._kept = [part.to(self._device) for part in self._read()]

    def _read(self) -> Iterator[Tensor]:
        return read_all(self._images, self._view, self._workers, self._batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's images in batches, with their labels, on the device."""
        done = 0
        if len(self._images) == 0:
            return
        for part in self._kept if self._kept is not None else self._read():
            images = part.to(self._device, memory_format=torch.channels_last)
            labels = self._labels[done : done + len(images)].to(self._device)
            done += len(images)
            yield images, labels


def validate(
    model: nn.Module, images: ValidationSet, processes: Processes, *, precision: str = "float32"
) -> ValidationScore:
    """The score of `model`, in eval mode and with its stored references."""
    device = processes.device
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    with evaluating(model):
        processes.share_buffers(model)
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
        with torch.no_grad(), autocast:
            for inputs, labels in images:
                logits = model(inputs).float()
                totals[0] += (logits.argmax(1) == labels).sum()
                totals[1] += cross_entropy(logits, labels, reduction="sum").double()
                totals[2] += len(labels)
    correct, loss, count = processes.total(totals).tolist()
    return ValidationScore(correct / count, loss / count, int(count))
