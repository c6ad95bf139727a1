"""The state of a run: model, optimizer, components, and how far it is."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.data.keyed_random import Stream, key
from killick.errors import CheckpointError
from killick.nets import remembered
from killick.protocols.base import components_of
from killick.runtime.devices import seed_random_state
from killick.runtime.processes import Processes
from killick.training.class_paths import OwnClasses, check_loss, make_rates
from killick.training.initial_weights import make_model, pretrained_name
from killick.training.optimizers import learning_rate, make_optimizer, restore_optimizer, set_rate
from killick.training.recipe import Recipe
from killick.training.step import TrainingStep
from killick.training.training_data import TrainingData

COMPILE_SECONDS = 60.0  # that compiling a step takes on a GPU, about
COMPILE_GAIN = 0.15  # of the time of a captured step that compiling saves, at least


def _resolve_weights(recipe: Recipe, source: Anchored | Standard) -> Recipe:
    """The recipe with the plain name of a pretrained network, which needs no files to be made."""
    made = remembered(source.net)
    assert made is not None
    arguments = {name: value for name, value in made.arguments.items() if name != "num_classes"}
    weights = source.provenance["weights"]
    network = replace(recipe.network, name=made.name, arguments=arguments, pretrained=weights)
    return replace(recipe, network=network)


class TrainingRun:
    """Everything that changes while training, and how to save and restore it.

    A trained network in `start` is not read if `restoring`: weights come from a checkpoint.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: TrainingData,
        processes: Processes,
        start: Path | None,
        restoring: bool = False,
        own: OwnClasses | None = None,
    ) -> None:
        own = own or OwnClasses()
        device, cuda = processes.device, processes.device.type == "cuda"
        self.data, self.processes, self.start = data, processes, start
        self.steps, self.steps_per_epoch = data.context.steps, data.context.steps_per_epoch
        self.done = 0
        seed = key(recipe.seed, 0x5EED) % 2**63  # of the first weights: equal in all processes
        self.model, self.source, self.description = make_model(
            *(recipe, data.normalize, data.class_names, seed),
            None if restoring else start,
            fresh=restoring,
        )
        if self.source is not None and start is None and pretrained_name(recipe.network):
            recipe = _resolve_weights(recipe, self.source)
        if self.model.normalize is not None:  # a trained model has its own
            mean, std = list(self.model.normalize.mean), list(self.model.normalize.std)
            recipe = replace(recipe, data=replace(recipe.data, mean=mean, std=std))
        self.recipe = recipe
        self.protocol = replace(recipe.protocol)
        self.components = [replace(each) for each in components_of(recipe)]
        with torch.random.fork_rng(devices=[]):  # what hooks draw depends on the seed alone
            torch.manual_seed(seed)
            for each in self.components:
                self.model = each.network(self.model)
            self.model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.protocol.setup(self.model, data.context)
            if recipe.sync_batchnorm and processes.count > 1 and cuda:
                nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
            self.model.train()
            for each in self.components:
                each.setup(self.model, data.context)
        modules = [each.module.to(device) for each in self.components if each.module is not None]
        self.own = own
        self.given: list[str] = []  # callables that were passed from Python
        self.optimizer = make_optimizer(
            [self.model, *modules], recipe.optimizer, device, own.optimizer
        )
        self._given_rates: list[float] | None = None
        if own.scheduler is not None:
            self._given_rates = make_rates(own.scheduler, recipe, self.steps, self.steps_per_epoch)
        self._rates: list[Tensor] = []  # of the steps left in this epoch, on a GPU
        self.precision, execution, self.fallback = choose_arithmetic(recipe, processes)
        if (own.optimizer or own.loss) is not None:  # they may wait for the host
            execution = {"captured": "compiled", "auto": "uncaptured"}.get(execution, execution)
        self._compiles_later = execution in ("auto", "uncaptured")
        self.loss = own.loss.to(device) if isinstance(own.loss, nn.Module) else own.loss
        if self.loss is not None:
            check_loss(self.loss, len(data.class_names), device)
        wrapped: nn.Module = self.model
        if processes.count > 1:
            ids = [device.index] if cuda else None
            wrapped = DistributedDataParallel(self.model, device_ids=ids)
        self._step = TrainingStep(
            wrapped,
            data.batches,
            self.protocol,
            self.components,
            self.optimizer,
            recipe,
            device=device,
            fill=[255 * mean for mean in data.normalize[0]],
            execution=execution,
            precision=self.precision,
            loss=self.loss,
        )
        self.read_statistics, self.bad_step = self._step.read, self._step.bad_step

    @property
    def inference_model(self) -> Anchored | Standard:
        """What is evaluated and saved: the model, or what components make of it."""
        model = self.model
        for each in self.components:
            model = each.inference(model)
        return model

    @torch.no_grad()
    def finite(self) -> bool:
        """Whether all weights are finite (waits for the device)."""
        norms = torch._foreach_norm(list(self.model.parameters()))
        return bool(torch.stack(list(norms)).isfinite().all())

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if self._given_rates is not None:
            return self._given_rates[step]
        return learning_rate(step, self.steps, self.recipe.optimizer.lr, self.recipe.schedule)

    def _next_rate(self) -> Tensor:
        """The learning rate of the next step, on the device; those of an epoch are sent at once."""
        if not self._rates:
            left = self.steps_per_epoch - self.done % self.steps_per_epoch
            rates = [self.rate(step) for step in range(self.done, self.done + left)]
            self._rates = list(torch.tensor(rates, device=self.processes.device).flip(0))
        return self._rates.pop()

    def take_step(self) -> None:
        """Train one step; what a network draws (dropout) depends on (seed, step, process)."""
        if self.done == 0:
            self._step.begin(0)
        seed = key(self.recipe.seed, self.done, self.processes.rank, Stream.DROPOUT) % 2**63
        seed_random_state(seed, self.processes.device)
        if isinstance(self.optimizer.param_groups[0]["lr"], Tensor):
            set_rate(self.optimizer, self._next_rate())
        else:
            set_rate(self.optimizer, self.rate(self.done))
        self.data.batches.load()
        self._step()
        self.done += 1
        for each in self.components:
            each.step(self.done)
            if self.done % self.steps_per_epoch == 0:
                each.epoch(self.done // self.steps_per_epoch)

    def close(self) -> None:
        """Let go of the batches and of the step: the model stays."""
        self.data.batches.close()
        self._step.close()

    def compile_if_repaid(self, steps_per_second: float) -> float | None:
        """Compile the step if that saves more time than it takes; the seconds left if it does."""
        if not self._compiles_later:
            return None
        seconds = (self.steps - self.done) / steps_per_second
        if self.processes.count > 1:  # they compile together
            mine = torch.tensor([seconds], dtype=torch.float64, device=self.processes.device)
            seconds = float(self.processes.total(mine)) / self.processes.count
        if seconds * COMPILE_GAIN < COMPILE_SECONDS:
            return None
        self._compiles_later = False
        self._step.compile()
        return seconds

    def gather_statistics(self) -> None:
        """Give the first process the losses and counts of all since the last reading."""
        if self.processes.count == 1:
            return
        losses, correct = self._step.unread()
        counts = torch.tensor([*losses, correct], dtype=torch.float64, device=self.processes.device)
        *losses, right = self.processes.total(counts).tolist()
        self._step.begin(self.done, losses, int(right))

    @torch.no_grad()  # with gradients, state_dict would update BatchNorm statistics
    def state(self) -> dict[str, Any]:
        """All that is needed to go on, as tensors and plain values."""
        recent = self.model.recent if isinstance(self.model, Anchored) else None
        made = remembered(self.model.net)
        return {
            "recipe": asdict(self.recipe),
            "start": None if self.start is None else str(self.start),
            "network": None if made is None else (made.name, made.arguments),
            "data": self.data.fingerprint,
            "way": self.data.way,
            "given": self.given,
            "step": self.done,
            "unread": self._step.unread(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "protocol": self.protocol.state_dict(),
            "loss": self.loss.state_dict() if isinstance(self.loss, nn.Module) else {},
            "components": {each.name: each.state_dict() for each in self.components},
            "recent": None if recent is None else recent.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        if state["data"] != self.data.fingerprint:
            raise CheckpointError(
                f"the data have changed since this run began: {state['data']} then,"
                f" {self.data.fingerprint} now. Bring them back, or start another run."
            )
        self.model.load_state_dict(state["model"])
        if self.own.optimizer is None:
            restore_optimizer(self.optimizer, state["optimizer"])
        else:
            self.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self.model, Anchored) and self.model.recent is not None:
            self.model.recent.load_state_dict(state["recent"], self.processes.device)
            self.model.mark_unsettled()
        self.protocol.load_state_dict(state["protocol"])
        if isinstance(self.loss, nn.Module):
            self.loss.load_state_dict(state.get("loss", {}))
        for each in self.components:
            each.load_state_dict(state["components"][each.name])
        self.done = state["step"]
        losses, correct = state["unread"]
        if not self.processes.first:  # the first one has the sums of all
            losses, correct = [0.0] * len(losses), 0
        self._step.begin(self.done, losses, correct)


def choose_arithmetic(recipe: Recipe, processes: Processes) -> tuple[str, str, str | None]:
    """Precision and execution of a run on its device, and a note where they are not the recipe's."""
    kind, precision, execution = processes.device.type, recipe.precision, recipe.execution
    if kind == "mps":
        given = [
            each for each in (precision, execution) if each not in ("auto", "float32", "eager")
        ]
        note = f"{' and '.join(given)} not available on mps: float32 and eager" if given else None
        return "float32", "eager", note
    cuda = kind == "cuda"
    if precision == "auto":
        precision = "bfloat16" if cuda else "float32"
    if execution == "auto" and not cuda:
        execution = "eager"
    if execution not in ("captured", "auto"):
        return precision, execution, None
    changing = [each.name for each in components_of(recipe) if not each.captures]
    if cuda and processes.count == 1 and not changing:  # a graph is captured on one GPU only
        return precision, execution, None
    note = f"with {', '.join(changing)} steps change: not captured" if changing else None
    if not cuda:
        note = "execution: captured needs an NVIDIA GPU: compiled, without a CUDA graph"
    return precision, "compiled" if execution == "captured" else "uncaptured", note
