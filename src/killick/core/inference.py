"""Inference protocols: one reference, the mean over several, or the best one for each image.

- `single`: the first stored reference, the same for every image. What `model.eval()(x)` does; the
  only one for a standard model, which has no references.
- `marginal`: the mean over K references, and how much they disagree (Delta-UQ).
- `transductive`: for each image the candidate whose residual looks most like a residual of training
  (bilinear transduction, Netanyahu et al. 2023).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.image_model import Threshold
from killick.core.references import check_finite_images
from killick.core.standard import Standard, model_in
from killick.core.transduction import nearest_candidate
from killick.errors import OptionError, ShapeError, check_option
from killick.metrics.ood_scores import energy_of, entropy_of

PROTOCOLS = ("single", "marginal", "transductive")
CANDIDATES = 50
_SHOWN = 5  # images, when a prediction is printed


@dataclass(frozen=True, repr=False)
class Prediction:
    """What a model says of `n` images.

    Attributes:
        logits: `(n, classes)`, the mean over references; the outputs, in regression.
        references: The number of the stored references used: `(k,)`, or `(n,)` if transductive;
            none, `(0,)`, for a standard model.
        probs: `(n, classes)`; None in regression.
        energy: `(n,)`, `-logsumexp(logits)`: higher is more out-of-distribution. Not in regression.
        std: `(n, classes)`, over references: the unbiased standard deviation of the probabilities
            (of the outputs, in regression). None with one reference.
        mutual_information: `(n,)`, in nats: entropy of the mean prediction less the mean entropy.
            What the choice of the reference decides. None with one reference.
        disagreement: `(n,)`, the share of references whose label is not the prediction's. None with
            one reference.
        members: `(k, n, classes)`, the logits for each reference, where asked for.
        distance: `(n,)`, from the residual to the nearest residual of training, if transductive.
        in_distribution: `(n,)`, whether the energy is at most the threshold that is stored with the
            model (`killick.fit_threshold`). None without one, or if it was fitted for another number
            of references.
    """

    logits: Tensor
    references: Tensor
    probs: Tensor | None = None
    energy: Tensor | None = None
    std: Tensor | None = None
    mutual_information: Tensor | None = None
    disagreement: Tensor | None = None
    members: Tensor | None = None
    distance: Tensor | None = None
    in_distribution: Tensor | None = None

    @property
    def labels(self) -> Tensor | None:
        """`(n,)`: the predicted class numbers; None in regression."""
        return None if self.probs is None else self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor | None:
        """`(n,)`: the probability of the predicted class; None in regression."""
        return None if self.probs is None else self.probs.amax(-1)

    def __repr__(self) -> str:
        count, outputs = len(self.logits), self.logits.shape[-1]
        kind, parts = "outputs" if self.probs is None else "classes", ""
        for name, value in (("labels", self.labels), ("confidence", self.confidence)):
            if value is not None:
                digits = 3 if value.is_floating_point() else None
                shown = [str(round(number, digits)) for number in value[:_SHOWN].tolist()]
                parts += f", {name}=[{', '.join(shown)}{', ...' if count > _SHOWN else ''}]"
        return f"Prediction({count} images, {outputs} {kind}{parts})"

    def to(self, device: torch.device | str) -> "Prediction":
        """The same prediction on another device."""
        tensors = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: value.to(device) for name, value in tensors.items()})


@torch.no_grad()
def predict(
    model: nn.Module,
    x: Tensor,
    protocol: str = "single",
    k: int | None = None,
    *,
    scaling: str | None = None,
    task: str = "classification",
    members: bool = False,
) -> Prediction:
    """Predict images from the references stored in `model`, without gradients.

    - "single": from the first reference, the same for every image; what `model.eval()(x)` does.
    - "marginal": the mean over K references, and how much they disagree. They are taken one after
      the other: activations need the memory of one pass, whatever K; time grows with K.
    - "transductive": for each image from the reference whose residual looks most like those of
      training. It needs a bank of them: `model.set_residuals(killick.residual_bank(model, images))`.

    Args:
        model: Anchored, in eval mode, with stored references; or standard, with protocol "single".
        x: Images, as the model takes them.
        protocol: "single", "marginal" or "transductive".
        k: How many of the stored references to use, from the first: for "marginal" all by default;
            for "transductive" the candidates, at most 50 by default.
        scaling: None leaves the logits as they are. AMP (Anirudh and Thiagarajan 2022) divided the
            mean logits by a temperature from the spread of the members: "amp" by `1 + exp(c)` (on
            CIFAR, and in the released ImageNet inference), "amp-imagenet" by `c`, with `c` the mean
            over classes of the standard deviation of `sigmoid(logit)`. Both flatten confidence.
        task: "classification" or "regression".
        members: Also return the logits for each reference.

    Returns:
        A `Prediction`: logits, probs, energy, and with several references std,
        mutual_information and disagreement.

    Example:
        >>> import killick
        >>> model = killick.anchor(torch.nn.Linear(4, 3)).set_references(torch.randn(5, 4)).eval()
        >>> p = killick.predict(model, torch.randn(8, 4), protocol="marginal", k=5)
        >>> bool(p.std.max() < 1e-6)  # exactly anchored and not trained yet: no reference matters
        True
    """
    check_option("protocol", protocol, PROTOCOLS)
    check_option("task", task, ["classification", "regression"])
    if scaling is not None:
        check_option("scaling", scaling, ["amp", "amp-imagenet"])
    inner = model_in(model)
    if inner.training:
        raise OptionError("expected the model in eval mode, found train mode. Call model.eval().")
    if k is not None and (type(k) is not int or k < 1):
        raise OptionError(f"expected k to be a whole number from 1, found {k!r}.")
    inner.check(x)
    if x.device.type == "cpu":
        check_finite_images(x)
    if scaling and (protocol == "transductive" or task == "regression"):
        raise OptionError(
            "scaling is about class probabilities of several references: leave it out with"
            " protocol='transductive' and task='regression'."
        )
    if isinstance(inner, Standard) and protocol != "single":
        raise OptionError(
            "expected protocol='single' for a standard model, which has no references, found"
            f" {protocol!r}. Anchor it first: killick.anchor(model)."
        )
    if protocol == "transductive":
        assert isinstance(inner, Anchored)
        chosen = _transductive(model, inner, x, k, task)
        return _judged(chosen, inner.threshold, 1)
    if protocol == "single":
        if k not in (None, 1):
            raise OptionError(f"expected k=1 with protocol='single', found {k}. Use 'marginal'.")
        k = 1
    references = None
    if isinstance(inner, Anchored):
        references = inner.stored_references(k or len(inner.references), like=x)
    count = 0 if references is None else len(references)
    if scaling is not None and count < 2:
        raise OptionError(f"expected at least 2 references for scaling={scaling!r}, found {count}.")
    prediction = _marginal(model, x, references, scaling, task, members)
    return _judged(prediction, inner.threshold, count or 1)


def _judged(prediction: Prediction, threshold: Threshold | None, k: int) -> Prediction:
    """With the verdict of the threshold, where there is one for this many references."""
    if threshold is None or threshold.k != k or prediction.energy is None:
        return prediction
    return replace(prediction, in_distribution=prediction.energy <= threshold.energy)


def _marginal(
    model: nn.Module,
    x: Tensor,
    references: Tensor | None,
    scaling: str | None,
    task: str,
    keep_members: bool,
) -> Prediction:
    views = [None] if references is None else [_expanded(r, x) for r in references]
    k = len(views)
    classify = task == "classification"
    logits, values, squashed = _Moments(), _Moments(), _Moments()
    entropy, kept, votes = _Moments(), [], []
    for view in views:
        output = _outputs(model, x, view, task)
        logits.add(output)
        values.add(output.softmax(-1) if classify else output)
        if classify:
            entropy.add(entropy_of(output.softmax(-1)))
            votes.append(output.argmax(-1))
        if scaling is not None:
            squashed.add(output.sigmoid())
        if keep_members:
            kept.append(output)
    mean = logits.mean
    if scaling is not None:
        spread = squashed.std.mean(-1, keepdim=True)
        mean = mean / (1 + spread.exp() if scaling == "amp" else spread.clamp_min(1e-6))
    numbers = torch.arange(0 if references is None else k, device=x.device)
    stacked = torch.stack(kept) if keep_members else None
    std = values.std if k > 1 else None
    if not classify:
        return Prediction(mean, numbers, std=std, members=stacked)
    probs = mean.softmax(-1)
    information = disagreement = None
    if k > 1:
        information = (entropy_of(values.mean) - entropy.mean).clamp_min(0)
        disagreement = (torch.stack(votes) != probs.argmax(-1)).float().mean(0)
    return Prediction(
        mean,
        numbers,
        probs=probs,
        energy=energy_of(mean),
        std=std,
        mutual_information=information,
        disagreement=disagreement,
        members=stacked,
    )


def _expanded(reference: Tensor, x: Tensor) -> Tensor:
    """The reference for each image, in the images' memory layout."""
    view, last = reference.expand_as(x), torch.channels_last
    laid_out = x.ndim == 4 and x.is_contiguous(memory_format=last)
    return view.contiguous(memory_format=last) if laid_out and not x.is_contiguous() else view


def _outputs(model: nn.Module, x: Tensor, references: Tensor | None, task: str) -> Tensor:
    """What the model says, in float32 or better; for classification it must be logits."""
    output: Tensor = model(x) if references is None else model(x, references)
    if task == "classification" and (output.ndim != 2 or output.shape[1] < 2):
        raise ShapeError(
            "expected logits of shape (n, classes) with at least two classes, found"
            f" {tuple(output.shape)}. For other outputs use task='regression'."
        )
    return output.to(torch.promote_types(output.dtype, torch.float32))


class _Moments:
    """Mean and unbiased standard deviation of tensors that come one by one (Welford)."""

    mean: Tensor
    _squares: Tensor

    def __init__(self) -> None:
        self.count = 0

    def add(self, value: Tensor) -> None:
        self.count += 1
        if self.count == 1:
            self.mean, self._squares = value.clone(), torch.zeros_like(value)
            return
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)

    @property
    def std(self) -> Tensor:
        variance: Tensor = self._squares / (self.count - 1)
        return variance.clamp_min(0).sqrt()


def _transductive(
    model: nn.Module,
    anchored: Anchored,
    x: Tensor,
    k: int | None,
    task: str,
) -> Prediction:
    candidates = anchored.stored_references(k or min(CANDIDATES, len(anchored.references)), like=x)
    chosen, distance = nearest_candidate(anchored, x, candidates)
    logits = _outputs(model, x, candidates[chosen], task)
    if task == "regression":
        return Prediction(logits, chosen, distance=distance)
    return Prediction(
        logits,
        chosen,
        probs=logits.softmax(-1),
        energy=energy_of(logits),
        distance=distance,
    )
