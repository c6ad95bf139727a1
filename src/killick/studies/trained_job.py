"""A trained job as studies measure it: its model, its recipe, and images on the device."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.references import ReferencePool
from killick.core.standard import Standard
from killick.corruptions.corruption import choose_table, corrupt
from killick.data.batches import Batch
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView
from killick.data.splits import limit_images
from killick.data.training_sets import Parts
from killick.errors import DataError
from killick.evaluation.image_blocks import BLOCK, ImageBlocks, block_generator
from killick.protocols.anchored_protocol import AnchoredProtocol
from killick.protocols.references.reference_sampler import make_pool
from killick.runtime.processes import Processes
from killick.storage.loading import load
from killick.training.recipe import Recipe
from killick.training.recipe_files import load_recipe
from killick.training.training_data import TrainingData, sets_of


@dataclass(frozen=True)
class TrainedJob:
    """What a finished job holds."""

    model: Anchored | Standard  # in eval mode, on `device`; takes uint8 images
    recipe: Recipe  # of its (last) run
    device: torch.device

    @property
    def parts(self) -> Parts:
        """Its sets, split and with label noise as in its training."""
        return sets_of(self.recipe)

    @property
    def view(self) -> PlainView:
        """Its preprocessing without augmentation."""
        return PlainView.of(self.recipe.data)

    def blocks(self, images: ImageSet) -> Iterator[tuple[slice, Tensor]]:
        """The images of a set block by block, on the device, and their places in the set."""
        data, processes = self.recipe.data, Processes(0, 1, self.device)
        begin = 0
        for block in ImageBlocks(images, self.view, processes, data.workers):
            yield slice(begin, begin + len(block.images)), block.images
            begin += len(block.images)

    def load_images(self, images: ImageSet) -> Tensor:
        """All images of a set, uint8 `(n, 3, size, size)` on the device."""
        return torch.cat([block for _, block in self.blocks(images)])

    def load_test(self, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Test images and labels on the device; `limit` as in `killick.evaluate`."""
        images = self.parts.test
        if images is None:
            raise DataError(f"{self.recipe.data.name} has no test set. Name data with one.")
        images = limit_images(images, limit)
        return self.load_images(images), images.labels.to(self.device)


def open_job(folder: Path, device: torch.device | str) -> TrainedJob:
    """The finished job in a run folder."""
    place = torch.device(device)
    model = load(folder / "model").to(place).eval()
    return TrainedJob(model, load_recipe(folder / "recipe.yaml"), place)


def first_batches(data: TrainingData, count: int) -> Iterator[Batch]:
    """The first batches of training, augmented, with at least `count` images if an epoch has them.

    What streams is written over by the next batch: clone what is kept.
    """
    batches = data.batches
    batches.begin(0, 0)
    for _ in range(min(-(-count // batches.cut.batch), batches.samples // batches.cut.batch)):
        batches.load()
        yield from (batches.batch(number) for number in range(batches.cut.passes))
        batches.advance()


def reference_pool(recipe: Recipe, data: TrainingData) -> ReferencePool | None:
    """What training draws references from; None: from each batch itself, or there are none."""
    if not isinstance(recipe.protocol, AnchoredProtocol):
        return None
    pool, _ = make_pool(recipe.protocol, data.context)
    return None if pool is None else ReferencePool(pool.permute(0, 3, 1, 2))


def corrupt_images(images: Tensor, name: str, severity: int) -> Tensor:
    """The images under a corruption, as `killick.evaluate` makes them."""
    table = choose_table(images.shape[-2:])
    parts = []
    for block, part in enumerate(images.split(BLOCK)):
        generator = block_generator(0, name, severity, block, images.device)
        parts.append(corrupt(part, name, severity, table=table, generator=generator))
    return torch.cat(parts)
