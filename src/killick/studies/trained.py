"""A trained cell as measures find it: its model, its recipe, and pictures on the device."""

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
from killick.data.splits import stratified
from killick.data.training_sets import Parts
from killick.errors import DataError, check_option
from killick.evaluation.image_blocks import BLOCK, block_generator
from killick.storage.model_folder import load
from killick.training.recipe import Recipe
from killick.training.recipe_files import load_recipe
from killick.training.training_data import sets_of


class Corrupted(NamedTuple):
    """A test set under one corruption."""

    name: str
    severity: int
    images: Tensor


@dataclass(frozen=True)
class Trained:
    """What a finished cell holds.

    Attributes:
        model: In eval mode, on `device`; takes uint8 images.
        recipe: All settings of its (last) run.
        device: Where the model is, and where pictures are wanted.
    """

    model: Anchored | Standard
    recipe: Recipe
    device: torch.device

    @property
    def parts(self) -> Parts:
        """Its sets, cut and with labels flipped as in its training."""
        return sets_of(self.recipe)

    @property
    def view(self) -> PlainView:
        """How it is shown pictures, apart from augmentation."""
        data = self.recipe.data
        return PlainView(data.size, data.resize, data.interpolation)

    def show(self, images: ImageSet) -> Tensor:
        """All pictures of a set, uint8 `(n, 3, size, size)` on the device, as they are shown."""
        data = self.recipe.data
        source = images.source
        whole = self.view.whole and isinstance(source, Tensor)
        if whole and source.shape[-2:] == (data.size, data.size):  # type: ignore[union-attr]
            shown = images.images()
        else:
            shown = torch.cat(list(read_all(images, self.view, data.workers or 0)))
        return shown.to(self.device)

    def test(self, limit: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Pictures to test on and their labels, on the device; `limit` as in `killick.evaluate`."""
        images = self.parts.test
        if images is None:
            raise DataError(
                f"expected pictures to test on in {self.recipe.data.name}, found none. Name data"
                " with a test set."
            )
        images = limited(images, limit, seed)
        return self.show(images), images.labels.to(self.device)


def open_trained(folder: Path, device: torch.device | str) -> Trained:
    """What is in the folder of a finished run."""
    place = torch.device(device)
    model = load(folder / "model").to(place).eval()
    return Trained(model, load_recipe(folder / "recipe.yaml"), place)


def limited(images: ImageSet, limit: int | None, seed: int = 0) -> ImageSet:
    """At most so many pictures, of every class in proportion: those that `killick.evaluate` takes."""
    if limit is None or limit >= len(images):
        return images
    _, kept = stratified(images.labels, limit, seed)
    return images.part(kept)


def corrupt_all(
    images: Tensor,
    names: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
) -> Iterator[Corrupted]:
    """The same pictures under one corruption after the other, as `killick.evaluate` makes them.

    Args:
        images: uint8 `(n, 3, height, width)`.
        names: Of the corruptions; by default the 19 common ones.
        severities: Of each.
        seed: Of what is random about them.
    """
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
            yield Corrupted(name, severity, torch.cat(parts))
