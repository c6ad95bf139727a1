"""The pictures an export is made with: to fit a threshold, to calibrate, to measure on."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from killick.core.image_model import ImageModel
from killick.data.batches import read_all
from killick.data.image_set import ImageSet, Sets, overlap
from killick.data.preprocessing import view_for
from killick.data.sources import as_set, load_sets
from killick.data.splits import stratified
from killick.data.training_sets import cut_sets, read_data_settings
from killick.errors import DataError, KillickError, OptionError

SEED = 0
Given = str | ImageSet | Sets | Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Pictures:
    """What there is to fit, calibrate and measure on; each may be missing.

    Attributes:
        validation: To fit the threshold on.
        test: To measure on.
        train: To calibrate on, and to make references of.
    """

    validation: ImageSet | None = None
    test: ImageSet | None = None
    train: ImageSet | None = None


def find_pictures(
    model: ImageModel,
    data: Given | None,
    validation: Given | None,
    root: str | None,
    say: Callable[[str], None],
) -> Pictures:
    """The sets that were asked for; else those the model was trained with, if they can be had.

    Args:
        model: Says what it was trained on, if it knows.
        data: To measure and to calibrate on.
        validation: To fit the threshold on.
        root: Where downloaded sets are.
        say: Told why the model's own data cannot be read.
    """
    if model.normalize is None or len(model.image_shape) != 3 or model.image_shape[0] != 3:
        if data is not None or validation is not None:
            raise OptionError(
                "expected a model of RGB images that normalizes them itself to show it data, found"
                " another. Anchor it with normalize=, or export it without data."
            )
        return Pictures()
    found = _own_pictures(model, root, say) if data is None or validation is None else Pictures()
    if isinstance(data, str):
        data = load_sets(data, root=root)
    if isinstance(data, Sets):
        found = Pictures(found.validation, data.test, data.train)
    elif data is not None:
        found = Pictures(found.validation, as_set("data", data, model.class_names), None)
    if validation is not None:
        found = replace(found, validation=as_set("validation", validation, model.class_names))
    if found.validation and found.test and overlap(found.validation, found.test):
        raise DataError(
            f"expected validation pictures that are not tested on, found those of {found.test.name}"
            " among them. Name others, such as pack:FILE.npz#SPLIT or imagefolder:FOLDER."
        )
    return found


def _own_pictures(model: ImageModel, root: str | None, say: Callable[[str], None]) -> Pictures:
    """Those of the model's own training, if they are there and have its classes."""
    recipe = model.provenance.get("recipe") if model.provenance else None
    if not recipe:
        return Pictures()
    try:
        settings, seed = read_data_settings(recipe, root)
        parts = cut_sets(settings, seed)
    except (KillickError, OSError) as problem:
        say(f"The data it was trained on cannot be read: {problem}")
        return Pictures()
    if model.class_names is not None and parts.train.class_names != model.class_names:
        say(
            f"The data it says it was trained on, {settings.name}, has other classes than the"
            " model, so they are not used."
        )
        return Pictures()
    return Pictures(parts.validation, parts.test, parts.train)


def read_some(model: ImageModel, images: ImageSet, limit: int) -> tuple[Tensor, Tensor]:
    """At most `limit` pictures, as the model is shown them, and their labels; all classes alike."""
    if limit < 1:
        raise OptionError(f"expected at least 1 picture, found {limit}.")
    if limit < len(images):
        _, chosen = stratified(images.labels, limit, SEED)
        images = images.part(chosen)
    seen = torch.cat(list(read_all(images, view_for(model))))
    return seen, images.labels


def labels_for(model: ImageModel, images: ImageSet, labels: Tensor, classes: int) -> Tensor | None:
    """The labels as the model numbers its classes; None where the classes are others.

    Args:
        model: Whose names count.
        images: Whose names are to be found among those.
        labels: Of some of the images.
        classes: How many logits the model has.
    """
    ours = model.class_names
    if ours is None:
        return labels if images.classes == classes else None
    if images.class_names == ours:
        return labels
    if not set(images.class_names) <= set(ours):
        return None
    numbers = torch.tensor([ours.index(name) for name in images.class_names])
    return numbers[labels]


def require(images: ImageSet | None, what: str, way_out: str) -> ImageSet:
    """The set, or one line about how to give one."""
    if images is None:
        raise DataError(f"expected pictures {what}, found none. {way_out}")
    return images
