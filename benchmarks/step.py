"""A training step, anchored over standard: how much dearer is it?

Claim: at most 1.05, on two CPU cores and on a GPU. Both steps are forward, loss, backward and SGD
with momentum on one constant batch; the anchored one also draws references and the mask, pairs, and
remembers the pairs for BatchNorm. On a GPU: bf16, channels_last, eager and then compiled and
captured in a CUDA graph, with the draws inside the graph.

    python benchmarks/step.py               # the CPU, or the GPU where there is one
"""

from collections.abc import Callable

import torch
from paired_timing import Ratio, compare, write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import killick

Loss = Callable[[Callable[..., Tensor], Tensor, Tensor], Tensor]


def standard_loss(model: Callable[..., Tensor], x: Tensor, labels: Tensor) -> Tensor:
    """Plain cross-entropy."""
    return cross_entropy(model(x), labels)


def masked_loss(target: str, alpha: float = 0.25) -> Loss:
    """The loss of masked anchored training."""
    masking = killick.ReferenceMasking(alpha=alpha, target=target)
    return lambda model, x, labels: masking.loss(model, x, labels)


def step(net: nn.Module, loss: Loss, batch: int, device: str, compiled: bool) -> Callable[[], None]:
    """A function that takes one step of training."""
    cuda = device == "cuda"
    net = net.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    x = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device=device)
    rate = torch.tensor(0.01, device=device) if cuda else 0.01
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9, fused=cuda)
    model = torch.compile(net) if compiled else net

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            value = loss(model, x, labels)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not compiled)

    return captured(run) if compiled else run


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """`run` as a CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(5):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_alive: object = run) -> None:  # what `run` holds is where the graph reads
        graph.replay()

    return replay


def measure(name: str, batch: int, device: str, compiled: bool, rounds: int) -> list[Ratio]:
    """Standard, anchored and masked steps of one network in turns."""

    def net(anchored: bool) -> nn.Module:
        torch.manual_seed(0)
        plain = killick.nets.create(f"killick:{name}")
        return killick.anchor(plain) if anchored else plain

    contenders = {
        "standard": step(net(False), standard_loss, batch, device, compiled),
        "anchored": step(net(True), masked_loss("label", 0.0), batch, device, compiled),
        "masked, label": step(net(True), masked_loss("label"), batch, device, compiled),
        "masked, uniform": step(net(True), masked_loss("uniform"), batch, device, compiled),
    }
    how = "compiled, CUDA graph" if compiled else "eager"
    kind = "bf16" if device == "cuda" else "fp32"
    return compare(
        "step",
        f"{name}, batch {batch}, {kind}, {how}",
        contenders,
        rounds=rounds,
        items=batch,
        repeats={"cuda": 50, "cpu": 4 if name == "resnet_small" else 1}[device],
        device=device,
    )


def main() -> None:
    """Measure and write."""
    if torch.cuda.is_available():
        rows = []
        for compiled in (True, False):
            for batch in (128, 512):
                rows += measure("resnet18", batch, "cuda", compiled, rounds=15)
                write("step-h200", rows)
    else:
        rows = measure("resnet_small", 128, "cpu", compiled=False, rounds=40)
        rows += measure("resnet18", 32, "cpu", compiled=False, rounds=30)
        write("step-cpu", rows)


if __name__ == "__main__":
    main()
