"""References and masks of a training step, drawn from the samples' keys."""

from dataclasses import dataclass

import torch
from torch import Tensor

from killick.core.masking import Draw
from killick.data.batches import Batch
from killick.data.keyed_random import Stream, sample_keys, uniform, whole
from killick.data.transforms import Shift, gather
from killick.errors import ReferencesError
from killick.training.recipe import Protocol


@dataclass(frozen=True)
class Draws:
    """What `ReferenceMasking.forward` needs for a batch.

    A sample's reference depends on (seed, epoch, number of the sample); whether a batch is masked
    on (seed, step), and with `ranks: own` on the process.

    Attributes:
        protocol: Which references, and how often they are masked.
        pool: Pictures to draw from, `(n, height, width, 3)`; None: the batch's own.
        shift: How references are augmented, if they are.
        seed: Of the run, or its `root`.
        rank: Of this process.
        steps: Of the run, over which alpha moves where it does.
    """

    protocol: Protocol
    pool: Tensor | None
    shift: Shift | None
    seed: int | Tensor
    rank: int = 0
    steps: int = 1

    def draw(self, batch: Batch, step: Tensor) -> Draw:
        """References and mask of a pass of step number `step`, on the device."""
        masked = self._mask(batch, step)
        if self.pool is None:
            return Draw(cycle(batch.keys), masked, None)
        chosen = whole(batch.keys, Stream.REFERENCE, len(self.pool))
        if self.shift is None:
            return Draw(chosen, masked, self.pool.permute(0, 3, 1, 2))
        return Draw(None, masked, gather(self.pool, chosen, *self.shift.draw(batch.keys)))

    def _mask(self, batch: Batch, step: Tensor) -> Tensor | None:
        if self.protocol.name != "masked":
            return None
        if self.protocol.every is not None:
            return step % self.protocol.every == 0
        if self.protocol.share == 0:
            return None
        keys = batch.keys
        if self.protocol.scope == "batch":
            process = self.rank if self.protocol.ranks == "own" else 0
            keys = sample_keys(self.seed, step, torch.full_like(step, process))
        return uniform(keys, Stream.MASK) < self._alpha(step)

    def _alpha(self, step: Tensor) -> Tensor | float:
        first, last = self.protocol.alpha, self.protocol.alpha_end
        if last is None:
            return first
        return first + (last - first) * (step / max(1, self.steps - 1))


def cycle(keys: Tensor) -> Tensor:
    """For each sample the place of its reference, on a random cycle through the batch.

    As `references.random_cycle`, but drawn from the samples' keys.
    """
    if len(keys) < 2:
        raise ReferencesError(
            f"expected at least 2 samples in each pass for references of the batch's own, found"
            f" {len(keys)}. Use a larger batch, or protocol.references: clean."
        )
    order = uniform(keys, Stream.CYCLE).argsort(stable=True)
    return torch.empty_like(order).scatter_(0, order, order.roll(-1))
