"""Base classes of protocols and components: settings, hooks, state for resume, facts for rows.

A component in one file:

    @dataclass
    class LogitPenalty(Component):
        \"\"\"Penalizes large logits.\"\"\"

        name: str = "logit_penalty"
        strength: float = setting(0.01, "factor of the penalty", least=0)

        def loss(self, seen, loss):
            return loss + self.strength * seen.logits.square().mean()

    COMPONENTS.register("logit_penalty", LogitPenalty)

A recipe lists it as `components: [{name: logit_penalty, strength: 0.1}]`.

Hooks run on every process. On a GPU, `batch`, `draw`, `forward`, `more_logits`, `targets`, `criterion`,
`loss`, `observe`, `weights` and `gradient` are compiled or captured in a CUDA graph: they must not
wait for the device (no `.item()`), and what they draw must come from `batch.keys` or torch's default
generator. `step` and `epoch` are called between the steps, outside the graph. Hooks on layers must be
plain functions: a copy of the model would copy the component of a bound method.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from killick.registry import Registry
from killick.settings import setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from killick.core.anchored import Anchored
    from killick.core.masking import Draw
    from killick.core.standard import Standard
    from killick.data.augment.policies import BatchPolicy
    from killick.data.batches import Batch
    from killick.data.image_set import ImageSet
    from killick.data.preprocessing import PlainView
    from killick.data.transforms import Shift

    Model: TypeAlias = Anchored | Standard


@dataclass(frozen=True)
class RunContext:
    """What hooks may know about the run."""

    device: "torch.device"  # of the model and the batches
    classes: int
    seed: int
    steps: int  # of the whole run
    steps_per_epoch: int
    pass_size: int  # samples of one forward pass of this process
    parts: int  # forward passes of all processes in one step
    rank: int  # of this process
    train: "ImageSet"
    view: "PlainView"  # preprocessing of evaluation
    pixels: "Tensor | None"  # all training images, (n, size, size, 3); None if they stream
    keeps_set: bool  # whether the training set is small enough to be kept on the device
    shift: "Shift"  # cropping and flipping of training images
    workers: int  # processes that read images
    policy: "BatchPolicy | None" = None  # of augmentation, if it acts on batches


class ForwardPass(NamedTuple):
    """What hooks may know about a forward pass."""

    batch: "Batch"
    logits: "Tensor"
    targets: "Tensor"  # what the logits are compared with
    masked: "Tensor | None"  # which references are masked, see `Draw`
    # whose target is not the label of one sample: mixed, or masked towards the uniform distribution
    unlabeled: "Tensor | None"
    model: "Callable[[Tensor], Tensor]"  # gives logits of other images with the same references


@dataclass
class TrainingProtocol:
    """What the network reads, and what it is trained towards. The fields are its settings."""

    anchored: ClassVar[bool] = False  # whether the network reads pairs

    name: str = setting("", "how the network is trained")

    def check(self, recipe: Any) -> list[str]:
        """Problems with the settings, also together with others of the recipe."""
        return []

    def facts(self) -> dict[str, Any]:
        """What rows say about training: columns of rows, or other names."""
        return {}

    def network(self, model: "Model", *, fresh: bool) -> "Model":
        """The network that is trained, made from a standard or trained one."""
        return model

    def setup(self, model: "Model", run: RunContext) -> None:
        """Get ready for the first step; the model is on its device."""

    def draw(self, batch: "Batch", step: "Tensor") -> "Draw | None":
        """Everything random about a forward pass of step number `step`."""
        return None

    def unlabeled(self, draw: "Draw | None") -> "Tensor | None":
        """Which samples are trained towards something else than their label; None: nobody's."""
        return None

    def forward(
        self,
        model: "Callable[..., Tensor]",
        images: "Tensor",
        labels: "Tensor",
        draw: "Draw | None",
    ) -> "tuple[Tensor, Tensor]":
        """Logits, and the targets they are compared with."""
        return model(images), labels

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""


@dataclass
class Component:
    """A part of a training step. The fields are its settings; hooks that are not needed are left out."""

    name: str = setting("", "of the component")
    # Layers that are trained beside the model, if set in `network` or `setup`. An annotation would
    # make it a setting.
    module = None  # type: Any
    last: ClassVar[bool] = False  # whether it comes after all others: it copies what they changed

    @property
    def captures(self) -> bool:
        """Whether steps with it may be captured in a CUDA graph, which never changes."""
        return True

    @property
    def mixes(self) -> bool:
        """Whether it mixes labels: those of a batch are probabilities then."""
        return False

    @property
    def mixes_all(self) -> bool:
        """Whether it mixes the label of every sample."""
        return self.mixes

    @classmethod
    def from_recipe(cls, recipe: Any) -> "Component | None":
        """The component, if settings outside `components` ask for it."""
        return None

    def check(self, recipe: Any) -> list[str]:
        """Problems with the settings, also together with others of the recipe."""
        return []

    def facts(self) -> dict[str, Any]:
        """What rows say about it; by default all settings."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "name"}

    def cost(self) -> float:
        """Forward and backward passes of a step, relative to a step without it."""
        return 1.0

    def extra_passes(self) -> int:
        """Forward passes of other networks for each batch."""
        return 0

    def network(self, model: "Model") -> "Model":
        """Change or replace the model before training, for instance its last layer."""
        return model

    def setup(self, model: "Model", run: RunContext) -> None:
        """Get ready for the first step; the model is on its device."""

    def batch(self, batch: "Batch") -> "Batch":
        """Change images or labels before the network sees them."""
        return batch

    def more_logits(self) -> "Sequence[Tensor]":
        """Further logits of the samples; the loss is the mean over them and the network's own."""
        return ()

    def targets(self, seen: ForwardPass) -> "Tensor":
        """Change what the logits are compared with."""
        return seen.targets

    def criterion(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Replace cross-entropy. At most one component of a run may."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, targets)

    def loss(self, seen: ForwardPass, loss: "Tensor") -> "Tensor":
        """Change the loss."""
        return loss

    def observe(self, batch: "Batch", logits: "Tensor", masked: "Tensor | None") -> None:
        """Remember what the network computed; once for each sample of a step."""

    def weights(self, parameters: "Sequence[Tensor]") -> None:
        """Change the weights that are trained before their gradient is computed; see `gradient`."""

    def gradient(self, parameters: "Sequence[Tensor]", again: "Callable[[], None]") -> None:
        """Change the gradients, or the weights back. At most one component of a run may.

        `again()` computes all gradients anew, for the weights as they are then: the same samples,
        references and masks; BatchNorm keeps the statistics of the first time.
        """

    def step(self, number: int) -> None:
        """After the optimizer's step number `number`, counted from 1."""

    def epoch(self, number: int) -> None:
        """After epoch number `number`, counted from 1."""

    def inference(self, model: "Model") -> "Model":
        """The model that is evaluated and saved. At most one component of a run may choose it."""
        return model

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold: tensors and plain values, equal on all processes."""
        return {} if self.module is None else self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`; called after `setup`."""
        if self.module is not None:
            self.module.load_state_dict(state)


PROTOCOLS: Registry[type[TrainingProtocol]] = Registry(
    "protocols", "protocol", package="killick.protocols"
)
COMPONENTS: Registry[type[Component]] = Registry(
    "components", "component", package="killick.protocols.components"
)


def uses(component: Component, hook: str) -> bool:
    """Whether a component has this hook."""
    return getattr(type(component), hook) is not getattr(Component, hook)


def components_of(recipe: Any) -> list[Component]:
    """All components of a recipe in order: of other settings, those it lists, those that come last."""
    made = (kind.from_recipe(recipe) for _, kind in COMPONENTS.items())
    found = [each for each in made if each is not None] + list(recipe.components)
    return sorted(found, key=lambda each: each.last)


def check_protocol(recipe: Any) -> list[str]:
    """Problems of a recipe's protocol and components."""
    components = components_of(recipe)
    problems: list[str] = recipe.protocol.check(recipe)
    for each in components:
        problems += each.check(recipe)
    names = [each.name for each in components]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems += [f"components: {name} is listed twice" for name in twice]
    exclusive = {
        "mix labels": [each.name for each in components if each.mixes],
        "replace the loss": [each.name for each in components if uses(each, "criterion")],
        "change the gradient": [each.name for each in components if uses(each, "gradient")],
        "choose what is saved": [each.name for each in components if uses(each, "inference")],
    }
    for what, found in exclusive.items():
        if len(found) > 1:
            problems.append(f"components: only one may {what}, found {', '.join(found)}")
    return problems
