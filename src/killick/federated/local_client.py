"""A client: its images, and what it computes with them in one round."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from killick.core.anchored import Anchored
from killick.core.batchnorm import estimate, tracked_norms
from killick.core.references import ReferencePool
from killick.core.residual_blocks import head_of
from killick.core.settle import settle
from killick.data.batches import Cut, Resident, read_all
from killick.data.image_set import ImageSet
from killick.data.keyed_random import Stream, key
from killick.data.preprocessing import PlainView
from killick.data.transforms import Shift
from killick.errors import DivergedError
from killick.federated.federation_settings import FederationPlan
from killick.federated.method import State
from killick.protocols.base import Component, RunContext, components_of
from killick.protocols.references.reference_sampler import read_pixels
from killick.runtime.devices import forked_random_state, seed_random_state
from killick.runtime.processes import Processes
from killick.training.initial_weights import Model
from killick.training.optimizers import learning_rate, make_optimizer, set_rate
from killick.training.run_state import choose_arithmetic
from killick.training.step import TrainingStep

Counts = dict[str, int | float]
PURPOSES = ("generic", "personal", "tuning")  # each with random numbers of its own
_SETTLED_IMAGES = 1024
_BATCH = 500  # images of a forward pass in evaluation


@dataclass(frozen=True)
class LocalClient:
    """A client in one round; weights go in and come out as dictionaries."""

    plan: FederationPlan
    number: int
    round: int  # counted from 1
    train: ImageSet
    test: ImageSet
    template: Model  # of the architecture; its weights are not used
    device: torch.device
    decoded: dict[str, Tensor] = field(default_factory=dict)  # its images, once they are read

    def fit(
        self,
        weights: State,
        terms: Sequence[Component] = (),
        *,
        epochs: int | None = None,
        purpose: str = "generic",
        train: str = "all",
    ) -> State:
        """Train a copy of the model from `weights` on the client's images.

        Args:
            weights: Where training starts.
            terms: Added to the components of the recipe, such as penalties.
            epochs: Those of a round by default.
            purpose: What the random numbers are for: "generic", "personal" or "tuning".
            train: "all", or only the "head" (the last layer) or the "body".

        Raises:
            DivergedError: If a weight is not finite.
        """
        recipe, rounds = self.plan.recipe, self.plan.federation.rounds
        epochs = epochs or self.plan.federation.local_epochs
        seed = key(recipe.seed, self.number, PURPOSES.index(purpose)) % 2**63
        model = self.load(weights)
        for name, weight in model.net.named_parameters():
            weight.requires_grad_(train == "all" or self.in_head(name) == (train == "head"))
        batches = self._batches(seed)
        per_epoch = batches.samples // batches.cut.batch
        context = self._context(seed, batches, steps=rounds * epochs * per_epoch)
        protocol = replace(recipe.protocol)
        protocol.setup(model.train(), context)
        components = [*(replace(each) for each in components_of(recipe)), *terms]
        for each in components:
            each.setup(model, context)
        optimizer = make_optimizer([model], recipe.optimizer, self.device)
        rate = recipe.optimizer.lr  # that of tuning, too: at the end of a schedule nothing is tuned
        if purpose != "tuning":
            rate = learning_rate(self.round - 1, rounds, rate, recipe.schedule)
        set_rate(optimizer, rate)
        assert model.normalize is not None
        step = TrainingStep(
            model,
            batches,
            protocol,
            components,
            optimizer,
            recipe,
            device=self.device,
            fill=[255 * mean for mean in model.normalize.mean],
            execution="eager",
            precision=choose_arithmetic(recipe, Processes(0, 1, self.device))[0],
        )
        first = (self.round - 1) * epochs
        step.begin(first * per_epoch)
        for each in components:
            each.step(first * per_epoch)
        with forked_random_state(self.device):
            for epoch in range(first, first + epochs):
                batches.begin(epoch, 0)
                for number in range(epoch * per_epoch, (epoch + 1) * per_epoch):
                    seed_random_state(key(seed, number, Stream.DROPOUT) % 2**63, self.device)
                    step()
                    for each in components:
                        each.step(number + 1)
        model.eval()  # updates the BatchNorm statistics of an anchored model
        trained = state_of(model)
        if not all(bool(each.isfinite().all()) for each in trained.values()):
            raise DivergedError(f"the weights of client {self.number} are not finite.")
        aggregated = purpose == "generic"
        return trained if aggregated or isinstance(model, Anchored) else self.settle(trained)

    def score(self, weights: State) -> Counts:
        """Counts on the client's test images, classified with its own references."""
        images, labels = self.test_images, self.test.labels
        logits = self.predict(self.ready(weights), images)
        return {
            "correct": int((logits.argmax(1) == labels).sum()),
            "count": len(labels),
            "loss": float(cross_entropy(logits, labels, reduction="sum")),
        }

    def ready(self, weights: State) -> Model:
        """A model to be used here: an anchored one gets references from the client's images."""
        model = self.load(weights)
        if isinstance(model, Anchored):
            seed = key(self.plan.recipe.seed, self.number) % 2**63
            context = self._context(seed, self._batches(seed), steps=1)
            replace(self.plan.recipe.protocol).setup(model, context)
            model.mark_settled()
        return model.eval()

    def settle(self, weights: State) -> State:
        """Weights trained here, with BatchNorm statistics of the client's images.

        Running averages lag behind the weights, by much after a few steps.
        """
        model = self.load(weights).eval()
        norms = tracked_norms(model)
        if getattr(self.plan.recipe.protocol, "batchnorm", "settled") != "settled" or not norms:
            return weights
        seed = key(self.plan.recipe.seed, self.number) % 2**63
        images = self.train_images
        # Data sets are often sorted by class.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        order = order[:_SETTLED_IMAGES]
        batches = images[order].tensor_split(max(1, len(order) // max(32, self._cut.batch)))
        if isinstance(model, Anchored):
            generator = torch.Generator(self.device).manual_seed(seed)
            settle(model, batches, references=ReferencePool(images), generator=generator)
        else:
            estimate(norms, model, (partial(model, batch) for batch in batches))
        return state_of(model)

    @torch.no_grad()
    def predict(self, model: Model, images: Tensor) -> Tensor:
        """Logits on the CPU."""
        parts = [model(each.to(self.device)).float().cpu() for each in images.split(_BATCH)]
        return torch.cat(parts)

    def load(self, weights: State) -> Model:
        """A model of its own with these weights, on the device."""
        model = copy.deepcopy(self.template)
        model.net.load_state_dict(weights)
        model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def without_head(self, weights: State) -> State:
        """Weights and buffers without those of the last layer."""
        return {name: each for name, each in weights.items() if not self.in_head(name)}

    def in_head(self, name: str) -> bool:
        """Whether a weight belongs to the last layer."""
        return name.startswith(f"{self._head}.")

    @cached_property
    def _head(self) -> str:
        return head_of(self.template)

    @property
    def test_images(self) -> Tensor:
        """The client's test images, uint8."""
        if "test" not in self.decoded:
            parts = read_all(self.test, PlainView.of(self.plan.recipe.data))
            self.decoded["test"] = torch.cat(list(parts))
        return self.decoded["test"]

    @property
    def _pixels(self) -> Tensor:
        if "train" not in self.decoded:
            view = PlainView.of(replace(self.plan.recipe.data, resize=None))
            self.decoded["train"] = read_pixels(self.train, view, 0).to(self.device)
        return self.decoded["train"]

    @property
    def train_images(self) -> Tensor:
        """The client's training images without augmentation, uint8, on the device."""
        return self._pixels.permute(0, 3, 1, 2)

    @property
    def _cut(self) -> Cut:
        return Cut(min(self.plan.recipe.batch, len(self.train)))

    @property
    def _shift(self) -> Shift:
        augment = self.plan.recipe.augment
        padding = augment.padding if augment.crop == "pad" else 0
        return Shift(padding, augment.flip, augment.flip_vertically)

    def _batches(self, seed: int) -> Resident:
        labels = self.train.labels.to(self.device)
        return Resident(self._pixels, labels, self._shift, self._cut, seed=seed)

    def _context(self, seed: int, batches: Resident, steps: int) -> RunContext:
        recipe = self.plan.recipe
        return RunContext(
            device=self.device,
            classes=self.train.classes,
            seed=seed,
            steps=steps,
            steps_per_epoch=batches.samples // batches.cut.batch,
            pass_size=batches.cut.size,
            parts=1,
            rank=0,
            train=self.train,
            view=PlainView.of(recipe.data),
            pixels=self._pixels,
            keeps_set=True,
            shift=self._shift,
            workers=0,
        )


def state_of(model: Model) -> State:
    """Weights and buffers of the network on the CPU: no references, and nothing else of a model."""
    state = model.net.state_dict()
    return {name: each.detach().cpu().clone() for name, each in state.items()}
