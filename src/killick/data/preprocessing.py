"""The view of evaluation: an image of any size to what a network takes.

The transforms are torchvision's, whose import takes seconds: it is left to images that need them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from PIL import Image
from torch import Tensor

from killick.core.image_model import ImageModel
from killick.data.data_settings import Data
from killick.errors import DataError, OptionError, StorageError
from killick.nets import NetworkPreprocessing, preprocessing_of
from killick.settings import read_settings

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
        side = resize or size
        self.described = f"{size} px" if side == size else f"{size} of {side} px"
        self.described += ", squashed" if squash else ""
        self.described += "" if interpolation == "bilinear" else f", {interpolation}"

    @cached_property
    def _steps(self) -> Callable[[Tensor], Tensor]:
        from torchvision.transforms import InterpolationMode, v2

        side, how = self.resize or self.size, InterpolationMode(self.interpolation)
        target = [side, side] if self.squash else side
        resize = v2.Resize(target, interpolation=how, antialias=True)
        steps: Callable[[Tensor], Tensor] = v2.Compose([resize, v2.CenterCrop(self.size)])
        return steps

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
