"""Views: an image of any size to what a network takes, one at a time, in worker processes.

All transforms are torchvision's. They draw from torch's global state, so each image seeds that from
its own key, and restores it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from killick.core.image_model import ImageModel
from killick.data.data_settings import Data
from killick.data.keyed_random import Stream
from killick.data.keyed_random import key as combine
from killick.data.own_transform import OwnTransform
from killick.data.pixmix import PixMix
from killick.errors import DataError, OptionError, StorageError
from killick.nets import NetworkPreprocessing, preprocessing_of
from killick.settings import read_settings

POLICIES = {
    "randaugment": v2.RandAugment,
    "trivialaugment": v2.TrivialAugmentWide,
    "autoaugment": v2.AutoAugment,
    "augmix": v2.AugMix,
}
VIEW = ("size", "resize", "interpolation", "squash")


class PlainView:
    """The middle of an image, for evaluation and clean references.

    The shorter side is brought to `resize`, by default to `size`, and a square of `size` is cut out.
    With `squash` both sides are brought to that, whatever the shape of the image.
    """

    def __init__(
        self,
        size: int,
        resize: int | None = None,
        interpolation: str = "bilinear",
        squash: bool = False,
    ) -> None:
        self.size, self.resize, self.interpolation = size, resize, interpolation
        self.squash = squash
        side, how = resize or size, InterpolationMode(interpolation)
        self.described = f"{size} px" if side == size else f"{size} of {side} px"
        self.described += ", squashed" if squash else ""
        self.described += "" if interpolation == "bilinear" else f", {interpolation}"
        target = [side, side] if squash else side
        self._steps = v2.Compose(
            [v2.Resize(target, interpolation=how, antialias=True), v2.CenterCrop(size)]
        )

    @classmethod
    def of(cls, settings: Data) -> "PlainView":
        """The view that data settings describe."""
        return cls(settings.size, settings.resize, settings.interpolation, settings.squash)

    def override(
        self, size: int | None = None, resize: int | None = None, interpolation: str | None = None
    ) -> "PlainView":
        """With what a user gave instead; by the rule of `NetworkPreprocessing`."""
        known = NetworkPreprocessing(self.size, self.resize, self.interpolation, self.squash)
        return PlainView(**known.override(size, resize, interpolation).view())

    def settings(self) -> dict[str, Any]:
        """As settings of a recipe's `data`."""
        return {name: getattr(self, name) for name in VIEW}

    def keeps(self, images: Tensor) -> bool:
        """Whether images of this size are shown as they are."""
        return images.shape[-2:] == (self.size, self.size) and self.resize in (None, self.size)

    def __call__(self, image: Tensor, key: int = 0) -> Tensor:
        """The view, uint8 `(3, size, size)`; `key` makes no difference."""
        if self.keeps(image):
            return image.contiguous()
        height, width = image.shape[-2:]
        if not self.squash:
            check_length(height, width, self.resize or self.size, "an image")
        view: Tensor = self._steps(image)
        return view.contiguous()


def check_length(height: int, width: int, side: int, name: str) -> None:
    """Refuse a strip that would become huge when its shorter side is brought to `side`."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and side * side * max(height, width) // min(height, width) > limit:
        raise DataError(
            f"cannot read {name}: its {width} x {height} pixels are too long a strip to be shown"
            f" at {side} px. Replace it or leave it out."
        )


def view_for(model: ImageModel) -> PlainView:
    """The preprocessing stored with `model`, else the test view of its recipe, else its network's."""
    stored = model.provenance or {}
    if not stored.get("recipe") and (own := network_view(model)) is not None:
        stored = {"preprocessing": own, **stored}
    return read_view(stored, model.image_shape[-1])


def network_view(model: ImageModel) -> dict[str, Any] | None:
    """The view of a network whose weights have one, if the model takes images of that size."""
    try:
        known = preprocessing_of(model.net)
    except OptionError:  # of a kind that is not followed
        known = None
    same = known is not None and tuple(model.image_shape) == (3, known.size, known.size)
    return known.view() if known is not None and same else None


def read_view(stored: Mapping[str, Any], size: int) -> PlainView:
    """The view in the provenance of a model, which may come from anywhere, so it is checked."""
    recipe, data = stored.get("recipe"), stored.get("preprocessing")
    if data is None and isinstance(recipe, dict):
        data = recipe.get("data")
    data = data if isinstance(data, dict) else {}
    known = {name: data[name] for name in VIEW if data.get(name) is not None}
    problems: list[str] = []
    found = read_settings(Data, known, "data.", problems)
    if problems:
        raise StorageError(
            f"in the recipe of the model, {'; '.join(problems)}. Correct its provenance, and save it"
            " again."
        )
    return PlainView.of(found if "size" in known else replace(found, size=size))


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
            reason = " ".join(str(problem).split()).rstrip(".")
            raise OptionError(f"cannot make {policy!r} with {arguments}: {reason}.") from None

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
