"""The training, validation and test data of a run, from its recipe."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from killick.data.batches import Batches, Cut
from killick.data.fractals import make_mixing_images
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView
from killick.data.sources.imagefolder import FileReader, list_images
from killick.data.streams import StreamBatches, StreamSet
from killick.data.training_sets import Parts, cut_sets, fingerprint
from killick.data.transforms import Shift
from killick.errors import DataError, OptionError
from killick.nets import IMAGENET_MEAN, IMAGENET_STD
from killick.protocols.base import RunContext
from killick.runtime.devices import precise_device
from killick.runtime.processes import Processes, usual_workers
from killick.training.initial_weights import Normalization
from killick.training.recipe import Recipe
from killick.training.training_input import (
    SINGLE,
    BatchPlan,
    MemoryRoom,
    TrainingInput,
    make_input,
    shift_of,
)
from killick.training.validation import ValidationSet

if TYPE_CHECKING:  # torchvision takes seconds to import
    from killick.data.training_view import TrainView

MIXING_IMAGES = 300


@dataclass(frozen=True)
class TrainingData:
    """All data of a run."""

    batches: Batches
    context: RunContext
    validation: ValidationSet | None  # evaluated while training
    test: ValidationSet | None  # evaluated once, at the end
    normalize: Normalization
    class_names: tuple[str, ...]
    description: str
    fingerprint: str  # of the training set, to recognize it
    way: str  # how batches are made, see `training_input`
    resumes_anywhere: bool = True  # a stream resumes at the end of an epoch alone


def sets_of(recipe: Recipe) -> Parts:
    """The sets that a recipe trains, validates and tests on."""
    return cut_sets(recipe.data, recipe.seed)


def load_training_data(
    recipe: Recipe,
    processes: Processes,
    transform: Callable[..., Any] | None = None,
    way: str | None = None,
    *,
    resumed: bool = False,
) -> TrainingData:
    """All data of a run of `recipe`; `transform` is the one that it names, imported.

    `way` is how a run that is `resumed` made its batches: samples that workers augment are others.
    """
    settings, augment = recipe.data, recipe.augment
    if augment.transform and transform is None:
        raise OptionError(
            "the recipe names a transform by class_path, which is imported for training alone."
        )
    if settings.download and not processes.first:
        processes.wait()  # until the first has downloaded
    parts = sets_of(recipe)
    if settings.download and processes.first:
        processes.wait()
    device, train = processes.device, parts.train
    workers = usual_workers() if settings.workers is None else settings.workers
    stream = train if isinstance(train, StreamSet) else None
    samples = len(train) if stream is None else _stream_length(stream, recipe, processes)
    cut = _cut(recipe, samples, processes)
    view = PlainView.of(settings)
    shift = shift_of(recipe)
    room = MemoryRoom(processes, settings.resident)
    pixel_bytes = 3 * settings.size**2
    # References of a run that is resumed were kept before: there is no other way to go on.
    keeps_set = room.take(len(train) * pixel_bytes) or (resumed and settings.resident == "auto")

    def make_view() -> "TrainView":
        return _train_view(recipe, transform)

    plan = None if transform is not None else BatchPlan.of(recipe, train, make_view, device)
    if stream is not None:
        as_it_is = plan is not None and plan.policy is None and not plan.resized
        as_it_is = as_it_is and shift == Shift() and train.side == settings.size
        streamed = StreamBatches(
            *(stream, None if as_it_is else make_view(), settings.size, samples, cut),
            seed=recipe.seed,
            device=device,
        )
        how = f"a stream: resumes at epochs, references from its first {len(train)} images"
        made = TrainingInput(streamed, SINGLE, how)
    else:
        made = make_input(
            *(recipe, train, plan, make_view, room, cut),
            device=device,
            workers=workers,
            keeps_set=keeps_set,
            way=way,
        )
    pixels = made.kept
    if pixels is not None and pixels.shape[1:3] != (settings.size, settings.size):
        pixels = None
    batches = made.batches
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
        keeps_set=keeps_set,
        shift=shift,
        workers=workers,
        policy=None if plan is None or made.way == SINGLE else plan.policy,
    )

    def held_out(images: ImageSet | None) -> ValidationSet | None:
        if images is None:
            return None
        fits = room.take(len(images) * pixel_bytes)
        return ValidationSet(images, view, processes, resident=fits, workers=workers)

    return TrainingData(
        batches,
        context,
        held_out(parts.validation),
        held_out(parts.test),
        normalize=_normalization(recipe, made.kept),
        class_names=train.class_names,
        description=_describe(parts, samples, made.description),
        fingerprint=fingerprint(train),
        way=made.way,
        resumes_anywhere=stream is None,
    )


def _stream_length(images: StreamSet, recipe: Recipe, processes: Processes) -> int:
    """Images of an epoch."""
    if processes.count > 1:
        raise OptionError(
            f"{images.name} is a stream, which one process trains on, found {processes.count}. Give"
            " a map-style data set."
        )
    length = recipe.data.samples or images.stream.length
    if length is None:
        raise DataError(
            f"{images.name} has no length. Say how many images an epoch has: data.samples 10000."
        )
    return length


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


def _train_view(recipe: Recipe, transform: Callable[..., Any] | None) -> "TrainView":
    from killick.data.training_view import TrainView

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
        squash=recipe.data.squash,
        mixing_images=mixed_in,
        transform=transform,
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
    return torch.stack([view(reader[number]) for number in range(len(reader))])


def _normalization(recipe: Recipe, pixels: Tensor | None) -> Normalization:
    """Mean and standard deviation of each channel: the recipe's, the set's, or ImageNet's."""
    if recipe.data.mean is not None and recipe.data.std is not None:
        return tuple(recipe.data.mean), tuple(recipe.data.std)
    if pixels is None:
        return IMAGENET_MEAN, IMAGENET_STD
    count = pixels[..., 0].numel()
    where = precise_device(pixels.device)
    total = torch.zeros(3, dtype=torch.float64, device=where)
    squares = torch.zeros_like(total)
    for chunk in pixels.split(4096):
        values = chunk.to(where).flatten(0, 2).double() / 255
        total += values.sum(0)
        squares += values.square().sum(0)
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
    return tuple(round(v, 4) for v in mean.tolist()), tuple(round(v, 4) for v in std.tolist())


def _describe(parts: Parts, samples: int, how: str) -> str:
    train = parts.train
    validation, test = (len(part or ()) for part in (parts.validation, parts.test))
    noise = "" if parts.flipped is None else f" ({int(parts.flipped.sum())} labels flipped)"
    return (
        f"{train.name}: {samples:,} training images of {train.classes} classes{noise},"
        f" {validation:,} for validation, {test:,} for test, {how}"
    )
