"""When the BatchNorm statistics of an anchored model are updated, and from which pairs.

See `killick.core.batchnorm` for why. The weights' versions and the number of pairs written tell
whether anything changed since the last update; copies, casts and loading carry that over.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from killick.core.batchnorm import RecentPairs, estimate, tracked_norms
from killick.core.image_model import ImageModel, Normalize


class UpdatedBatchNorm(ImageModel):
    """A model that updates its BatchNorm statistics from its last pairs before it is evaluated."""

    def __init__(
        self, net: nn.Module, image_shape: Sequence[int], normalize: Normalize | None = None
    ) -> None:
        super().__init__(net, image_shape, normalize)
        self.recent: RecentPairs | None = RecentPairs() if tracked_norms(net) else None
        self._token = object()  # stands for this model and none of its copies
        self._settled = (0, 0)  # versions of the weights, pairs written: when last settled
        self.register_load_state_dict_post_hook(_trust_loaded_statistics)  # type: ignore[no-untyped-call]

    def pairs(self, x: Tensor, references: Tensor) -> Tensor:
        """What the network reads of images and references."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Self:
        """Switch mode; going to eval settles BatchNorm if masked batches came since."""
        if not mode and self.recent is not None:
            # A captured CUDA graph changes weights unseen, but counts the pairs it writes.
            replayed = self.recent.owner is self._token and self.recent.count != self._settled[1]
            self._settle_if_changed(or_if=replayed)
        return super().train(mode)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module; BatchNorm is settled first, as evaluation will need it.

        Not where gradients are off: there averages of weights are updated, at every step.
        """
        if torch.is_grad_enabled():
            self._settle_if_changed()
        return super().state_dict(*args, **kwargs)

    def mark_settled(self) -> None:
        """Say that the BatchNorm statistics are right for the weights as they are now."""
        if self.recent is not None:
            self._settled = (self._weights_version(), self.recent.count)

    def mark_unsettled(self) -> None:
        """Say that BatchNorm must be settled from the remembered pairs before evaluation."""
        self._settled = (-1, -1)

    def own_recent(self) -> RecentPairs | None:
        """The remembered pairs, to be written to; a copy of a trained model starts afresh."""
        if self.recent is not None and self.recent.owner is not self._token:
            if self.recent.owner is not None:  # a copy that is trained beside its original
                self.recent = RecentPairs()
            self.recent.owner = self._token
        return self.recent

    def _remember(self, x: Tensor, references: Tensor, masked: Tensor | bool) -> None:
        recent = self.own_recent()
        if recent is None:
            return
        live = tuple(norm.training for norm in tracked_norms(self.net))
        mask = masked if isinstance(masked, Tensor) else torch.tensor(masked, device=x.device)
        recent.keep(x, references, mask, live)

    def _weights_version(self) -> int:
        """Changes whenever a weight is written to, without waiting for the device."""
        # Tensors made in inference mode keep no version, and cannot be trained.
        return sum(0 if p.is_inference() else p._version for p in self.parameters())

    def _settle_if_changed(self, or_if: bool = False) -> None:
        # Also for a copy that stays in eval mode while its weights change, such as an average.
        if self.recent is None or self.recent.images is None:
            return
        if not or_if and self._weights_version() == self._settled[0]:
            return
        self.mark_settled()
        norms = tracked_norms(self.net)
        live = self.recent.live or (True,) * len(norms)
        like = next(self.parameters())

        def run(x: Tensor, references: Tensor) -> None:
            pairs = self.pairs(x.to(like.device), references.to(like.device))
            self.net(pairs.to(like.dtype))

        batches = list(self.recent.batches())
        if batches:
            runs = (partial(run, *batch) for batch in batches)
            estimate([norm for norm, on in zip(norms, live, strict=True) if on], self, runs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that shares the remembered pairs, until both it and its original are trained.

        So an average of the weights, which is never trained, gets BatchNorm statistics of its own.
        """
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            copied.__dict__[name] = value if name == "recent" else copy.deepcopy(value, memo)
        copied._token = object()
        if self._weights_version() == self._settled[0]:
            copied._settled = (copied._weights_version(), self._settled[1])
        return copied

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast, which rewrites the weights but does not change them."""
        settled = self._weights_version() == self._settled[0]
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        if settled:
            self._settled = (self._weights_version(), self._settled[1])
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For pickling: settled, and without the remembered pairs."""
        self._settle_if_changed()
        recent = None if self.recent is None else RecentPairs()
        return {**vars(self), "recent": recent, "_settled": (0, 0)}


def _trust_loaded_statistics(model: nn.Module, keys: Any) -> None:
    """After loading: BatchNorm is right as it was saved, unless it was not loaded."""
    assert isinstance(model, UpdatedBatchNorm)
    if not any(key.endswith(("running_mean", "running_var")) for key in keys.missing_keys):
        model.mark_settled()
