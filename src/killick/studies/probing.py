"""Linear probes: one layer that is trained on the features of a network that is left as it is.

On an anchored network the probe is trained as the network was, with references that change and are
masked now and then, by the same `ReferenceMasking`. On any other it sees the same pictures in the
same batches for as many steps, and its learning rate is chosen in the same way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from killick import metrics
from killick.core.masking import ReferenceMasking
from killick.data.keyed_random import key
from killick.data.splits import stratified
from killick.errors import DivergedError
from killick.studies.features import UNMASKED
from killick.training.optimizers import learning_rate
from killick.training.recipe import Schedule

_MOMENTUM = 0.9
_HELD = 0.2  # of the training pictures, to choose the learning rate on
_FITTING, _CHOOSING = 0xF17, 0xC40


@dataclass(frozen=True)
class Settings:
    """How a probe is trained.

    Attributes:
        epochs: Passes over its training pictures.
        batch: Pictures of a step.
        weight_decay: Of the weights, not of the bias.
        alpha: How often references are masked.
        target: Of masked steps: "label" or "uniform".
        seed: Of everything random.
    """

    epochs: int
    batch: int
    weight_decay: float
    alpha: float
    target: str
    seed: int


class Probe(nn.Module):
    """A linear layer over features that are standardised.

    They are divided by the root of their number too, so that one learning rate fits networks of
    any width.

    Args:
        features: Of the training pictures, `(draws, kinds, n, width)`; those that are not masked
            say what is standard, as they are what it is tested on.
        classes: How many there are.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: Tensor, classes: int) -> None:
        super().__init__()
        seen = features[:, UNMASKED].flatten(0, 1)
        spread, mean = torch.std_mean(seen.double(), 0, correction=0)
        varies = spread > 1e-6 * (1 + mean.abs())  # one that is always the same says nothing
        scale = torch.where(varies, 1 / spread.clamp_min(1e-12), 0) / math.sqrt(seen.shape[1])
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", scale.float())
        # Not filled: that would draw from the global state.
        self.linear = nn.utils.skip_init(nn.Linear, seen.shape[1], classes, device=features.device)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(…, classes)` of features `(…, width)`."""
        logits: Tensor = self.linear((features - self.mean) * self.scale)
        return logits


def fit_probe(
    features: Tensor, labels: Tensor, classes: int, rate: float, settings: Settings
) -> Probe:
    """A probe trained on cached features.

    In each step every picture is seen from one of its references, drawn anew, and with probability
    `alpha` all of the batch with the reference masked.

    Args:
        features: `(draws, kinds, n, width)`, see `Reader.read_training`; with one kind nothing can
            be masked, and `alpha` makes no difference.
        labels: `(n,)`, on the same device.
        classes: How many there are.
        rate: Highest learning rate; it falls to zero as a cosine does.
        settings: See there.
    """
    draws, kinds, n, _ = features.shape
    probe = Probe(features, classes)
    groups: list[dict[str, Any]] = [
        {"params": [probe.linear.weight], "weight_decay": settings.weight_decay},
        {"params": [probe.linear.bias]},
    ]
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=_MOMENTUM)
    alpha = settings.alpha if kinds > 1 else 0.0
    masking = ReferenceMasking(alpha, settings.target, scope="batch")
    generator = torch.Generator().manual_seed(key(settings.seed, _FITTING) % 2**63)

    def look(places: Tensor, drawn: Tensor, masked: Tensor | None) -> Tensor:
        """The probe as `ReferenceMasking` calls a model: pictures and references are numbers."""
        kind = torch.zeros_like(drawn) if masked is None else masked.long().expand(drawn.shape)
        logits: Tensor = probe(features[drawn, kind, places])
        return logits

    batch = min(settings.batch, n)
    steps = settings.epochs * (n // batch)
    for step in range(steps):
        if step % (n // batch) == 0:
            order = torch.randperm(n, generator=generator).to(features.device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, rate, Schedule())
        begin = step % (n // batch) * batch
        places = order[begin : begin + batch]
        drawn = torch.randint(draws, (batch,), generator=generator).to(features.device)
        loss = masking.loss(look, places, labels[places], drawn, generator)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return probe.requires_grad_(False)


def choose_rate(
    features: Tensor, labels: Tensor, classes: int, rates: Sequence[float], settings: Settings
) -> float:
    """The learning rate after which a part of the training pictures, held back, is known best.

    Of rates that know as many of them, it is the one that finds their labels least surprising.
    Pictures to test on are never looked at.
    """
    if len(rates) == 1:
        return rates[0]
    count = max(1, round(_HELD * len(labels)))
    kept, cut = stratified(labels.cpu(), count, key(settings.seed, _CHOOSING) % 2**63)
    kept, cut = kept.to(labels.device), cut.to(labels.device)
    found = []
    for rate in rates:
        probe = fit_probe(features[:, :, kept], labels[kept], classes, rate, settings)
        logits = probe(features[0, UNMASKED, cut])
        if bool(logits.isfinite().all()):
            right, surprise = metrics.top_k(logits, labels[cut]), metrics.nll(logits, labels[cut])
            found.append((-right, surprise, rate))
    if not found:
        raise DivergedError(
            f"expected a learning rate at which the probe learns, found none among {list(rates)}."
            " Try smaller ones."
        )
    return min(found)[2]


def score(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """How often the logits are right, how surprised they are, how far confidence is off."""
    confidence, predicted = logits.double().softmax(1).max(1)
    return {
        "top1": metrics.top_k(logits, labels),
        "nll": metrics.nll(logits, labels),
        "smooth_ece": metrics.smooth_ece(confidence, predicted == labels),
    }
