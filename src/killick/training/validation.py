"""Accuracy and loss of a model on a set: every image counted once, by however many processes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from killick.core.anchored import evaluating
from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.sample_loader import View
from killick.runtime.devices import precise_device
from killick.runtime.processes import Processes

BATCH = 500  # images of a forward pass


@dataclass(frozen=True)
class ValidationScore:
    """Share of correct predictions, mean cross-entropy, and the number of images."""

    accuracy: float
    loss: float
    count: int


class ValidationSet:
    """A process's part of a set to validate or test on; `resident` ones stay on the device."""

    def __init__(
        self,
        images: ImageSet,
        view: View,
        processes: Processes,
        *,
        resident: bool,
        workers: int = 0,
    ) -> None:
        own = torch.arange(processes.rank, len(images), processes.count)
        self.name, self.count, self.access = images.name, len(images), images.access
        self._images, self._labels = images.part(own), images.labels[own]
        self._view, self._device, self._workers = view, processes.device, workers
        self._kept = [part.to(self._device) for part in self._read()] if resident else None

    def _read(self) -> Iterator[Tensor]:
        return read_all(self._images, self._view, self._workers, BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's images in batches, with their labels, on the device."""
        done = 0
        for part in self._kept or self._read():
            images = part.to(self._device, memory_format=torch.channels_last)
            labels = self._labels[done : done + len(images)].to(self._device)
            done += len(images)
            yield images, labels


def validate(
    model: nn.Module, images: ValidationSet, processes: Processes, *, precision: str = "float32"
) -> ValidationScore:
    """The score of `model`, in eval mode and with its stored references."""
    device = processes.device
    totals = torch.zeros(3, dtype=torch.float64, device=precise_device(device))
    with evaluating(model):
        processes.share_buffers(model)
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
        with torch.no_grad(), autocast:
            for inputs, labels in images:
                logits = model(inputs).float()
                totals[0] += (logits.argmax(1) == labels).sum()
                totals[1] += cross_entropy(logits, labels, reduction="sum")
                totals[2] += len(labels)
    correct, loss, count = processes.total(totals).tolist()
    return ValidationScore(correct / count, loss / count, int(count))
