"""Data that are given in Python: tensors, data sets, loaders and iterables, as image sets."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from killick.core.image_model import Normalize, make_normalizer
from killick.data.dataset_reader import find_side, name_classes, read_dataset
from killick.data.given_samples import PixelConverter, to_labels
from killick.data.image_set import ImageSet
from killick.data.sources import load_whole
from killick.data.streams import SampleStream, StreamSet, read_head, read_stream
from killick.errors import OptionError

# A data name or folder, an `ImageSet`, images with or without labels, or what yields them.
Given = str | os.PathLike[str] | ImageSet | tuple[Tensor, Tensor] | Tensor | Iterable[Any]
Normalization = tuple[Sequence[float], Sequence[float]]
_KINDS = (
    "a data name or folder, a Dataset or DataLoader that yields (image, label), or tensors (images,"
    " labels)"
)
_CHUNK = 1024


def as_set(
    name: str,
    given: Any,
    class_names: Sequence[str] | None = None,
    *,
    normalize: Normalization | None = None,
    labeled: bool = True,
    to_train: bool = False,
) -> ImageSet:
    """An image set from any data, see `Given`.

    Args:
        name: Of the set.
        given: The data.
        class_names: By default the data's own, or numbers.
        normalize: `(mean, std)` of floats that are normalized.
        labeled: Whether labels are needed.
        to_train: A stream stays one, a `StreamSet`; else all of it is read.
    """
    if isinstance(given, ImageSet):
        return given
    if isinstance(given, str | os.PathLike):
        return load_whole(os.fspath(given))
    normalizer = make_normalizer(normalize)
    if isinstance(given, TensorDataset):
        given = given.tensors[:2]
    if isinstance(given, Tensor):
        given = (given, None)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Tensor):
        images, labels = given
        labeled = labeled and not (labels is None and class_names is None)
        return _read_tensors(name, images, labels if labeled else None, class_names, normalizer)
    if (found := _read_hub_set(name, given, labeled, to_train)) is not None:
        return found
    if _is_map_style(given):
        return read_dataset(
            name, given, normalize=normalizer, class_names=class_names, labeled=labeled
        )
    if isinstance(given, tuple | list | Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"{name} must be {_KINDS}, found {type(given).__name__}.")
    stream = SampleStream(name, given, normalizer, labeled)
    return read_head(stream, class_names) if to_train else read_stream(stream, class_names)


def as_sets(
    given: Mapping[str, Given] | None, option: str, normalize: Normalization | None = None
) -> dict[str, ImageSet | str]:
    """Sets by name; data names are not loaded yet. OOD images need no labels."""
    if not isinstance(given, Mapping | None):
        raise OptionError(
            f"{option} must be a dictionary from names to data, found {type(given).__name__}."
        )
    labeled = option != "ood"
    return {
        name: os.fspath(value)
        if isinstance(value, str | os.PathLike)
        else as_set(name, value, normalize=normalize, labeled=labeled)
        for name, value in (given or {}).items()
    }


def name_given(given: Any) -> str:
    """What a set that is given is called in rows."""
    if isinstance(given, tuple | list | Tensor | TensorDataset):
        return "images"
    return given.name if isinstance(given, ImageSet | StreamSet) else type(given).__name__


def _read_hub_set(name: str, given: Any, labeled: bool, to_train: bool) -> ImageSet | None:
    """A data set of the Hugging Face library by its columns; None of others, and of transformed ones."""
    library = sys.modules.get("datasets")  # not imported for this
    if library is None:
        return None
    from killick.data.sources.hf import RowStream, read_hub_set, read_hub_stream, train_on

    if isinstance(given, library.Dataset):
        return read_hub_set(name, given, labeled)
    if not labeled or not isinstance(given, library.IterableDataset):
        return None
    kinds = (given.features or {}).values()
    if not any(isinstance(kind, library.Image) for kind in kinds):
        return None
    return train_on(RowStream(name, given)) if to_train else read_hub_stream(name, given)


def _is_map_style(given: Any) -> bool:
    """Whether it has a length and gives samples by number."""
    streams = isinstance(given, IterableDataset) or hasattr(type(given), "set_epoch")
    known = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    return known and not streams and not isinstance(given, Mapping | tuple | list)


def _read_tensors(
    name: str,
    images: Tensor,
    labels: Any,
    class_names: Sequence[str] | None,
    normalize: Normalize | None,
) -> ImageSet:
    if images.ndim == 4 and len(images):
        convert = PixelConverter.like(name, [images], normalize)
        images = torch.cat([convert(part) for part in images.split(_CHUNK)])
    numbers = torch.zeros(len(images), dtype=torch.long)
    names: tuple[str, ...] = ("unknown",)
    if labels is not None and len(images):
        numbers = to_labels(labels, len(images), name)
        names = name_classes(numbers, class_names)
    found = ImageSet.of(name, images.cpu(), numbers, names)
    return replace(found, side=find_side([images], [images]))
