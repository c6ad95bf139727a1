"""The state of a run: model, optimizer, average, and how far it is."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.core.synthetic_references import forget_old_references
from killick.data.keyed_random import Stream, key
from killick.errors import CheckpointError
from killick.nets import remembered
from killick.runtime.processes import Processes
from killick.training.initial_weights import make_model
from killick.training.optimizers import make_optimizer, restore_optimizer, set_rate
from killick.training.recipe import Recipe
from killick.training.run_inputs import Material, initial_seed
from killick.training.schedule import learning_rate
from killick.training.step import Step
from killick.training.weight_average import MovingAverage


class Run:
    """Everything that changes while training, and how to write it down and take it up again."""

    def __init__(
        self,
        recipe: Recipe,
        material: Material,
        processes: Processes,
        start: Path | None,
        trained: bool = True,
    ) -> None:
        device, cuda = processes.device, processes.device.type == "cuda"
        self.recipe, self.material, self.processes, self.start = recipe, material, processes, start
        begun = make_model(
            recipe,
            material.normalize,
            material.class_names,
            initial_seed(recipe),
            start if trained else None,
        )
        self.model, self.source, self.described = begun.model, begun.source, begun.described
        if not trained:
            self.described = self.described.replace("fresh weights", "weights of the checkpoint")
        self.recipe = recipe = _resolved(recipe, self.model)
        self.model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if isinstance(self.model, Anchored):
            assert material.stored is not None
            self.model.set_references(material.stored, policy=material.stored_policy)
            self.model.reference_kind = recipe.protocol.stored_as  # type: ignore[assignment]
            if recipe.protocol.batchnorm == "running":
                self.model.recent = None
            if recipe.protocol.stored_as != "images":  # one that is gone on from may hold some
                forget_old_references(self.model)
        if recipe.sync_batchnorm and processes.count > 1 and cuda:
            nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        self.model.train()
        self.average = None
        if recipe.average.decay is not None:
            self.average = MovingAverage(self.model, recipe.average)
        self.optimizer = make_optimizer(self.model, recipe.optimizer, device)
        self.steps_per_epoch = material.batches.samples // material.batches.cut.batch
        self.steps = recipe.epochs * self.steps_per_epoch
        part = recipe.schedule
        # One that takes a later part of a schedule sees the samples in another order.
        self.first_epoch = round(recipe.epochs * part.begin / (part.end - part.begin))
        self.done = 0
        self.precision = recipe.precision
        if self.precision == "auto":
            self.precision = "bfloat16" if cuda else "float32"
        self._step = Step(
            self._wrapped(),
            material.batches,
            material.draws,
            self.optimizer,
            recipe,
            device=device,
            classes=len(material.class_names),
            fill=[255 * mean for mean in material.normalize[0]],
            execution=self._execution(),
            precision=self.precision,
        )
        self.look, self.bad_step = self._step.look, self._step.bad_step
        self._rates = torch.tensor([self.rate(s) for s in range(self.steps)], device=device)

    def _wrapped(self) -> nn.Module:
        if self.processes.count == 1:
            return self.model
        cuda = self.processes.device.type == "cuda"
        return DistributedDataParallel(
            self.model, device_ids=[self.processes.device.index] if cuda else None
        )

    def _execution(self) -> str:
        if self.recipe.execution != "auto":
            if self.recipe.execution == "captured" and (
                self.processes.device.type != "cuda" or self.processes.count > 1
            ):
                return "compiled"
            return self.recipe.execution
        if self.processes.device.type != "cuda":
            return "eager"
        return "captured" if self.processes.count == 1 else "compiled"

    @property
    def judged(self) -> Anchored | Standard:
        """What is evaluated and saved: the average, if there is one."""
        if self.average is None or self.done < self.recipe.average.every:
            return self.model
        return self.average.model

    @torch.no_grad()
    def finite(self) -> bool:
        """Whether all weights are numbers (waits for the device)."""
        norms = torch._foreach_norm(list(self.model.parameters()))
        return bool(torch.stack(list(norms)).isfinite().all())

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return learning_rate(step, self.steps, self.recipe.optimizer.lr, self.recipe.schedule)

    def take_step(self) -> None:
        """Train one step; what a network draws (dropout) depends on (seed, step, process)."""
        if self.done == 0:
            self._step.begin(0)
        seed = key(self.recipe.seed, self.done, self.processes.rank, Stream.DROPOUT) % 2**63
        torch.default_generator.manual_seed(seed)
        if self.processes.device.type == "cuda":
            torch.cuda.default_generators[self.processes.device.index].manual_seed(seed)
            set_rate(self.optimizer, self._rates[self.done])
        else:
            set_rate(self.optimizer, self.rate(self.done))
        self.material.batches.load()
        self._step()
        self.done += 1
        if self.average is not None:
            self.average.update(self.done)

    @torch.no_grad()  # with gradients, state_dict would settle BatchNorm
    def state(self) -> dict[str, Any]:
        """All that is needed to go on, as tensors and plain values."""
        recent = self.model.recent if isinstance(self.model, Anchored) else None
        made = remembered(self.model.net)
        return {
            "recipe": asdict(self.recipe),
            "start": None if self.start is None else str(self.start),
            "network": None if made is None else (made.name, made.arguments),
            "data": self.material.fingerprint,
            "step": self.done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.model.state_dict(),
            "recent": None if recent is None else recent.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        if state["data"] != self.material.fingerprint:
            raise CheckpointError(
                f"expected the data this run began with ({state['data']}), found"
                f" {self.material.fingerprint}. Bring them back, or start another run."
            )
        self.model.load_state_dict(state["model"])
        restore_optimizer(self.optimizer, state["optimizer"])
        if self.average is not None:
            self.average.model.load_state_dict(state["average"])
        if isinstance(self.model, Anchored) and self.model.recent is not None:
            self.model.recent.load_state_dict(_moved(state["recent"], self.processes.device))
            self.model.mark_unsettled()
            if self.average is not None:
                assert isinstance(self.average.model, Anchored)
                self.average.model.mark_unsettled()
        self.done = state["step"]
        self._step.begin(self.done)


def _resolved(recipe: Recipe, model: Anchored | Standard) -> Recipe:
    """The recipe with the normalization that the model has."""
    if model.normalize is None:
        return recipe
    mean, std = list(model.normalize.mean), list(model.normalize.std)
    return replace(recipe, data=replace(recipe.data, mean=mean, std=std))


def _moved(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }
