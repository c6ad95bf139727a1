"""A user's own transform: any callable from image to image.

torchvision's transforms and plain functions take a uint8 tensor `(3, height, width)`; kornia's take
floats from 0 to 1 with a batch axis, albumentations' an array `image=(height, width, 3)`. What comes
back may be any of these, or a PIL image.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from killick.data.given_samples import seeded
from killick.data.keyed_random import Stream
from killick.errors import DataError, one_line

_NORMALIZED = "Leave normalization out: the model does it."


class OwnTransform:
    """Calls a transform so that what it draws depends on the sample's key alone.

    Python's, NumPy's and torch's random states are seeded for each image, and given back.
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self._transform = transform
        self._library = type(transform).__module__.partition(".")[0]
        self._name = getattr(transform, "__name__", type(transform).__name__)

    def __call__(self, image: Tensor, key: int) -> Tensor:
        """The image that the transform makes for `key`, uint8 `(3, height, width)`."""
        with seeded(key, Stream.TRANSFORM) as seed:
            try:
                made = self._call(image, seed)
            except Exception as problem:  # whatever it raises
                shape = " x ".join(map(str, image.shape))
                raise DataError(
                    f"the transform {self._name} failed on an image of {shape}: {one_line(problem)}."
                ) from problem
        return self._as_image(made)

    def _call(self, image: Tensor, seed: int) -> Any:
        if self._library == "albumentations":
            if hasattr(self._transform, "set_random_seed"):  # it has generators of its own
                self._transform.set_random_seed(seed % 2**32)
            return self._transform(image=image.permute(1, 2, 0).contiguous().numpy())["image"]
        if self._library == "kornia":
            return self._transform(image[None].float() / 255)[0]
        return self._transform(image)

    def _as_image(self, made: Any) -> Tensor:
        """What a transform returned, as uint8 `(3, height, width)`."""
        if isinstance(made, Image.Image):
            made = np.asarray(made.convert("RGB"))
        if isinstance(made, np.ndarray):
            made = torch.from_numpy(np.array(made))
            made = made.permute(2, 0, 1) if made.ndim == 3 else made
        if not isinstance(made, Tensor) or made.ndim != 3 or made.shape[0] != 3:
            found = (
                f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            )
            raise DataError(f"the transform {self._name} must return an RGB image, found {found}.")
        image: Tensor = made.as_subclass(Tensor)
        if image.is_floating_point():
            low, high = image.aminmax()
            if not (low >= -1e-3 and high <= 1 + 1e-3):  # so it is with NaN
                raise DataError(
                    f"the transform {self._name} returns floats from {low:.3g} to {high:.3g}, not 0 to"
                    f" 1. {_NORMALIZED}"
                )
            image = (255 * image.clamp(0, 1)).round()
        elif image.dtype != torch.uint8:
            raise DataError(
                f"the transform {self._name} must return uint8 or floats, found {image.dtype}."
            )
        return image.to(torch.uint8)
