"""Where training images are kept and augmented: chosen from recipe, device and free memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from killick.data.augment.ragged_crops import RaggedCrop
from killick.data.augment.resized_crops import FILTERS, ResizedCrop
from killick.data.batches import Batches, Cut, Resident, Streamed
from killick.data.device_batches import ResidentFiles, StreamedFiles
from killick.data.device_decoding import find_decoder, look_at_files, read_resident
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView
from killick.data.transforms import Shift
from killick.errors import OptionError
from killick.protocols.references.reference_sampler import read_pixels
from killick.runtime.devices import free_memory, precise_device
from killick.runtime.processes import Processes
from killick.training.recipe import Recipe

if TYPE_CHECKING:  # torchvision takes seconds to import
    from killick.data.augment.policies import BatchPolicy
    from killick.data.training_view import TrainView

CPU_POLICY_SIZE = 64  # px up to which a CPU applies policies faster to batches than to images
RESIDENT = "resident"  # kept on the device, and augmented there
BATCHED = "batched"  # streamed, and augmented on the device
SINGLE = "single"  # streamed, and augmented by workers
MEMORY_SHARE = 0.4  # of the free memory, for images; the rest is for the network
_DECODED_BATCHES = 3  # of images in their own sizes, on the device at once while others stream


class MemoryRoom:
    """A share of the memory that is free when a run begins; its image sets take from it.

    `resident` is the recipe's: "always" and "never" ignore the free memory. All processes decide
    alike; those on a CPU share its memory.
    """

    def __init__(self, processes: Processes, resident: str) -> None:
        free, device = float(free_memory(processes.device)), processes.device
        if device.type == "cpu":
            free /= processes.count
        place = precise_device(device)
        least = -processes.highest(torch.tensor(-free, dtype=torch.float64, device=place))
        self.total = self.left = MEMORY_SHARE * float(least)
        self.resident = resident

    def take(self, size: int) -> bool:
        """Whether so many bytes are kept on the device."""
        fits = size <= self.left if self.resident == "auto" else self.resident == "always"
        self.left -= size if fits else 0
        return fits


@dataclass(frozen=True)
class TrainingInput:
    """The batches of a run, and how they are made."""

    batches: Batches
    way: str  # RESIDENT, BATCHED or SINGLE
    description: str
    kept: Tensor | None = None  # images of one size on the device, (n, height, width, 3)


@dataclass(frozen=True)
class BatchPlan:
    """How batches of a training set can be augmented on the device."""

    policy: "BatchPolicy | None"
    resized: bool  # whether crops are resized
    files: bool  # whether images are encoded
    any_size: bool  # whether images of any size can be brought to one

    @classmethod
    def of(
        cls, recipe: Recipe, train: ImageSet, make_view: Callable[[], "TrainView"], device: Any
    ) -> "BatchPlan | None":
        """None if only single images can be augmented."""
        augment, policy = recipe.augment, None
        if train.augmented or augment.policy == "pixmix":
            return None
        if augment.policy != "none":
            from killick.data.augment.policies import batch_policy

            policy = batch_policy(make_view().policy, recipe.data.size, device)
            if policy is None:
                return None
        resized, files = augment.crop == "resized", hasattr(train.source, "encoded")
        any_size = recipe.data.interpolation in FILTERS
        if resized and not (any_size and (files or train.in_memory)):
            return None
        return cls(policy, resized, files, any_size)

    def suits(self, recipe: Recipe, device: torch.device) -> bool:
        """Whether a resident set is wanted: batches are not slower than single images."""
        if recipe.data.resident != "auto":
            return recipe.data.resident == "always"
        if device.type == "cpu":
            return not self.resized and (self.policy is None or recipe.data.size <= CPU_POLICY_SIZE)
        return device.type == "cuda" or not (self.resized and self.files)


def make_input(
    recipe: Recipe,
    train: ImageSet,
    plan: BatchPlan | None,
    make_view: Callable[[], "TrainView"],
    room: MemoryRoom,
    cut: Cut,
    *,
    device: torch.device,
    workers: int,
    keeps_set: bool,
    way: str | None = None,
) -> TrainingInput:
    """The batches of a run.

    `keeps_set` is whether the images fit at the size of the network's input; `way` is that of a run
    that is resumed: else it is chosen.
    """
    settings, shift = recipe.data, shift_of(recipe)
    common: dict[str, Any] = {"seed": recipe.seed, "repeats": settings.repeats}
    ahead = {**common, "until": recipe.first_epoch + recipe.epochs}
    if settings.resident == "always" and plan is None:
        if recipe.augment.crop == "resized" and settings.interpolation not in FILTERS:
            raise OptionError(
                "data.resident: always is not possible with resized crops and data.interpolation:"
                f" {settings.interpolation}. Use {' or '.join(FILTERS)}, or data.resident: auto."
            )
        raise OptionError(
            "data.resident: always is not possible with pixmix, transforms, such arguments of a"
            " policy, or resized crops of images that are neither files nor a tensor. Use auto."
        )
    note, size, decoder = "streamed", len(train) * 3 * settings.size**2, None
    if plan is not None and way != SINGLE:
        suits = plan.suits(recipe, device) if way is None else way == RESIDENT
        decoder = find_decoder(device) if plan.files and plan.any_size else None
        decodes = False
        if plan.files and ((plan.resized and suits) or decoder is not None):
            facts = look_at_files(train)
            waiting = _DECODED_BATCHES * cut.size * facts.size / len(train)
            decodes = decoder is not None and facts.suit_gpu and waiting <= room.left
            size = facts.size if plan.resized else size
        elif plan.resized and isinstance(train.source, Tensor):
            size = len(train) * train.source[0].numel()
        if way is None:
            fits = room.take(size) if suits and plan.resized else suits and keeps_set
            way = RESIDENT if fits else BATCHED if decodes else SINGLE
            if suits and not fits:
                note += f" ({_gigabytes(size)}, and {_gigabytes(room.left)} free for images)"
        if way == RESIDENT:
            note = f"kept on the device ({_gigabytes(size)} of {_gigabytes(room.total)} for images)"
        if decoder is not None and (way == BATCHED or plan.resized):
            note += ", decoded on the GPU"
    if plan is None or way == SINGLE:
        batches: Batches = Streamed(
            train, make_view(), settings.size, cut, device=device, workers=workers, **ahead
        )
        return TrainingInput(batches, SINGLE, note)
    crop = RaggedCrop(settings.size, settings.interpolation, plan.resized, shift, settings.squash)
    if way == BATCHED:
        options = {"device": device, "workers": workers, **ahead}
        batches = StreamedFiles(train, decoder, crop, shift, plan.policy, cut, **options)
        return TrainingInput(batches, BATCHED, note)
    if plan.resized and plan.files:
        images = read_resident(train, device, decoder, workers, size)
        batches = ResidentFiles(images, train.labels, crop, shift, plan.policy, cut, **ahead)
        return TrainingInput(batches, RESIDENT, note)
    kept = _keep(recipe, train, plan.resized, workers).to(device)
    resized = ResizedCrop(settings.size, settings.interpolation) if plan.resized else None
    labels = train.labels.to(device)
    batches = Resident(kept, labels, shift, cut, resized=resized, policy=plan.policy, **common)
    return TrainingInput(batches, RESIDENT, note, kept)


def shift_of(recipe: Recipe) -> Shift:
    """Crops and flips of a recipe on batches."""
    augment = recipe.augment
    padding = augment.padding if augment.crop == "pad" else 0
    return Shift(padding, augment.flip, augment.flip_vertically)


def _keep(recipe: Recipe, train: ImageSet, resized: bool, workers: int) -> Tensor:
    """All images as `(n, height, width, 3)`: all of each, or without `resized` the middle."""
    square = PlainView.of(replace(recipe.data, resize=None))
    if resized and isinstance(train.source, Tensor) and not square.keeps(train.source):
        return train.images().permute(0, 2, 3, 1).contiguous()
    return read_pixels(train, square, workers)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
