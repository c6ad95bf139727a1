"""Fewer operations in a folded network: its map takes in what stands around the first layer.

The first layer of a folded network computes `W x + map`, with a map that may differ from place to
place. So it can take in exactly what an ordinary layer cannot, where it pads with zeros: with
`W (scale x + shift) = (W scale) x + W shift`, the normalization before it. And the BatchNorm behind
it, which a runtime would otherwise merge with the layer, were the map not between them. Where a
ReLU and a maximum over places follow, the maximum is taken first: it is the same, and leaves a
quarter of the values to the ReLU, which a runtime would have merged too.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from killick.core.folding import Folded, FoldedStem
from killick.core.image_model import Normalize
from killick.core.inspection import inputs_of, relative_error, replace

TOLERANCE = 1e-4


class AsFloats(nn.Module):
    """uint8 images as floats from 0 to 255, nothing else: the first layer does the rest."""

    like: Tensor

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("like", torch.zeros(1, dtype=like.dtype), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """The same values."""
        return images.to(self.like.dtype)


@torch.no_grad()
def fuse(folded: Folded) -> Folded:
    """A network that computes the same in fewer steps; `folded` is left as it is.

    Each step is tried, and kept where the outputs stay what they were.
    """
    for step in (_absorb_batchnorm, _absorb_normalization, _take_maximum_first):
        shorter = copy.deepcopy(folded)
        if step(shorter) and _are_same(folded, shorter):
            folded = shorter
    return folded


def _absorb_normalization(folded: Folded) -> bool:
    """Let the first layer read 0 to 255; False where it does not read just the images."""
    normalize = folded.normalize
    stems = _stems(folded.net)
    if not isinstance(normalize, Normalize) or folded.front is not None or not stems:
        return False
    images = _noise(folded)
    normalized = normalize(images)
    read = inputs_of(folded.net, list(stems), normalized)
    # With K references the stem is given K copies, and so are they here.
    tiled = normalized
    for name, stem in stems.items():
        layer = stem.layer
        if not isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) or layer.groups != 1:
            return False
        if not torch.equal(read[name], tiled):
            return False
        shift = normalize.shift.view(-1, *[1] * (tiled.ndim - 2)).expand(tiled.shape[1:])
        plain = copy.deepcopy(layer).double()
        plain.bias = None
        constant = plain(shift[None].double())
        scale = normalize.scale.double().view(-1, *[1] * (layer.weight.ndim - 2))
        layer.weight.copy_(layer.weight.double() * scale)
        stem.offset.copy_(stem.offset.double() + constant)
    folded.normalize = AsFloats(normalize.scale)
    return True


def _absorb_batchnorm(folded: Folded) -> bool:
    """Scale the first layer and its map as the BatchNorm right behind would."""
    stems = _stems(folded.net)
    found = _norms_behind(folded, stems)
    for stem_name, norm_name in found.items():
        stem, norm = stems[stem_name], folded.net.get_submodule(norm_name)
        layer = stem.layer
        assert isinstance(norm, _BatchNorm)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = (norm.running_var.double() + norm.eps).rsqrt()
        if norm.weight is not None:
            factor = factor * norm.weight.double()
        constant = -norm.running_mean.double() * factor
        if norm.bias is not None:
            constant = constant + norm.bias.double()
        weight: Tensor = layer.weight  # type: ignore[assignment]
        if (bias := layer.bias) is not None:
            constant = constant + bias.double() * factor  # type: ignore[operator]
            layer.register_parameter("bias", None)
        weight.copy_(weight.double() * factor.view(-1, *[1] * (weight.ndim - 1)))
        wide = (-1, *[1] * (stem.offset.ndim - 2))
        stem.offset.copy_(stem.offset.double() * factor.view(wide) + constant.view(wide))
        # timm's norms also do what follows.
        rest = [getattr(norm, part, None) for part in ("drop", "act")]
        kept = [part for part in rest if isinstance(part, nn.Module)]
        folded.net = replace(folded.net, norm_name, nn.Sequential(*kept))
    return bool(found)


def _take_maximum_first(folded: Folded) -> bool:
    """Exchange the first ReLU and the maximum right behind it: `max relu = relu max`."""
    named = dict(folded.net.named_modules())
    relus = {name: part for name, part in named.items() if type(part) is nn.ReLU}
    pools = {name: part for name, part in named.items() if type(part) is nn.MaxPool2d}
    first = dict(list(_readers(folded, relus, pools).items())[:1])
    for relu, pool in first.items():
        folded.net = replace(folded.net, relu, nn.Identity())
        folded.net = replace(folded.net, pool, nn.Sequential(pools[pool], nn.ReLU()))
    return bool(first)


def _norms_behind(folded: Folded, stems: dict[str, FoldedStem]) -> dict[str, str]:
    """For each stem the BatchNorm that reads the very tensor it returned."""
    makers = {name: stem for name, stem in stems.items() if stem.axis == 0}
    norms = {
        name: part
        for name, part in folded.net.named_modules()
        if isinstance(part, _BatchNorm) and part.track_running_stats and not part.training
    }
    return _readers(folded, makers, norms)


def _readers(
    folded: Folded, makers: Mapping[str, nn.Module], readers: Mapping[str, nn.Module]
) -> dict[str, str]:
    """For each maker the reader that is given the very tensor it returned."""
    made: dict[int, str] = {}
    kept: list[Tensor] = []  # alive, so that no other tensor gets its number
    found: dict[str, str] = {}
    handles: list[RemovableHandle] = []

    def remember(name: str) -> None:
        def record(_: nn.Module, args: object, output: Tensor) -> None:
            made[id(output)] = name
            kept.append(output)

        handles.append(makers[name].register_forward_hook(record))

    def look(name: str) -> None:
        def record(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            if args and id(args[0]) in made:
                found[made[id(args[0])]] = name

        handles.append(readers[name].register_forward_pre_hook(record))

    for name in makers:
        remember(name)
    for name in readers:
        look(name)
    try:
        folded(_noise(folded))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _stems(net: nn.Module) -> dict[str, FoldedStem]:
    return {name: part for name, part in net.named_modules() if isinstance(part, FoldedStem)}


def _noise(folded: Folded) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(3 * folded.k, *folded.image_shape, generator=generator)
    like = next(folded.parameters())
    if folded.normalize is not None:
        return (255 * x).to(torch.uint8).to(like.device)
    return x.to(like)


def _are_same(folded: Folded, shorter: Folded) -> bool:
    x = _noise(folded)
    try:
        return relative_error(shorter(x), folded(x)) <= TOLERANCE
    except Exception:  # whatever a network raises that looks at the layer that is gone
        return False
