"""RandAugment, TrivialAugment, AutoAugment and AugMix on batches.

Settings and tables of magnitudes are those of torchvision's transforms. Each image's operations,
magnitudes and signs are drawn from its key, so they depend on (seed, epoch, index) alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from killick.data.augment.operations import apply, number_of
from killick.data.keyed_random import Stream, uniform, whole
from killick.data.mixing import beta_quantiles, interpolate

AUGMIX_DEPTH = 3  # of the longest chain, if depths are drawn


class Chosen(NamedTuple):
    """What is done to each image, step by step: `(n, steps)`."""

    operations: Tensor  # numbers, see `operations.OPERATIONS`
    magnitudes: Tensor  # with their sign


class Space:
    """The operations of a policy and their magnitudes, as tables on the device."""

    def __init__(
        self, space: Mapping[str, Any], bins: int, size: int, device: torch.device
    ) -> None:
        self.names = tuple(space)
        rows = [
            torch.zeros(bins) if (found := values(bins, size, size)) is None else found.float()
            for values, _ in space.values()
        ]
        self.magnitudes = torch.stack(rows).to(device)
        self._numbers = torch.tensor([number_of(name) for name in space], device=device)
        self._signed = torch.tensor([signed for _, signed in space.values()], device=device)

    def choose(self, keys: Tensor, places: Tensor, bins: Tensor) -> Chosen:
        """Operations at `places` of the table, magnitudes of `bins`, and signs that are drawn."""
        magnitudes = self.magnitudes[places, bins]
        negative = uniform(keys, Stream.SIGN, places.shape[1]) < 0.5
        magnitudes = torch.where(negative & self._signed[places], -magnitudes, magnitudes)
        return Chosen(self._numbers[places], magnitudes)


class BatchPolicy:
    """An augmentation policy: draws what is done to each image, and does it."""

    def __init__(self, transform: Any, space: Space, steps: int) -> None:
        self.space, self.steps = space, steps
        self._interpolation = InterpolationMode(transform.interpolation).value
        self._fill = _fill(transform.fill)

    def draw(self, keys: Tensor) -> Chosen:
        """What is done to the images of `keys`."""
        raise NotImplementedError

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """Augmented images `(n, 3, height, width)`, uint8, in the channels_last layout."""
        return self.apply(images, self.draw(keys))

    def apply(self, images: Tensor, chosen: Chosen) -> Tensor:
        """Images after all steps."""
        for operations, magnitudes in zip(*(part.unbind(1) for part in chosen), strict=True):
            images = apply(
                images,
                operations,
                magnitudes,
                among=self.space.names,
                interpolation=self._interpolation,
                fill=self._fill,
            )
        return images


class BatchRandAugment(BatchPolicy):
    """Operations drawn evenly, at one magnitude (Cubuk et al. 2020)."""

    def __init__(self, transform: v2.RandAugment, size: int, device: torch.device) -> None:
        bins = transform.num_magnitude_bins
        space = Space(transform._AUGMENTATION_SPACE, bins, size, device)
        super().__init__(transform, space, transform.num_ops)
        self._bins = bins
        self.set_magnitude(transform.magnitude)

    def set_magnitude(self, magnitude: int) -> None:
        """Change the magnitude of all operations."""
        self._bin = range(self._bins)[magnitude]

    def draw(self, keys: Tensor) -> Chosen:
        """Steps drawn independently."""
        places = whole(keys, Stream.OPERATION, len(self.space.names), self.steps)
        return self.space.choose(keys, places, torch.full_like(places, self._bin))


class BatchTrivialAugment(BatchPolicy):
    """One operation at one magnitude, both drawn evenly (Müller and Hutter 2021)."""

    def __init__(self, transform: v2.TrivialAugmentWide, size: int, device: torch.device) -> None:
        self._bins = transform.num_magnitude_bins
        space = Space(transform._AUGMENTATION_SPACE, self._bins, size, device)
        super().__init__(transform, space, steps=1)

    def draw(self, keys: Tensor) -> Chosen:
        """One step."""
        places = whole(keys, Stream.OPERATION, len(self.space.names), 1)
        return self.space.choose(keys, places, whole(keys, Stream.MAGNITUDE, self._bins, 1))


class BatchAutoAugment(BatchPolicy):
    """One of 25 learned pairs of operations, each applied with its probability (Cubuk et al. 2019)."""

    def __init__(self, transform: v2.AutoAugment, size: int, device: torch.device) -> None:
        space = Space(transform._AUGMENTATION_SPACE, 10, size, device)
        super().__init__(transform, space, steps=2)
        pairs = transform._policies

        def table(make: Any) -> Tensor:
            return torch.tensor([[make(*step) for step in pair] for pair in pairs], device=device)

        self._places = table(lambda name, probability, bin: space.names.index(name))
        self._probabilities = table(lambda name, probability, bin: probability)
        self._bins = table(lambda name, probability, bin: bin or 0)

    def draw(self, keys: Tensor) -> Chosen:
        """Two steps; one that is not applied is the identity."""
        pair = whole(keys, Stream.SUB_POLICY, len(self._places))
        chosen = self.space.choose(keys, self._places[pair], self._bins[pair])
        applied = uniform(keys, Stream.APPLIED, 2) < self._probabilities[pair]
        identity = number_of("Identity")
        return Chosen(torch.where(applied, chosen.operations, identity), chosen.magnitudes)


class BatchAugMix(BatchPolicy):
    """Chains of operations, mixed with each other and with the image (Hendrycks et al. 2020)."""

    def __init__(self, transform: v2.AugMix, size: int, device: torch.device) -> None:
        name = "_AUGMENTATION_SPACE" if transform.all_ops else "_PARTIAL_AUGMENTATION_SPACE"
        space = Space(getattr(transform, name), transform._PARAMETER_MAX, size, device)
        self._fixed = transform.chain_depth > 0
        super().__init__(transform, space, transform.chain_depth if self._fixed else AUGMIX_DEPTH)
        self._severity, self._chains = transform.severity, transform.mixture_width
        alpha = float(transform.alpha)
        self._own_share = beta_quantiles(alpha).to(device)
        self._parts = [  # of what the chains before have left
            beta_quantiles(alpha, alpha * left).to(device)
            for left in range(self._chains - 1, 0, -1)
        ]

    def draw(self, keys: Tensor) -> Chosen:
        """The steps of all chains, one chain after the other; those beyond its depth are identities."""
        steps = self._chains * self.steps
        places = whole(keys, Stream.OPERATION, len(self.space.names), steps)
        bins = whole(keys, Stream.MAGNITUDE, self._severity, steps)
        chosen = self.space.choose(keys, places, bins)
        if self._fixed:
            return chosen
        depths = 1 + whole(keys, Stream.CHAIN_DEPTH, AUGMIX_DEPTH, self._chains)
        within = torch.arange(AUGMIX_DEPTH, device=keys.device) < depths[..., None]
        identity = number_of("Identity")
        operations = torch.where(within.flatten(1), chosen.operations, identity)
        return Chosen(operations, chosen.magnitudes)

    def shares(self, keys: Tensor) -> Tensor:
        """Of the image and of each chain, `(n, 1 + chains)`; each row sums to 1.

        The image's is from Beta(alpha, alpha), and the chains divide the rest by a Dirichlet
        distribution: each takes a Beta-distributed part of what is left, and the last all of it.
        """
        draws = uniform(keys, Stream.CHAIN_SHARE, self._chains).unbind(1)
        own = interpolate(self._own_share, draws[0])
        shares, left = [own], 1 - own
        for quantiles, draw in zip(self._parts, draws[1:], strict=True):
            part = interpolate(quantiles, draw)
            shares.append(left * part)
            left = left * (1 - part)
        return torch.stack([*shares, left], 1)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """Augmented images `(n, 3, height, width)`, uint8, in the channels_last layout."""
        images = images.contiguous(memory_format=torch.channels_last)
        return self.mix(images, self.draw(keys), self.shares(keys))

    def mix(self, images: Tensor, chosen: Chosen, shares: Tensor) -> Tensor:
        """The weighted sum of images and chains."""
        own, *others = shares[..., None, None, None].unbind(1)
        repeated = images.repeat_interleave(self._chains, 0)
        chains = self.apply(repeated, Chosen(*(part.view(-1, self.steps) for part in chosen)))
        mixed = own * images
        for share, chain in zip(
            others, chains.unflatten(0, (-1, self._chains)).unbind(1), strict=True
        ):
            mixed = mixed + share * chain
        return mixed.to(torch.uint8)


KINDS: dict[type, type[Any]] = {
    v2.RandAugment: BatchRandAugment,
    v2.TrivialAugmentWide: BatchTrivialAugment,
    v2.AutoAugment: BatchAutoAugment,
    v2.AugMix: BatchAugMix,
}


def batch_policy(transform: Any, size: int, device: torch.device) -> BatchPolicy | None:
    """The policy of a torchvision transform for batches; None if it has none."""
    kind = KINDS.get(type(transform))
    if kind is None or InterpolationMode(transform.interpolation).value not in (
        "nearest",
        "bilinear",
    ):
        return None
    if isinstance(transform.fill, dict):
        return None
    mixes = isinstance(transform, v2.AugMix)
    if mixes and not (transform.mixture_width >= 1 and transform.alpha > 0):
        return None
    policy: BatchPolicy = kind(transform, size, device)
    return policy


def _fill(fill: Any) -> Sequence[float] | None:
    """A color of three values, or None for black."""
    if fill is None:
        return None
    values = [float(value) for value in fill] if isinstance(fill, Sequence) else [float(fill)]
    return values * 3 if len(values) == 1 else values
