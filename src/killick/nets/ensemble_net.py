"""An ensemble of networks as one network: the mean of their probabilities."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.folding import FoldedStem
from killick.core.inspection import logits_of, replace
from killick.nets.architecture import network


class Member(nn.Module):
    """A network with its own normalization of images in 0 to 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.net = net
        for name, values in (("mean", mean), ("std", std)):
            column = torch.tensor(list(values)).view(-1, 1, 1)
            self.register_buffer(name, column, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return logits_of(self.net((x - self.mean) / self.std))


class EnsembleNet(nn.Module):
    """Members on the same images in 0 to 1; the mean of their probabilities."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def cost(self) -> int:
        """Forward passes of all members."""
        return sum(getattr(member.net, "cost", 1) for member in self.members)

    def each(self, x: Tensor) -> Tensor:
        """`(members, n, classes)`: the logits of each member."""
        return torch.stack([member(x).float() for member in self.members])

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the mean probabilities, see `average_logits`."""
        return average_logits(self.each(x))


def average_logits(members: Tensor) -> Tensor:
    """`(n, classes)`: the logarithms of the mean probabilities of members `(members, n, classes)`.

    To each image the mean `logsumexp` of its members is added. That changes no probability, and the
    energy is the mean of theirs.
    """
    members = members.float()
    logs = members.log_softmax(2).logsumexp(0) - math.log(len(members))
    return logs + members.logsumexp(2, keepdim=True).mean(0)


@network
def ensemble(members: list[dict[str, Any]], num_classes: int) -> nn.Module:
    """Several networks; the mean of their probabilities.

    Each member has `name` and `arguments` of its network, `mean` and `std`, and for a folded one
    `stems`: the layer, the shape of its offset, and the axis of the batch.
    """
    from killick.nets import create

    made = []
    for member in members:
        net = create(member["name"], **{**member["arguments"], "num_classes": num_classes})
        for stem, shape, axis in member.get("stems", ()):
            layer = net.get_submodule(stem)
            net = replace(net, stem, FoldedStem(layer, torch.zeros(shape), axis))
        made.append(Member(net, member["mean"], member["std"]))
    return EnsembleNet(made)
