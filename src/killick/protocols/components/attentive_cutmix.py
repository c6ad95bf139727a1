"""Attentive CutMix (Walawalkar et al. 2020): what a trained network attends to is pasted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.base import COMPONENTS, RunContext
from killick.protocols.components.mixup import check_pairs
from killick.protocols.scheduled import Scheduled
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from killick.data.batches import Batch
    from killick.protocols.base import Model


@dataclass
class AttentiveCutMix(Scheduled):
    """Pastes the cells of another image that a trained network attends to most.

    The label of the other image counts as much as its share of the cells.
    """

    name: str = "attentive_cutmix"
    extractor: str = setting(
        "", "trained network: a model or run folder, or one with weights such as timm:resnet50"
    )
    probability: float = setting(
        0.5, "of an image, where the schedule is at its height", least=0, most=1
    )
    share: float = setting(0.12, "of the cells that are pasted", above=0, below=1)
    grid: int | None = setting(
        None, "cells along a side; none: 7, or 8 where 7 does not divide the side", least=2
    )

    @property
    def mixes(self) -> bool:
        """Labels are mixed."""
        return True

    @property
    def mixes_all(self) -> bool:
        """With probability 1."""
        return self.probability == 1

    def extra_passes(self) -> int:
        """That of the extractor."""
        return 1

    def check(self, recipe: Any) -> list[str]:
        """There must be an extractor."""
        missing = (
            "components: attentive_cutmix needs extractor: a model folder, or a network with weights"
            " such as timm:resnet50"
        )
        return [] if self.extractor else [missing]

    def setup(self, model: "Model", run: RunContext) -> None:
        """Load the extractor."""
        from killick.core.feature_maps import LastMap
        from killick.evaluation.other_networks import open_model
        from killick.nets.custom import is_network_name

        super().setup(model, run)
        check_pairs(run)
        self._classes = run.classes
        found = open_model(self.extractor, pretrained=is_network_name(self.extractor))
        self._attention = LastMap(found.to(run.device))

    def batch(self, batch: "Batch") -> "Batch":
        """Images with pasted cells, and labels as probabilities."""
        from torch.nn.functional import one_hot

        from killick.data.keyed_random import Stream, uniform
        from killick.data.mixing import paste_attended

        side = batch.images.shape[-1]
        grid = self.grid or (8 if side % 7 else 7)
        drawn = uniform(batch.keys, Stream.PASTE) < self.probability * self.factor
        images, labels = paste_attended(
            batch.images,
            one_hot(batch.labels, self._classes).float(),
            self._attend(batch.images, grid),
            count=max(1, round(self.share * grid**2)),
            drawn=drawn,
        )
        return batch.with_mixed(images, labels, drawn)

    def _attend(self, images: "Tensor", grid: int) -> "Tensor":
        """How much each cell is attended to, `(n, grid, grid)`."""
        import torch

        from killick.data.transforms import resize

        side = self._attention.model.image_shape[-1]
        if images.shape[-1] != side:
            images = resize(images.float(), side).round().clamp(0, 255).to(torch.uint8)
        return resize(self._attention(images)[:, None], grid)[:, 0]


COMPONENTS.register("attentive_cutmix", AttentiveCutMix)
