"""Inference: the folded network over the plain one. Claim: at most 1.02.

The anchored model before folding is measured beside them, and K = 10 references in both forms,
which cost about ten passes: folding shares the first layer alone. On a GPU the launches of small
kernels, which Python gives out one by one, take longer than the kernels; so there the networks are
also compiled and captured in CUDA graphs.

    python benchmarks/folding.py
"""

from collections.abc import Callable

import torch
from paired_timing import Ratio, compare, write
from step import captured
from torch import nn

import killick


def measure(
    name: str, shape: tuple[int, ...], batch: int, rounds: int, *, graph: bool = False
) -> list[Ratio]:
    """Plain, folded and anchored inference of one network in turns."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layout = torch.channels_last
    plain = killick.nets.create(name).to(device).eval()
    x = torch.rand(batch, *shape, device=device).to(memory_format=layout)
    model = killick.anchor(plain, example=x[:2]).eval()
    model.set_references(torch.rand(10, *shape))
    nets = [plain, killick.fold(model), model]
    for net in nets:
        net.to(memory_format=layout)

    def run(net: nn.Module) -> Callable[[], object]:
        compiled = torch.compile(net) if graph else net

        def forward() -> object:
            with torch.no_grad():
                return compiled(x)

        return captured(forward) if graph else forward

    contenders = dict(zip(("plain", "folded", "anchored"), map(run, nets), strict=True))
    setting = f"{name}, {shape[-1]} px, batch {batch}"
    if graph:
        setting += ", compiled, CUDA graph"
    return compare(
        "folded", setting, contenders, rounds=rounds, items=batch, device=device,
        repeats=20 if device == "cuda" else 1,
    )  # fmt: skip


def main() -> None:
    """Measure and write."""
    small, large = (3, 32, 32), (3, 224, 224)
    rows = measure("killick:resnet18", small, 64, rounds=40)
    rows += measure("killick:resnet18", small, 1, rounds=200)
    rows += measure("killick:resnet_small", small, 128, rounds=100)
    rows += measure("timm:vit_tiny_patch16_224", large, 8, rounds=40)
    write("folded-h200" if torch.cuda.is_available() else "folded-cpu", rows)
    if torch.cuda.is_available():
        rows += measure("killick:resnet18", small, 64, rounds=40, graph=True)
        rows += measure("killick:resnet18", small, 1, rounds=100, graph=True)
        rows += measure("timm:vit_tiny_patch16_224", large, 8, rounds=40, graph=True)
        write("folded-h200", rows)


if __name__ == "__main__":
    main()
