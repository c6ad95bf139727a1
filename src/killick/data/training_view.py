"""The view of training: a random view of an image, one at a time, in worker processes.

The transforms are torchvision's. They draw from torch's global state, so each image seeds that from
its own key, and restores it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from killick.data.keyed_random import Stream
from killick.data.keyed_random import key as combine
from killick.data.own_transform import OwnTransform
from killick.data.pixmix import PixMix
from killick.data.preprocessing import PlainView
from killick.errors import OptionError, one_line

POLICIES = {
    "randaugment": v2.RandAugment,
    "trivialaugment": v2.TrivialAugmentWide,
    "autoaugment": v2.AutoAugment,
    "augmix": v2.AugMix,
}


class TrainView:
    """A random view of an image, for training; options are those of `augment` in a recipe.

    With crop "pad" the image is brought to `size`, padded and cropped at random; with "resized" a
    random part of it is brought to `size`. `mixing_images` are for the policy "pixmix". A
    `transform` of the user's own comes before all of this.
    """

    def __init__(
        self,
        size: int,
        *,
        crop: str = "none",
        padding: int = 4,
        flip: bool = False,
        flip_vertically: bool = False,
        policy: str = "none",
        policy_arguments: dict[str, Any] | None = None,
        interpolation: str = "bilinear",
        squash: bool = False,
        mixing_images: Tensor | None = None,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self._own = None if transform is None else OwnTransform(transform)
        how = InterpolationMode(interpolation)
        steps: list[Callable[..., Any]] = []
        if crop == "resized":
            steps.append(v2.RandomResizedCrop(size, interpolation=how, antialias=True))
        else:
            steps.append(PlainView(size, None, interpolation, squash))
            if crop == "pad":
                steps.append(v2.RandomCrop(size, padding=padding))
        if flip:
            steps.append(v2.RandomHorizontalFlip())
        if flip_vertically:
            steps.append(v2.RandomVerticalFlip())
        arguments = dict(policy_arguments or {})
        self.policy: Any = None  # the transform of the policy
        try:
            if policy != "none":
                self.policy = _policy(policy, arguments, interpolation, mixing_images)
                steps.append(self.policy)
            self._steps = v2.Compose(steps)
            for trial in range(16):  # some operations do not look at what is wrong
                self._show(torch.zeros(3, 8, 8, dtype=torch.uint8), trial)
        except (TypeError, ValueError, IndexError, RuntimeError) as problem:
            if not arguments:
                raise
            raise OptionError(
                f"cannot make {policy!r} with {arguments}: {one_line(problem)}."
            ) from None

    def __call__(self, image: Tensor, key: int) -> Tensor:
        """The view that belongs to `key`, uint8 `(3, size, size)`."""
        if self._own is not None:
            image = self._own(image, key)
        return self._show(image, key)

    def _show(self, image: Tensor, key: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(combine(key, Stream.VIEW) % 2**63)
            view: Tensor = self._steps(image)
        return view.contiguous()


def _policy(
    policy: str, arguments: dict[str, Any], interpolation: str, mixing_images: Tensor | None
) -> Any:
    if policy == "pixmix":
        assert mixing_images is not None
        return PixMix(mixing_images, **arguments)
    if policy == "autoaugment" and "policy" in arguments:
        arguments = {**arguments, "policy": v2.AutoAugmentPolicy(arguments["policy"])}
    # torchvision turns and shears tensors bilinearly at best.
    turning = InterpolationMode("nearest" if interpolation.startswith("nearest") else "bilinear")
    return POLICIES[policy](**{"interpolation": turning, **arguments})
