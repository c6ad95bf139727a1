"""Between bytes and floats: how every corruption begins and ends."""

import torch
from torch import Tensor

# Float32 may leave an exact 128 as 127.99999, which truncation would turn into 127.
_GUARD = 1e-3


def to_floats(images: Tensor) -> Tensor:
    """The gray levels as float32, from 0 to 255."""
    return images.to(torch.float32)


def to_bytes(levels: Tensor) -> Tensor:
    """Grey levels cut to 0 ... 255 and truncated, as the originals do, not rounded.

    A thousandth of a level is added first, so that rounding errors do not darken what is whole.
    The argument may be overwritten.
    """
    # By way of int16: torch turns floats into bytes one by one, but into short integers at once.
    return levels.add_(_GUARD).clamp_(0, 255).to(torch.int16).to(torch.uint8)
