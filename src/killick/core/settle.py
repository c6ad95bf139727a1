"""BatchNorm statistics from given data: `settle`. By itself a model does it from its last pairs."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import anchored_in
from killick.core.batchnorm import (
    count_processes,
    estimate,
    running_mean,
    running_variance,
    tracked_norms,
)
from killick.core.references import ReferencePool, random_cycle, take


def settle(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    references: ReferencePool | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Estimate the BatchNorm statistics of an anchored `model` on unmasked pairs from `batches`.

    A model trained through `ReferenceMasking` does this by itself when it is switched to `eval()`,
    from the last pairs it saw. Call `settle` for an estimate from more data, for a model whose
    weights were changed by hand (averaged, say), or where training ran inside a CUDA graph.

    Under `torch.distributed` every process must call it, each with its share of the batches: the
    statistics are averaged, so that all processes end with the same.

    Args:
        model: The anchored model, also inside DDP or a compiled wrapper.
        batches: Images, or tuples that start with images, as a data loader gives them.
        references: Where the references come from; by default from each batch itself.
        generator: For drawing them.

    Returns:
        The same model.

    Example:
        >>> from torch import nn
        >>> import killick
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        >>> model = killick.anchor(net)
        >>> _ = killick.settle(model, [torch.randn(64, 3) for _ in range(10)])
    """
    inner = anchored_in(model)
    norms = tracked_norms(inner)
    if inner.training:
        norms = [norm for norm in norms if norm.training]  # the others are frozen
    inner.mark_settled()

    def run(x: Tensor) -> None:
        if references is None:
            drawn = take(x, random_cycle(len(x), x.device, generator))
        else:
            drawn = take(references.images, references.draw(len(x), generator)).to(x.device)
        inner.net(inner.pairs(x, drawn))

    device = next(inner.parameters()).device
    images = (batch[0] if isinstance(batch, tuple | list) else batch for batch in batches)
    estimate(norms, inner, (partial(run, x.to(device)) for x in images))
    if (world := count_processes()) > 1:
        for norm in norms:
            for statistic in (running_mean(norm), running_variance(norm)):
                torch.distributed.all_reduce(statistic)
                statistic.div_(world)
    return model
