"""What a run trains, validates and tests on, made from its recipe."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from killick.data.batches import Batches, Cut, Resident, Streamed
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
from killick.protocols.references.reference_sampler import read_pixels
from killick.runtime.devices import precise_device
from killick.runtime.processes import Processes, usual_workers
from killick.training.initial_weights import Normalization
from killick.training.recipe import Recipe
from killick.training.validation import ValidationSet

if TYPE_CHECKING:  # torchvision takes seconds to import
    from killick.data.augment.policies import BatchPolicy
    from killick.data.augment.resized_crops import ResizedCrop
    from killick.data.training_view import TrainView

RESIDENT_BYTES = 4 * 2**30  # what a set may take to be kept on the device
CPU_POLICY_SIZE = 64  # px up to which a CPU applies policies faster to batches than to images
MIXING_IMAGES = 300


@dataclass(frozen=True)
class TrainingData:
    """All data of a run."""

    batches: Batches
    context: RunContext
    validation: ValidationSet | None  # looked at while training
    test: ValidationSet | None  # looked at once, at the end
    normalize: Normalization
    class_names: tuple[str, ...]
    description: str
    fingerprint: str  # of the training set, to recognize it
    resident: bool  # whether it is kept on the device, and augmented there
    resumes_anywhere: bool = True  # a stream resumes at the end of an epoch alone


@dataclass(frozen=True)
class BatchPlan:
    """How batches of a resident set are augmented, beside `Shift`."""

    policy: "BatchPolicy | None"
    resized: "ResizedCrop | None"
    whole: Tensor | None  # images of which parts are resized

    def suits(self, recipe: Recipe, train: ImageSet, device: torch.device) -> bool:
        """Whether the set fits, and batches are not slower than single images."""
        if recipe.data.resident == "always":
            return True
        if device.type == "cpu" and self.resized is not None:
            return False
        if device.type == "cpu" and self.policy is not None:
            return recipe.data.size <= CPU_POLICY_SIZE
        return self.whole is None or _fits(recipe, train, self.whole[0].numel())


def sets_of(recipe: Recipe) -> Parts:
    """The sets that a recipe trains, validates and tests on."""
    return cut_sets(recipe.data, recipe.seed)


def load_training_data(
    recipe: Recipe,
    processes: Processes,
    transform: Callable[..., Any] | None = None,
    resident: bool | None = None,
) -> TrainingData:
    """All data of a run of `recipe`; `transform` is the one that it names, imported.

    `resident` is how a run began that is resumed: samples that workers augment are others.
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
    plan = _plan_batches(recipe, train, transform, device)
    if settings.resident == "always" and plan is None:
        raise OptionError(
            "data.resident: always is not possible with resized crops of image files, pixmix,"
            " transforms or such arguments of a policy. Use auto."
        )
    shift = Shift(
        augment.padding if augment.crop == "pad" else 0, augment.flip, augment.flip_vertically
    )
    keeps_set = _fits(recipe, train)
    if resident is None:
        resident = keeps_set and plan is not None and plan.suits(recipe, train, device)
    square = PlainView.of(replace(settings, resize=None))  # all of an image, or the middle
    kept = pixels = None
    if stream is None and plan is not None and resident:
        if plan.whole is None or square.keeps(plan.whole):
            kept = pixels = read_pixels(train, square, workers).to(device)
        else:
            kept = train.images().permute(0, 2, 3, 1).contiguous().to(device)
    batches: Batches
    if stream is not None:
        as_it_is = plan == BatchPlan(None, None, None) and shift == Shift(0, False, False)
        as_it_is = as_it_is and train.side == settings.size
        batches = StreamBatches(
            stream,
            None if as_it_is else _train_view(recipe, transform),
            settings.size,
            samples,
            cut,
            seed=recipe.seed,
            device=device,
        )
    elif kept is not None and plan is not None:
        labels = train.labels.to(device)
        batches = Resident(
            kept,
            labels,
            shift,
            cut,
            seed=recipe.seed,
            repeats=settings.repeats,
            resized=plan.resized,
            policy=plan.policy,
        )
    else:
        batches = Streamed(
            train,
            _train_view(recipe, transform),
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
        keeps_set=keeps_set,
        shift=shift,
        workers=workers,
        policy=batches.policy if isinstance(batches, Resident) else None,
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
        normalize=_normalization(recipe, kept),
        class_names=train.class_names,
        description=_describe(parts, samples, resident=kept is not None),
        fingerprint=fingerprint(train),
        resident=kept is not None,
        resumes_anywhere=stream is None,
    )


def _plan_batches(
    recipe: Recipe,
    train: ImageSet,
    transform: Callable[..., Any] | None,
    device: torch.device,
) -> BatchPlan | None:
    """How batches are augmented; None if only single images can be."""
    augment, settings = recipe.augment, recipe.data
    policy, resized, whole = None, None, None
    if transform is not None or train.augmented or augment.policy == "pixmix":
        return None
    if augment.policy != "none":
        from killick.data.augment.policies import batch_policy

        policy = batch_policy(_train_view(recipe, None).policy, settings.size, device)
        if policy is None:
            return None
    if augment.crop == "resized":
        from killick.data.augment.resized_crops import FILTERS, ResizedCrop

        if not isinstance(train.source, Tensor) or settings.interpolation not in FILTERS:
            return None
        whole, resized = train.source, ResizedCrop(settings.size, settings.interpolation)
    return BatchPlan(policy, resized, whole)


def _stream_length(images: StreamSet, recipe: Recipe, processes: Processes) -> int:
    """Images of an epoch."""
    assert images.stream is not None
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


def _fits(recipe: Recipe, images: ImageSet, image_bytes: int | None = None) -> bool:
    """Whether a set is kept on the device."""
    if recipe.data.resident != "auto":
        return recipe.data.resident == "always"
    return len(images) * (image_bytes or 3 * recipe.data.size**2) <= RESIDENT_BYTES


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


def _describe(parts: Parts, samples: int, resident: bool) -> str:
    train = parts.train
    how = "kept on the device" if resident else "streamed"
    if isinstance(train, StreamSet):
        how = f"a stream: resumes at epochs, references from its first {len(train)} images"
    validation, test = (len(part or ()) for part in (parts.validation, parts.test))
    noise = "" if parts.flipped is None else f" ({int(parts.flipped.sum())} labels flipped)"
    return (
        f"{train.name}: {samples:,} training images of {train.classes} classes{noise},"
        f" {validation:,} for validation, {test:,} for test, {how}"
    )
