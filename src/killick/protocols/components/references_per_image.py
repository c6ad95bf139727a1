"""Several references for each image in one step, as multi-sample dropout has several masks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.base import COMPONENTS, Component, RunContext, uses
from killick.settings import setting

if TYPE_CHECKING:
    from killick.data.batches import Batch
    from killick.protocols.base import Model


@dataclass
class ReferencesPerImage(Component):
    """Shows each image of a step with several references; the losses are averaged.

    A step costs as many. Masks of single samples are drawn for each reference.
    """

    name: str = "references_per_image"
    count: int = setting(2, "references of an image", least=1)

    def cost(self) -> float:
        """A pass for each reference."""
        return float(self.count)

    def check(self, recipe: Any) -> list[str]:
        """There must be references, and the copies of an image must be alike."""
        problems = []
        if not recipe.protocol.anchored:
            problems.append(
                "components: references_per_image needs references, with the protocol anchored or"
                f" masked, found {recipe.protocol.name}"
            )
        names = [each.name for each in recipe.components]
        later = recipe.components[names.index(self.name) + 1 :]
        problems += [
            f"components: references_per_image must come after {each.name}"
            for each in later
            if uses(each, "batch")
        ]
        return problems

    def setup(self, model: "Model", run: RunContext) -> None:
        """Prepare the keys of the copies."""
        from killick.data.keyed_random import root

        self._root = root(run.seed, run.device)

    def batch(self, batch: "Batch") -> "Batch":
        """The batch so many times, each with keys of its own."""
        import torch

        from killick.data.batches import Batch
        from killick.data.keyed_random import sample_keys

        copies = [sample_keys(self._root, copy, batch.keys) for copy in range(1, self.count)]
        images, labels, _, numbers = (torch.cat([part] * self.count) for part in batch[:4])
        mixed = None if batch.mixed is None else torch.cat([batch.mixed] * self.count)
        return Batch(images, labels, torch.cat([batch.keys, *copies]), numbers, mixed)


COMPONENTS.register("references_per_image", ReferencesPerImage)
