"""What a run trains, validates and tests on, made from its recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from killick.data.batches import Batches, Cut, Resident, Streamed
from killick.data.fractals import make_mixing_images
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView, TrainView
from killick.data.sources.imagefolder import FileReader, list_images
from killick.data.training_sets import Parts, cut_sets, fingerprint
from killick.data.transforms import Shift
from killick.errors import DataError, OptionError
from killick.nets import IMAGENET_MEAN, IMAGENET_STD
from killick.protocols.base import RunContext
from killick.protocols.references.reference_sampler import read_pixels
from killick.runtime.processes import Processes, usual_workers
from killick.training.recipe import Recipe
from killick.training.validation import ValidationSet

RESIDENT_BYTES = 4 * 2**30  # what a set may take to be kept on the device
MIXING_IMAGES = 300


@dataclass(frozen=True)
class TrainingData:
    """All data of a run.

    Attributes:
        batches: Training samples.
        context: What hooks of protocols and components may know.
        validation: Looked at while training.
        test: Looked at once, at the end.
        normalize: Mean and standard deviation of each channel.
        class_names: Of the labels.
        description: One line for the user.
        fingerprint: Of the training set, to recognize it.
    """

    batches: Batches
    context: RunContext
    validation: ValidationSet | None
    test: ValidationSet | None
    normalize: tuple[tuple[float, ...], tuple[float, ...]]
    class_names: tuple[str, ...]
    description: str
    fingerprint: str


def sets_of(recipe: Recipe) -> Parts:
    """The sets that a recipe trains, validates and tests on."""
    return cut_sets(recipe.data, recipe.seed)


def load_training_data(recipe: Recipe, processes: Processes) -> TrainingData:
    """All data of a run of `recipe`."""
    settings, augment = recipe.data, recipe.augment
    if settings.download and not processes.first:
        processes.wait()  # until the first has downloaded
    parts = sets_of(recipe)
    if settings.download and processes.first:
        processes.wait()
    device, train, workers = processes.device, parts.train, _workers(recipe)
    cut = _cut(recipe, len(train), processes)
    view = PlainView(settings.size, settings.resize, settings.interpolation)
    by_batch = augment.crop != "resized" and augment.policy == "none"
    resident = _fits(recipe, train) and by_batch
    if settings.resident == "always" and not by_batch:
        raise OptionError(
            "data.resident: always is not possible with crop: resized or an augmentation policy,"
            " which work on single images. Use auto."
        )
    shift = Shift(
        augment.padding if augment.crop == "pad" else 0, augment.flip, augment.flip_vertically
    )
    batches: Batches
    pixels = None
    if resident:
        square = PlainView(settings.size, None, settings.interpolation)  # all of it, or the middle
        pixels = read_pixels(train, square, workers).to(device)
        labels = train.labels.to(device)
        batches = Resident(pixels, labels, shift, cut, seed=recipe.seed, repeats=settings.repeats)
    else:
        batches = Streamed(
            train,
            _train_view(recipe),
            settings.size,
            cut,
            seed=recipe.seed,
            device=device,
            workers=workers,
            repeats=settings.repeats,
        )
    steps_per_epoch = batches.samples // cut.batch
    context = RunContext(
        device=device,
        classes=train.classes,
        seed=recipe.seed,
        steps=recipe.epochs * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        pass_size=cut.size,
        parts=cut.processes * cut.passes,
        rank=processes.rank,
        train=train,
        view=view,
        pixels=pixels,
        keeps_set=_fits(recipe, train),
        shift=shift,
        workers=workers,
    )

    def held_out(images: ImageSet | None) -> ValidationSet | None:
        if images is None:
            return None
        fits = _fits(recipe, images)
        return ValidationSet(images, view, processes, resident=fits, workers=workers)

    return TrainingData(
        batches,
        context,
        held_out(parts.validation),
        held_out(parts.test),
        normalize=_normalization(recipe, pixels),
        class_names=train.class_names,
        description=_describe(recipe, parts, resident),
        fingerprint=fingerprint(train),
    )


def _cut(recipe: Recipe, samples: int, processes: Processes) -> Cut:
    batch, parts = recipe.batch, processes.count * recipe.accumulate
    if batch > samples:  # a set smaller than a batch is one
        batch = samples - samples % parts
    if batch < parts or batch % parts:
        raise OptionError(
            f"a batch of {batch} samples ({samples} in the set) cannot be divided evenly by"
            f" {processes.count} process(es) times {recipe.accumulate} pass(es). Change batch or"
            " accumulate."
        )
    return Cut(batch, processes.rank, processes.count, recipe.accumulate)


def _workers(recipe: Recipe) -> int:
    if recipe.data.workers is not None:
        return recipe.data.workers
    return usual_workers()


def _fits(recipe: Recipe, images: ImageSet) -> bool:
    """Whether a set is kept on the device."""
    if recipe.data.resident != "auto":
        return recipe.data.resident == "always"
    return len(images) * 3 * recipe.data.size**2 <= RESIDENT_BYTES


def _train_view(recipe: Recipe) -> TrainView:
    augment, mixed_in = recipe.augment, None
    if augment.policy == "pixmix":
        mixed_in = _mixing_images(augment.mixing_set, recipe.data.size, recipe.seed)
    return TrainView(
        recipe.data.size,
        crop=augment.crop,
        padding=augment.padding,
        flip=augment.flip,
        flip_vertically=augment.flip_vertically,
        policy=augment.policy,
        policy_arguments=augment.policy_arguments,
        interpolation=recipe.data.interpolation,
        mixing_images=mixed_in,
    )


def _mixing_images(folder: str | None, size: int, seed: int) -> Tensor:
    """What PixMix mixes in: Killick's own fractals and textures, or the images of a folder."""
    size = size * 9 // 8  # 36 for 32: each image gets a random part of one
    if folder is None:
        return make_mixing_images(MIXING_IMAGES, size, seed)
    names = list_images(Path(folder)) if Path(folder).is_dir() else []
    if not names:
        raise DataError(f"augment.mixing_set: no images in {folder}.")
    reader, view = FileReader(folder, names), PlainView(size)
    images: Tensor = torch.stack([view(reader[number]) for number in range(len(reader))])
    return images


def _normalization(
    recipe: Recipe, pixels: Tensor | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if recipe.data.mean is not None and recipe.data.std is not None:
        return tuple(recipe.data.mean), tuple(recipe.data.std)
    if pixels is None:
        return IMAGENET_MEAN, IMAGENET_STD
    return channel_moments(pixels)


def channel_moments(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of `(n, height, width, 3)`, 0 to 1, rounded."""
    count = pixels[..., 0].numel()
    total = torch.zeros(3, dtype=torch.float64, device=pixels.device)
    squares = torch.zeros_like(total)
    for chunk in pixels.split(4096):
        values = chunk.flatten(0, 2).double() / 255
        total += values.sum(0)
        squares += values.square().sum(0)
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
    return _rounded(mean.tolist()), _rounded(std.tolist())


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values)


def _describe(recipe: Recipe, parts: Parts, resident: bool) -> str:
    train = parts.train
    found = f"{train.name}: {len(train):,} training images of {train.classes} classes"
    if parts.flipped is not None:
        found += f" ({int(parts.flipped.sum())} labels flipped)"
    if recipe.batch > len(train):
        found += f" (fewer than the batch of {recipe.batch})"
    for images, use in ((parts.validation, "validation"), (parts.test, "test")):
        found += f", {0 if images is None else len(images):,} for {use}"
        found += "" if images is None else _describe_missing(images)
    return found + (", kept on the device" if resident else ", streamed")


def _describe_missing(images: ImageSet) -> str:
    """The classes that a set has no image of; empty if it has of all."""
    counts = images.labels.bincount(minlength=images.classes).tolist()
    missing = [repr(kind) for kind, n in zip(images.class_names, counts, strict=True) if not n]
    if not missing:
        return ""
    more = f" and {len(missing) - 3} more classes" if len(missing) > 3 else ""
    return f" (none of {', '.join(missing[:3])}{more})"
