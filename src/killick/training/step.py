"""One training step: batch, references, forward, loss, backward, update.

Everything a step needs is on the device: which samples come next, the learning rate, what is drawn.
So on a GPU the whole step is captured in a CUDA graph once, and replayed from then on: the host makes
one call for each step, and never waits. Compiling makes the graph faster and takes a minute, so by
default it is done only where the rest of the run repays it. What it wants to know (losses, correct
predictions, the first step with a bad loss) stays on the device until `read`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from killick.core.anchored import Anchored
from killick.core.batchnorm import tracked_norms
from killick.core.image_model import image_model_in
from killick.core.masking import Draw
from killick.data.batches import Batch, Batches
from killick.data.transforms import erase
from killick.protocols.base import Component, ForwardPass, TrainingProtocol, uses
from killick.protocols.sample_table import either
from killick.training.recipe import Recipe

EAGER_STEPS = 3  # before capture: they compile, and allocate what the graph will use
VARIANTS = 64  # of a compiled function that torch keeps in a process


class TrainingStep:
    """The step of a run; call it once for each.

    `model` may be inside DDP; protocol and components are after their `setup`. `fill` is the color
    of what is erased, 0 to 255; `execution` is "eager", "compiled", "captured" (and compiled), or
    "auto": captured at once, and compiled when `compile` is called; or "uncaptured": eager until
    then. `loss` takes the place of cross-entropy.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        protocol: TrainingProtocol,
        components: Sequence[Component],
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        *,
        device: torch.device,
        fill: Sequence[float],
        execution: str,
        precision: str,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self._model, self._batches, self._protocol = model, batches, protocol
        self._optimizer, self._recipe = optimizer, recipe
        self._fill = torch.tensor(fill, device=device)
        hooks = (
            *("batch", "more_logits", "targets", "criterion", "loss"),
            *("observe", "weights", "gradient"),
        )
        self._hooks = {hook: [c for c in components if uses(c, hook)] for hook in hooks}
        usual = loss or cross_entropy
        self._criterion = next((c.criterion for c in self._hooks["criterion"]), usual)
        self._extra = [
            weight for c in components if c.module is not None for weight in c.module.parameters()
        ]
        self._autocast = partial(
            torch.autocast, device.type, torch.bfloat16, enabled=precision == "bfloat16"
        )
        self._forward: Any = model
        self._prepare: Any = self._prepare_samples
        self._account: Any = self._keep_account
        if execution in ("compiled", "captured"):
            self._compile()
        self._captures = execution in ("captured", "auto") and device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._run = self._first = 0
        room = min(recipe.log_every, max(1, batches.samples // batches.cut.batch))
        self.number = torch.zeros((), dtype=torch.long, device=device)  # of the next step
        self._losses = torch.zeros(room, device=device)
        self._loss = torch.zeros((), device=device)
        self._correct = torch.zeros((), dtype=torch.long, device=device)
        self._bad = torch.full((), -1, dtype=torch.long, device=device)
        self._read = 0

    def compile(self) -> None:
        """Compile from the next step on; random numbers stay those of the steps before."""
        self._compile()
        self._graph, self._first = None, self._run  # captured anew, after steps that compile

    def _compile(self) -> None:
        from torch._dynamo import config
        from torch._inductor import config as inductor  # takes seconds to import

        inductor.fallback_random = True  # compiled steps draw what others do
        # One variant for each arm that a process runs: at its limit torch goes on uncompiled.
        config.recompile_limit = max(config.recompile_limit, VARIANTS)
        config.skip_nnmodule_hook_guards = False  # hooks of components make another network
        compiled = partial(torch.compile, dynamic=False)
        self._forward, self._prepare = compiled(self._model), compiled(self._prepare_samples)
        self._account = compiled(self._keep_account)

    def close(self) -> None:
        """Let go of the graph and of what refers to this step: its memory is free at once."""
        self._forward = self._prepare = self._account = self._graph = None

    def begin(self, number: int, losses: Sequence[float] = (), correct: int = 0) -> None:
        """Go on from step `number` of the run, with what was not yet read of the steps before."""
        self.number.fill_(number)
        self._run = self._first = number
        self._read = number - len(losses)
        for step, loss in enumerate(losses, self._read):
            self._losses[step % len(self._losses)] = loss
        self._correct.fill_(correct)

    def __call__(self) -> None:
        """Train one step. At most `log_every` of them, or an epoch, between two readings."""
        self._run += 1
        if self._graph is not None:
            self._graph.replay()
        elif not self._captures:
            self._work()
        elif self._run <= self._first + EAGER_STEPS:
            with _side_stream():
                self._work()
        else:
            self._optimizer.zero_grad(set_to_none=True)
            self._graph = torch.cuda.CUDAGraph()
            # Recorded: nothing is run meanwhile, but other threads may go on decoding images.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._work()
            self._graph.replay()

    def read(self) -> tuple[list[float], int]:
        """Losses and correct predictions since the last reading (waits for the device).

        After mixing, a prediction is correct if it is the label with the larger share.
        """
        recent = self.unread()
        self._read = self._run
        self._correct.zero_()
        return recent

    def unread(self) -> tuple[list[float], int]:
        """What `read` would return; nothing changes."""
        losses = self._losses.tolist()
        recent = [losses[step % len(losses)] for step in range(self._read, self._run)]
        return recent, int(self._correct)

    def bad_step(self) -> int:
        """The first step of the run with a NaN or infinite loss; -1 if none (waits for the device)."""
        return int(self._bad)

    def _work(self) -> None:
        weights = [weight for weight in self._model.parameters() if weight.requires_grad]
        with torch.no_grad():
            for component in self._hooks["weights"]:
                component.weights(weights)
        seen = self._compute_gradients()
        with torch.no_grad():
            for component in self._hooks["gradient"]:
                component.gradient(weights, self._compute_gradients_again)
            for component in self._hooks["observe"]:
                for batch, logits, masked in seen:
                    component.observe(batch, logits, masked)
        if self._extra:
            _average_gradients(self._extra)
        if self._recipe.optimizer.clip is not None:
            clip_grad_norm_([*self._model.parameters(), *self._extra], self._recipe.optimizer.clip)
        self._optimizer.step()
        self._batches.advance()
        self.number.add_(1)

    def _compute_gradients(
        self, *, again: bool = False
    ) -> list[tuple[Batch, Tensor, Tensor | None]]:
        """Forward and backward; samples, logits and masks of each pass."""
        seen = []
        passes = self._batches.cut.passes
        self._optimizer.zero_grad(set_to_none=True)
        for number in range(passes):
            batch, draw = self._prepare(number, self.number)
            last = number == passes - 1
            with _gradients_of(self._model, together=last):
                with self._autocast():
                    logits, loss = self._compute_loss(batch, draw)
                (loss / passes).backward()
            if again:
                continue
            batch, logits, masked = self._once(batch, logits.detach(), draw)
            if self._hooks["observe"]:
                seen.append((batch, logits, masked))
            self._account(loss.detach(), logits, batch.labels, number == 0, last, passes)
        return seen

    def _once(
        self, batch: Batch, logits: Tensor, draw: Draw | None
    ) -> tuple[Batch, Tensor, Tensor | None]:
        """What was computed of each sample, if a component has repeated the batch: the first time."""
        masked = None if draw is None else draw.masked
        size = self._batches.cut.size
        if len(logits) == size:
            return batch, logits, masked
        first = None if masked is None else masked[:size] if masked.ndim else masked
        return batch.first(size), logits[:size], first

    def _compute_gradients_again(self) -> None:
        """For other weights: what the network remembers of the samples stays as it is."""
        inner = image_model_in(self._model)
        kept = [
            (buffer, buffer.clone())
            for norm in tracked_norms(self._model)
            for buffer in norm.buffers()
        ]
        recent = inner.recent if isinstance(inner, Anchored) else None
        try:
            if isinstance(inner, Anchored):
                inner.recent = None
            with torch.enable_grad():
                self._compute_gradients(again=True)
        finally:
            if isinstance(inner, Anchored):
                inner.recent = recent
        for buffer, before in kept:
            buffer.copy_(before)

    def _prepare_samples(self, pass_: int, step: Tensor) -> tuple[Batch, Draw | None]:
        """Samples as the network sees them, and what is drawn for them."""
        batch = self._batches.batch(pass_)
        if self._recipe.augment.erase:
            images = erase(batch.images, batch.keys, self._recipe.augment.erase, self._fill)
            batch = batch.with_images(images)
        for component in self._hooks["batch"]:
            batch = component.batch(batch)
        return batch, self._protocol.draw(batch, step)

    def _compute_loss(self, batch: Batch, draw: Draw | None) -> tuple[Tensor, Tensor]:
        logits, targets = self._protocol.forward(self._forward, batch.images, batch.labels, draw)
        several = [logits]
        for component in self._hooks["more_logits"]:
            several += component.more_logits()

        def model(images: Tensor) -> Tensor:
            return self._protocol.forward(self._forward, images, batch.labels, draw)[0]

        masked = None if draw is None else draw.masked
        unlabeled = either(self._protocol.unlabeled(draw), batch.mixed)
        seen = ForwardPass(batch, logits, targets, masked, unlabeled, model)
        losses = [self._compare(seen._replace(logits=each)) for each in several]
        return logits, torch.stack(losses).mean()

    def _compare(self, seen: ForwardPass) -> Tensor:
        """The loss of some logits."""
        for component in self._hooks["targets"]:
            seen = seen._replace(targets=component.targets(seen))
        loss: Tensor = self._criterion(seen.logits.float(), seen.targets)
        for component in self._hooks["loss"]:
            loss = component.loss(seen, loss)
        return loss

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


def _gradients_of(model: nn.Module, together: bool) -> AbstractContextManager[None]:
    """Under DDP, gradients are exchanged in the last pass alone."""
    if isinstance(model, DistributedDataParallel) and not together:
        return model.no_sync()
    return nullcontext()


def _average_gradients(weights: Sequence[Tensor]) -> None:
    """The mean over processes, for weights outside DDP."""
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        for weight in weights:
            if weight.grad is not None:
                distributed.all_reduce(weight.grad)
                weight.grad /= distributed.get_world_size()


@contextmanager
def _side_stream() -> Iterator[None]:
    """A stream of its own, as work before a capture needs it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
