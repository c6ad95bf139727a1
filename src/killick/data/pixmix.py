"""PixMix: images mixed with images of rich structure and with altered copies of themselves.

After Hendrycks et al., "PixMix: Dreamlike Images Comprehensively Improve Safety Measures", CVPR
2022.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as v2

from killick.errors import OptionError


class PixMix:
    """Mixes an image, up to `k` times, with a mixing image or an altered copy of itself.

    The image itself, or in half the cases an altered copy, is mixed in 0 to `k` rounds, each number
    as likely. In each, half the time with a mixing image, one for all rounds, and half the time
    with a newly altered copy of the image; half the time by a weighted sum, half the time by a
    weighted product.

    Args:
        mixing_images: To mix in, uint8 `(count, 3, height, width)`. Where they are larger than the
            image, a part is cropped out at random; where smaller, they are enlarged first.
        k: The most rounds.
        beta: The larger, the less is mixed in. Weights are drawn from Beta(beta, 1) for the image
            and Beta(1, beta) for what comes in; in half the cases it is taken away instead.
        severity: The strength of the changes, up to 10.
    """

    def __init__(
        self, mixing_images: Tensor, k: int = 4, beta: float = 3.0, severity: float = 3
    ) -> None:
        if not (k >= 0 and 0 < beta < math.inf and 0.1 <= severity <= 10):
            raise OptionError(
                "PixMix requires k >= 0, beta > 0 and a severity from 0.1 to 10, found"
                f" {k}, {beta} and {severity}."
            )
        self.mixing_images, self.k, self.beta, self.severity = mixing_images, k, beta, severity

    def __call__(self, image: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The mixed image, uint8 `(3, height, width)` as it came."""
        # Every image takes equally many numbers from the generator.
        count = 8 + 8 * self.k
        draws = iter(torch.rand(count, dtype=torch.float64, generator=generator).tolist())
        start = self._change(image, image, draws)
        rounds = _index(next(draws), self.k + 1)
        texture = self._crop(image, draws)
        if not rounds:
            return start
        mixed = start.float() / 255
        for _ in range(rounds):
            partner = self._change(image, texture, draws).float() / 255
            multiply, away, first, second = (next(draws) for _ in range(4))
            # By inverse distribution functions: u**(1/b) for Beta(b, 1), its mirror for Beta(1, b).
            own, other = first ** (1 / self.beta), 1 - second ** (1 / self.beta)
            if away >= 0.5:
                own, other = 2 - own, -other
            mixed = (multiply_images if multiply < 0.5 else add_images)(mixed, partner, own, other)
        return (mixed * 255).round_().byte()

    def _change(self, image: Tensor, otherwise: Tensor, draws: Iterator[float]) -> Tensor:
        """In half the cases an altered copy of the image."""
        wanted, which, strength, side = (next(draws) for _ in range(4))
        if wanted < 0.5:
            return otherwise
        level = 0.1 + strength * (self.severity - 0.1)
        change = list(CHANGES.values())[_index(which, len(CHANGES))]
        return change(image, level / 10, 1 if side < 0.5 else -1)

    def _crop(self, image: Tensor, draws: Iterator[float]) -> Tensor:
        """A random part of a random mixing image, of the size of the image."""
        texture = self.mixing_images[_index(next(draws), len(self.mixing_images))]
        height, width = image.shape[1:]
        enlarged = max(height / texture.shape[1], width / texture.shape[2])
        if enlarged > 1:
            sides = [math.ceil(enlarged * side) for side in texture.shape[1:]]
            texture = v2.resize(texture, sides, antialias=True)
        top = _index(next(draws), texture.shape[1] - height + 1)
        left = _index(next(draws), texture.shape[2] - width + 1)
        return texture[:, top : top + height, left : left + width]


def add_images(mixed: Tensor, partner: Tensor, own: float, other: float) -> Tensor:
    """The weighted sum of two images with values from 0 to 1, with mid-gray as its zero."""
    total = own * (2 * mixed - 1) + other * (2 * partner - 1)
    return ((total + 1) / 2).clamp_(0, 1)


def multiply_images(mixed: Tensor, partner: Tensor, own: float, other: float) -> Tensor:
    """The weighted product of two images with values from 0 to 1, with mid-gray as its one."""
    # A tiny number for black, which a negative power would make infinite.
    product = (2 * mixed) ** own * (2 * partner).clamp_min(1e-37) ** other
    return (product / 2).clamp_(0, 1)


def _move(image: Tensor, angle: int = 0, shear_x: float = 0, shear_y: float = 0) -> Tensor:
    """The image turned about its middle, or sheared from its upper left corner; black around."""
    moved: Tensor = v2.affine(
        image,
        angle=angle,
        translate=[0, 0],
        scale=1,
        shear=[math.degrees(math.atan(shear_x)), math.degrees(math.atan(shear_y))],
        interpolation=InterpolationMode.BILINEAR,
        center=None if angle else [0, 0],
    )
    return moved


def _shift(image: Tensor, across: int = 0, down: int = 0) -> Tensor:
    return functional.pad(image, (-across, across, -down, down))


# By name, how an image is altered: by a share of the greatest strength, in one of two directions.
CHANGES: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "autocontrast": lambda image, share, sign: v2.autocontrast(image),
    "equalize": lambda image, share, sign: v2.equalize(image),
    "posterize": lambda image, share, sign: v2.posterize(image, bits=4 - int(share * 4)),
    "rotate": lambda image, share, sign: _move(image, angle=-sign * int(share * 30)),
    "solarize": lambda image, share, sign: v2.solarize(image, threshold=256 - int(share * 256)),
    "shear_x": lambda image, share, sign: _move(image, shear_x=sign * share * 0.3),
    "shear_y": lambda image, share, sign: _move(image, shear_y=sign * share * 0.3),
    "translate_x": lambda image, share, sign: _shift(image, sign * int(share * image.shape[2] / 3)),
    "translate_y": lambda image, share, sign: _shift(
        image, down=sign * int(share * image.shape[1] / 3)
    ),
}


def _index(share: float, count: int) -> int:
    """One of `count` numbers by a draw between 0 and 1."""
    return min(int(share * count), count - 1)
