"""PixMix: images mixed with images of rich structure and with altered copies of themselves.

After Hendrycks et al., "PixMix: Dreamlike Pictures Comprehensively Improve Safety Measures", CVPR
2022. What is drawn for an image (`PixMixPlan`) and what is computed from it (`PixMix.apply`) are kept
apart.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as v2

from killick.errors import OptionError

CHANGES = (
    *("autocontrast", "equalize", "posterize", "rotate", "solarize"),
    *("shear_x", "shear_y", "translate_x", "translate_y"),
)


class Change(NamedTuple):
    """One of `CHANGES`, how strong it is (between 0.1 and the severity), and which way it goes."""

    name: str
    level: float
    sign: int


class Round(NamedTuple):
    """One mixing: what comes in (None: the mixing image), how, and with which weights."""

    partner: Change | None
    multiply: bool
    own: float
    other: float


class PixMixPlan(NamedTuple):
    """All that is drawn for one image."""

    start: Change | None  # the change made to the image at the beginning
    rounds: tuple[Round, ...]  # the mixings, in order
    mixing_image: int  # its number, the same in all rounds
    top: float  # where its crop is, from 0 to 1 of the room there is
    left: float


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

    Example:
        >>> mixing_images = torch.zeros(2, 3, 40, 40, dtype=torch.uint8)
        >>> image = torch.full((3, 32, 32), 128, dtype=torch.uint8)
        >>> mixed = PixMix(mixing_images)(image, torch.Generator().manual_seed(0))
        >>> tuple(mixed.shape), mixed.dtype
        ((3, 32, 32), torch.uint8)
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
        return self.apply(image, self.draw(generator))

    def draw(self, generator: torch.Generator | None) -> PixMixPlan:
        """A plan for one image. Each takes equally many numbers from the generator."""
        count = 8 + 8 * self.k
        draws = iter(torch.rand(count, dtype=torch.float64, generator=generator).tolist())
        start = self._draw_change(draws)
        rounds = _index(next(draws), self.k + 1)
        which, top, left = _index(next(draws), len(self.mixing_images)), next(draws), next(draws)
        return PixMixPlan(
            start, tuple(self._draw_round(draws) for _ in range(rounds)), which, top, left
        )

    def _draw_change(self, draws: Iterator[float]) -> Change | None:
        """In half the cases a change."""
        wanted, which, strength, side = (next(draws) for _ in range(4))
        if wanted < 0.5:
            return None
        level = 0.1 + strength * (self.severity - 0.1)
        return Change(CHANGES[_index(which, len(CHANGES))], level, 1 if side < 0.5 else -1)

    def _draw_round(self, draws: Iterator[float]) -> Round:
        partner = self._draw_change(draws)
        multiply, away, first, second = (next(draws) for _ in range(4))
        # By the inverse distribution functions: u**(1/b) for Beta(b, 1), the mirror for Beta(1, b).
        own, other = first ** (1 / self.beta), 1 - second ** (1 / self.beta)
        if away >= 0.5:
            own, other = 2 - own, -other
        return Round(partner, multiply < 0.5, own, other)

    def apply(self, image: Tensor, plan: PixMixPlan) -> Tensor:
        """What the plan makes of the image, uint8 `(3, height, width)`."""
        start = change(image, plan.start)
        if not plan.rounds:
            return start
        mixed = start.float() / 255
        for round_ in plan.rounds:
            if round_.partner is None:
                partner = self._crop(plan, image.shape[1], image.shape[2])
            else:
                partner = change(image, round_.partner)
            mixed = mix(mixed, partner.float() / 255, round_)
        return (mixed * 255).round_().byte()

    def _crop(self, plan: PixMixPlan, height: int, width: int) -> Tensor:
        """The part of the mixing image that lies over the image."""
        texture = self.mixing_images[plan.mixing_image]
        enlarged = max(height / texture.shape[1], width / texture.shape[2])
        if enlarged > 1:
            sides = [math.ceil(enlarged * side) for side in texture.shape[1:]]
            texture = v2.resize(texture, sides, antialias=True)
        top = _index(plan.top, texture.shape[1] - height + 1)
        left = _index(plan.left, texture.shape[2] - width + 1)
        return texture[:, top : top + height, left : left + width]


def mix(mixed: Tensor, partner: Tensor, round_: Round) -> Tensor:
    """The weighted sum or product of two images with values from 0 to 1, clipped to that.

    The sum is taken with mid-gray as its zero, the product with mid-gray as its one: there a
    weight of any size changes nothing.
    """
    if round_.multiply:
        # A tiny number for black, which a negative power would make infinite.
        product = (2 * mixed) ** round_.own * (2 * partner).clamp_min(1e-37) ** round_.other
        return (product / 2).clamp_(0, 1)
    total = round_.own * (2 * mixed - 1) + round_.other * (2 * partner - 1)
    return ((total + 1) / 2).clamp_(0, 1)


def change(image: Tensor, wanted: Change | None) -> Tensor:
    """The image after one of `CHANGES`, in the authors' scale; the image itself without one."""
    if wanted is None:
        return image
    share, sign = wanted.level / 10, wanted.sign
    across, down = (sign * int(share * side / 3) for side in (image.shape[2], image.shape[1]))
    changes: dict[str, Callable[[], Tensor]] = {
        "autocontrast": lambda: v2.autocontrast(image),
        "equalize": lambda: v2.equalize(image),
        "posterize": lambda: v2.posterize(image, bits=4 - int(share * 4)),
        "rotate": lambda: _move(image, angle=-sign * int(share * 30)),
        "solarize": lambda: v2.solarize(image, threshold=256 - int(share * 256)),
        "shear_x": lambda: _move(image, shear_x=sign * share * 0.3),
        "shear_y": lambda: _move(image, shear_y=sign * share * 0.3),
        "translate_x": lambda: functional.pad(image, (-across, across, 0, 0)),
        "translate_y": lambda: functional.pad(image, (0, 0, -down, down)),
    }
    return changes[wanted.name]()


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


def _index(share: float, count: int) -> int:
    """One of `count` numbers by a draw between 0 and 1."""
    return min(int(share * count), count - 1)
