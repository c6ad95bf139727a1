"""References of a training step, drawn from the samples' keys, and those stored in the model."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from killick.core.masking import Draw
from killick.core.references import ReferencePool
from killick.core.synthetic_references import make_references
from killick.data.batches import Batch, read_all
from killick.data.image_set import ImageSet
from killick.data.keyed_random import Stream, sample_keys, uniform, whole
from killick.data.preprocessing import PlainView
from killick.data.transforms import Shift, gather
from killick.errors import OptionError, ReferencesError

if TYPE_CHECKING:
    from killick.protocols.anchored_protocol import AnchoredProtocol
    from killick.protocols.base import RunContext
    from killick.protocols.masked_protocol import MaskedProtocol

STATISTICS_IMAGES = 5000  # of a streamed set, from which its mean or its spectrum is taken


@dataclass(frozen=True)
class ReferenceSampler:
    """Draws references and masks of a batch; a sample's reference depends on (seed, epoch, index)."""

    pool: Tensor | None  # images to draw from, (n, height, width, 3); None: the batch's own
    shift: Shift | None  # how references are augmented, if they are
    mask: "MaskSampler | None" = None  # draws what is masked; None: nothing is

    def draw(self, batch: Batch, step: Tensor) -> Draw:
        """References and mask of a pass of step number `step`, on the device."""
        masked = None if self.mask is None else self.mask.draw(batch, step)
        if self.pool is None:
            return Draw(random_cycle_of_keys(batch.keys), masked, None)
        chosen = whole(batch.keys, Stream.REFERENCE, len(self.pool))
        if self.shift is None:
            return Draw(chosen, masked, self.pool.permute(0, 3, 1, 2))
        return Draw(None, masked, gather(self.pool, chosen, *self.shift.draw(batch.keys)))


@dataclass(frozen=True)
class MaskSampler:
    """Draws masks: of a batch from (seed, step, `process`), of a sample from its key."""

    protocol: "MaskedProtocol"
    seed: Tensor | int
    process: int  # 0 where all processes mask the same steps, else the rank
    steps: int  # of the run, over which alpha changes

    def draw(self, batch: Batch, step: Tensor) -> Tensor:
        """True where references are masked: one value, or one for each sample."""
        masked = self._draw_always(batch, step)
        if self.protocol.when == "always":
            return masked
        late = step >= self.protocol.cutoff * self.steps
        return masked & (late if self.protocol.when == "late" else ~late)

    def _draw_always(self, batch: Batch, step: Tensor) -> Tensor:
        if self.protocol.every is not None:
            return step % self.protocol.every == 0
        keys = batch.keys
        if self.protocol.scope == "batch":
            keys = sample_keys(self.seed, step, torch.full_like(step, self.process))
        return uniform(keys, Stream.MASK) < self._alpha(step)

    def _alpha(self, step: Tensor) -> Tensor | float:
        first, last = self.protocol.alpha, self.protocol.alpha_end
        if last is None:
            return first
        return first + (last - first) * (step / max(1, self.steps - 1))


def random_cycle_of_keys(keys: Tensor) -> Tensor:
    """For each sample the place of its reference, on a random cycle through the batch."""
    if len(keys) < 2:
        raise ReferencesError(
            f"protocol.references: batch needs at least 2 samples in each pass, found {len(keys)}."
            " Use a larger batch, or protocol.references: clean."
        )
    order = uniform(keys, Stream.CYCLE).argsort(stable=True)
    return torch.empty_like(order).scatter_(0, order, order.roll(-1))


def make_pool(
    protocol: "AnchoredProtocol", run: "RunContext"
) -> tuple[Tensor | None, Shift | None]:
    """The images that references are drawn from, on the device, and how they are augmented."""
    if protocol.references == "batch":
        return None, None
    count, train = protocol.reference_set, run.train
    if count is not None and count > len(train):
        raise OptionError(
            f"protocol.reference_set: at most the {len(train)} training images, found {count}."
        )
    chosen = None if count is None else choose_numbers(train, count, run.seed)
    if run.pixels is not None:
        pool = run.pixels if chosen is None else run.pixels[chosen.to(run.device)]
    elif chosen is None and not run.keeps_set:
        raise OptionError(
            "the training set streams, so protocol.reference_set must say how many references to"
            " keep on the device. Or use protocol.references: batch."
        )
    else:  # samples stream because they are augmented one by one; references are not
        pool = read_pixels(train if chosen is None else train.part(chosen), run.view, run.workers)
        pool = pool.to(run.device)
    shift = replace(run.shift, reference=True) if protocol.references == "augmented" else None
    return pool, shift


def choose_stored(protocol: "AnchoredProtocol", run: "RunContext") -> tuple[Tensor, str]:
    """The references a model keeps for evaluation, and a description of them."""
    train, view, seed = run.train, run.view, run.seed
    if protocol.stored_as == "images":
        chosen = choose_numbers(train, min(protocol.stored, len(train)), seed)
        images = torch.stack([view(train.read(int(number))) for number in chosen])
        return images, "random by class, clean"
    if run.pixels is not None and view.resize is None:  # resident images are not resized first
        images = run.pixels.permute(0, 3, 1, 2)
    else:
        chosen = choose_numbers(train, min(STATISTICS_IMAGES, len(train)), seed)
        images = torch.cat(list(read_all(train.part(chosen), view, run.workers)))
    if protocol.stored_as == "mean":
        return make_references("mean", images)
    return make_references("synthetic", images, k=protocol.stored, seed=seed)


def read_pixels(images: ImageSet, view: PlainView, workers: int) -> Tensor:
    """All images of a set, `(n, size, size, 3)`."""
    found, done = torch.empty(0, dtype=torch.uint8), 0
    for part in read_all(images, view, workers):  # each may be memory of a worker
        part = part.permute(0, 2, 3, 1)
        if not done:
            found = part.new_empty(len(images), *part.shape[1:])
        found[done : done + len(part)] = part
        done += len(part)
    return found


def choose_numbers(images: ImageSet, count: int, seed: int) -> Tensor:
    """The numbers of `count` images, chosen as a `ReferencePool` of them would."""
    numbers = torch.arange(len(images))[:, None]
    return ReferencePool(numbers, images.labels).choose(count, seed=seed)[:, 0]
