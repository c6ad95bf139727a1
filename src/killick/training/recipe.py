"""A recipe: everything that decides how a model is trained, as plain data.

Each setting says in one place what it means, its default and what it may be; the command line's
help, the checks and the documentation are made from that.
"""

from dataclasses import dataclass, field
from typing import Any

from killick.data.data_settings import Data as Data
from killick.settings import setting


@dataclass(frozen=True)
class Network:
    """Which network is trained."""

    name: str = setting(
        "killick:resnet_small",
        "`library:name`: of killick, timm, torchvision, or your own; see `killick list`",
    )
    arguments: dict[str, Any] = setting(
        {}, "passed on when it is made; the number of classes comes from the data"
    )
    new_head: bool = setting(
        False, "with --from: a fresh last layer, where the trained one has other classes"
    )


@dataclass(frozen=True)
class Augment:
    """What happens to a picture before the network sees it; mixing comes last."""

    crop: str = setting(
        "none",
        "pad: padded and cropped; resized: a random part, resized",
        among=("none", "pad", "resized"),
    )
    padding: int = setting(4, "for crop: pad", least=0)
    flip: bool = setting(False, "left and right, in half of the pictures")
    flip_vertically: bool = setting(False, "top and bottom, likewise")
    policy: str = setting(
        "none",
        "an augmentation policy of torchvision's, or PixMix",
        among=("none", "randaugment", "trivialaugment", "autoaugment", "augmix", "pixmix"),
    )
    policy_arguments: dict[str, Any] = setting({}, "for the policy, such as {magnitude: 9}")
    mixing_set: str | None = setting(
        None,
        "for PixMix: a folder of pictures to mix in; none: fractals and textures made by Killick",
    )
    erase: float = setting(0.0, "probability of random erasing", least=0, most=1)
    mixup: float = setting(0.0, "alpha of mixup; 0: none", least=0)
    cutmix: float = setting(0.0, "alpha of CutMix; 0: none. With both, each picture draws", least=0)
    smoothing: float = setting(0.0, "label smoothing", least=0, below=1)


@dataclass(frozen=True)
class Optimizer:
    """How the weights are changed."""

    name: str = setting("sgd", "of torch.optim", among=("sgd", "adamw"))
    lr: float = setting(0.1, "highest learning rate", above=0)
    momentum: float = setting(0.9, "of sgd", least=0, below=1)
    nesterov: bool = setting(False, "of sgd")
    betas: list[float] = setting([0.9, 0.999], "of adamw")
    weight_decay: float = setting(5e-4, "of all weights, or of matrices alone", least=0)
    decay: str = setting(
        "all",
        "which weights decay; matrices leaves out norms, biases and embeddings",
        among=("all", "matrices"),
    )
    clip: float | None = setting(None, "largest norm of the gradient; none: any", above=0)


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time; all times are shares of the budget, so epochs scale it."""

    name: str = setting(
        "cosine", "how the learning rate falls", among=("constant", "multistep", "cosine")
    )
    milestones: list[float] = setting([0.3, 0.6, 0.8], "of multistep, shares of the budget")
    gamma: float = setting(0.2, "of multistep: factor at each milestone", above=0, most=1)
    warmup: float = setting(0.0, "share of the budget that rises linearly", least=0, below=1)
    warmup_start: float = setting(0.01, "where that begins, as a share of lr", least=0, most=1)
    final: float = setting(0.0, "where cosine ends, as a share of lr", least=0, most=1)
    begin: float = setting(
        0.0,
        "where in the schedule the run begins: one that goes on from another takes a part",
        least=0,
        below=1,
    )
    end: float = setting(1.0, "and where it ends", above=0, most=1)


@dataclass(frozen=True)
class Protocol:
    """Standard, anchored, or anchored with masked references."""

    name: str = setting("masked", "how it is trained", among=("standard", "anchored", "masked"))
    target: str | None = setting(
        None,
        "of masked pairs: label (the authors' code) or uniform (the paper's text). Opposite"
        " mechanisms: there is no default",
        among=("label", "uniform"),
    )
    alpha: float = setting(0.25, "how often references are masked", least=0, most=1)
    alpha_end: float | None = setting(
        None,
        "where alpha ends: it moves evenly from step to step of the run; none: it stays",
        least=0,
        most=1,
    )
    every: int | None = setting(None, "instead: mask every so many steps", least=1)
    scope: str = setting(
        "batch", "masks whole batches or single samples", among=("batch", "sample")
    )
    ranks: str = setting(
        "shared",
        "with several processes, all mask the same steps, or each its own",
        among=("shared", "own"),
    )
    batchnorm: str = setting(
        "settled",
        "its statistics after masking whole batches: settled, estimated again on unmasked pairs; or"
        " running, as training left them and as in the authors' code, which ruins a network that is"
        " masked towards uniform; towards label it may be better calibrated",
        among=("settled", "running"),
    )
    references: str = setting(
        "clean",
        "in training: clean or augmented pictures of the training set, or the batch's own",
        among=("clean", "augmented", "batch"),
    )
    reference_set: int | None = setting(
        None, "how many pictures references are drawn from, class-balanced; none: all", least=1
    )
    stored: int = setting(10, "references kept with the model for evaluation", least=1)
    stored_as: str = setting(
        "images",
        "what they are: images of the training set, which travel with the model; or, where none may"
        " leave, the mean of all, which is one, or synthetic ones with their spectrum",
        among=("images", "mean", "synthetic"),
    )
    stem: str = setting(
        "auto",
        "first weights of the doubled layer: exact, or random as in the paper; auto: random from"
        " scratch, exact with --from",
        among=("auto", "exact", "random"),
    )

    @property
    def anchored(self) -> bool:
        """Whether the network reads pairs."""
        return self.name != "standard"

    @property
    def share(self) -> float:
        """How often references are masked, in the mean of the run."""
        if self.every is not None:
            return 1 / self.every
        return self.alpha if self.alpha_end is None else (self.alpha + self.alpha_end) / 2

    def describe(self) -> str | None:
        """One line on what the network is shown; none of standard training."""
        if not self.anchored:
            return None
        many = "" if self.reference_set is None else f"{self.reference_set:,} "
        drawn = f"{many}{self.references} training pictures"
        told = f"anchored on {'the pictures of the batch' if self.references == 'batch' else drawn}"
        if self.name == "anchored":
            return f"{told}, none masked"
        what = "batches" if self.scope == "batch" else "samples"
        if self.every is not None:
            share = f"every {self.every} steps"
        elif self.alpha_end is None:
            share = f"in {100 * self.alpha:g} % of the {what}"
        else:
            share = f"in {100 * self.alpha:g} to {100 * self.alpha_end:g} % of the {what}"
        told = f"{told}, masked {share}, target {self.target}"
        left = self.batchnorm == "running" and self.scope == "batch"
        return told + ("; BatchNorm's statistics stay as training leaves them" if left else "")


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
    protocol: Protocol = field(default_factory=Protocol)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    average: Average = field(default_factory=Average)
    epochs: int = setting(10, "passes over the training set", least=1)
    batch: int = setting(128, "samples of a step, over all processes", least=1)
    accumulate: int = setting(1, "forward passes that a step's batch is cut into", least=1)
    seed: int = setting(0, "of everything random", least=0, most=2**63 - 1)
    precision: str = setting(
        "auto",
        "of the arithmetic; auto: bfloat16 on a GPU, float32 on a CPU",
        among=("auto", "float32", "bfloat16"),
    )
    execution: str = setting(
        "auto",
        "captured: compiled, in a CUDA graph; auto: captured on one GPU, compiled on several, eager"
        " on a CPU",
        among=("auto", "eager", "compiled", "captured"),
    )
    sync_batchnorm: bool = setting(False, "statistics over all GPUs")
    validate_every: int = setting(1, "epochs between validations", least=1)
    log_every: int = setting(50, "steps between looks at the loss", least=1)
    checkpoint_minutes: float = setting(5.0, "between checkpoints; 0: after every step", least=0)
