"""The image sets of an export: to fit a threshold, to calibrate, to measure on."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from killick.core.image_model import ImageModel
from killick.data.batches import read_all
from killick.data.given_data import as_set
from killick.data.image_set import ImageSet, Sets, overlap
from killick.data.preprocessing import view_for
from killick.data.sources import load_sets
from killick.data.splits import limit_images
from killick.data.training_sets import cut_sets, read_data_settings
from killick.errors import DataError, KillickError, OptionError, check_least

SEED = 0
ExportData = str | ImageSet | Sets | Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ExportSets:
    """Sets to fit the threshold, to measure, and to calibrate or make references on, if known."""

    validation: ImageSet | None = None
    test: ImageSet | None = None
    train: ImageSet | None = None


def find_export_sets(
    model: ImageModel,
    data: ExportData | None,
    validation: ExportData | None,
    root: str | None,
    report: Callable[[str], None],
) -> ExportSets:
    """The sets given; else those that the model was trained with, if they can be read.

    `report` gets the reason why the model's own data cannot be read.
    """
    if not takes_files(model):
        if data is not None or validation is not None:
            raise OptionError(
                "data requires a model of RGB images that normalizes them itself. Make it with"
                " normalize=, or export it without data."
            )
        return ExportSets()
    found = ExportSets()
    if data is None or validation is None:
        found = _own_sets(model, root, report)
    if isinstance(data, str):
        data = load_sets(data, root=root)
    if isinstance(data, Sets):
        found = ExportSets(found.validation, data.test, data.train)
    elif data is not None:
        found = ExportSets(found.validation, as_set("data", data, model.class_names), None)
    if validation is not None:
        found = replace(found, validation=as_set("validation", validation, model.class_names))
    if found.validation and found.test and overlap(found.validation, found.test):
        raise DataError(
            f"validation images are among those of {found.test.name}, which is tested on. Name"
            " others, such as pack:FILE.npz#SPLIT or imagefolder:FOLDER."
        )
    return found


def takes_files(model: ImageModel) -> bool:
    """Whether the model takes uint8 RGB images, as image files hold them."""
    shape = model.image_shape
    return len(shape) == 3 and shape[0] == 3 and model.normalize is not None


def _own_sets(model: ImageModel, root: str | None, report: Callable[[str], None]) -> ExportSets:
    """Those of the model's own training, if they can be read and have its classes."""
    recipe = model.provenance.get("recipe") if model.provenance else None
    if not recipe:
        return ExportSets()
    try:
        settings, seed = read_data_settings(recipe, root)
        parts = cut_sets(settings, seed)
    except (KillickError, OSError) as problem:
        report(f"The data it was trained on cannot be read: {problem}")
        return ExportSets()
    if model.class_names is not None and parts.train.class_names != model.class_names:
        report(f"{settings.name} has other classes than the model now, and is not used.")
        return ExportSets()
    return ExportSets(parts.validation, parts.test, parts.train)


def read_some(model: ImageModel, images: ImageSet, limit: int) -> tuple[Tensor, Tensor]:
    """At most `limit` images as the model takes them, balanced over classes, and their labels."""
    check_least("the number of images", limit)
    images = limit_images(images, limit, SEED)
    return torch.cat(list(read_all(images, view_for(model)))), images.labels


def require(images: ImageSet | None, purpose: str) -> ImageSet:
    """The set, or an error that says what it is needed for."""
    if images is None:
        raise DataError(f"no images are known {purpose}.")
    return images
