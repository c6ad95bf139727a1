"""BatchNorm statistics of unmasked pairs, as evaluation needs them.

Masking whole batches biases BatchNorm's running statistics: they mix masked and unmasked batches,
each of which was normalized by statistics of its own, while evaluation sees unmasked pairs alone.
A ResNet can lose most of its accuracy to that. So an anchored model remembers its last training
pairs and, when it is switched to `eval()` after batches that may have been masked, estimates the
statistics again from those pairs, unmasked, with the weights it has by then. Nothing waits for
another process: under DDP each rank settles from its own pairs, and DDP's next forward pass gives
all of them rank 0's statistics; `killick.settle` averages over ranks.

Masking single samples needs none of this: there the running statistics are those that the network
was trained with.
"""

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from killick.errors import OptionError

REMEMBERED_IMAGES = 1024
REMEMBERED_BYTES = 256 * 2**20
SMALLEST_BATCH = 32  # statistics of fewer images say little


def tracked_norms(module: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers whose running statistics decide what the network computes in eval."""
    return [m for m in module.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def count_processes() -> int:
    """How many processes train together under `torch.distributed`."""
    distributed = torch.distributed
    alone = not distributed.is_available() or not distributed.is_initialized()
    return 1 if alone else distributed.get_world_size()


class RecentPairs:
    """The last pairs a model was trained on: a ring of images and references on the device.

    It is written by plain operations on the device, so that it also works inside `torch.compile`
    and captured CUDA graphs.
    """

    def __init__(self) -> None:
        self.owner: object | None = None  # the one model that writes here; copies of it may read
        self.images: Tensor | None = None
        self.references: Tensor | None = None
        self.written: Tensor | None = None  # how many pairs were ever written
        # Whether a batch was masked in part: then the statistics of training are those to keep.
        self.mixed: Tensor | None = None
        self.started = 0  # what `written` was when the ring was made for images of this kind
        self.batch = 0
        self.live: tuple[bool, ...] | None = None  # which BatchNorm layers were training

    def keep(
        self, images: Tensor, references: Tensor, masked: Tensor, live: tuple[bool, ...]
    ) -> None:
        """Remember a batch of pairs."""
        if self.images is None or not _alike(self.images, images):
            self._allocate(images)
        assert self.images is not None
        assert self.references is not None
        assert self.written is not None
        assert self.mixed is not None
        room = len(self.images)
        n = min(len(images), room)
        place = (self.written - self.started + torch.arange(n, device=images.device)) % room
        self.images.index_copy_(0, place, images[:n].detach())
        self.references.index_copy_(0, place, references[:n].detach())
        self.written.add_(n)
        if masked.ndim:
            self.mixed.logical_or_(masked.any() & ~masked.all())
        self.live = live

    def _allocate(self, images: Tensor) -> None:
        n, device = len(images), images.device
        fitting = REMEMBERED_BYTES // max(1, 2 * images[0].numel() * images.element_size())
        limit = max(2, min(REMEMBERED_IMAGES, fitting))
        room = n * (limit // n) if n <= limit else limit
        self.images = images.new_zeros(room, *images.shape[1:])
        self.references = torch.zeros_like(self.images)
        self.started = self.count
        self.written = torch.full((), self.started, dtype=torch.long, device=device)
        self.mixed = torch.zeros((), dtype=torch.bool, device=device)
        self.batch = min(max(n, SMALLEST_BATCH), room)

    @property
    def count(self) -> int:
        """How many pairs were ever kept, also by replayed CUDA graphs (waits for the device)."""
        return 0 if self.written is None else int(self.written)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is remembered, in batches as large as those of training, but not too small."""
        if self.images is None or self.references is None or self.mixed is None or bool(self.mixed):
            return
        filled = min(self.count - self.started, len(self.images))
        for start in range(0, filled, self.batch):
            stop = min(start + self.batch, filled)
            if stop - start >= 2 or start == 0:
                yield self.images[start:stop], self.references[start:stop]

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, as tensors and plain values."""
        return {k: v for k, v in vars(self).items() if v is not None and k != "owner"}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Take up what `state_dict` gave, on its device or on another."""
        for key, value in state.items():
            copied = value.to(device, copy=True) if isinstance(value, Tensor) else value
            setattr(self, key, tuple(copied) if key == "live" else copied)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape[1:] == b.shape[1:] and a.dtype == b.dtype and a.device == b.device


def estimate(
    norms: Iterable[_BatchNorm], module: nn.Module, runs: Iterable[Callable[[], object]]
) -> None:
    """Set the running statistics of `norms` to their mean over `runs` of `module`, which holds them.

    Everything but `norms` is in eval mode meanwhile, so nothing is drawn (no dropout), and no
    process waits for another. Modes are restored at the end.
    """
    norms = list(norms)
    means = {norm: torch.zeros_like(running_mean(norm)) for norm in norms}
    variances = {norm: torch.zeros_like(running_variance(norm)) for norm in norms}
    calls = dict.fromkeys(norms, 0)  # a layer may be used several times in a run

    def add(norm: nn.Module, *_: object) -> None:
        assert isinstance(norm, _BatchNorm)
        calls[norm] += 1
        means[norm] += (running_mean(norm) - means[norm]) / calls[norm]
        variances[norm] += (running_variance(norm) - variances[norm]) / calls[norm]

    done = 0
    with ExitStack() as hooks, _only_training(norms, module), torch.no_grad():
        for norm in norms:
            hooks.enter_context(norm.register_forward_hook(add))
        for run in runs:
            run()
            done += 1
    if done == 0:
        raise OptionError("expected at least one batch to estimate statistics from, found none.")
    for norm in norms:
        if calls[norm]:
            running_mean(norm).copy_(means[norm])
            running_variance(norm).copy_(variances[norm])


def running_mean(norm: _BatchNorm) -> Tensor:
    """Of a tracked layer."""
    assert norm.running_mean is not None
    return norm.running_mean


def running_variance(norm: _BatchNorm) -> Tensor:
    """Of a tracked layer."""
    assert norm.running_var is not None
    return norm.running_var


@contextmanager
def _only_training(norms: list[_BatchNorm], module: nn.Module) -> Iterator[None]:
    """`norms` in train mode, each taking over its batch's statistics whole; all else in eval."""
    modes = [(m, m.training) for m in module.modules()]
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for m, _ in modes:
        m.training = False
    for norm in norms:
        norm.training = True
        norm.momentum = 1.0
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked = norm.num_batches_tracked.clone()
        if isinstance(norm, nn.SyncBatchNorm):  # this rank's own batch: the others may not be here
            norm.__dict__["forward"] = types.MethodType(_BatchNorm.forward, norm)
    try:
        yield
    finally:
        for norm, momentum, tracked in kept:
            norm.momentum = momentum
            norm.num_batches_tracked = tracked
            norm.__dict__.pop("forward", None)
        for m, training in modes:
            m.training = training
