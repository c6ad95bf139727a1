"""The anchored model: a network that reads a reference and a residual instead of an image.

This is the one idea of the library. An image `x` is never seen alone, only as the pair
`[reference, x - reference]`, side by side on the channel axis. Read this file first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from killick.core.batchnorm_updates import UpdatedBatchNorm
from killick.core.image_model import (
    ImageModel,
    Normalize,
    check_network,
    image_model_in,
    make_normalizer,
)
from killick.core.inspection import logits_of
from killick.core.pair_networks import read_pairs
from killick.core.references import check_finite, check_tensor, random_cycle, take
from killick.core.stems import Init, Stem, widen
from killick.errors import (
    OptionError,
    ReferencesError,
    ShapeError,
    StemError,
    check_option,
)

ReferenceKind = Literal["images", "mean", "synthetic"]


def pair(x: Tensor, references: Tensor, masked: Tensor | bool | None = None) -> Tensor:
    """`[references, x - references]` along channels; a masked reference is zero in the first half.

    Only the first half is masked: the residual keeps the true reference. Unmasked, the two halves
    sum to `x`, so nothing is lost.

    Args:
        x: Images `(n, c, h, w)`, vectors `(n, features)` or the like.
        references: One for each image, of the same shape.
        masked: True where the reference is masked: for each image `(n,)`, or one value for all.

    Returns:
        Pairs, with twice the channels.

    Example:
        >>> x, reference = torch.tensor([[3.0]]), torch.tensor([[2.0]])
        >>> pair(x, reference).tolist(), pair(x, reference, masked=True).tolist()
        ([[2.0, 1.0]], [[0.0, 1.0]])
    """
    _check_paired(x, references)
    first = references
    if masked is not None and masked is not False:
        mask = torch.as_tensor(masked, device=x.device)
        if mask.dtype != torch.bool or mask.shape not in ((), (len(x),)):
            raise ShapeError(
                f"expected masked to be one Boolean or {len(x)} of them, found {mask.dtype} of"
                f" shape {tuple(mask.shape)}."
            )
        # A product: four times as fast as `where`, and it keeps the channels_last layout.
        first = references * (~mask).to(references.dtype).view(-1, *[1] * (x.ndim - 1))
    return torch.cat([first, x - references], dim=1)


def _check_paired(x: Tensor, references: Tensor) -> None:
    if x.shape != references.shape:
        raise ShapeError(
            f"expected one reference for each image: x is {tuple(x.shape)}, references are"
            f" {tuple(references.shape)}. Repeat or resize them; nothing is broadcast."
        )


class Anchored(UpdatedBatchNorm):
    """A network that reads pairs, and what it needs to be used like any other.

    `model(x, references, masked)` is the whole method. In train mode `model(x)` pairs within the
    batch; in eval mode it uses the first stored reference, the same for every image, and returns
    `(n, classes)` deterministically. Made by `anchor`.

    Attributes:
        net: Reads pairs: twice the channels of an image.
        image_shape: Of one image, channels first. Height and width are those it was anchored with,
            then those of the stored references; others work where the network takes them.
        normalize: Turns uint8 images into floats, where it was asked for.
        front: What the network did to an image before its first layer; now done before pairing.
        stems: Where the network reads the pair.
        counts: Where it keeps its channel count, which was doubled.
        written_for_pairs: The network had twice the channels from the start.
        references: The stored references, `(k, …)`, empty until `set_references`.
        reference_policy: How they were chosen, in words; recorded with every result.
        reference_kind: "images", or "mean" or "synthetic" where `replace_references` or training made
            them of statistics, so that no training image travels with the model.
        class_names: In the order of the logits, if known.
        provenance: How the model was trained, if known; saved with it.
        residuals: The bank of training residuals for transductive prediction, empty until set.
        recent: The last training pairs, from which `eval()` estimates BatchNorm statistics after
            masked batches. None leaves the statistics as training left them.
    """

    references: Tensor
    residuals: Tensor

    def __init__(
        self,
        net: nn.Module,
        image_shape: Sequence[int],
        *,
        normalize: Normalize | None = None,
        front: nn.Module | None = None,
        stems: Sequence[Stem] = (),
        counts: Sequence[tuple[str, str]] = (),
        written_for_pairs: bool = False,
    ) -> None:
        super().__init__(net, image_shape, normalize)
        self.front = front
        self.stems = tuple(stems)
        self.counts = tuple(counts)
        self.written_for_pairs = written_for_pairs
        self.reference_policy: str | None = None
        self.reference_kind: ReferenceKind = "images"
        self.trained_with: dict[str, Any] = {}  # set by `ReferenceMasking.loss`
        self.register_buffer("references", torch.empty(0))
        self.register_buffer("residuals", torch.empty(0))

    def forward(
        self,
        x: Tensor,
        references: Tensor | None = None,
        masked: Tensor | bool | None = None,
    ) -> Tensor:
        """Logits `(n, classes)` of each image, seen from its reference.

        Args:
            x: Images: uint8 with `normalize`, floats in the network's own space without.
            references: One for each image. Without them: in train mode the batch's own images, on
                a random cycle; in eval mode the first stored reference.
            masked: True where the reference is masked, for each image or one for all.
        """
        self.check(x)
        if references is None and self.training:
            references = take(x, random_cycle(len(x), x.device))
        elif references is None:
            references = self.stored_references(1, like=x).expand(x.shape)
        else:
            self.check(references, "references")
            _check_paired(x, references)
        if self.training and masked is not None and masked is not False:
            self._remember(x, references, masked)
        elif not self.training and not torch.compiler.is_compiling():
            self._settle_if_changed()
        return logits_of(self.net(self.pairs(x, references, masked)))

    def pairs(self, x: Tensor, references: Tensor, masked: Tensor | bool | None = None) -> Tensor:
        """The pairs that the network reads, of images and references as the model takes them."""
        return pair(self.prepare(x), self.prepare(references), masked)

    def prepare(self, images: Tensor) -> Tensor:
        """Images as they are paired: normalized, and past what stood before the first layer."""
        if self.normalize is not None:
            images = self.normalize(images)
        return images if self.front is None else self.front(images)

    def set_references(self, images: Tensor, *, policy: str = "chosen") -> "Anchored":
        """Store the references for evaluation; they are saved with the model.

        `model.eval()(x)` uses the first, `predict(k=K)` the first K. They are usually training
        images, and travel with the model: `killick.replace_references` where they must not leave.

        Args:
            images: `(k, …)`, as the model takes them.
            policy: How they were chosen, in words, such as "random, seed 0".
        """
        self.references = self.check_references(images)
        self.reference_policy, self.reference_kind = policy, "images"
        # From here on the model is one for images of their size.
        self.image_shape = tuple(self.references.shape[1:])
        return self

    def check_references(self, images: Tensor) -> Tensor:
        """A copy of `images` on the model's device, if they can serve as references."""
        check_tensor(images, "references")
        if images.ndim != 1 + len(self.image_shape) or len(images) == 0:
            shape = ", ".join(map(str, self.image_shape))
            raise ShapeError(
                f"expected references as (k, {shape}) with k > 0, found {tuple(images.shape)}."
            )
        self.check(images, "references")
        check_finite(images, "the references")
        like = next(self.parameters())
        dtype = like.dtype if images.is_floating_point() else images.dtype
        return images.detach().clone().to(like.device, dtype)

    def set_residuals(self, bank: Tensor) -> "Anchored":
        """Store the training residuals for transductive prediction (see `killick.residual_bank`)."""
        if bank.ndim != 1 + len(self.image_shape) or len(bank) == 0:
            raise ShapeError(
                "expected a bank of residuals with one more axis than an image has, as made by"
                f" killick.residual_bank, found shape {tuple(bank.shape)}."
            )
        check_finite(bank, "the residual bank")
        self.residuals = bank.detach().to(next(self.parameters()).device)
        return self

    def stored_references(self, k: int, like: Tensor | None = None) -> Tensor:
        """The first `k` stored references; an error if there are fewer, or of another size."""
        stored = len(self.references)
        if stored < k or stored == 0:
            raise ReferencesError(
                f"expected {max(k, 1)} stored reference(s), found {stored}. Store some first:"
                " model.set_references(images), with images as the model takes them"
                " (for example killick.ReferencePool(train_images).choose(10, seed=0))"
                + (f", or ask for k={stored} at most." if stored else ".")
            )
        if like is not None and like.shape[1:] != self.references.shape[1:]:
            raise ShapeError(
                "expected images of the stored references' shape"
                f" {tuple(self.references.shape[1:])}, found {tuple(like.shape[1:])}. Resize the"
                " images, or store references of that size: model.set_references(images)."
            )
        return self.references[:k]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name in ("references", "residuals"):  # of any number: take the shape that comes
            if (stored := state_dict.get(prefix + name)) is not None:
                here = getattr(self, name)
                meta = here.is_meta or stored.is_meta
                if name == "references" and (meta or not torch.equal(here.cpu(), stored.cpu())):
                    self.reference_kind = "images"  # unless the caller sets another kind
                setattr(self, name, torch.empty_like(stored, device=here.device))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        stems = ", ".join(stem.name for stem in self.stems)
        policy = f" ({self.reference_policy})" if self.reference_policy else ""
        return (
            f"images {self.image_shape}, reads pairs at {stems or '?'},"
            f" {len(self.references)} stored references{policy}"
        )


def anchored_in(model: nn.Module) -> Anchored:
    """The anchored model inside DDP, `torch.compile` and averaging wrappers."""
    inner = image_model_in(model)
    if not isinstance(inner, Anchored):
        raise OptionError(
            f"expected an anchored model, found {type(inner or model).__name__}. Make one with"
            " killick.anchor(net)."
        )
    return inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in eval mode, BatchNorm settled; afterwards every module in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def anchor(
    net: nn.Module,
    stem: str | Sequence[str] | None = None,
    init: Init = "exact",
    normalize: tuple[Sequence[float], Sequence[float]] | None = None,
    *,
    example: Tensor | None = None,
    generator: torch.Generator | None = None,
    pairs: bool = False,
) -> Anchored:
    """Let `net` read pairs instead of images. `net` itself is left untouched.

    The layer that reads the image is found by running the network and gets twice the input
    channels. With `init="exact"` both halves get its old kernel `W`. The layer is linear, so
    `W reference + W (x - reference) = W x`: the anchored network predicts what `net` predicted,
    whatever the reference. (timm's rule for more channels would halve the kernel and change every
    prediction.)

    Args:
        net: Any classifier that maps images `(n, c, h, w)`, or vectors `(n, features)`, to logits.
            A `Standard` model passes on its normalization and class names.
        stem: Names of the layers that read the image, where they should not be searched.
        init: "exact", or "random" for a fresh first layer, as in the paper.
        normalize: `(mean, std)` of each channel, for images in 0 to 1. With it the model takes
            uint8 images and normalizes them inside; without it, floats in the network's own space.
        example: A batch that `net` accepts, where the shape cannot be guessed.
        generator: For `init="random"`.
        pairs: `net` reads pairs already: it was written with twice the channels of an image. Its
            weights are kept as they are, and `example` is still a batch of images.

    Raises:
        StemError: If no layer can be doubled; the message names what was found.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
        >>> x, reference = torch.rand(2, 5, 3, 8, 8)
        >>> model = anchor(net, example=x)
        >>> torch.allclose(model(x, reference), net(x), atol=1e-6)
        True
    """
    check_option("init", init, ["exact", "random"])
    check_network(net)
    net = getattr(net, "_orig_mod", net)  # inside torch.compile
    given = net if isinstance(net, ImageModel) else None
    if isinstance(given, Anchored):
        raise StemError("expected a network that reads images, found one that is anchored already.")
    normalizer = make_normalizer(normalize)
    if given is not None:
        net = given.net
        if normalizer is None and given.normalize is not None:
            normalizer = Normalize(given.normalize.mean, given.normalize.std)
        if example is None:
            example = torch.rand(2, *given.image_shape, generator=torch.Generator().manual_seed(0))
    if example is not None and example.dtype == torch.uint8 and normalizer is not None:
        example = normalizer(example)
    if pairs:
        wide = read_pairs(net, stem, example)
    else:
        wide = widen(net, stem=stem, init=init, example=example, generator=generator)
    if normalizer is not None:
        normalizer.check_channels(wide.example.shape[1])
        normalizer.to(wide.example.device, wide.example.dtype)
    model = Anchored(
        wide.net,
        wide.example.shape[1:],
        normalize=normalizer,
        front=wide.front,
        stems=wide.stems,
        counts=wide.counts,
        written_for_pairs=pairs,
    )
    model.training = net.training
    if model.front is not None:
        model.front.train(net.training)
    if given is not None:
        model.class_names = given.class_names
    return model
