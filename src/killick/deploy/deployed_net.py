"""The deployed network: images in; logits, probabilities, energy and more out."""

import contextlib
import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from killick.core.anchored import Anchored
from killick.core.folding import Folded, FoldedStem, fold
from killick.core.image_model import Normalize
from killick.core.inspection import inputs_of, relative_error, replace
from killick.core.standard import Standard
from killick.errors import OutputError
from killick.storage.export_metadata import OUTPUTS

TOLERANCE = 1e-4  # of a fused network


class Deployed(nn.Module):
    """Images to `logits`, `probabilities`, `energy`, and more.

    There is `std` with several references, and `in_distribution` with a threshold: a buffer, to be
    set once it is known.
    """

    threshold: Tensor

    def __init__(self, net: Folded | Standard, has_threshold: bool) -> None:
        super().__init__()
        self.net = net
        self.k = net.k if isinstance(net, Folded) else 1
        self.has_threshold = has_threshold
        self.register_buffer("threshold", torch.tensor(0.0))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what `forward` returns."""
        wanted = {"std": self.k > 1, "in_distribution": self.has_threshold}
        return tuple(name for name in OUTPUTS if wanted.get(name, True))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """What `outputs` names, in float32 whatever the network computes in."""
        found: dict[str, Tensor] = {}
        if self.k > 1:
            assert isinstance(self.net, Folded)
            members = self.net.members(images).float()
            logits = members.mean(0)
            # Not every runtime has a standard deviation.
            values = members.softmax(-1)
            apart = values - values.mean(0, keepdim=True)
            found["std"] = (apart * apart).sum(0).div(self.k - 1).sqrt()
        else:
            logits = self.net(images).float()
        found["logits"] = logits
        found["probabilities"] = logits.softmax(-1)
        found["energy"] = -logits.logsumexp(-1)
        if self.has_threshold:
            found["in_distribution"] = found["energy"] <= self.threshold
        return tuple(found[name] for name in self.outputs)

    def to_precision(self, dtype: torch.dtype) -> "Deployed":
        """A copy whose network computes in `dtype`."""
        reduced = copy.deepcopy(self)
        reduced.net.to(dtype)
        return reduced


@torch.no_grad()
def deploy(model: Anchored | Standard, k: int, *, has_threshold: bool) -> Deployed:
    """`model`, on the CPU in float32, as it is deployed: its first `k` references folded in."""
    net = fuse(fold(model, k)) if isinstance(model, Anchored) else model
    deployed = Deployed(net, has_threshold).eval().requires_grad_(False)
    dtype = None if model.normalize is None else torch.uint8
    logits = net(torch.zeros(2, *model.image_shape, dtype=dtype))
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise OutputError(
            f"only classifiers can be exported: for 2 images the network returns"
            f" {tuple(logits.shape)}, not (2, classes)."
        )
    return deployed


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

    The first layer computes `W x + map`, with a map that may differ from place to place. So it can
    absorb exactly what an ordinary layer that pads with zeros cannot: the normalization before it,
    with `W (scale x + shift) = (W scale) x + W shift`; and the BatchNorm behind it, which a runtime
    would otherwise merge with the layer, were the map not between them. Where a ReLU and a maximum
    over places follow, the maximum is taken first, and leaves fewer values to the ReLU.

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
