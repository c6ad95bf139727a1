"""The images that a classifier is evaluated on, fitted on and was trained on."""

import logging
import os
from dataclasses import replace

from killick.data.data_settings import full_name
from killick.data.given_data import Given, Normalization, as_set, name_given
from killick.data.image_set import ImageSet, Sets, overlap
from killick.data.sources import is_there, load_sets, load_whole
from killick.data.sources.imagefolder import WITHOUT
from killick.data.training_sets import cut_sets, fingerprint, read_data_settings
from killick.errors import DataError, OptionError
from killick.evaluation.classifier import Classifier

_log = logging.getLogger("killick")
Data = Given | Sets
_NUMBERED = ("csv", "hf", "wds")  # names of data whose classes may be mere numbers


def load_test(
    data: str | ImageSet | Sets, root: str | None = None, trained_on: str | None = None
) -> ImageSet:
    """The test set of data: all of a folder without a split, if the model was not trained on it."""
    if isinstance(data, str):
        if not _are_same(data, trained_on):
            return replace(load_whole(data, root=root), name=data)
        sets = load_sets(data, root=root, test_only=True)
    elif isinstance(data, Sets):
        sets = data
    else:
        return data
    name = data if isinstance(data, str) else "the data"
    if sets.test is None:
        raise DataError(f"{name} has no test set (see killick list data).")
    return replace(sets.test, name=name) if isinstance(data, str) else sets.test


def _are_same(data: str, other: str | None) -> bool:
    """Whether two names stand for the same data, however their path is written."""
    return other is not None and _resolve(data) == _resolve(other)


def _resolve(data: str) -> tuple[str, str]:
    kind, _, path = full_name(data).partition(WITHOUT)[0].partition(":")
    return kind, path and os.path.realpath(os.path.expanduser(path))


def open_given(
    data: Data | None, normalize: Normalization | None, name: str | None = None
) -> str | ImageSet | Sets | None:
    """Data that are given in Python as an image set, so that they are read once; names stay."""
    if data is None or isinstance(data, ImageSet | Sets):
        return data
    if isinstance(data, str | os.PathLike):
        return full_name(os.fspath(data))
    return as_set(name or name_given(data), data, normalize=normalize)


def number_classes(images: ImageSet, data: object, classifier: Classifier) -> ImageSet:
    """Give images whose labels are plain numbers the model's class names."""
    numbers = tuple(str(number) for number in range(images.classes))
    named = not isinstance(data, ImageSet)
    if isinstance(data, str):
        named = data.partition(":")[0] not in _NUMBERED
    if images.class_names != numbers or named:
        return images
    if images.classes > classifier.classes:
        raise DataError(
            f"the labels of {images.name} go up to {images.classes - 1}, but {classifier.name} has"
            f" {classifier.classes} classes: 0 to {classifier.classes - 1}. Check the labels, or"
            " name the network of these data."
        )
    ours = classifier.class_names or tuple(str(number) for number in range(classifier.classes))
    return replace(images, class_names=ours)


def load_test_for(
    classifier: Classifier, data: str | ImageSet | Sets | None, root: str | None = None
) -> ImageSet:
    """The test set of data; by default of those that the model was trained on."""
    trained_on = classifier.recipe.get("data") or {}
    if data is None:
        if not trained_on:
            raise OptionError(
                f"{classifier.name} does not say what it was trained on. Name data to evaluate it"
                " on, for example --data shapes."
            )
        try:
            root = root or trained_on.get("root")
            return load_test(trained_on["name"], root, trained_on["name"])
        except DataError as problem:
            raise DataError(
                f"{problem} {classifier.name} was trained on {trained_on['name']}; name other data:"
                " --data DATA."
            ) from problem
    return load_test(data, root, trained_on.get("name"))


def load_train(
    data: str | ImageSet | Sets | None, classifier: Classifier, root: str | None = None
) -> ImageSet | None:
    """The training set of a model, by its recipe; else that of the data, if they have one."""
    settings = classifier.recipe.get("data")
    if settings and is_there(str(settings["name"])):
        data, root = str(settings["name"]), root or settings.get("root")
    if isinstance(data, str):
        data = load_sets(data, root=root)
    return data.train if isinstance(data, Sets) else None


def load_validation(
    given: str | ImageSet | None,
    classifier: Classifier,
    test: ImageSet,
    root: str | None = None,
) -> ImageSet | None:
    """The set to fit on: the one given, or that of the model's own training, if it had one.

    It is never the test set.
    """
    if given is not None:
        held = load_whole(given, root=root) if isinstance(given, str) else given
        held = number_classes(held, given, classifier)
        if overlap(held, test):
            raise DataError(
                f"the validation images include test images of {test.name}. Name others, such as"
                " pack:FILE.npz#SPLIT or imagefolder:FOLDER."
            )
        return held
    if not classifier.recipe or not _are_same(test.name, classifier.recipe["data"]["name"]):
        return None
    settings, seed = read_data_settings(classifier.recipe, root)
    may_be_cut = settings.name.startswith("imagefolder:")
    if not settings.validation and not may_be_cut:
        return None  # and the training images need not be read
    parts = cut_sets(settings, seed)
    now, then = fingerprint(parts.train), classifier.provenance.get("trained_on")
    if then not in (None, now):
        _log.warning(
            "%s has changed since %s was trained (%s, now %s): test or validation images may be"
            " among its training images",
            *(settings.name, classifier.name, then, now),
        )
    return parts.validation
