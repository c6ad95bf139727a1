"""Folding: an anchored network and its references become an ordinary network.

The first layer is linear, so for a fixed reference r

    W_r r + W_d (x - r)  =  W_d x + (W_r - W_d) r

which is the ordinary layer `W_d` plus a constant map. The map is computed once and added in place:
inference costs what the plain network costs.
"""

import copy

import torch
from torch import Tensor, nn

from kedge.anchored import Anchored, anchored_in, evaluating
from kedge.errors import StemError
from kedge.observe import LINEAR, inputs_of, logits_of, outputs_of, relative_error, replace
from kedge.stems import GroupedStem, Stem, assign_weight, scale_counts


class FoldedStem(nn.Module):
    """The layer for the residual, plus what the references contribute.

    With K references the batch holds K copies of each image, one after another in blocks: the
    layer runs on the first block alone.
    """

    offset: Tensor

    def __init__(self, layer: nn.Module, offset: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("offset", offset)

    @property
    def weight(self) -> Tensor:
        """Of the layer; some networks look at its dtype."""
        return self.layer.weight  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """`layer(x) + offset`."""
        k = len(self.offset)
        if k == 1:
            return self.layer(x).add_(self.offset)  # type: ignore[no-any-return]
        own = self.layer(x[: x.shape[0] // k])  # len() would freeze the batch in an export
        return (own[None] + self.offset[:, None].to(own.dtype)).flatten(0, 1)  # type: ignore[no-any-return]


class _ResidualOnly(nn.Module):
    """A doubled layer that cannot be cut in half: it reads zeros for the reference."""

    order: Tensor

    def __init__(self, layer: nn.Module, stem: Stem, axis: int) -> None:
        super().__init__()
        self.layer, self.axis = layer, axis
        # Feature i of the pair is feature order[i] of the image, or the zero behind the last one.
        zero = max(stem.source) + 1
        order = [s if h else zero for h, s in zip(stem.half, stem.source, strict=True)]
        self.register_buffer("order", torch.tensor(order), persistent=False)

    @property
    def weight(self) -> Tensor:
        """Of the layer; some networks look at its dtype."""
        return self.layer.weight  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for `[0, x]`."""
        x = x.movedim(self.axis, 0)
        padded = torch.cat([x, torch.zeros_like(x[:1])]).index_select(0, self.order)
        return self.layer(padded.movedim(0, self.axis))  # type: ignore[no-any-return]


class Folded(nn.Module):
    """An ordinary network: images in, logits `(n, classes)` out, references inside.

    Attributes:
        net: Reads images.
        normalise: As in the anchored model.
        front: As in the anchored model.
        k: How many references it averages over.
    """

    def __init__(
        self, net: nn.Module, normalise: nn.Module | None, front: nn.Module | None, k: int
    ) -> None:
        super().__init__()
        self.net, self.normalise, self.front, self.k = net, normalise, front, k

    def forward(self, x: Tensor) -> Tensor:
        """Logits; their mean over the references."""
        return self.members(x).mean(0) if self.k > 1 else self._run(x)

    def members(self, x: Tensor) -> Tensor:
        """`(k, n, classes)`: the logits for each reference."""
        tiled = x.expand(self.k, *x.shape).flatten(0, 1) if self.k > 1 else x
        return torch.unflatten(self._run(tiled), 0, (self.k, -1))

    def _run(self, x: Tensor) -> Tensor:
        if self.normalise is not None:
            x = self.normalise(x)
        if self.front is not None:
            x = self.front(x)
        return logits_of(self.net(x))


@torch.no_grad()
def fold(model: nn.Module, k: int = 1, *, references: Tensor | None = None) -> Folded:
    """An ordinary network that computes what `model` computes from its first `k` references.

    The model is left as it is. The result is in eval mode and takes images of the references' size.

    Args:
        model: Anchored.
        k: How many of the stored references; with more than one the logits are averaged, the first
            layer runs once for all, and the rest of the network K times.
        references: Instead of the stored ones.

    Example:
        >>> import kedge
        >>> model = kedge.anchor(nn.Linear(4, 3)).set_references(torch.randn(5, 4)).eval()
        >>> x = torch.randn(8, 4)
        >>> torch.allclose(kedge.fold(model)(x), model(x), atol=1e-6)
        True
    """
    anchored = anchored_in(model)
    with evaluating(anchored):
        if references is None:
            return _fold(anchored, anchored.stored_references(k))
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
    for stem in anchored.stems:
        layer = _residual_layer(net.get_submodule(stem.name), stem, residual[stem.name])
        offset = contrast[stem.name] - bias[stem.name]
        net = replace(net, stem.name, FoldedStem(layer, offset))
    folded = Folded(
        net, copy.deepcopy(anchored.normalise), copy.deepcopy(anchored.front), len(references)
    )
    folded.eval()
    _check_same(anchored, folded, references)
    return folded


def _residual_layer(layer: nn.Module, stem: Stem, pairs: Tensor) -> nn.Module:
    """The layer that reads the residual alone: half of the doubled one, where that is the same.

    Args:
        layer: The doubled layer.
        stem: What its features stand for.
        pairs: What it reads for `[0, x]`, to compare on.
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
    except StemError:  # a weight that cannot be set: parametrised
        same = False
    return half if same else whole


def _check_same(anchored: Anchored, folded: Folded, references: Tensor) -> None:
    """Run both on two images: the first reference, turned and shifted."""
    x = torch.cat([references[:1].flip(-1), references[:1].roll(1, dims=-1)])
    expected = torch.stack([anchored(x, r.expand_as(x)) for r in references]).mean(0)
    if not (error := relative_error(folded(x), expected)) <= 1e-3:
        raise StemError(
            f"cannot fold {type(anchored.net).__name__} for {len(references)} reference(s): the"
            f" folded network differs by {error:.1e} of the outputs' size. It may mix the images of"
            " a batch, which folding cannot keep."
        )
