"""The network as it is deployed: images in, everything one wants to know about them out."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating
from killick.core.folding import Folded, fold
from killick.core.standard import Standard
from killick.deploy.fusion import fuse
from killick.errors import OutputError
from killick.storage.export_metadata import OUTPUTS


class Deployed(nn.Module):
    """Images to `logits`, `probabilities`, `energy`, and more where there is more.

    `std`, over references, comes with several of them; `in_distribution` where a threshold is
    wanted, which is a buffer, to be set once it is known.

    Args:
        net: Folded or standard.
        judges: Whether there is to be a threshold.
    """

    threshold: Tensor

    def __init__(self, net: Folded | Standard, judges: bool) -> None:
        super().__init__()
        self.net = net
        self.k = net.k if isinstance(net, Folded) else 1
        self.judges = judges
        self.register_buffer("threshold", torch.tensor(0.0))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what `forward` returns."""
        wanted = {"std": self.k > 1, "in_distribution": self.judges}
        return tuple(name for name in OUTPUTS if wanted.get(name, True))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """What `outputs` names, in float32 whatever the network computes in."""
        found: dict[str, Tensor] = {}
        if self.k > 1:
            assert isinstance(self.net, Folded)
            members = self.net.members(images).float()
            logits = members.mean(0)
            # Written out: not every runtime knows a standard deviation.
            values = members.softmax(-1)
            apart = values - values.mean(0, keepdim=True)
            found["std"] = (apart * apart).sum(0).div(self.k - 1).sqrt()
        else:
            logits = self.net(images).float()
        found["logits"] = logits
        found["probabilities"] = logits.softmax(-1)
        found["energy"] = -logits.logsumexp(-1)
        if self.judges:
            found["in_distribution"] = found["energy"] <= self.threshold
        return tuple(found[name] for name in self.outputs)

    def to_precision(self, dtype: torch.dtype) -> "Deployed":
        """A copy whose network computes in `dtype`."""
        reduced = copy.deepcopy(self)
        reduced.net.to(dtype)
        return reduced


def deploy(model: Anchored | Standard, k: int, *, judges: bool) -> Deployed:
    """`model` as it is deployed, on the CPU, with its first `k` references folded in.

    Args:
        model: Left as it is.
        k: Of an anchored model; a standard one has none.
        judges: Whether it is to tell what is out of distribution.
    """
    with evaluating(model):
        alone = copy.deepcopy(model).cpu().float().eval()
    net = fuse(fold(alone, k)) if isinstance(alone, Anchored) else alone
    deployed = Deployed(net, judges).eval().requires_grad_(False)
    _check_logits(deployed, alone.image_shape, alone.normalize is not None)
    return deployed


@torch.no_grad()
def _check_logits(deployed: Deployed, shape: Sequence[int], normalizes: bool) -> None:
    logits = deployed.net(torch.zeros(2, *shape, dtype=torch.uint8 if normalizes else None))
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise OutputError(
            "expected logits of shape (n, classes) with at least two classes, found"
            f" {tuple(logits.shape)} for 2 images. Only classifiers can be exported."
        )
