"""GridMask (Chen et al. 2020): squares on a grid are deleted from an image."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from killick.protocols.base import COMPONENTS, RunContext
from killick.protocols.scheduled import Scheduled
from killick.settings import setting

if TYPE_CHECKING:
    from killick.data.batches import Batch
    from killick.protocols.base import Model

_RISE = 0.8  # share of a ramp after which it is at its height


@dataclass
class GridMask(Scheduled):
    """Deletes squares on a grid of random period, place and angle; fills them with the mean color.

    The defaults suit 32 px; for ImageNet: shortest 0.43, visible 0.6.
    """

    name: str = "gridmask"
    probability: float = setting(
        0.7, "of an image, where the schedule is at its height", least=0, most=1
    )
    shortest: float = setting(
        0.75, "period of the grid as a share of the side: from", above=0, most=1
    )
    longest: float = setting(1.0, "to", above=0, most=4)
    visible: float = setting(0.4, "share of a period's edge that is not deleted", least=0, most=1)
    ramp: bool = setting(True, "whether the probability rises from 0, over 0.8 of the run")

    def check(self, recipe: object) -> list[str]:
        """The shortest period must not be the longest."""
        fine = self.shortest <= self.longest
        return [] if fine else ["components: gridmask needs shortest <= longest"]

    def setup(self, model: "Model", run: RunContext) -> None:
        """Find the mean color."""
        import torch

        super().setup(model, run)
        mean = (0.0, 0.0, 0.0) if model.normalize is None else model.normalize.mean
        self._fill = torch.tensor([255 * value for value in mean], device=run.device)

    def batch(self, batch: "Batch") -> "Batch":
        """Images with squares deleted."""
        import torch

        from killick.data.keyed_random import Stream, uniform
        from killick.data.transforms import make_grid_masks

        side = batch.images.shape[-1]
        gone = make_grid_masks(
            uniform(batch.keys, Stream.GRID, 4),
            batch.images.shape[-2],
            side,
            periods=(self.shortest * side, self.longest * side),
            visible=self.visible,
        )
        rise = (self.factor / _RISE).clamp_max(1)
        drawn = uniform(batch.keys, Stream.GRID_CHANCE) < self.probability * rise
        gone = (gone & drawn[:, None, None])[:, None]
        fill = self._fill.round().to(batch.images.dtype)[:, None, None]
        return batch.with_images(torch.where(gone, fill, batch.images))


COMPONENTS.register("gridmask", GridMask)
