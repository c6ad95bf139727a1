"""Fewer operations in a folded network: the first layer absorbs normalization and BatchNorm.

The first layer of a folded network computes `W x + map`, with a map that may differ from place to
place. So it can take in exactly what an ordinary layer cannot, where it pads with zeros: with
`W (scale x + shift) = (W scale) x + W shift`, the normalization before it. And the BatchNorm behind
it, which a runtime would otherwise merge with the layer, were the map not between them. Where a
ReLU and a maximum over places follow, the maximum is taken first: it is the same, and leaves a
quarter of the values to the ReLU, which a runtime would have merged too.
"""

import contextlib
import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

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
    normalize, stems = folded.normalize, _stems(folded.net)
    if not isinstance(normalize, Normalize) or folded.front is not None or not stems:
        return False
    normalized = normalize(_noise(folded))
    read = inputs_of(folded.net, list(stems), normalized)
    for name, stem in stems.items():
        layer = stem.layer
        if not isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) or layer.groups != 1:
            return False
        if not torch.equal(read[name], normalized):
            return False
        wide = (-1, *[1] * (normalized.ndim - 2))
        plain = copy.deepcopy(layer).double()
        plain.bias = None
        shift = normalize.shift.view(wide).expand(normalized.shape[1:])
        stem.offset.copy_(stem.offset.double() + plain(shift[None].double()))
        layer.weight.copy_(layer.weight.double() * normalize.scale.double().view(wide))
    folded.normalize = AsFloats(normalize.scale)
    return True


def _absorb_batchnorm(folded: Folded) -> bool:
    """Scale the first layer and its map as the BatchNorm right behind would."""
    stems = {name: stem for name, stem in _stems(folded.net).items() if stem.axis == 0}
    norms = {
        name: part
        for name, part in folded.net.named_modules()
        if isinstance(part, _BatchNorm) and part.track_running_stats and not part.training
    }
    found = _readers(folded, stems, norms)
    for stem_name, norm_name in found.items():
        stem, norm = stems[stem_name], copy.deepcopy(norms[norm_name]).double()
        weight: Tensor = stem.layer.weight  # type: ignore[assignment]
        bias: Tensor | None = stem.layer.bias  # type: ignore[assignment]
        assert norm.running_var is not None
        offset = stem.offset.double()
        if bias is not None:
            offset = offset + bias.double().view(-1, *[1] * (offset.ndim - 2))
            stem.layer.register_parameter("bias", None)
        statistics = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        stem.offset.copy_(nn.functional.batch_norm(offset, *statistics, eps=norm.eps))
        factor = (norm.running_var + norm.eps).rsqrt()
        factor = factor if norm.weight is None else factor * norm.weight
        weight.copy_(weight.double() * factor.view(-1, *[1] * (weight.ndim - 1)))
        # timm's norms also do what follows.
        rest = [getattr(norms[norm_name], part, None) for part in ("drop", "act")]
        kept = [part for part in rest if isinstance(part, nn.Module)]
        folded.net = replace(folded.net, norm_name, nn.Sequential(*kept))
    return bool(found)


def _take_maximum_first(folded: Folded) -> bool:
    """Exchange the first ReLU and the maximum right behind it: `max relu = relu max`."""
    named = dict(folded.net.named_modules())
    relus = {name: part for name, part in named.items() if type(part) is nn.ReLU}
    pools = {name: part for name, part in named.items() if type(part) is nn.MaxPool2d}
    found = _readers(folded, relus, pools)
    if not found:
        return False
    relu, pool = next(iter(found.items()))
    folded.net = replace(folded.net, relu, nn.Identity())
    folded.net = replace(folded.net, pool, nn.Sequential(pools[pool], nn.ReLU()))
    return True


def _readers(
    folded: Folded, makers: Mapping[str, nn.Module], readers: Mapping[str, nn.Module]
) -> dict[str, str]:
    """For each maker the reader that is given the very tensor it returned."""
    names = {module: name for name, module in (*makers.items(), *readers.items())}
    made: dict[str, Tensor] = {}
    found: dict[str, str] = {}

    def remember(module: nn.Module, args: object, output: Tensor) -> None:
        made[names[module]] = output

    def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        for maker, output in made.items():
            if args and args[0] is output:
                found[maker] = names[module]

    with contextlib.ExitStack() as stack:
        for module in makers.values():
            stack.callback(module.register_forward_hook(remember).remove)
        for module in readers.values():
            stack.callback(module.register_forward_pre_hook(look).remove)
        folded(_noise(folded))
    return found


def _stems(net: nn.Module) -> dict[str, FoldedStem]:
    return {name: part for name, part in net.named_modules() if isinstance(part, FoldedStem)}


def _noise(folded: Folded) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(3 * folded.k, *folded.image_shape, generator=generator)
    return x if folded.normalize is None else (255 * x).to(torch.uint8)


def _are_same(folded: Folded, shorter: Folded) -> bool:
    x = _noise(folded)
    try:
        return relative_error(shorter(x), folded(x)) <= TOLERANCE
    except Exception:  # whatever a network raises that looks at the layer that is gone
        return False
