"""A recipe: everything that decides how a model is trained, as plain data.

Each setting states its meaning, default and limits once; help, checks and docs are made from that.
"""

from dataclasses import dataclass, field
from typing import Any

from killick.data.data_settings import Data as Data
from killick.protocols.base import COMPONENTS, PROTOCOLS, Component, TrainingProtocol
from killick.settings import registered, registered_list, setting


@dataclass(frozen=True)
class Network:
    """Which network is trained."""

    name: str = setting(
        "killick:resnet_small",
        "`library:name`: of killick, timm, torchvision, or your own; see `killick list`",
    )
    arguments: dict[str, Any] = setting(
        {}, "keyword arguments of the network's constructor; the data give num_classes"
    )
    pretrained: str | None = setting(
        None,
        "weights to start with: default, those of the network's library, as with --pretrained; or a"
        " name that has them, such as timm:resnet50.a1_in1k. The last layer is fresh where the classes"
        " are others",
    )
    new_head: bool = setting(
        False, "with --from: a fresh last layer, where the trained one has other classes"
    )

    pairs: bool = setting(False, "the network takes pairs already: twice the channels of an image")

    @property
    def may_name_weights(self) -> bool:
        """Whether it may have pretrained weights; `killick.nets`, which knows, imports torch."""
        name = self.name.partition(":")[2]
        return self.pretrained is not None or any(mark in name for mark in ".#/")


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images; mixing comes last."""

    crop: str = setting(
        "none",
        "pad: padded and cropped; resized: a random part, resized",
        among=("none", "pad", "resized"),
    )
    padding: int = setting(4, "for crop: pad", least=0, most=2**12)
    flip: bool = setting(False, "flip horizontally with probability 1/2")
    flip_vertically: bool = setting(False, "flip vertically with probability 1/2")
    policy: str = setting(
        "none",
        "an augmentation policy of torchvision's, or PixMix",
        among=("none", "randaugment", "trivialaugment", "autoaugment", "augmix", "pixmix"),
    )
    policy_arguments: dict[str, Any] = setting({}, "for the policy, such as {magnitude: 9}")
    mixing_set: str | None = setting(
        None,
        "for PixMix: a folder of images to mix in; none: fractals and textures made by Killick",
    )
    transform: dict[str, Any] = setting(
        {},
        "your own transform, before all others: {class_path: torchvision.transforms.v2.RandomRotation,"
        " init_args: {degrees: 10}}",
    )
    erase: float = setting(0.0, "probability of random erasing", least=0, most=1)
    mixup: float = setting(0.0, "alpha of mixup; 0: none", least=0)
    cutmix: float = setting(
        0.0, "alpha of CutMix; 0: none. With both, each image gets one at random", least=0
    )
    smoothing: float = setting(0.0, "label smoothing", least=0, below=1)


@dataclass(frozen=True)
class Optimizer:
    """The optimizer."""

    name: str = setting("sgd", "of torch.optim", among=("sgd", "adamw"))
    lr: float = setting(0.1, "peak learning rate", above=0, most=1e30)
    momentum: float = setting(0.9, "of sgd", least=0, below=1)
    nesterov: bool = setting(False, "of sgd")
    betas: list[float] = setting([0.9, 0.999], "of adamw")
    weight_decay: float = setting(
        5e-4, "weight decay, of the weights that decay selects", least=0, most=1e30
    )
    decay: str = setting(
        "all",
        "which weights decay; matrices leaves out norms, biases and embeddings",
        among=("all", "matrices"),
    )
    clip: float | None = setting(None, "largest gradient norm; none: no clipping", above=0)
    class_path: str | None = setting(
        None, "another optimizer, such as timm.optim.Lamb; it takes lr and weight_decay from here"
    )
    init_args: dict[str, Any] = setting({}, "further arguments of class_path")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time; all times are shares of the budget, so epochs scale it."""

    name: str = setting(
        "cosine", "how the learning rate falls", among=("constant", "multistep", "cosine")
    )
    milestones: list[float] = setting([0.3, 0.6, 0.8], "of multistep, shares of the budget")
    gamma: float = setting(0.2, "of multistep: factor at each milestone", above=0, most=1)
    warmup: float = setting(0.0, "share of the budget with a linear warmup", least=0, below=1)
    warmup_start: float = setting(
        0.01, "learning rate at the start of the warmup, as a share of lr", least=0, most=1
    )
    final: float = setting(0.0, "final learning rate of cosine, as a share of lr", least=0, most=1)
    begin: float = setting(
        0.0, "start of the part of the schedule to run, 0 to 1", least=0, below=1
    )
    end: float = setting(1.0, "end of the part of the schedule to run, 0 to 1", above=0, most=1)
    class_path: str | None = setting(
        None, "a scheduler of torch instead, such as torch.optim.lr_scheduler.ExponentialLR"
    )
    init_args: dict[str, Any] = setting({}, "arguments of class_path")
    every: str = setting(
        "step", "how often the scheduler of class_path steps", among=("step", "epoch")
    )


@dataclass(frozen=True)
class Loss:
    """The loss of logits and targets; cross-entropy by default."""

    class_path: str | None = setting(
        None, "another loss of (logits, targets), such as torch.nn.CrossEntropyLoss"
    )
    init_args: dict[str, Any] = setting({}, "arguments of class_path")


@dataclass(frozen=True)
class Average:
    """An exponential moving average of the weights (EMA); it is what is evaluated and saved."""

    decay: float | None = setting(
        None, "share kept at each update; none: no average", above=0, below=1
    )
    every: int = setting(1, "steps between updates", least=1)


@dataclass(frozen=True)
class Recipe:
    """All settings of a training run."""

    about: str = setting("", "what the recipe is, and where its settings come from")
    network: Network = field(default_factory=Network)
    data: Data = field(default_factory=Data)
    augment: Augment = field(default_factory=Augment)
    protocol: TrainingProtocol = registered(PROTOCOLS, "masked")
    components: list[Component] = registered_list(
        COMPONENTS, "further parts of training, in order: [{name: weight_average, decay: 0.99}]"
    )
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    loss: Loss = field(default_factory=Loss)
    average: Average = field(default_factory=Average)
    epochs: int = setting(10, "passes over the training set", least=1)
    batch: int = setting(128, "samples per step, over all processes", least=1)
    accumulate: int = setting(1, "forward passes per step", least=1)
    seed: int = setting(0, "random seed", least=0, most=2**63 - 1)
    precision: str = setting(
        "auto",
        "floating-point type; auto: bfloat16 on a GPU, float32 on a CPU",
        among=("auto", "float32", "bfloat16"),
    )
    execution: str = setting(
        "auto",
        "captured: compiled, in a CUDA graph; auto: on one GPU in a CUDA graph, on GPUs compiled"
        " later in long runs, on a CPU eager",
        among=("auto", "eager", "compiled", "captured"),
    )
    sync_batchnorm: bool = setting(False, "statistics over all GPUs")
    validate_every: int = setting(1, "epochs between validations", least=1)
    log_every: int = setting(50, "steps between readings of the loss", least=1)
    loggers: list[str] = setting(
        [], "beside metrics.jsonl: csv, mlflow, tensorboard, trackio, wandb, or your own"
    )
    checkpoint_minutes: float = setting(5.0, "between checkpoints; 0: after every step", least=0)

    @property
    def first_epoch(self) -> int:
        """Where its samples begin: those of a later part of a schedule come in another order."""
        return round(self.epochs * self.schedule.begin / (self.schedule.end - self.schedule.begin))


def named_classes(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe that name a class, by what it is for; empty if none does."""
    found: dict[str, Any] = {}
    if recipe.augment.transform:
        found["transform"] = recipe.augment.transform
    for name in ("optimizer", "schedule", "loss"):
        own = getattr(recipe, name)
        if own.class_path is not None:
            found[name] = {"class_path": own.class_path, "init_args": own.init_args}
    return found
