"""The network as it is deployed: images in; logits, probabilities, energy and more out."""

import copy

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.folding import Folded, fold
from killick.core.standard import Standard
from killick.deploy.fusion import fuse
from killick.errors import OutputError
from killick.storage.export_metadata import OUTPUTS


class Deployed(nn.Module):
    """Images to `logits`, `probabilities`, `energy`, and more.

    There is `std` with several references, and `in_distribution` with a threshold: a buffer, to be
    set once it is known.
    """

    threshold: Tensor

    def __init__(self, net: Folded | Standard, has_threshold: bool) -> None:
        super().__init__()
        self.net = net
        self.k = net.k if isinstance(net, Folded) else 1
        self.has_threshold = has_threshold
        self.register_buffer("threshold", torch.tensor(0.0))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what `forward` returns."""
        wanted = {"std": self.k > 1, "in_distribution": self.has_threshold}
        return tuple(name for name in OUTPUTS if wanted.get(name, True))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """What `outputs` names, in float32 whatever the network computes in."""
        found: dict[str, Tensor] = {}
        if self.k > 1:
            assert isinstance(self.net, Folded)
            members = self.net.members(images).float()
            logits = members.mean(0)
            # Not every runtime has a standard deviation.
            values = members.softmax(-1)
            apart = values - values.mean(0, keepdim=True)
            found["std"] = (apart * apart).sum(0).div(self.k - 1).sqrt()
        else:
            logits = self.net(images).float()
        found["logits"] = logits
        found["probabilities"] = logits.softmax(-1)
        found["energy"] = -logits.logsumexp(-1)
        if self.has_threshold:
            found["in_distribution"] = found["energy"] <= self.threshold
        return tuple(found[name] for name in self.outputs)

    def to_precision(self, dtype: torch.dtype) -> "Deployed":
        """A copy whose network computes in `dtype`."""
        reduced = copy.deepcopy(self)
        reduced.net.to(dtype)
        return reduced


@torch.no_grad()
def deploy(model: Anchored | Standard, k: int, *, has_threshold: bool) -> Deployed:
    """`model`, on the CPU in float32, as it is deployed: its first `k` references folded in."""
    net = fuse(fold(model, k)) if isinstance(model, Anchored) else model
    deployed = Deployed(net, has_threshold).eval().requires_grad_(False)
    dtype = None if model.normalize is None else torch.uint8
    logits = net(torch.zeros(2, *model.image_shape, dtype=dtype))
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise OutputError(
            f"only classifiers can be exported: for 2 images the network returns"
            f" {tuple(logits.shape)}, not (2, classes)."
        )
    return deployed
