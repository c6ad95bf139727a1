"""Stochastic weight averaging (Izmailov et al. 2018): the mean of the weights of the last epochs."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from killick.protocols.base import COMPONENTS, Component, RunContext
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from killick.protocols.base import Model

_IMAGES, _BATCH = 2048, 256  # from which BatchNorm statistics are estimated


@dataclass
class SWA(Component):
    """Evaluates and saves the mean of the weights at the ends of the last epochs.

    BatchNorm statistics are estimated for these weights: of an anchored model from its last unmasked
    pairs if it keeps them, else from training images.
    """

    name: str = "swa"
    start: float = setting(
        0.75, "share of the run after which weights are averaged", least=0, below=1
    )

    def setup(self, model: "Model", run: RunContext) -> None:
        """Copy the model."""
        self._run, self._model, self._count, self._settled = run, model, 0, True
        self.average: Model = copy.deepcopy(model)
        self.average.eval().requires_grad_(False)

    def epoch(self, number: int) -> None:
        """Add the weights of an epoch to the mean."""
        import torch

        if number * self._run.steps_per_epoch <= self.start * self._run.steps:
            return
        self._count += 1
        with torch.no_grad():
            pairs = zip(self.average.parameters(), self._model.parameters(), strict=True)
            for mine, now in pairs:
                mine.lerp_(now.detach(), 1 / self._count)
            buffers = zip(self.average.buffers(), self._model.buffers(), strict=True)
            for kept, newest in buffers:
                if kept.shape == newest.shape:
                    kept.copy_(newest)
        self._settled = False

    def inference(self, model: "Model") -> "Model":
        """The mean, once there is one."""
        import torch

        from killick.core.anchored import Anchored
        from killick.core.batchnorm import estimate, tracked_norms
        from killick.core.settle import settle

        if not self._count:
            return model
        norms, average = tracked_norms(self.average), self.average
        if norms and not self._settled:
            if not isinstance(average, Anchored):
                estimate(norms, average, (partial(average, each) for each in self._read_images()))
            elif average.recent is None or next(average.recent.batches(), None) is None:
                generator = torch.Generator(self._run.device).manual_seed(self._run.seed)
                settle(average, self._read_images(), generator=generator)
        self._settled = True
        return average

    def _read_images(self) -> "Iterator[Tensor]":
        """Training images in batches, as evaluation shows them."""
        import torch

        from killick.data.batches import read_all

        train = self._run.train
        generator = torch.Generator().manual_seed(self._run.seed)  # sets may be sorted by class
        part = train.part(torch.randperm(len(train), generator=generator)[:_IMAGES])
        for images in read_all(part, self._run.view, self._run.workers, _BATCH):
            yield images.to(self._run.device)

    def state_dict(self) -> dict[str, Any]:
        """The mean, and of how many epochs it is."""
        return {"count": self._count, "model": self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the mean; BatchNorm statistics are estimated again."""
        from killick.core.anchored import Anchored

        self._count, self._settled = state["count"], False
        self.average.load_state_dict(state["model"])
        if isinstance(self.average, Anchored) and self.average.recent is not None:
            self.average.mark_unsettled()


COMPONENTS.register("swa", SWA)
