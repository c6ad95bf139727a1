"""Samples of data sets given in Python, `(image, label)`, as uint8 images and class numbers."""

import operator
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from killick.core.image_model import Normalize
from killick.data.decoding import explained, to_pixels
from killick.data.keyed_random import key as combine
from killick.errors import DataError, show

OVERSHOOT = 0.05  # beyond 0 to 1: bicubic resizing of floats goes there
_IMAGES = ("image", "img", "pixel_values")  # in samples that are dictionaries
_LABELS = ("label", "labels", "target")


@dataclass(frozen=True)
class PixelConverter:
    """Turns images of one data set into uint8 `(3, height, width)`, also in batches.

    They are PIL images, or tensors: uint8, floats in 0 to 1, or floats normalized by `normalize`.
    """

    name: str  # of the data set, in errors
    normalize: Normalize | None = None
    inverts: bool = False  # whether floats are normalized ones

    @classmethod
    def like(
        cls, name: str, images: Sequence[Any], normalize: Normalize | None
    ) -> "PixelConverter":
        """One for data with such images, some of them: floats outside 0 to 1 are normalized."""
        floats = [x for x in images if isinstance(x, Tensor) and x.is_floating_point() and len(x)]
        outside = any(not _is_inside(image) for image in floats)
        return cls(name, normalize, inverts=outside and normalize is not None)

    def __call__(self, image: Any) -> Tensor:
        """The pixels, uint8 `(3, height, width)`, or of a batch `(n, 3, height, width)`."""
        if isinstance(image, Image.Image):
            with explained(f"an image of {self.name}"):
                return to_pixels(image, upright=False)
        if not isinstance(image, Tensor):
            raise DataError(
                f"the images of {self.name} must be tensors or PIL images, found"
                f" {type(image).__name__}. Convert them: torchvision.transforms.v2.ToImage()."
            )
        if image.ndim == 2:
            image = image[None]
        if image.ndim not in (3, 4) or image.shape[-3] not in (1, 3) or not image.numel():
            raise DataError(
                f"the images of {self.name} must be (3, height, width), found"
                f" {tuple(image.shape)}. Move the channels: image.permute(2, 0, 1)."
            )
        image = image.detach().cpu()
        if image.is_floating_point():
            image = self._scaled(image.float())
        elif image.dtype != torch.uint8:
            raise DataError(
                f"the images of {self.name} must be uint8, or floats in 0 to 1, found"
                f" {image.dtype}. For 0 to 255: image.to(torch.uint8)."
            )
        pixels: Tensor = image.expand(*image.shape[:-3], 3, *image.shape[-2:]).contiguous()
        return pixels

    def _scaled(self, image: Tensor) -> Tensor:
        found = image
        if self.inverts:
            assert self.normalize is not None
            self.normalize.check_channels(image.shape[-3])
            mean, std = (
                torch.tensor(each).view(-1, 1, 1)
                for each in (self.normalize.mean, self.normalize.std)
            )
            image = image * std + mean
        if not _is_inside(image):
            low, high = float(found.min()), float(found.max())
            fix = (
                f"They do not fit normalize={self.normalize.mean}, {self.normalize.std}."
                if self.inverts and self.normalize is not None
                else "If they are normalized, give normalize=(mean, std)."
            )
            raise DataError(
                f"floats of {self.name} must be in 0 to 1, found {low:.3g} to {high:.3g}. {fix}"
            )
        return (image * 255).round().clamp(0, 255).to(torch.uint8)


def _is_inside(image: Tensor) -> bool:
    """Whether floats are in 0 to 1; NaN is not."""
    low, high = image.aminmax()
    return bool(low >= -OVERSHOOT) and bool(high <= 1 + OVERSHOOT)


def split_sample(sample: Any) -> tuple[Any, Any]:
    """Image and label of a sample or a batch; None for a label that is not there."""
    if isinstance(sample, Mapping):
        image = next((sample[key] for key in _IMAGES if key in sample), None)
        return image, next((sample[key] for key in _LABELS if key in sample), None)
    if isinstance(sample, tuple | list):
        return (*sample, None, None)[:2]
    return sample, None


def to_label(value: Any, name: str) -> int:
    """A label as a class number."""
    size = value.size if isinstance(value, np.ndarray) else getattr(value, "numel", lambda: 1)()
    if size > 1 or isinstance(value, list | tuple):
        raise DataError(
            f"a label of {name} must be a class number, found {show(value)}. For one-hot labels:"
            " label.argmax()."
        )
    try:
        return operator.index(value)
    except TypeError:
        _refuse_label(value, name)


def to_labels(values: Any, count: int, name: str) -> Tensor:
    """The labels of a batch as class numbers `(n,)`."""
    if isinstance(values, list | tuple):
        return torch.tensor([to_label(value, name) for value in values])
    if not isinstance(values, Tensor):
        _refuse_label(values, name)
    if values.ndim == 2 and values.shape[1] > 1:
        raise DataError(
            f"the labels of {name} must be class numbers, found a tensor of shape"
            f" {tuple(values.shape)}. For one-hot labels: labels.argmax(1)."
        )
    if values.is_floating_point() or values.is_complex() or values.numel() != count:
        raise DataError(
            f"the labels of {name} must be a class number for each of {count} images, found"
            f" {values.dtype} of shape {tuple(values.shape)}."
        )
    labels: Tensor = values.detach().cpu().long().flatten()
    return labels


def _refuse_label(value: Any, name: str) -> NoReturn:
    if value is None:
        raise DataError(
            f"{name} has no labels: it must yield (image, label). Images without labels can be OOD"
            " images, ood={'name': data}."
        )
    raise DataError(f"a label of {name} must be a class number, found {show(value)}.")


@contextmanager
def seeded(*numbers: int) -> Iterator[int]:
    """Seed the global generators of torch, NumPy and Python by `numbers`, and restore them."""
    seed = combine(*numbers) % 2**63
    python, array = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield seed
        finally:
            random.setstate(python)
            np.random.set_state(array)  # noqa: NPY002
