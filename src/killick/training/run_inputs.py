"""What a run works on, made from its recipe: samples, sets to judge on, and references."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from killick.core.references import ReferencePool
from killick.core.synthetic_references import make_references
from killick.data.batches import Batches, Cut, Resident, Streamed, read_all
from killick.data.fractals import make_mixing_images
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key, root
from killick.data.preprocessing import PlainView, TrainView
from killick.data.sources.imagefolder import FileReader, list_images
from killick.data.training_sets import Parts, cut_sets, fingerprint
from killick.data.transforms import Shift
from killick.errors import DataError, OptionError
from killick.nets import IMAGENET_MEAN, IMAGENET_STD
from killick.runtime.processes import Processes
from killick.training.recipe import Augment, Recipe
from killick.training.reference_sampling import Draws
from killick.training.validation import Held

RESIDENT_BYTES = 4 * 2**30  # what a set may take to be kept on the device
MIXING_PICTURES = 300
STATISTICS_PICTURES = 5000  # of a set that streams, from which its mean or its spectrum is taken


@dataclass(frozen=True)
class Material:
    """All a run works on.

    Attributes:
        batches: Training samples.
        draws: References and masks in training; None for a standard network.
        stored: References that the model keeps for evaluation; None for a standard network.
        stored_policy: What they are, in words.
        validation: Judged on while training.
        test: Judged on once, at the end.
        normalize: Mean and standard deviation of each channel.
        class_names: Of the labels.
        description: In a line, what the data are.
        fingerprint: Of the training set, to know it again.
    """

    batches: Batches
    draws: Draws | None
    stored: Tensor | None
    stored_policy: str
    validation: Held | None
    test: Held | None
    normalize: tuple[tuple[float, ...], tuple[float, ...]]
    class_names: tuple[str, ...]
    description: str
    fingerprint: str


def sets_of(recipe: Recipe) -> Parts:
    """The sets that a recipe trains, validates and tests on."""
    return cut_sets(recipe.data, recipe.seed)


def gather_material(recipe: Recipe, processes: Processes) -> Material:
    """Everything a run of `recipe` works on."""
    settings = recipe.data
    if settings.download and not processes.first:
        processes.wait()  # for the first, who fetches
    parts = sets_of(recipe)
    if settings.download and processes.first:
        processes.wait()
    device, train = processes.device, parts.train
    cut = _cut(recipe, len(train), processes)
    plain = PlainView(settings.size, settings.resize, settings.interpolation)
    square = PlainView(settings.size, None, settings.interpolation)  # all of it, or the middle
    workers = _workers(recipe)
    resident = _fits(recipe, train) and _whole(recipe.augment)
    if settings.resident == "always" and not resident:
        raise OptionError(
            "expected data.resident: auto or never with crop: resized or an augmentation policy,"
            " which are made picture by picture; found always."
        )
    shift = _shift(recipe.augment)
    batches: Batches
    pixels = None
    if resident:
        pixels = _pixels(train, square, workers).to(device)
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
    draws = stored = None
    policy = ""
    if recipe.protocol.anchored:
        steps = recipe.epochs * (batches.samples // cut.batch)
        draws = _draws(recipe, train, pixels, shift, plain, processes, steps)
        stored, policy = choose_stored(recipe, train, plain, pixels)

    def held(images: ImageSet | None) -> Held | None:
        if images is None:
            return None
        return Held(images, plain, processes, resident=_fits(recipe, images), workers=workers)

    return Material(
        batches,
        draws,
        stored,
        policy,
        held(parts.validation),
        held(parts.test),
        normalize=_normalization(recipe, pixels),
        class_names=train.class_names,
        description=_describe(recipe, parts, resident),
        fingerprint=fingerprint(train),
    )


def choose_stored(
    recipe: Recipe, train: ImageSet, view: PlainView, pixels: Tensor | None
) -> tuple[Tensor, str]:
    """The references a model keeps, and in words what they are.

    Args:
        recipe: Says what they are: random pictures of the training set, balanced over classes, or
            made of statistics of it.
        train: The training set.
        view: Shows pictures as evaluation does.
        pixels: All of them, `(n, size, size, 3)`, where they are kept on the device.
    """
    protocol, seed = recipe.protocol, recipe.seed
    if protocol.stored_as == "images":
        chosen = _choose(train, min(protocol.stored, len(train)), seed)
        pictures = torch.stack([view(train.read(int(number))) for number in chosen])
        return pictures, f"random by class, clean, seed {seed}"
    if pixels is not None and recipe.data.resize is None:  # then both views are the same
        images = pixels.permute(0, 3, 1, 2)
    else:
        chosen = _choose(train, min(STATISTICS_PICTURES, len(train)), seed)
        images = torch.cat(list(read_all(train.part(chosen), view, _workers(recipe))))
    if protocol.stored_as == "mean":
        return make_references("mean", images)
    return make_references("synthetic", images, k=protocol.stored, seed=seed)


def _choose(images: ImageSet, count: int, seed: int) -> Tensor:
    """The numbers of `count` pictures as a pool of them would choose them."""
    numbers = torch.arange(len(images))[:, None]  # in the place of pictures
    return ReferencePool(numbers, images.labels).choose(count, seed=seed)[:, 0]


def _cut(recipe: Recipe, samples: int, processes: Processes) -> Cut:
    batch, parts = recipe.batch, processes.count * recipe.accumulate
    if batch > samples:  # a set smaller than a batch is one
        batch = samples - samples % parts
    if batch < parts or batch % parts:
        raise OptionError(
            f"expected a batch that {processes.count} process(es) times {recipe.accumulate}"
            f" pass(es) divide evenly, found {batch} samples ({samples} in the set). Change batch"
            " or accumulate."
        )
    mixes = recipe.augment.mixup or recipe.augment.cutmix
    if mixes and parts > 1 and (batch // parts) % 2:
        raise OptionError(
            f"expected parts of an even number of samples for mixup or CutMix, which mix in pairs,"
            f" found {batch // parts}. Change batch or accumulate."
        )
    return Cut(batch, processes.rank, processes.count, recipe.accumulate)


def _workers(recipe: Recipe) -> int:
    if recipe.data.workers is not None:
        return recipe.data.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, (cores or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _whole(augment: Augment) -> bool:
    """Whether the augmentation works on whole batches."""
    return augment.crop != "resized" and augment.policy == "none"


def _fits(recipe: Recipe, images: ImageSet) -> bool:
    """Whether a set is kept on the device."""
    if recipe.data.resident != "auto":
        return recipe.data.resident == "always"
    return len(images) * 3 * recipe.data.size**2 <= RESIDENT_BYTES


def _pixels(images: ImageSet, view: PlainView, workers: int) -> Tensor:
    """All pictures of a set, `(n, size, size, 3)`."""
    if images.in_memory and images.source.shape[-2:] == (view.size, view.size):  # type: ignore[union-attr]
        pictures = images.images()
    else:
        pictures = torch.cat(list(read_all(images, view, workers)))
    return pictures.permute(0, 2, 3, 1).contiguous()


def _shift(augment: Augment) -> Shift:
    padding = augment.padding if augment.crop == "pad" else 0
    return Shift(padding, augment.flip, augment.flip_vertically)


def _train_view(recipe: Recipe) -> TrainView:
    augment, pictures = recipe.augment, None
    if augment.policy == "pixmix":
        pictures = _mixing_pictures(augment.mixing_set, recipe.data.size, recipe.seed)
    return TrainView(
        recipe.data.size,
        crop=augment.crop,
        padding=augment.padding,
        flip=augment.flip,
        flip_vertically=augment.flip_vertically,
        policy=augment.policy,
        policy_arguments=augment.policy_arguments,
        interpolation=recipe.data.interpolation,
        mixing_images=pictures,
    )


def _mixing_pictures(folder: str | None, size: int, seed: int) -> Tensor:
    """What PixMix mixes in: Killick's own fractals and textures, or the pictures of a folder."""
    size = size * 9 // 8  # 36 for 32: each image gets a random part of one
    if folder is None:
        return make_mixing_images(MIXING_PICTURES, size, seed)
    names = list_images(Path(folder)) if Path(folder).is_dir() else []
    if not names:
        raise DataError(f"expected a folder of pictures to mix in, found none in {folder}.")
    reader, view = FileReader(folder, names), PlainView(size)
    pictures: Tensor = torch.stack([view(reader[number]) for number in range(len(reader))])
    return pictures


def _draws(
    recipe: Recipe,
    train: ImageSet,
    pixels: Tensor | None,
    shift: Shift,
    plain: PlainView,
    processes: Processes,
    steps: int,
) -> Draws:
    protocol, device = recipe.protocol, processes.device
    seed = root(recipe.seed, device)
    if protocol.references == "batch":
        return Draws(protocol, None, None, seed, processes.rank, steps)
    count = protocol.reference_set
    if count is not None and count > len(train):
        raise OptionError(
            f"expected protocol.reference_set of at most the {len(train)} training pictures, found"
            f" {count}."
        )
    pool = pixels
    if pool is None and count is None:
        if not _fits(recipe, train):
            raise OptionError(
                "expected protocol.reference_set, a number of pictures to keep on the device, since"
                " the training set streams; found none. Or take protocol.references: batch."
            )
        # What is trained on streams because it is augmented picture by picture; references are not.
        pool = _pixels(train, plain, _workers(recipe)).to(device)
    if count is not None:
        chosen = _choose(train, count, recipe.seed)
        if pixels is not None:
            pool = pixels[chosen.to(device)]
        else:
            pool = _pixels(train.part(chosen), plain, _workers(recipe)).to(device)
    moves = replace(shift, reference=True) if protocol.references == "augmented" else None
    return Draws(protocol, pool, moves, seed, processes.rank, steps)


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
    found = f"{train.name}: {len(train):,} samples of {train.classes} classes to train on"
    if recipe.data.limit == len(train):
        found += " (data.limit)"
    if recipe.batch > len(train):
        found += f" (fewer than the batch of {recipe.batch}: all of them are one)"
    if parts.flipped is not None:
        found += f" ({int(parts.flipped.sum())} labels flipped)"
    for images, words in ((parts.validation, "to validate"), (parts.test, "to test")):
        found += f", {len(images):,} {words}" if images is not None else f", none {words}"
        found += "" if images is None else _tell_lacking(images)
    return found + (", kept on the device" if resident else ", streamed")


def _tell_lacking(images: ImageSet) -> str:
    """Of which classes it has no picture, and so can tell nothing; empty where it has of all."""
    counts = images.labels.bincount(minlength=images.classes).tolist()
    lacking = [repr(kind) for kind, n in zip(images.class_names, counts, strict=True) if not n]
    if not lacking:
        return ""
    more = f" and {len(lacking) - 3} more classes" if len(lacking) > 3 else ""
    return f" (none of {', '.join(lacking[:3])}{more})"


def initial_seed(recipe: Recipe) -> int:
    """Of the weights' first values: the same in all processes."""
    return key(recipe.seed, 0x5EED) % 2**63
