"""Folding: an anchored network and its references become an ordinary network.

The first layer is linear, so for a fixed reference r

    W_r r + W_d (x - r)  =  W_d x + (W_r - W_d) r

which is the ordinary layer `W_d` plus a constant map. The map is computed once and added in place:
inference costs what the plain network costs.
"""

import copy

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, anchored_in, evaluating
from killick.core.image_model import check_dtype
from killick.core.inspection import (
    LINEAR,
    inputs_of,
    logits_of,
    outputs_of,
    relative_error,
    replace,
)
from killick.core.stems import GroupedStem, Stem, WrappedLayer, assign_weight, scale_counts
from killick.errors import OptionError, ShapeError, StemError, one_line


class FoldedStem(WrappedLayer):
    """The layer for the residual, plus what the references contribute.

    With K references the batch holds K copies of each image, one after another in blocks: the
    layer runs on the first block alone. The `offset` has one map for each reference along `axis`,
    the batch's, which is not the first where a network puts its tokens first.
    """

    offset: Tensor

    def __init__(self, layer: nn.Module, offset: Tensor, axis: int) -> None:
        super().__init__(layer)
        self.axis, self.k = axis, offset.shape[axis]
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        """`layer(x) + offset`."""
        if self.k == 1:
            return self.layer(x).add_(self.offset)  # type: ignore[no-any-return]
        n = x.shape[self.axis] // self.k  # len() would freeze the batch in an export
        own = self.layer(x.narrow(self.axis, 0, n)).unsqueeze(self.axis)
        both: Tensor = own + self.offset.unsqueeze(self.axis + 1).to(own.dtype)
        return both.flatten(self.axis, self.axis + 1)


class _ResidualOnly(WrappedLayer):
    """A doubled layer that cannot be cut in half: it reads zeros for the reference."""

    order: Tensor

    def __init__(self, layer: nn.Module, stem: Stem, axis: int) -> None:
        super().__init__(layer)
        self.axis = axis
        # Feature i of the pair is feature order[i] of the image, or the zero behind the last one.
        zero = max(stem.source) + 1
        order = [s if h else zero for h, s in zip(stem.half, stem.source, strict=True)]
        self.register_buffer("order", torch.tensor(order), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for `[0, x]`."""
        x = x.movedim(self.axis, 0)
        padded = torch.cat([x, torch.zeros_like(x[:1])]).index_select(0, self.order)
        return self.layer(padded.movedim(0, self.axis))  # type: ignore[no-any-return]


class Folded(nn.Module):
    """An ordinary network: images in, logits `(n, classes)` out, references inside.

    Attributes:
        k: How many references it averages over.
        image_shape: Of the images it takes, channels first.
        class_names: As in the anchored model, like `normalize` and `front`.
    """

    def __init__(
        self,
        net: nn.Module,
        normalize: nn.Module | None,
        front: nn.Module | None,
        references: Tensor,
    ) -> None:
        super().__init__()
        self.net, self.normalize, self.front = net, normalize, front
        self.k, self.image_shape = len(references), references.shape[1:]
        self.class_names: tuple[str, ...] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Logits; their mean over the references."""
        if x.ndim != 1 + len(self.image_shape) or x.shape[1:] != self.image_shape:
            shape = ", ".join(map(str, self.image_shape))
            raise ShapeError(
                f"expected images of the references' shape, (n, {shape}), found {tuple(x.shape)}."
                " A folded network is made for one size."
            )
        check_dtype(x, self.normalize is not None)
        return self.members(x).mean(0) if self.k > 1 else self._run(x)

    def members(self, x: Tensor) -> Tensor:
        """`(k, n, classes)`: the logits for each reference."""
        tiled = x.expand(self.k, *x.shape).flatten(0, 1) if self.k > 1 else x
        return torch.unflatten(self._run(tiled), 0, (self.k, -1))

    def _run(self, x: Tensor) -> Tensor:
        if self.normalize is not None:
            x = self.normalize(x)
        if self.front is not None:
            x = self.front(x)
        return logits_of(self.net(x))


@torch.no_grad()
def fold(model: nn.Module, k: int | None = None, *, references: Tensor | None = None) -> Folded:
    """An ordinary network that computes what `model` computes from its first `k` references.

    The model is left as it is. The result is in eval mode and takes images of the references' size.

    Args:
        model: Anchored.
        k: How many of the stored references, one by default; with more the logits are averaged, the
            first layer runs once for all, and the rest of the network K times.
        references: Instead of the stored ones; all of them.

    Example:
        >>> import killick
        >>> model = killick.anchor(nn.Linear(4, 3)).set_references(torch.randn(5, 4)).eval()
        >>> x = torch.randn(8, 4)
        >>> torch.allclose(killick.fold(model)(x), model(x), atol=1e-6)
        True
    """
    anchored = anchored_in(model)
    if k is not None and (k < 1 or references is not None):
        raise OptionError(f"expected k of at least 1, and no references= beside it, found k={k}.")
    with evaluating(anchored):
        if references is None:
            return _fold(anchored, anchored.stored_references(k or 1))
        return _fold(anchored, anchored.check_references(references))


def _fold(anchored: Anchored, references: Tensor) -> Folded:
    names = [stem.name for stem in anchored.stems]
    prepared = anchored.prepare(references)
    nothing = torch.zeros_like(prepared)
    # For [r, -r] the stem computes W_r r - W_d r, and its bias, which it computes for [0, 0].
    contrast = outputs_of(anchored.net, names, torch.cat([prepared, -prepared], dim=1))
    bias = outputs_of(anchored.net, names, torch.cat([nothing, nothing], dim=1)[:1])
    residual = inputs_of(anchored.net, names, torch.cat([nothing, prepared], dim=1))
    net = copy.deepcopy(anchored.net)
    scale_counts(net, anchored.counts, 0.5)
    axes = _batch_axes(anchored, names, prepared[:1])
    for stem in anchored.stems:
        layer = _residual_layer(net.get_submodule(stem.name), stem, residual[stem.name])
        offset = contrast[stem.name] - bias[stem.name]
        net = replace(net, stem.name, FoldedStem(layer, offset, axes[stem.name]))
    folded = Folded(
        net, copy.deepcopy(anchored.normalize), copy.deepcopy(anchored.front), references
    )
    folded.class_names = anchored.class_names
    folded.eval()
    _check_same(anchored, folded, references)
    return folded


def _batch_axes(anchored: Anchored, names: list[str], image: Tensor) -> dict[str, int]:
    """Along which axis of a stem's output the images lie, seen by running on two and three."""
    pair_of = torch.cat([image, torch.zeros_like(image)], dim=1)
    two, three = (
        outputs_of(anchored.net, names, pair_of.expand(n, *pair_of.shape[1:])) for n in (2, 3)
    )
    axes = {}
    for name in names:
        sizes = list(zip(two[name].shape, three[name].shape, strict=True))
        if (2, 3) not in sizes or sum(a != b for a, b in sizes) != 1:
            raise StemError(
                f"cannot fold {type(anchored.net).__name__}: expected an axis for the images in"
                f" what {name!r} computes, found shapes {tuple(two[name].shape)} for two of them"
                f" and {tuple(three[name].shape)} for three. Use the anchored model as it is."
            )
        axes[name] = sizes.index((2, 3))
    return axes


def _residual_layer(layer: nn.Module, stem: Stem, pairs: Tensor) -> nn.Module:
    """The layer that reads the residual alone: half of the doubled one, where that is the same.

    The two are compared on `pairs`, what the layer reads for `[0, x]`.
    """
    inner = layer.layer if isinstance(layer, GroupedStem) else layer
    assert isinstance(inner, LINEAR)
    axis = -1 if isinstance(inner, nn.Linear) else 1
    whole = _ResidualOnly(layer, stem, axis).to(pairs.device)
    half = copy.deepcopy(inner)
    weight = inner.weight.detach()
    if isinstance(half, nn.Linear):
        half.in_features //= 2
        kept = weight[:, stem.residual_order]
    else:
        half.in_channels //= 2
        width = weight.shape[1] // 2
        kept = weight[:, stem.residual_order] if half.groups == 1 else weight[:, width:]
    try:
        assign_weight(half, kept)
        x = pairs.index_select(axis, torch.tensor(stem.residual_order, device=pairs.device))
        # A layer that computes its weight (weight standardisation) may differ when cut in half.
        same = relative_error(half(x), whole(x)) <= 1e-4
    except StemError:  # a weight that cannot be set: parametrized
        same = False
    return half if same else whole


def _check_same(anchored: Anchored, folded: Folded, references: Tensor) -> None:
    """Run both on two images of noise: the folded network must compute the same."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, *references.shape[1:], generator=generator)
    x = (255 * x if references.dtype == torch.uint8 else x).to(references)
    expected = torch.stack([anchored(x, r.expand_as(x)) for r in references]).mean(0)
    try:
        error = relative_error(folded(x), expected)
    except Exception as problem:
        raise StemError(
            f"cannot fold {type(anchored.net).__name__}: the folded network does not run"
            f" ({one_line(problem)}). Use the anchored model as it is."
        ) from problem
    if not error <= 1e-3:
        raise StemError(
            f"cannot fold {type(anchored.net).__name__} for {len(references)} reference(s): the"
            f" folded network differs by {error:.1e} of the outputs' size. It may mix the images of"
            " a batch or use its first layer twice. Use the anchored model as it is."
        )
