"""A trained job as studies measure it: its model, its recipe, and images on the device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.corruptions.corruption import choose_table, corrupt
from killick.corruptions.suites import SEVERITIES, list_corruptions
from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView
from killick.data.splits import limit_images
from killick.data.training_sets import Parts
from killick.errors import DataError, check_option
from killick.evaluation.image_blocks import BLOCK, ImageBlocks, block_generator
from killick.runtime.processes import Processes
from killick.storage.loading import load
from killick.training.recipe import Recipe
from killick.training.recipe_files import load_recipe
from killick.training.training_data import sets_of


class CorruptedImages(NamedTuple):
    """A test set under one corruption."""

    name: str
    severity: int
    images: Tensor


@dataclass(frozen=True)
class TrainedJob:
    """What a finished job holds.

    Attributes:
        model: In eval mode, on `device`; takes uint8 images.
        recipe: All settings of its (last) run.
        device: Where the model is, and where images are put.
    """

    model: Anchored | Standard
    recipe: Recipe
    device: torch.device

    @property
    def parts(self) -> Parts:
        """Its sets, split and with label noise as in its training."""
        return sets_of(self.recipe)

    @property
    def view(self) -> PlainView:
        """Its preprocessing without augmentation."""
        data = self.recipe.data
        return PlainView(data.size, data.resize, data.interpolation)

    def blocks(self, images: ImageSet) -> Iterator[tuple[slice, Tensor]]:
        """The images of a set block by block, on the device, and their places in the set."""
        data, processes = self.recipe.data, Processes(0, 1, self.device)
        begin = 0
        for block in ImageBlocks(images, self.view, processes, data.workers):
            yield slice(begin, begin + len(block.images)), block.images
            begin += len(block.images)

    def load_images(self, images: ImageSet) -> Tensor:
        """All images of a set, uint8 `(n, 3, size, size)` on the device."""
        read = read_all(images, self.view, self.recipe.data.workers or 0)
        return torch.cat(list(read)).to(self.device)

    def load_test(self, limit: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Test images and labels on the device; `limit` as in `killick.evaluate`."""
        images = self.parts.test
        if images is None:
            raise DataError(f"{self.recipe.data.name} has no test set. Name data with one.")
        images = limit_images(images, limit, seed)
        return self.load_images(images), images.labels.to(self.device)


def open_job(folder: Path, device: torch.device | str) -> TrainedJob:
    """The finished job in a run folder."""
    place = torch.device(device)
    model = load(folder / "model").to(place).eval()
    return TrainedJob(model, load_recipe(folder / "recipe.yaml"), place)


def corrupt_all(
    images: Tensor,
    names: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
) -> Iterator[CorruptedImages]:
    """The same images under one corruption after the other, as `killick.evaluate` makes them."""
    table = choose_table(images.shape[-2:])
    known = list_corruptions("c", table)
    for name in known if names is None else names:
        check_option("a corruption", name, [*known, *list_corruptions("cbar", table)])
        for severity in severities:
            parts = [
                corrupt(
                    part,
                    name,
                    severity,
                    table=table,
                    generator=block_generator(seed, name, severity, block, images.device),
                )
                for block, part in enumerate(images.split(BLOCK))
            ]
            yield CorruptedImages(name, severity, torch.cat(parts))
