"""The sets that a model is tested and fitted on."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kedge.data.images import ImageSet, Sets, digest
from kedge.data.sources import load_sets, load_whole
from kedge.errors import DataError, OptionError
from kedge.evaluation.subject import Subject
from kedge.training.material import cut_sets
from kedge.training.recipe_files import make_recipe

Data = str | ImageSet | Sets | tuple[Tensor, Tensor]
Given = str | ImageSet | tuple[Tensor, Tensor] | Tensor


def load_test(data: Data, root: str | None = None, trained_on: str | None = None) -> ImageSet:
    """The set to test on that a user means.

    Args:
        data: A name, whose test set is used: all of it if it is a folder without a split of its
            own, and the model was not trained on it.
        root: Where CIFAR is.
        trained_on: What the model was trained on, if known.
    """
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        return as_set("images", data)
    if isinstance(data, str):
        if not _are_same(data, trained_on):
            return replace(load_whole(data, root=root), name=data)
        data_name, sets = data, load_sets(data, root=root, test_only=True)
    elif isinstance(data, Sets):
        data_name, sets = "the data", data
    else:
        raise OptionError(
            "expected data by name, an ImageSet, or uint8 images and labels as (images, labels),"
            f" found {type(data).__name__}. Of a loader: images, labels = map(torch.cat,"
            " zip(*loader))."
        )
    if sets.test is None:
        raise DataError(
            f"expected a set to test on in {data_name}, found only one to train on."
            f" {_say_where_to_add(data_name)}"
        )
    return replace(sets.test, name=data_name) if isinstance(data, str) else sets.test


def _say_where_to_add(data: str) -> str:
    if data.startswith("pack:"):
        return "Add the arrays test_bytes, test_offsets and test_labels to it."
    return "Put pictures to test on into a folder 'test' beside 'train'."


def _are_same(data: str, other: str | None) -> bool:
    """Whether two names stand for the same data, however their path is written."""
    if other is None:
        return False
    (kind, _, path), (other_kind, _, other_path) = data.partition(":"), other.partition(":")
    if not path or kind != other_kind:
        return data == other
    return _real(path) == _real(other_path)


def _real(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


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


def number_classes(images: ImageSet, subject: Subject) -> ImageSet:
    """Images with labels that are numbers alone have all the model's classes."""
    numbers = tuple(str(number) for number in range(images.classes))
    if images.class_names != numbers or images.classes > subject.classes:
        return images
    ours = subject.class_names or tuple(str(number) for number in range(subject.classes))
    return replace(images, class_names=ours)


def own_test(subject: Subject, root: str | None = None) -> ImageSet:
    """The test set of the data that a model was trained on."""
    settings = subject.recipe.get("data")
    if not settings:
        raise OptionError(
            f"expected data to evaluate {subject.name} on, since it does not say what it was"
            " trained on: --data shapes, for example."
        )
    return load_test(settings["name"], root or settings.get("root"), settings["name"])


def load_train(data: Data | None, subject: Subject, root: str | None = None) -> ImageSet | None:
    """The set a model was trained on, by its own word; else that of the data, if they have one."""
    settings = subject.recipe.get("data")
    if settings:
        data, root = str(settings["name"]), root or settings.get("root")
    if isinstance(data, str):
        data = load_sets(data, root=root)
    return data.train if isinstance(data, Sets) else None


def load_validation(
    given: Given | None, subject: Subject, test: ImageSet, root: str | None = None
) -> ImageSet | None:
    """The set to fit on: the one asked for, or that of the model's own training, if it had one.

    It is never the test set.
    """
    if given is not None:
        whole = load_whole(given, root=root) if isinstance(given, str) else None
        held = whole or number_classes(as_set("validation", given), subject)
        if overlap(held, test):
            raise DataError(
                f"expected validation pictures that are not tested on, found those of {test.name}"
                " among them. Name others, such as pack:FILE.npz#SPLIT or imagefolder:FOLDER."
            )
        return held
    if not subject.recipe or not _are_same(test.name, subject.recipe["data"]["name"]):
        return None
    recipe = make_recipe(subject.recipe)
    if not recipe.data.validation:
        return None  # and the pictures it was trained on need not be read
    if root is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=root))
    return cut_sets(recipe).validation


def overlap(held: ImageSet, test: ImageSet) -> bool:
    """Whether a picture is in both sets: of one source, of the same files, or all of them."""
    if held.source is test.source:
        return bool(torch.isin(held.rows, test.rows).any())
    path, other = (getattr(images.source, "path", None) for images in (held, test))
    if callable(path) and callable(other):
        return bool(set(map(path, held.rows.tolist())) & set(map(other, test.rows.tolist())))
    return len(held) == len(test) and digest(held) == digest(test)
