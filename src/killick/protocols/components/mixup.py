"""Mixup and CutMix."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.protocols.base import COMPONENTS, Component, RunContext
from killick.settings import setting

if TYPE_CHECKING:
    from killick.data.batches import Batch
    from killick.protocols.base import Model


@dataclass
class Mixup(Component):
    """Mixes each image and its label with another one's (mixup, CutMix)."""

    name: str = "mixup"
    mixup: float = setting(0.0, "alpha of mixup; 0: none", least=0)
    cutmix: float = setting(0.0, "alpha of CutMix; 0: none. With both, each image draws", least=0)
    probability: float = setting(1.0, "of an image to be mixed", above=0, most=1)

    @property
    def mixes(self) -> bool:
        """Labels are mixed."""
        return True

    @property
    def mixes_all(self) -> bool:
        """With probability 1."""
        return self.probability == 1

    @classmethod
    def from_recipe(cls, recipe: Any) -> "Component | None":
        """Made by `augment.mixup` and `augment.cutmix`."""
        mixup, cutmix = recipe.augment.mixup, recipe.augment.cutmix
        return cls(mixup=mixup, cutmix=cutmix) if mixup or cutmix else None

    def check(self, recipe: Any) -> list[str]:
        """One of them at least must be on."""
        return [] if self.mixup or self.cutmix else ["components: mixup needs mixup or cutmix"]

    def setup(self, model: "Model", run: RunContext) -> None:
        """Images are mixed in pairs, so parts of a batch must be even."""
        from killick.data.mixing import Mixing

        check_pairs(run)
        self._mixing = Mixing(self.mixup, self.cutmix, run.classes, run.device, self.probability)

    def batch(self, batch: "Batch") -> "Batch":
        """Mixed images, and labels as probabilities."""
        return batch.with_mixed(*self._mixing(batch.images, batch.labels, batch.keys))


def check_pairs(run: RunContext) -> None:
    """Refuse parts of a batch that are odd: images are mixed with their neighbors."""
    if run.parts > 1 and run.pass_size % 2:
        raise OptionError(
            "mixup and CutMix need an even number of samples in a pass, found"
            f" {run.pass_size}. Change batch or accumulate."
        )


COMPONENTS.register("mixup", Mixup)
