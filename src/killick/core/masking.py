"""Reference masking: when a reference is masked in training, and towards which target.

Now and then the network sees `[0, x - reference]` instead of `[reference, x - reference]`. What it
is trained towards meanwhile decides what it learns, and the paper and its authors' code disagree:

- `target="label"`: the true label, as in the released code (and, by all signs, in the published
  tables). The network must classify from the residual alone.
- `target="uniform"`: the uniform distribution, as in the paper's text. The network must *not*
  decide from the residual alone.

They are opposite mechanisms, so there is no default, and every result should name the one used.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import cross_entropy, one_hot

from killick.core.anchored import anchored_in
from killick.core.batchnorm import count_processes
from killick.core.references import (
    ReferencePool,
    check_finite_images,
    check_tensor,
    random_cycle,
    take,
)
from killick.errors import DtypeError, OptionError, ShapeError, check_option

References = Tensor | ReferencePool | None
IGNORED = -100  # a label that cross_entropy leaves out


class Draw(NamedTuple):
    """All that is random in a step, as tensors.

    Attributes:
        chosen: The number of each image's reference in `source`; None: `source` in its order.
        masked: True where the reference is masked: one value `()` for the whole batch, or one for
            each image `(n,)`. None: nothing is masked.
        source: The images `chosen` points into; None: the batch itself.
    """

    chosen: Tensor | None
    masked: Tensor | None
    source: Tensor | None


class ReferenceMasking:
    """Anchored training with masked references: draws them, pairs, masks, and gives the targets.

    A criterion that weights classes or ignores an index sees probabilities in the place of indices
    with target "uniform", and averages differently over them.

    Args:
        alpha: How often references are masked: 0 is plain anchored training, 1 masks always. May be
            changed while training.
        target: What masked pairs are trained towards: "label", the true label, as in the authors'
            code, or "uniform", the uniform distribution, as in the paper's text. They are opposite
            mechanisms, so there is no default.
        scope: "batch" masks whole batches, as in the paper; "sample" decides for each image.
        every: Instead of `alpha`: mask every so many batches, beginning with the first.
        ranks: Under torch.distributed, with scope "batch": "shared", all processes mask the same
            steps; "own", each decides for itself, as in the released ImageNet code.

    Example:
        >>> import killick
        >>> model = killick.anchor(torch.nn.Linear(4, 3))
        >>> masking = killick.ReferenceMasking(alpha=0.25, target="label")
        >>> x, labels = torch.randn(8, 4), torch.randint(3, (8,))
        >>> masking.loss(model, x, labels).backward()
    """

    def __init__(
        self,
        alpha: float | None = None,
        target: str | None = None,
        scope: str = "batch",
        *,
        every: int | None = None,
        ranks: str = "shared",
    ) -> None:
        if target is None:
            raise OptionError(
                "expected target='label' (the authors' code) or target='uniform' (the paper's"
                " text), found neither. They are opposite mechanisms, so there is no default."
            )
        check_option("target", target, ["label", "uniform"])
        check_option("scope", scope, ["batch", "sample"])
        check_option("ranks", ranks, ["shared", "own"])
        if (alpha is None) == (every is None):
            raise OptionError(
                "expected either alpha (a probability) or every (a number of batches), found"
                f" alpha={alpha} and every={every}."
            )
        if every is not None and (type(every) is not int or every < 1):
            raise OptionError(f"expected every to be a whole number from 1, found {every!r}.")
        if every is not None and scope == "sample":
            raise OptionError("expected scope='batch' with every=, found 'sample'. Use alpha=.")
        self.target, self.scope, self.every, self.ranks = target, scope, every, ranks
        self._alpha = 0.0
        if alpha is not None:
            self.alpha = alpha
        self.step = 0

    @property
    def alpha(self) -> float:
        """How often references are masked."""
        return self._alpha if self.every is None else 1 / self.every

    @alpha.setter
    def alpha(self, value: float) -> None:
        if self.every is not None:
            raise OptionError(f"alpha cannot be set: masking follows every={self.every}.")
        if not isinstance(value, int | float) or not 0 <= value <= 1:  # also refuses NaN
            raise OptionError(f"expected alpha between 0 and 1, found {value!r}.")
        self._alpha = float(value)

    def record(self) -> dict[str, Any]:
        """The settings, to be recorded with results."""
        return {
            "alpha": self.alpha,
            "every": self.every,
            "target": self.target,
            "scope": self.scope,
            "ranks": self.ranks,
        }

    def facts(self, references: References = None) -> dict[str, Any]:
        """How a model that is trained with `loss` is described in rows."""
        return {
            "protocol": "masked" if self.alpha else "anchored",
            "target": self.target if self.alpha else "",
            "alpha": self.alpha or "",
            "scope": self.scope if self.alpha else "",
            "references": "batch" if references is None else "given",
        }

    def __repr__(self) -> str:
        often = f"alpha={self.alpha}" if self.every is None else f"every={self.every}"
        return f"ReferenceMasking({often}, target={self.target!r}, scope={self.scope!r})"

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on: the settings and the number of steps drawn."""
        return {**self.record(), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`. Other settings than this object's are an error."""
        for key in ("every", "target", "scope", "ranks"):
            if state[key] != getattr(self, key):
                raise OptionError(
                    f"expected a state with {key}={getattr(self, key)!r}, found {state[key]!r}."
                    " Make ReferenceMasking with the settings the run was started with."
                )
        if self.every is None:
            self.alpha = state["alpha"]
        self.step = int(state["step"])

    def loss(
        self,
        model: Callable[..., Tensor],
        x: Tensor,
        labels: Tensor,
        references: References = None,
        generator: torch.Generator | None = None,
        criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    ) -> Tensor:
        """The loss of one step: draws, pairs, masks, predicts, compares.

        The model records how it is trained, for `killick.save` and `killick.evaluate`.

        Args:
            model: Anchored; also inside DDP or a compiled wrapper.
            x: Images, as the model takes them; mixed or augmented before.
            labels: Class indices `(n,)`, or soft targets `(n, classes)` after mixup, CutMix or
                smoothing. With another criterion and target "label": whatever that compares with.
            references: None for the batch's own images, a `ReferencePool`, or a tensor like `x`.
            generator: For all that is drawn; the default generator of the device of `x` without.
            criterion: Of logits and targets. Targets are indices or probabilities; a criterion
                such as `nn.CrossEntropyLoss` takes both.
        """
        if isinstance(model, nn.Module):
            anchored = anchored_in(model)  # a plain network would fail on its arguments
            if not torch.compiler.is_compiling() and (self.alpha or not anchored.trained_with):
                anchored.trained_with = self.facts(references)
        if criterion is cross_entropy:
            _check_labels(labels, len(x))
        draw = self.draw(len(x), x.device, references, generator)
        logits, targets = self.forward(model, x, labels, draw)
        if criterion is cross_entropy and not labels.is_floating_point():
            _check_range(labels, logits.shape[1])
        loss = criterion(logits, targets)
        if loss.device.type == "cpu" and not is_compiling() and not loss.isfinite().all():
            check_finite_images(x)
        return loss

    def draw(
        self,
        n: int,
        device: torch.device | str,
        references: References = None,
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Everything random in a step of `n` images, drawn without waiting for the device."""
        device = torch.device(device)
        masked = self._draw_mask(n, device, generator)
        self.step += 1
        if references is None:
            return Draw(random_cycle(n, device, generator), masked, None)
        if isinstance(references, ReferencePool):
            return Draw(references.draw(n, generator), masked, references.images)
        check_tensor(references, "references")
        return Draw(None, masked, references)

    def forward(
        self, model: Callable[..., Tensor], x: Tensor, labels: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor]:
        """Logits, and the targets they are to be compared with. Nothing is drawn in here.

        So it can be compiled, captured in a CUDA graph, or used with a loss of one's own.
        """
        source = x if draw.source is None else draw.source
        references = source if draw.chosen is None else take(source, draw.chosen)
        logits = model(x, references.to(x.device, non_blocking=True), draw.masked)
        return logits, self.targets(logits, labels, draw.masked)

    def targets(self, logits: Tensor, labels: Tensor, masked: Tensor | None) -> Tensor:
        """`labels`; with target "uniform", the uniform distribution in the place of the masked."""
        if len(labels) != len(logits):
            raise ShapeError(
                f"expected a label for each of {len(logits)} images, found {len(labels)}."
            )
        if self.target == "label" or masked is None:
            whole = labels.ndim == 1 and labels.dtype in (torch.int8, torch.int16, torch.int32)
            return labels.long() if whole else labels
        classes = logits.shape[1]
        if labels.ndim == 1 and not labels.is_floating_point():
            _check_range(labels, classes)
            soft = one_hot(labels.long(), classes).to(logits.dtype)
        elif labels.shape == logits.shape and labels.is_floating_point():
            soft = labels.to(logits.dtype)
        else:
            raise DtypeError(
                f"expected class indices (n,) or probabilities (n, {classes}) for target="
                f"'uniform', found labels of shape {tuple(labels.shape)}, {labels.dtype}. For"
                " regression use target='label'."
            )
        return soft.masked_fill(masked.view(-1, 1), 1 / classes)

    def _draw_mask(
        self, n: int, device: torch.device, generator: torch.Generator | None
    ) -> Tensor | None:
        if self.every is not None:
            return torch.full((), self.step % self.every == 0, device=device)
        where = device if generator is None else generator.device
        shape = () if self.scope == "batch" else (n,)
        chance = torch.rand(shape, device=where, generator=generator).to(device, non_blocking=True)
        if self.scope == "batch" and self.ranks == "shared" and count_processes() > 1:
            torch.distributed.broadcast(chance, src=0)
        if self.alpha == 0:  # drawn all the same: the references do not depend on alpha
            return None
        return chance < self.alpha


def _check_labels(labels: object, n: int) -> None:
    """Refuse labels that `cross_entropy` would reject obscurely or misread."""
    if not isinstance(labels, Tensor):
        raise DtypeError(
            f"expected labels as a torch.Tensor, found {type(labels).__name__}. A list of class"
            " numbers becomes one by torch.tensor."
        )
    shape, floats = tuple(labels.shape), labels.is_floating_point()
    if labels.ndim not in (1, 2) or (labels.ndim == 2) != floats:
        raise ShapeError(
            f"expected class numbers of shape ({n},), or class probabilities of shape ({n},"
            f" classes), as labels, found {labels.dtype} of shape {shape}."
        )


def _check_range(labels: Tensor, classes: int) -> None:
    """Refuse class numbers out of range; on a GPU that would wait for the device, so torch does."""
    if labels.device.type != "cpu" or is_compiling():
        return
    bad = labels[((labels < 0) & (labels != IGNORED)) | (labels >= classes)]
    if len(bad):
        raise ShapeError(
            f"expected labels from 0 to {classes - 1}, one for each logit, found {int(bad[0])}."
        )
