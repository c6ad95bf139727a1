"""Runs a classifier over test sets: images are transformed in blocks, and classified in batches."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from killick.core.anchored import evaluating
from killick.errors import OutputError
from killick.evaluation.attacks import attacked_logits
from killick.evaluation.classifier import Classifier
from killick.evaluation.evaluation_settings import EvaluationSettings
from killick.evaluation.image_blocks import BLOCK, Block, ImageBlocks, block_generator
from killick.evaluation.mc_dropout import mean_logits
from killick.evaluation.metric_values import RESIDUAL
from killick.evaluation.outputs import Outputs, Part, collect_outputs, summarize_logits
from killick.evaluation.test_sets import TestSet
from killick.metrics import fit_temperature
from killick.metrics.conformal import conformal_values, fit_conformal
from killick.runtime.devices import precise_device
from killick.runtime.processes import Processes
from killick.runtime.stopwatch import Stopwatch


class ModelRunner:
    """A classifier, ready to be run on test sets."""

    def __init__(
        self, classifier: Classifier, processes: Processes, settings: EvaluationSettings
    ) -> None:
        self.classifier, self.processes = classifier, processes
        self.temperatures: dict[str, float] = {}  # set by `fit`, for each inference
        # Likewise, by method: the highest score in a conformal set.
        self.quantiles: dict[str, dict[str, float]] = {}
        self.done = 0  # images that this process has classified so far
        self.tick: Callable[[int], None] = lambda done: None  # called after every batch
        self._seed, self._batch = settings.seed, settings.batch or classifier.usual_batch
        self._half = settings.precision == "bfloat16"
        self._conformal = "conformal" in settings.suites
        self._multiplicity = "multiplicity" in settings.suites
        self.watch = Stopwatch(processes.device)

    def run(self, test: TestSet) -> Outputs:
        """The outputs for a test set, the same in every process."""
        blocks = test.open()
        uniform = self._uniform(test, blocks)
        parts: list[Part] = []
        wanted, kept, begin = set(test.samples), dict[int, Tensor](), 0
        for images, labels, logits, members in self._batches(blocks, test):
            numbers = blocks.numbers[begin : begin + len(images)].tolist()
            kept |= {n: images[i].cpu() for i, n in enumerate(numbers) if n in wanted}
            drawn = uniform[begin : begin + len(images)].to(logits.device)
            begin += len(images)
            if test.alignment is None:
                part = summarize_logits(logits)
            else:
                aligned = test.alignment.apply(logits)
                part = summarize_logits(logits, labels, self.temperatures, aligned)
                for inference, quantiles in self.quantiles.items():
                    if inference in part:
                        own = aligned if inference == "single" else aligned.mean(0, keepdim=True)
                        part[inference] |= conformal_values(own, labels, quantiles, drawn)
            if members is not None and test.alignment is not None:
                part["members"] = {"prediction": test.alignment.apply(members).argmax(-1)}
            if test.suite in ("clean", "ood"):
                distance = self.classifier.residual_distances(images)
                part["single"] |= {} if distance is None else {RESIDUAL: distance}
            parts.append(part)
        outputs = collect_outputs(parts, blocks.numbers, self.processes, kept)
        single = outputs.values["single"]
        for values in (single["energy"], single.get("nll", single["energy"])):
            _check_finite(values, test)
        return outputs

    def fit(self, test: TestSet) -> Tensor:
        """Fit the temperatures to a validation set; the energies of its first reference."""
        assert test.alignment is not None
        blocks = test.open()
        parts = [
            {"single": {"logits": logits, "labels": labels[None]}}
            for _, labels, logits, _ in self._batches(blocks, test)
        ]
        found = collect_outputs(parts, blocks.numbers, self.processes).values["single"]
        members, labels = test.alignment.apply(found["logits"]), found["labels"][0]
        _check_finite(members, test)
        for inference, logits in (("single", members[0]), ("marginal", members.mean(0))):
            self.temperatures[inference] = fit_temperature(logits, labels)
            if self._conformal:
                uniform = self._uniform(test, blocks, whole=True)
                self.quantiles[inference] = fit_conformal(logits, labels, uniform)
        return -found["logits"][0].logsumexp(-1)

    def _uniform(self, test: TestSet, blocks: ImageBlocks, *, whole: bool = False) -> Tensor:
        """A random number for each image of this process, or of the whole set."""
        what = f"conformal {test.suite} {test.title}"
        generator = block_generator(self._seed, what, 0, 0, torch.device("cpu"))
        every = torch.rand(blocks.count, dtype=torch.float64, generator=generator)
        return every if whole else every[blocks.numbers]

    def _batches(
        self, blocks: ImageBlocks, test: TestSet
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        """Images, labels and logits of batches; of the clean set also those of members, if wanted."""
        device = self.processes.device
        where = precise_device(device)
        wanted = self._multiplicity and test.suite == "clean"
        with evaluating(self.classifier.model):
            for images, labels in self._images(blocks, test):
                with (
                    torch.no_grad(),
                    torch.autocast(device.type, torch.bfloat16, enabled=self._half),
                    self.watch.device("network"),
                ):
                    members = self.classifier.members(images) if wanted else None
                    if test.attack is not None:
                        logits = attacked_logits(self.classifier, images)[None]
                    elif members is not None:
                        logits = mean_logits(members)
                    else:
                        logits = self.classifier.logits(images)
                members = None if members is None else members.to(where)
                yield images, labels.to(where), logits.to(where), members
                self.done += len(images)
                self.tick(self.done)

    def _images(self, blocks: ImageBlocks, test: TestSet) -> Iterator[tuple[Tensor, Tensor]]:
        """Transformed blocks, joined to batches; with dropout, whose draws are a block's, as they are."""
        waiting: list[tuple[Tensor, Tensor]] = []
        dropout = self.classifier.dropout
        remaining = iter(blocks)
        while True:
            with self.watch.host("reading"):
                block = next(remaining, None)
            if block is None:
                break
            images = block.images
            if dropout is not None:
                dropout.begin(f"{test.suite} {test.title}", block.number)
            if test.transform is not None:
                generator = self._generator(test, block)
                with self.watch.device("corruptions"):
                    images = test.transform(images.to(generator.device), generator=generator)
                images = images.to(self.processes.device)
            elif test.attack is not None:
                with self.watch.device("attacks"):
                    images = self._attack(test, block)
            waiting.append((images, block.labels))
            if dropout is not None or sum(len(images) for images, _ in waiting) >= self._batch:
                yield from _joined(waiting, self._batch if dropout is None else BLOCK)
                waiting = []
        if waiting:
            yield from _joined(waiting, self._batch)

    def _generator(self, test: TestSet, block: Block) -> torch.Generator:
        where = precise_device(self.processes.device)
        which = test.corruption or test.set
        return block_generator(self._seed, which, test.draw, block.number, where)

    def _attack(self, test: TestSet, block: Block) -> Tensor:
        """The attacked images of a block, as floats; in float32 whatever the precision is."""
        attack, alignment, parts = test.attack, test.alignment, []
        assert attack is not None
        assert alignment is not None
        generator = self._generator(test, block)
        # All at once: the numbers must not depend on the batch size.
        uniform = torch.rand(block.images.shape, device=generator.device, generator=generator)
        batch = self._batch if self.classifier.dropout is None else BLOCK
        few = max(1, batch // 4)  # activations are kept for the gradient
        for images, labels, numbers in zip(
            *(each.split(few) for each in (block.images, block.labels, uniform)), strict=True
        ):
            found = attack.perturb(
                lambda x: alignment.apply(attacked_logits(self.classifier, x)),
                images.float(),
                labels,
                float(test.severity),
                numbers.to(images.device),
            )
            parts.append(found)
        return torch.cat(parts)


def _joined(blocks: list[tuple[Tensor, Tensor]], batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The images and labels of some blocks, in parts of at most a batch."""
    images = torch.cat([images for images, _ in blocks]) if len(blocks) > 1 else blocks[0][0]
    labels = torch.cat([labels for _, labels in blocks])
    return zip(images.split(batch), labels.split(batch), strict=True)


def _check_finite(values: Tensor, test: TestSet) -> None:
    """Refuse outputs `(references, n, ...)` of NaN or infinite logits."""
    bad = ~values.isfinite().flatten(2).all(-1) if values.ndim > 2 else ~values.isfinite()
    if bool(bad.any()):
        raise OutputError(
            f"expected finite logits, found NaN or infinity for {int(bad.any(0).sum())} of"
            f" {values.shape[1]} images of {test.title}. Check the weights, and --precision float32."
        )
