"""Whatever a user gives for a set of pictures: a name, an `ImageSet`, or tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from killick.data.image_set import ImageSet, digest
from killick.data.sources import load_whole
from killick.errors import DataError, OptionError

Given = str | ImageSet | tuple[Tensor, Tensor] | Tensor


def as_set(name: str, given: Any, class_names: tuple[str, ...] | None = None) -> ImageSet:
    """An image set of whatever stands for one: a name, images, or images and labels."""
    if isinstance(given, ImageSet):
        return given
    if isinstance(given, str):
        return load_whole(given)
    images, labels = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(images, Tensor) or not (labels is None or isinstance(labels, Tensor)):
        raise OptionError(
            f"expected {name} by name, as an ImageSet, or as uint8 images with or without labels,"
            f" found {type(given).__name__}."
        )
    if images.is_floating_point():
        raise DataError(
            f"expected {name} as uint8 images, found {images.dtype}. For images in 0 to 1:"
            " (images * 255).round().to(torch.uint8)."
        )
    if labels is None:
        return ImageSet.of(name, images.cpu(), torch.zeros(len(images)).long(), ("unknown",))
    count = int(labels.max()) + 1 if len(labels) else 0
    names = class_names or tuple(str(number) for number in range(count))
    return ImageSet.of(name, images.cpu(), labels.cpu(), names)


def as_sets(given: Mapping[str, Given] | None, option: str) -> dict[str, ImageSet | str]:
    """Sets by their names; those given by a name of data are loaded later."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(
            f"expected {option} as a dictionary from names to data, found {type(given).__name__}."
        )
    return {
        name: value if isinstance(value, str) else as_set(name, value)
        for name, value in given.items()
    }


def overlap(held: ImageSet, test: ImageSet) -> bool:
    """Whether a picture is in both sets: of one source, of the same files, or all of them."""
    if held.source is test.source:
        return bool(torch.isin(held.rows, test.rows).any())
    path, other = (getattr(images.source, "path", None) for images in (held, test))
    if callable(path) and callable(other):
        return bool(set(map(path, held.rows.tolist())) & set(map(other, test.rows.tolist())))
    return len(held) == len(test) and digest(held) == digest(test)
