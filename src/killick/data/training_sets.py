"""The training, validation and test sets of a run."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from killick.data.data_settings import Data
from killick.data.image_set import ImageSet
from killick.data.sources import load_sets
from killick.data.sources.imagefolder import FileReader
from killick.data.splits import flip_labels, limit_images, stratified
from killick.data.streams import StreamSet
from killick.errors import DataError, OptionError, RecipeError
from killick.settings import read_settings


@dataclass(frozen=True)
class Parts:
    """The sets of a run."""

    train: ImageSet
    validation: ImageSet | None
    test: ImageSet | None
    flipped: Tensor | None = None  # which training labels are noise


def read_data_settings(recipe: Mapping[str, Any], root: str | None = None) -> tuple[Data, int]:
    """The data settings and the seed of the recipe in a model or run folder.

    It may be untrusted, so nothing that it names is downloaded.
    """
    problems: list[str] = []
    found = read_settings(Data, recipe.get("data"), "data.", problems)
    seed = recipe.get("seed", 0)
    if problems or type(seed) is not int:
        raise RecipeError(f"the recipe is damaged: {'; '.join(problems) or f'seed {seed!r}'}.")
    assert isinstance(found, Data)
    return replace(found, download=False, root=root or found.root), seed


def cut_sets(settings: Data, seed: int) -> Parts:
    """The sets of a training run; label noise is in the training set alone."""
    seed = seed if settings.seed is None else settings.seed
    sets = load_sets(settings.name, root=settings.root, download=settings.download)
    train, validation = sets.train, None
    if train is None:
        raise DataError(
            f"{settings.name} has no training set, only a test set. Name data with one: a folder"
            " 'train' beside it, or a name without a split."
        )
    if train.classes < 2:
        raise DataError(
            f"{settings.name} has only one class, {train.class_names[0]!r}, and training needs 2. A"
            " folder needs one folder for each class."
        )
    if isinstance(train, StreamSet):
        unused = [name for name in ("limit", "label_noise") if getattr(settings, name)]
        if unused or settings.repeats > 1:
            raise OptionError(
                f"data.{(unused or ['repeats'])[0]} is not possible with {train.name}, a stream."
                " Give a map-style data set."
            )
        return Parts(train, sets.validation, sets.test)
    if sets.validation is not None:
        validation = sets.validation
    elif settings.validation:
        wanted = settings.validation
        count = round(wanted * len(train)) if wanted < 1 else int(wanted)
        if count >= len(train):
            raise OptionError(
                f"data.validation {wanted:g} leaves none of the {len(train)} training"
                " images. Give a share: --data.validation 0.1."
            )
        if settings.validation_from == "last":
            kept, cut = torch.arange(len(train)).split([len(train) - count, count])
        else:
            kept, cut = stratified(train.labels, count, seed)
        if len(cut):
            validation = train.part(cut, f"{train.name}, validation")
        train = train.part(kept)
    train = limit_images(train, settings.limit, seed)
    flipped = None
    if settings.label_noise:
        labels, flipped = flip_labels(train.labels, settings.label_noise, train.classes, seed)
        train = replace(train, labels=labels)
    return Parts(train, validation, sets.test, flipped)


def fingerprint(images: ImageSet) -> str:
    """To recognize a training set: the number of images, and a hash of labels and file names."""
    if isinstance(images, StreamSet):
        return f"a stream of {images.classes} classes"
    digest = hashlib.sha256(images.labels.numpy().tobytes())
    digest.update("\n".join(images.class_names).encode())
    if isinstance(images.source, FileReader):
        digest.update(images.source.digest(images.rows).encode())
    return f"{len(images)} training samples, {digest.hexdigest()[:12]}"
