"""DisplayFactory pictures to a classifier: blocks are changed, batched, and what is seen is kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from killick import metrics
from killick.core.anchored import evaluating
from killick.errors import OutputError
from killick.evaluation.classifier import Classifier
from killick.evaluation.image_blocks import Block, Pictures
from killick.evaluation.metric_values import RESIDUAL
from killick.evaluation.outputs import Outcomes, Values, collect, observe
from killick.evaluation.plan import Unit
from killick.runtime.processes import Processes


class Asking:
    """A classifier, ready to be shown units.

    Args:
        classifier: Who is asked.
        processes: This one and the others.
        seed: Of what is random about the pictures.
        batch: Images of a forward pass.
        precision: "float32" or "bfloat16".

    Attributes:
        seen: Images that this process has shown so far.
        tick: Called with `seen` after every batch.
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
        self.seen = 0
        self.tick: Callable[[int], None] = _ignore
        self._seed, self._batch = seed, batch
        self._half = precision == "bfloat16"

    def see(self, unit: Unit) -> Outcomes:
        """The outcomes of a unit, the same in every process."""
        pictures = unit.open()
        parts: list[tuple[Values, Values | None]] = []
        wanted, kept, begin = set(unit.samples), dict[int, Tensor](), 0
        with self._ready():
            for images, labels in self._batches(pictures, unit):
                numbers = pictures.numbers[begin : begin + len(images)].tolist()
                kept |= {n: images[i].cpu() for i, n in enumerate(numbers) if n in wanted}
                begin += len(images)
                logits = self._ask(images)
                if unit.alignment is None:
                    part = observe(logits)
                else:
                    aligned = unit.alignment.apply(logits)
                    part = observe(logits, labels, self.temperatures, aligned)
                if unit.suite in ("clean", "ood"):
                    distance = self.classifier.residual_distances(images)
                    part[0].update({} if distance is None else {RESIDUAL: distance})
                parts.append(part)
                self._count(len(images))
        return collect(parts, pictures.numbers, pictures.count, self.processes, unit.title, kept)

    def fit(self, unit: Unit) -> Tensor:
        """Fit the temperatures to a validation set; from then on they are applied too.

        Returns:
            The energies of its images, from the first reference.
        """
        assert unit.alignment is not None
        pictures = unit.open()
        device = self.processes.device
        seen = [torch.zeros(self.classifier.outputs, 0, self.classifier.classes, device=device)]
        with self._ready():
            for images, _ in self._batches(pictures, unit):
                seen.append(self._ask(images))
                self._count(len(images))
        raw = _whole(torch.cat(seen, 1), pictures, self.processes).cpu()
        members = unit.alignment.apply(raw)
        labels = _whole(pictures.labels[None, :, None], pictures, self.processes)[0, :, 0].cpu()
        if not bool(members.isfinite().all()):
            raise OutputError(f"expected finite logits, found NaN or infinity on {unit.title}.")
        fit = metrics.fit_temperature
        self.temperatures = (float(fit(members[0], labels)), float(fit(members.mean(0), labels)))
        return -raw[0].logsumexp(-1)

    def _count(self, images: int) -> None:
        self.seen += images
        self.tick(self.seen)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        with evaluating(self.classifier.model), torch.no_grad():
            yield

    def _ask(self, images: Tensor) -> Tensor:
        kind = self.processes.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self._half):
            return self.classifier.logits(images)

    def _batches(self, pictures: Pictures, unit: Unit) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks, changed as the unit says, put together to batches."""
        waiting: list[tuple[Tensor, Tensor]] = []
        for block in pictures:
            waiting.append((self._changed(block, unit), block.labels))
            if sum(len(images) for images, _ in waiting) >= self._batch:
                yield from _joined(waiting, self._batch)
                waiting = []
        if waiting:
            yield from _joined(waiting, self._batch)

    def _changed(self, block: Block, unit: Unit) -> Tensor:
        if unit.change is None:
            return block.images
        return unit.change(
            block.images, unit.generator(self._seed, block.number, self.processes.device)
        )


def _ignore(seen: int) -> None:
    pass


def _joined(blocks: list[tuple[Tensor, Tensor]], batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The images and labels of some blocks, in parts of at most a batch."""
    images = torch.cat([images for images, _ in blocks]) if len(blocks) > 1 else blocks[0][0]
    labels = torch.cat([labels for _, labels in blocks])
    return zip(images.split(batch), labels.split(batch), strict=True)


def _whole(values: Tensor, pictures: Pictures, processes: Processes) -> Tensor:
    """`values` `(k, n, m)` of this process's pictures to those of all, in their order."""
    if processes.count == 1:
        return values
    whole = torch.zeros(values.shape[0], pictures.count, values.shape[2], dtype=values.dtype)
    whole[:, pictures.numbers] = values.cpu()
    return processes.total(whole.to(processes.device))
