"""The sets that a model is tested and fitted on."""

import logging
import os
from dataclasses import replace

from torch import Tensor

from killick.data.image_set import ImageSet, Sets, overlap
from killick.data.sources import Given, as_set, load_sets, load_whole
from killick.data.sources.imagefolder import WITHOUT
from killick.data.training_sets import cut_sets, fingerprint, read_data_settings
from killick.errors import DataError, OptionError
from killick.evaluation.classifier import Classifier

_log = logging.getLogger("killick")
Data = str | ImageSet | Sets | tuple[Tensor, Tensor]


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
    data, other = (name.partition(WITHOUT)[0] for name in (data, other))
    (kind, _, path), (other_kind, _, other_path) = data.partition(":"), other.partition(":")
    if not path or kind != other_kind:
        return data == other
    return _real(path) == _real(other_path)


def _real(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def number_classes(images: ImageSet, classifier: Classifier) -> ImageSet:
    """Images with labels that are numbers alone have all the model's classes."""
    numbers = tuple(str(number) for number in range(images.classes))
    if images.class_names != numbers or images.classes > classifier.classes:
        return images
    ours = classifier.class_names or tuple(str(number) for number in range(classifier.classes))
    return replace(images, class_names=ours)


def own_test(classifier: Classifier, root: str | None = None) -> ImageSet:
    """The test set of the data that a model was trained on."""
    settings = classifier.recipe.get("data")
    if not settings:
        raise OptionError(
            f"expected data to evaluate {classifier.name} on, since it does not say what it was"
            " trained on: --data shapes, for example."
        )
    return load_test(settings["name"], root or settings.get("root"), settings["name"])


def load_train(
    data: Data | None, classifier: Classifier, root: str | None = None
) -> ImageSet | None:
    """The set a model was trained on, by its own word; else that of the data, if they have one."""
    settings = classifier.recipe.get("data")
    if settings:
        data, root = str(settings["name"]), root or settings.get("root")
    if isinstance(data, str):
        data = load_sets(data, root=root)
    return data.train if isinstance(data, Sets) else None


def load_validation(
    given: Given | None, classifier: Classifier, test: ImageSet, root: str | None = None
) -> ImageSet | None:
    """The set to fit on: the one asked for, or that of the model's own training, if it had one.

    It is never the test set.
    """
    if given is not None:
        whole = load_whole(given, root=root) if isinstance(given, str) else None
        held = whole or number_classes(as_set("validation", given), classifier)
        if overlap(held, test):
            raise DataError(
                f"expected validation pictures that are not tested on, found those of {test.name}"
                " among them. Name others, such as pack:FILE.npz#SPLIT or imagefolder:FOLDER."
            )
        return held
    if not classifier.recipe or not _are_same(test.name, classifier.recipe["data"]["name"]):
        return None
    settings, seed = read_data_settings(classifier.recipe, root)
    cut_by_us = settings.name.startswith("imagefolder:")  # perhaps
    if not settings.validation and not cut_by_us:
        return None  # and the images it was trained on need not be read
    parts = cut_sets(settings, seed)
    now, then = fingerprint(parts.train), classifier.trained_on
    if then not in (None, now):
        _log.warning(
            "%s is not what %s was trained on (%s, now %s): some of what it is tested or fitted on"
            " may be among what it was trained on",
            *(settings.name, classifier.name, then, now),
        )
    return parts.validation
