"""Map-style data sets of PyTorch: anything with a length that gives `(image, label)` by number."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from killick.core.image_model import Normalize
from killick.data.given_samples import PixelConverter, seeded, split_sample, to_label
from killick.data.image_set import ImageSet
from killick.data.worker_processes import begin_worker, iterate
from killick.errors import DataError, KillickError, one_line
from killick.runtime.processes import usual_workers

_log = logging.getLogger("killick")
_LOOKED_AT = 16  # images that decide whether floats are normalized


class DatasetReader:
    """Images of a data set that has no transforms: they are always the same."""

    def __init__(self, name: str, dataset: Any, convert: PixelConverter) -> None:
        self.name, self.dataset, self.convert = name, dataset, convert

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Tensor:
        return self.convert(_read(self.name, self.dataset, number, 0)[0])


class AugmentedReader(DatasetReader):
    """Images of a data set that may draw transforms, from a key and the number of the image."""

    def sample(self, number: int, key: int) -> Tensor:
        """The image of that number, transformed as `key` says."""
        return self.convert(_read(self.name, self.dataset, number, key)[0])


def read_dataset(
    name: str,
    dataset: Any,
    *,
    normalize: Normalize | None = None,
    class_names: Sequence[str] | None = None,
    labeled: bool = True,
    workers: int | None = None,
) -> ImageSet:
    """A map-style data set as an image set.

    Labels are those in `targets`, as torchvision's data sets have them; else all samples are read
    once. Without `labeled` there are none.
    """
    count = len(dataset)
    if count == 0:
        raise DataError(f"{name} is empty.")
    places = torch.linspace(0, count - 1, min(_LOOKED_AT, count)).long().tolist()
    samples = {place: _read(name, dataset, place, 0) for place in places}
    images = [image for image, _ in samples.values()]
    convert = PixelConverter.like(name, images, normalize)
    side = find_side(images, [convert(image) for image in images])
    inner = dataset.dataset if isinstance(dataset, Subset) else dataset
    plain = getattr(inner, "transforms", inner) is None  # torchvision's data sets have it
    reader = (DatasetReader if plain else AugmentedReader)(name, dataset, convert)
    labels = torch.zeros(count, dtype=torch.long)
    names: tuple[str, ...] = ("unknown",)
    if labeled:
        known = {place: to_label(label, name) for place, (_, label) in samples.items()}
        labels = _read_labels(name, dataset, known, workers)
        names = name_classes(labels, class_names, getattr(inner, "classes", None))
    found = replace(ImageSet.of(name, reader, labels, names), side=side)
    if plain or torch.equal(convert(_read(name, dataset, 0, 0)[0]), convert(images[0])):
        return found
    _log.warning(
        "image 0 of %s differs when it is read again with the same seed: it draws from a generator of"
        " its own, so a resumed run is not exact. Draw from torch's, NumPy's or Python's global one.",
        name,
    )
    return replace(found, access="stream")


def find_side(images: Sequence[Any], pixels: Sequence[Tensor]) -> int | None:
    """The side of images that are tensors, square and of one size; None of others."""
    sizes = {side for each in pixels for side in each.shape[-2:]}
    tensors = all(isinstance(image, Tensor) for image in images)
    return sizes.pop() if tensors and len(sizes) == 1 else None


def name_classes(
    labels: Tensor, given: Sequence[str] | None, own: Sequence[Any] | None = None
) -> tuple[str, ...]:
    """The class names given; else the data's own, if they fit the labels; else numbers."""
    if given is not None:
        return tuple(given)
    highest = int(labels.max())
    if isinstance(own, list | tuple) and highest < len(own):
        return tuple(map(str, own))
    return tuple(str(number) for number in range(max(0, highest) + 1))


def _read(name: str, dataset: Any, number: int, key: int) -> tuple[Any, Any]:
    """Image and label of a number; what goes wrong in the data set is said in one line."""
    try:
        with seeded(key, number):
            return split_sample(dataset[number])
    except KillickError:
        raise
    except Exception as problem:  # raised by the user's code
        raise DataError(
            f"cannot read image {number} of {name}: {type(problem).__name__}: {one_line(problem)}."
        ) from problem


def _read_labels(name: str, dataset: Any, known: dict[int, int], workers: int | None) -> Tensor:
    """All labels; `known` are some of them, by number."""
    found = _find_targets(dataset)
    if found is not None and all(found[place] == label for place, label in known.items()):
        return found
    workers = usual_workers() if workers is None else workers
    loader = DataLoader(
        _Labels(name, dataset),
        batch_size=64,
        num_workers=workers,
        collate_fn=list,
        worker_init_fn=begin_worker,
        generator=torch.Generator(),
    )
    labels = []
    for label in (label for part in iterate(loader, name) for label in part):
        if isinstance(label, KillickError):
            raise label
        labels.append(label)
    return torch.tensor(labels)


def _find_targets(dataset: Any) -> Tensor | None:
    """The labels in `targets`, if there is a whole number for each image."""
    if isinstance(dataset, Subset):
        whole = _find_targets(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(list(dataset.indices))]
    try:
        found = torch.as_tensor(dataset.targets)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None
    whole_numbers = not found.is_floating_point() and found.shape == (len(dataset),)
    # Only a few labels can be compared with what the data set yields.
    same = getattr(dataset, "target_transform", None) is None
    return found.long() if whole_numbers and same else None


class _Labels(Dataset[int | KillickError]):
    """The labels of a data set; a problem is returned, as raised in a worker it has no type."""

    def __init__(self, name: str, dataset: Any) -> None:
        self._name, self._dataset = name, dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> int | KillickError:
        try:
            return to_label(_read(self._name, self._dataset, number, 0)[1], self._name)
        except KillickError as problem:
            return problem
