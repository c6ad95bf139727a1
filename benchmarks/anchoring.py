"""Anchoring and folding in forward passes of the network on the images they look at.

Copies of the weights are measured beside them: `anchor` makes two, `fold` one.

    python benchmarks/anchoring.py
"""

import copy

import torch
from paired_timing import Ratio, compare, write

import killick


def measure(name: str, rounds: int) -> list[Ratio]:
    """A forward pass on two images, copies, `anchor` and `fold` in turns."""
    torch.manual_seed(0)
    net = killick.nets.create(name).eval()
    x = torch.rand(2, 3, 224, 224)
    model = killick.anchor(net, example=x).eval().set_references(x[:1])

    def forward() -> object:
        with torch.no_grad():
            return net(x)

    contenders = {
        "pass": forward,
        "copy": lambda: copy.deepcopy(net),
        "anchor": lambda: killick.anchor(net, example=x),
        "fold": lambda: killick.fold(model),
    }
    return compare("anchoring", f"{name}, 224 px", contenders, rounds=rounds, items=1, device="cpu")


def main() -> None:
    """Measure and write."""
    write("anchoring", [*measure("timm:resnet50", 10), *measure("torchvision:swin_b", 10)])


if __name__ == "__main__":
    main()
