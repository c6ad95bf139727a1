"""One training step: batch, mixing, references, forward, backward, update.

Everything a step needs is on the device: which samples come next, the learning rate, what is drawn.
So on a GPU the whole step is compiled and captured in a CUDA graph once, and replayed from then on:
the host has one call to make for each step, and never waits. What it wants to know (losses, correct
predictions, the first step with a bad loss) is kept on the device until somebody looks.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from killick.core.masking import Draw, ReferenceMasking
from killick.data.batches import Batches
from killick.data.mixing import Mixing
from killick.data.transforms import erase
from killick.training.recipe import Recipe
from killick.training.reference_sampling import Draws

EAGER_STEPS = 3  # before capture: they compile, and allocate what the graph will use
VARIANTS = 64  # of a compiled function that torch keeps in a process


@dataclass
class Seen:
    """What was kept on the device since the last look.

    Attributes:
        losses: One for each step.
        correct: Predictions that agree with the label (the larger one, after mixing).
        bad_step: The first step of the run whose loss was NaN or infinite, or None.
    """

    losses: list[float]
    correct: int
    bad_step: int | None


class Step:
    """The step of a run; call it once for each.

    Args:
        model: What is trained; also inside DDP.
        batches: Where the samples come from.
        draws: References and masks; None for a standard network.
        optimizer: Over the weights of `model`.
        recipe: The rest.
        device: Of all of it.
        classes: Of the labels.
        fill: Colour of what is erased, 0 to 255.
        execution: "eager", "compiled" or "captured".
        precision: "float32" or "bfloat16".
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        draws: Draws | None,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        *,
        device: torch.device,
        classes: int,
        fill: list[float],
        execution: str,
        precision: str,
    ) -> None:
        self._model, self._batches, self._draws = model, batches, draws
        self._optimizer, self._recipe, self._device = optimizer, recipe, device
        self._fill = torch.tensor(fill, device=device)
        augment = recipe.augment
        mixes = augment.mixup > 0 or augment.cutmix > 0
        self._mixing = Mixing(augment.mixup, augment.cutmix, classes, device) if mixes else None
        self._masking = _targets_of(recipe)
        self._autocast = partial(
            torch.autocast, device.type, torch.bfloat16, enabled=precision == "bfloat16"
        )
        self._forward: Any = model
        self._prepare: Any = self._prepare_samples
        self._account: Any = self._keep_account
        if execution != "eager":
            _allow_variants()
            self._forward = torch.compile(model, dynamic=False)
            self._prepare = torch.compile(self._prepare_samples, dynamic=False)
            self._account = torch.compile(self._keep_account, dynamic=False)
        self._captures = execution == "captured"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._run = self._first = 0
        room = min(recipe.log_every, max(1, batches.samples // batches.cut.batch))
        self.number = torch.zeros((), dtype=torch.long, device=device)  # of the next step
        self._losses = torch.zeros(room, device=device)
        self._loss = torch.zeros((), device=device)
        self._correct = torch.zeros((), dtype=torch.long, device=device)
        self._bad = torch.full((), -1, dtype=torch.long, device=device)
        self._looked = 0

    def begin(self, number: int) -> None:
        """Go on from step `number` of the run."""
        self.number.fill_(number)
        self._looked = self._run = number
        self._first = number

    def __call__(self) -> None:
        """Train one step. At most `log_every` of them, or an epoch, between two looks."""
        self._run += 1
        if self._graph is not None:
            self._graph.replay()
        elif not self._captures:
            self._work()
        elif self._run <= self._first + EAGER_STEPS:
            with _aside():
                self._work()
        else:
            self._graph = self._capture()
            self._graph.replay()

    def look(self) -> Seen:
        """What happened since the last look (waits for the device)."""
        steps = range(self._looked, self._run)
        losses = self._losses.tolist()
        seen = Seen(
            [losses[step % len(losses)] for step in steps], int(self._correct), self.bad_step()
        )
        self._looked = self._run
        self._correct.zero_()
        return seen

    def bad_step(self) -> int | None:
        """The first step of the run whose loss was NaN or infinite (waits for the device)."""
        bad = int(self._bad)
        return None if bad < 0 else bad

    def _work(self) -> None:
        passes = self._batches.cut.passes
        self._optimizer.zero_grad(set_to_none=True)
        for number in range(passes):
            images, labels, draw = self._prepare(number, self.number)
            last = number == passes - 1
            with _gradients_of(self._model, together=last):
                with self._autocast():
                    logits, targets = self._predict(images, labels, draw)
                    smoothing = self._recipe.augment.smoothing
                    loss = cross_entropy(logits.float(), targets, label_smoothing=smoothing)
                (loss / passes).backward()
            self._account(loss.detach(), logits.detach(), labels, number == 0, last, passes)
        if self._recipe.optimizer.clip is not None:
            clip_grad_norm_(self._model.parameters(), self._recipe.optimizer.clip)
        self._optimizer.step()
        self._batches.advance()
        self.number.add_(1)

    def _prepare_samples(self, pass_: int, step: Tensor) -> tuple[Tensor, Tensor, Draw | None]:
        """Samples as the network sees them, their labels, and what is drawn for them."""
        batch = self._batches.batch(pass_)
        images, labels = batch.images, batch.labels
        if self._recipe.augment.erase:
            images = erase(images, batch.keys, self._recipe.augment.erase, self._fill)
        if self._mixing is not None:
            images, labels = self._mixing(images, labels, batch.keys)
        draw = None if self._draws is None else self._draws.draw(batch, step)
        return images, labels, draw

    def _predict(self, images: Tensor, labels: Tensor, draw: Draw | None) -> tuple[Tensor, Tensor]:
        if draw is None or self._masking is None:
            return self._forward(images), labels
        return self._masking.forward(self._forward, images, labels, draw)

    def _keep_account(
        self, loss: Tensor, logits: Tensor, labels: Tensor, first: bool, last: bool, passes: int
    ) -> None:
        """Add up the passes of a step; at the last, note its loss."""
        self._loss.copy_(loss / passes if first else self._loss + loss / passes)
        true = labels.argmax(1) if labels.ndim == 2 else labels
        self._correct.add_((logits.argmax(1) == true).sum())
        if last:
            place = (self.number % len(self._losses)).view(1)
            self._losses.index_copy_(0, place, self._loss.view(1))
            bad = (self._bad < 0) & ~self._loss.isfinite()
            self._bad.copy_(torch.where(bad, self.number, self._bad))

    def _capture(self) -> torch.cuda.CUDAGraph:
        """The step, recorded; nothing is run meanwhile."""
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._work()
        return graph


def _allow_variants() -> None:
    """Have torch compile for as many settings as a process meets.

    A process that runs one arm after another needs a variant for each. At its own limit, eight,
    torch goes on uncompiled, with nothing but a warning.
    """
    from torch._dynamo import config  # loading it takes seconds, which eager runs do not need

    config.recompile_limit = max(config.recompile_limit, VARIANTS)


def _targets_of(recipe: Recipe) -> ReferenceMasking | None:
    """Pairs, masks and targets; its own draws are not used."""
    protocol = recipe.protocol
    if not protocol.anchored:
        return None
    return ReferenceMasking(
        alpha=protocol.alpha, target=protocol.target or "label", scope=protocol.scope
    )


def _gradients_of(model: nn.Module, together: bool) -> AbstractContextManager[None]:
    """Under DDP, gradients are exchanged in the last pass alone."""
    if isinstance(model, DistributedDataParallel) and not together:
        return model.no_sync()
    return nullcontext()


@contextmanager
def _aside() -> Iterator[None]:
    """A stream of its own, as work before a capture needs it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
