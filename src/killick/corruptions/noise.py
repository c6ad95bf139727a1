"""Noise of four kinds, drawn anew for every value: each channel of each pixel of each image.

The operations are those of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019). Only the
stream of random numbers is another, and the arithmetic is float32.
"""

from functools import lru_cache

import torch
from torch import Tensor

from killick.corruptions.corruption import Generator, corruption, to_bytes, to_floats

_LEVELS = 256
# Of 32 random bits, the lowest 8 choose a slot of the alias table, the next 23 are compared with
# its threshold, and the sign is not used.
_UNITS = 2**23
_SIGN = -(2**31)


@corruption(
    cifar=(0.04, 0.06, 0.08, 0.09, 0.1),
    tiny=(0.04, 0.08, 0.12, 0.15, 0.18),
    imagenet=(0.08, 0.12, 0.18, 0.26, 0.38),
)
def gaussian_noise(images: Tensor, std: float, *, generator: Generator) -> Tensor:
    """The images with independent normal noise added to every value; `std` is of full scale."""
    noise = torch.randn(images.shape, device=images.device, generator=generator)
    return to_bytes(to_floats(images).add_(noise, alpha=255 * std))


@corruption(
    cifar=(0.06, 0.1, 0.12, 0.16, 0.2),
    tiny=(0.15, 0.2, 0.25, 0.3, 0.35),
    imagenet=(0.15, 0.2, 0.35, 0.45, 0.6),
)
def speckle_noise(images: Tensor, std: float, *, generator: Generator) -> Tensor:
    """The images with normal noise added that is proportional to the value: bright is noisier."""
    noise = torch.randn(images.shape, device=images.device, generator=generator)
    return to_bytes(noise.mul_(std).add_(1).mul_(images))


@corruption(
    cifar=(0.01, 0.02, 0.03, 0.05, 0.07),
    tiny=(0.01, 0.02, 0.05, 0.08, 0.14),
    imagenet=(0.03, 0.06, 0.09, 0.17, 0.27),
)
def impulse_noise(images: Tensor, share: float, *, generator: Generator) -> Tensor:
    """The images with some values replaced by 0 or 255, equally often: salt and pepper.

    A `share` of the values is hit, not of the pixels, so the specks are colored.
    """
    noise = _random_bits(images, generator).bitwise_and_(-_LEVELS)
    # What lies between the bounds becomes 0; what is beyond them, by at least a step of 256, goes
    # far below black or far above white.
    bound = _LEVELS * round((1 - share) * 2**23)
    noise.sub_(noise.clamp(-bound, bound - _LEVELS))
    return noise.add_(images).clamp_(0, 255).to(torch.uint8)


@corruption(cifar=(500, 250, 100, 75, 50), tiny=(250, 100, 50, 30, 15), imagenet=(60, 25, 12, 5, 3))
def shot_noise(images: Tensor, photons: float, *, generator: Generator) -> Tensor:
    """The images as if counted in photons: every value is a Poisson count, brought back to scale.

    The gray level that comes out has at most 256 values, so it is drawn as it is, by an alias table
    for each gray level that goes in. No probability is further than 2^-24 from that of the Poisson
    distribution, and levels that it never gives are never drawn. `photons` is the expected count
    at full scale.
    """
    bits = _random_bits(images, generator)
    return _look_up(images, bits, _shot_table(photons, images.device))


def _random_bits(images: Tensor, generator: Generator) -> Tensor:
    """32 random bits for each value, as int32; two come from each draw of 64, which is faster."""
    draws = torch.empty((images.numel() + 1) // 2, dtype=torch.int64, device=images.device)
    bits = draws.random_(-(2**63), None, generator=generator).view(torch.int32)
    return bits[: images.numel()].view(images.shape)


def _look_up(images: Tensor, bits: Tensor, table: Tensor) -> Tensor:
    """For each value the gray level that its row of the table gives for its 32 random bits."""
    slot = bits & 255
    place = images.to(torch.int32, memory_format=torch.contiguous_format).mul_(_LEVELS).add_(slot)
    entry = table.index_select(0, place.view(-1)).view(images.shape)
    # Bit by bit, since comparisons are slow here: all ones where the upper bits of the draw are
    # below the threshold, all zeros otherwise. The lower bits are made such that they never decide,
    # and both numbers are negative, so that their difference fits.
    below = bits.bitwise_or_(_SIGN + 255).sub_(entry).bitwise_right_shift_(31)
    return slot.bitwise_xor_(entry).bitwise_and_(below).bitwise_xor_(entry).to(torch.uint8)


@lru_cache(maxsize=32)
def _shot_table(photons: float, device: torch.device) -> Tensor:
    """256 slots for each gray level of an image, as `pack_aliases` makes them."""
    return pack_aliases(shot_probabilities(photons)).to(device)


def shot_probabilities(photons: float) -> Tensor:
    """The chance that shot noise turns gray level i into j, `(256, 256)` in float64.

    A count of `photons` and any above it is white. Levels are truncated as in the original.
    """
    count = torch.arange(photons, dtype=torch.float64)  # those below white
    expected = torch.arange(_LEVELS, dtype=torch.float64)[:, None] * (photons / 255)
    chance = (torch.special.xlogy(count, expected) - expected - torch.lgamma(count + 1)).exp()
    level = (count * 255 / photons).long()
    by_level = torch.zeros(_LEVELS, _LEVELS, dtype=torch.float64).index_add_(1, level, chance)
    by_level[:, -1] += 1 - chance.sum(1)
    return by_level.clamp_(min=0)


def pack_aliases(probabilities: Tensor) -> Tensor:
    """The alias tables (Walker 1977) of many distributions over 256 outcomes, in one.

    An outcome is drawn by choosing one of 256 slots evenly. Slot j gives j with a chance of its
    own, its threshold, and another outcome, its alias, otherwise. Slots that hold too little are
    filled up, one in each round, from the one that holds most. A full slot is its own alias.

    The result is int32, `(rows * 256,)`: aliases in the lowest 8 bits, thresholds in units of 2^-23
    above them, and the sign bit set.
    """
    rows, slots = torch.arange(len(probabilities)), probabilities.shape[1]
    held = probabilities * slots
    threshold = torch.zeros_like(held)
    alias = torch.arange(slots).expand(len(rows), slots).clone()
    done = torch.zeros_like(held, dtype=torch.bool)
    for _ in range(slots):
        least, poor = held.masked_fill(done, torch.inf).min(1)
        rich = held.masked_fill(done, -torch.inf).argmax(1)
        threshold[rows, poor] = torch.where(poor == rich, 0, least)
        alias[rows, poor] = rich
        held[rows, rich] -= torch.where(poor == rich, 0, 1 - least)
        done[rows, poor] = True
    units = (threshold * _UNITS).round().long().clamp_(0, _UNITS - 1)
    return (units * _LEVELS + alias + _SIGN).to(torch.int32).view(-1)
