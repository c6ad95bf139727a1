"""Test-time augmentation: an image shifted and mirrored, whose predictions are averaged."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_SHIFTS = (0, -1, 1)  # in units of a 32nd of the side, to both axes


@dataclass(frozen=True)
class AugmentedViews:
    """An image as it is and shifted a little both ways along the diagonal; with `flip` mirrored too."""

    flip: bool

    def __len__(self) -> int:
        return len(_SHIFTS) * (1 + self.flip)

    def __call__(self, images: Tensor) -> Iterator[Tensor]:
        """The views of images `(n, channels, height, width)`, the first as they are."""
        for mirrored in (images, images.flip(3)) if self.flip else (images,):
            for shift in _SHIFTS:
                yield _move(mirrored, shift)


def _move(images: Tensor, shift: int) -> Tensor:
    """The images moved down and right; the pixels at the border are repeated."""
    for axis in (2, 3):
        side = images.shape[axis]
        places = torch.arange(side, device=images.device) - shift * max(1, side // 32)
        images = images.index_select(axis, places.clamp(0, side - 1)) if shift else images
    return images
