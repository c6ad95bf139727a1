"""Random numbers from keys: hashes of (seed, epoch, sample) or (seed, step), with no state.

It does not matter which process draws them, in which order, or what was drawn before: a run can be
split over processes, killed and resumed, and every sample is augmented as it would have been. It is
integer arithmetic on tensors: the same bits on every device, in compiled functions and CUDA graphs.
"""

from enum import IntEnum

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbors come to lie far apart
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of the SplitMix64 finaliser
_ALL = 2**64 - 1


class Stream(IntEnum):
    """What a number is drawn for; each stream is independent of all others."""

    ORDER = 1
    TOP = 2
    LEFT = 3
    FLIP = 4
    FLIP_VERTICALLY = 5
    ERASE = 6
    ERASE_SHAPE = 7
    ERASE_PLACE = 8
    MIX_KIND = 9
    MIX_SHARE = 10
    MIX_PLACE = 11
    REFERENCE = 12
    REFERENCE_TOP = 13
    REFERENCE_LEFT = 14
    REFERENCE_FLIP = 15
    REFERENCE_FLIP_VERTICALLY = 16
    CYCLE = 17
    MASK = 18
    VIEW = 19
    DROPOUT = 20
    TRANSFORM = 21
    SUB_POLICY = 22
    APPLIED = 23
    OPERATION = 24
    MAGNITUDE = 25
    SIGN = 26
    CHAIN_DEPTH = 27
    CHAIN_SHARE = 28
    CROP_SHAPE = 29
    CROP_PLACE = 30
    GRID = 31
    GRID_CHANCE = 32
    PASTE = 33
    MIX = 34


def key(*numbers: int) -> int:
    """A 64-bit number that stands for `numbers`, such as (seed, epoch)."""
    value = 0
    for number in numbers:
        value = _scramble_int((value + _GOLDEN + number) & _ALL)
    return value


def root(seed: int, device: torch.device) -> Tensor:
    """A seed as `sample_keys` takes it, too, on the device.

    A compiled function takes a plain number for a constant, and is compiled again for another.
    """
    # `full` fills on the device; a tensor made from a number would be copied, and waited for.
    return torch.full((), _signed(key(seed) + _GOLDEN), device=device)


def sample_keys(seed: int | Tensor, epoch: Tensor | int, numbers: Tensor) -> Tensor:
    """A key for each sample: what is drawn from it depends on (seed, epoch, number) alone.

    Equal to `key(seed, epoch, number)`, as int64. In place of the seed, its `root` may be given.
    """
    start = seed if isinstance(seed, Tensor) else root(seed, numbers.device)
    return _scramble(_scramble(start + epoch) + numbers + _signed(_GOLDEN))


def uniform(keys: Tensor, stream: Stream, count: int | None = None) -> Tensor:
    """Numbers in [0, 1), one for each key, or `count` for each on a last axis.

    Example:
        >>> uniform(sample_keys(seed=0, epoch=1, numbers=torch.arange(2)), Stream.FLIP)
        tensor([0.0817, 0.3365])
    """
    return (_bits(keys, stream, count) & 0xFFFFFF).float() * 2.0**-24


def whole(keys: Tensor, stream: Stream, below: int, count: int | None = None) -> Tensor:
    """Whole numbers from 0 to `below` - 1, one for each key, or `count` on a last axis."""
    return _bits(keys, stream, count) % below


def _bits(keys: Tensor, stream: Stream, count: int | None) -> Tensor:
    """33 random bits for each key."""
    place = keys + _signed(_GOLDEN * (1000 * int(stream) + 1))
    if count is not None:
        place = place.unsqueeze(-1) + torch.arange(count, device=keys.device)
    return (_scramble(_scramble(place)) >> 31) & (2**33 - 1)


def _scramble(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014); int64 wraps around, shifts are masked."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _signed(_FIRST)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _signed(_SECOND)
    return x ^ ((x >> 31) & (2**33 - 1))


def _scramble_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _FIRST) & _ALL
    x = ((x ^ (x >> 27)) * _SECOND) & _ALL
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    """The same 64 bits as a signed number, as tensors have them."""
    x &= _ALL
    return x - 2**64 if x >= 2**63 else x
