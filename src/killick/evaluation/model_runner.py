"""Runs a classifier over test sets: images are transformed in blocks, and classified in batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from killick.core.anchored import evaluating
from killick.errors import OutputError
from killick.evaluation.classifier import Classifier
from killick.evaluation.image_blocks import ImageBlocks
from killick.evaluation.metric_values import RESIDUAL
from killick.evaluation.outputs import Outputs, Part, collect_outputs, summarize_logits
from killick.evaluation.test_sets import TestSet
from killick.metrics import fit_temperature
from killick.runtime.processes import Processes


class ModelRunner:
    """A classifier, ready to be run on test sets.

    Args:
        classifier: To run.
        processes: This one and the others.
        seed: Of everything random about the images.
        batch: Images of a forward pass.
        precision: "float32" or "bfloat16".

    Attributes:
        done: Images that this process has classified so far.
        tick: Called with `done` after every batch.
        temperatures: Set by `fit`: for single references, and for their mean.
    """

    def __init__(
        self,
        classifier: Classifier,
        processes: Processes,
        *,
        seed: int,
        batch: int,
        precision: str,
    ) -> None:
        self.classifier, self.processes = classifier, processes
        self.temperatures: tuple[float, float] | None = None
        self.done = 0
        self.tick: Callable[[int], None] = lambda done: None
        self._seed, self._batch = seed, batch
        self._half = precision == "bfloat16"

    def run(self, test: TestSet) -> Outputs:
        """The outputs for a test set, the same in every process."""
        blocks = test.open()
        parts: list[Part] = []
        wanted, kept, begin = set(test.samples), dict[int, Tensor](), 0
        for images, labels, logits in self._batches(blocks, test):
            numbers = blocks.numbers[begin : begin + len(images)].tolist()
            kept |= {n: images[i].cpu() for i, n in enumerate(numbers) if n in wanted}
            begin += len(images)
            if test.alignment is None:
                part = summarize_logits(logits)
            else:
                aligned = test.alignment.apply(logits)
                part = summarize_logits(logits, labels, self.temperatures, aligned)
            if test.suite in ("clean", "ood"):
                distance = self.classifier.residual_distances(images)
                part[0].update({} if distance is None else {RESIDUAL: distance})
            parts.append(part)
        return collect_outputs(
            parts, blocks.numbers, blocks.count, self.processes, test.title, kept
        )

    def fit(self, test: TestSet) -> Tensor:
        """Fit the temperatures to a validation set; from then on they are applied too.

        Returns:
            The energies of its images, for the first reference.
        """
        assert test.alignment is not None
        blocks, classifier = test.open(), self.classifier
        shape = (classifier.outputs, 0, classifier.classes)
        found = [torch.zeros(shape, device=self.processes.device)]
        found += [logits for _, _, logits in self._batches(blocks, test)]
        raw = _gathered(torch.cat(found, 1), blocks, self.processes).cpu()
        members = test.alignment.apply(raw)
        labels = _gathered(blocks.labels[None, :, None], blocks, self.processes)[0, :, 0].cpu()
        if not bool(members.isfinite().all()):
            raise OutputError(f"expected finite logits, found NaN or infinity on {test.title}.")
        pairs = ((members[0], labels), (members.mean(0), labels))
        first, second = (float(fit_temperature(*pair)) for pair in pairs)
        self.temperatures = (first, second)
        return -raw[0].logsumexp(-1)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        kind = self.processes.device.type
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=self._half):
            yield

    def _batches(
        self, blocks: ImageBlocks, test: TestSet
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Images, labels and logits of batches."""
        with evaluating(self.classifier.model):
            for images, labels in self._images(blocks, test):
                with self._inference():
                    logits = self.classifier.logits(images)
                yield images, labels, logits
                self.done += len(images)
                self.tick(self.done)

    def _images(self, blocks: ImageBlocks, test: TestSet) -> Iterator[tuple[Tensor, Tensor]]:
        """Transformed blocks, joined to batches."""
        waiting: list[tuple[Tensor, Tensor]] = []
        device = self.processes.device
        for block in blocks:
            images = block.images
            if test.transform is not None:
                generator = test.generator(self._seed, block.number, device)
                images = test.transform(images, generator)
            waiting.append((images, block.labels))
            if sum(len(images) for images, _ in waiting) >= self._batch:
                yield from _joined(waiting, self._batch)
                waiting = []
        if waiting:
            yield from _joined(waiting, self._batch)


def _joined(blocks: list[tuple[Tensor, Tensor]], batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The images and labels of some blocks, in parts of at most a batch."""
    images = torch.cat([images for images, _ in blocks]) if len(blocks) > 1 else blocks[0][0]
    labels = torch.cat([labels for _, labels in blocks])
    return zip(images.split(batch), labels.split(batch), strict=True)


def _gathered(values: Tensor, blocks: ImageBlocks, processes: Processes) -> Tensor:
    """`values` `(k, n, m)` of this process's images to those of all, in their order."""
    if processes.count == 1:
        return values
    whole = torch.zeros(values.shape[0], blocks.count, values.shape[2], dtype=values.dtype)
    whole[:, blocks.numbers] = values.cpu()
    return processes.total(whole.to(processes.device))
