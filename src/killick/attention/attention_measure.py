"""Measures the attention of a transformer: distance, entropy and more for each layer and head."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from killick.attention.attention_capture import AttentionCapture, Tokens
from killick.attention.head_measures import (
    MEASURES,
    NORMALIZERS,
    PREFIX_HANDLING,
    measure_heads,
    patch_distances,
)
from killick.attention.reference_views import forwards_of
from killick.core.anchored import Anchored, evaluating
from killick.core.image_model import image_model_in
from killick.errors import DataError, OptionError, check_option
from killick.metrics.attention_locality import HeadSummary, summarize_heads

BATCH = 50  # images of a forward pass


@dataclass(frozen=True)
class LayerLocality:
    """The heads of one attention layer.

    Attributes:
        layer: Its number, in the order in which layers run, from 0.
        name: Of the module.
        grid: Rows and columns of patches, within which distances are measured.
        prefix: Tokens before the patches: class, distillation and register tokens.
        windows: Of an image, such as Swin's: heads see no further. 1: they see the whole image.
        by_reference: Each measure, `(references, heads)`; one row for a model without references.
        half: The distance of each head over every second image; None for one image.
        norm_mean: Of the patch tokens that leave the block; None if no block was found.
        norm_max: The largest. Far above the mean, the layer has artifact tokens.
    """

    layer: int
    name: str
    grid: tuple[int, int]
    prefix: int
    windows: int
    by_reference: dict[str, Tensor]
    half: Tensor | None
    norm_mean: float | None
    norm_max: float | None

    def values(self, measure: str = "distance") -> Tensor:
        """A measure of each head, `(heads,)`: the mean over references."""
        return self.by_reference[measure].mean(0)

    def spread(self, measure: str = "distance") -> Tensor | None:
        """Its standard deviation over references, for each head; None with fewer than two."""
        found = self.by_reference[measure]
        return found.std(0) if len(found) > 1 else None


@dataclass(frozen=True)
class AttentionLocality:
    """What `measure` found, and how it was measured.

    Attributes:
        layers: In the order in which they run.
        images: How many were measured.
        references: How many each of them was seen from; 0 for a model without references.
        normalizer: What distances are divided by.
        prefix: Whether the weights of patches were renormalized, or left raw.
    """

    layers: tuple[LayerLocality, ...]
    images: int
    references: int
    normalizer: str
    prefix: str

    @property
    def change(self) -> float | None:
        """How much doubling the images changed the distance of a head at most; None for one image."""
        gaps = [
            (each.values() - each.half).abs().max() for each in self.layers if each.half is not None
        ]
        return float(max(gaps)) if gaps else None

    def summary(self) -> HeadSummary:
        """Minimum, mean and median distance over all heads, and what the most local ones look at."""
        return summarize_heads(
            *(
                torch.cat([each.values(name) for each in self.layers]).tolist()
                for name in ("distance", "diagonal_mass", "prefix_mass")
            )
        )


def measure(
    model: nn.Module,
    images: Tensor | Iterable[Tensor | Sequence[Tensor]],
    *,
    references: int | None = None,
    normalizer: str = "max_pair",
    prefix: str = "renormalized",
    batch: int = BATCH,
) -> AttentionLocality:
    """Measure how local the attention of each head of a vision transformer is.

    Works for transformers of timm, torchvision and transformers, and others that compute attention
    with softmax or torch's own functions; of windowed ones (Swin) within their windows. The model
    stays as it is. Memory depends on `batch`, not on the number of images.

    Args:
        model: A network, or an anchored or standard model; measured in eval mode.
        images: `(n, channels, height, width)` as the model takes them, or batches of them, such as
            a loader yields, also with labels. Take at least 1,000 that are not augmented.
        references: How many of the stored references of an anchored model are used; all by default.
        normalizer: Distances are divided by the largest between two patches ("max_pair"), the
            diagonal of the grid ("diagonal") or its longer side ("side"), or are in pixels.
        prefix: "renormalized": the weights of patches add up to 1. "raw": what goes to prefix
            tokens is missing, so that a head that looks at the class token looks local.
        batch: Images of a forward pass.

    Returns:
        For each layer and head distance, distance without the patch's own weight, entropy (1:
        uniform, 0: one patch), diagonal mass and prefix mass, as means over images and patches.

    Example:
        >>> import killick
        >>> net = killick.nets.create("timm:vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
        >>> found = measure(net, torch.rand(4, 3, 32, 32))
        >>> len(found.layers), found.layers[0].grid, found.layers[0].values("distance").shape
        (2, (4, 4), torch.Size([3]))
    """
    check_option("normalizer", normalizer, NORMALIZERS)
    check_option("prefix", prefix, PREFIX_HANDLING)
    for name, value in (("batch", batch), ("references", references)):
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, found {value}.")
    forwards = forwards_of(model, references)
    sums = [_Sums(normalizer, prefix == "renormalized") for _ in forwards]
    captures = [AttentionCapture(model, each.add, each.add_norms) for each in sums]
    batches = images.split(batch) if isinstance(images, Tensor) else images
    with evaluating(model):
        for loaded in batches:
            part = loaded if isinstance(loaded, Tensor) else loaded[0]
            for forward, capture, each in zip(forwards, captures, sums, strict=True):
                each.size = tuple(part.shape[-2:])
                capture.run(len(part), partial(forward, part))
                each.images += len(part)
    count = sums[0].images
    if not count:
        raise DataError("expected at least one image, found none.")
    layers = tuple(
        _finish(parts, count) for parts in zip(*(each.layers for each in sums), strict=True)
    )
    seen_from = len(sums) if isinstance(image_model_in(model), Anchored) else 0
    return AttentionLocality(layers, count, seen_from, normalizer, prefix)


@dataclass
class _LayerSums:
    """Sums over images of what was measured of a layer."""

    tokens: Tokens
    whole: dict[str, Tensor]
    half: Tensor  # of the distance, over every second image
    norms: float = 0.0
    norm_max: float | None = None


class _Sums:
    """Adds up what one forward pass after another shows of each layer."""

    def __init__(self, normalizer: str, renormalize: bool) -> None:
        self._normalizer, self._renormalize = normalizer, renormalize
        self.layers: list[_LayerSums] = []
        self.images = 0  # of the batches before this one
        self.size = (0, 0)  # of the images

    def add(self, tokens: Tokens, weights: Tensor) -> None:
        distances = patch_distances(tokens.grid, self._normalizer, self._pixels(tokens))
        found = measure_heads(weights, distances, tokens.prefix, renormalize=self._renormalize)
        # Of each image, the mean over its windows.
        values = {
            k: v.cpu().double().unflatten(0, (-1, tokens.windows)).mean(1) for k, v in found.items()
        }
        if tokens.layer == len(self.layers):
            zero = torch.zeros(weights.shape[1], dtype=torch.float64)
            self.layers.append(_LayerSums(tokens, dict.fromkeys(MEASURES, zero), zero))
        own = self.layers[tokens.layer]
        if own.tokens != tokens:
            raise OptionError(f"{tokens.name!r} sees other tokens. Give images of one size.")
        own.whole = {name: own.whole[name] + values[name].sum(0) for name in MEASURES}
        own.half = own.half + values["distance"][self.images % 2 :: 2].sum(0)

    def add_norms(self, layer: int, norms: Tensor) -> None:
        own = self.layers[layer]
        own.norms += float(norms.mean(1).sum())
        own.norm_max = max(own.norm_max or 0.0, float(norms.max()))

    def _pixels(self, tokens: Tokens) -> tuple[float, float]:
        """Height and width of a patch; of windowed ones, which are square, from their number."""
        (height, width), (rows, columns) = self.size, tokens.grid
        if tokens.windows > 1:
            side = math.sqrt(height * width / (rows * columns * tokens.windows))
            return side, side
        return height / rows, width / columns


def _finish(parts: Sequence[_LayerSums], count: int) -> LayerLocality:
    """A layer, from its sums for each reference."""
    tokens, normed = parts[0].tokens, parts[0].norm_max is not None
    half = torch.stack([part.half for part in parts]).mean(0) / ((count + 1) // 2)
    return LayerLocality(
        *tokens,
        {name: torch.stack([part.whole[name] / count for part in parts]) for name in MEASURES},
        half if count > 1 else None,
        statistics.fmean(part.norms / count for part in parts) if normed else None,
        max(part.norm_max or 0.0 for part in parts) if normed else None,
    )
