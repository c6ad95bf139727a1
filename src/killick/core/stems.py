"""The stem: the layer, or layers, through which a network reads its input.

To anchor a network is to let its stem read a pair instead of an image. The stem is found by running
the network, doubled, and the outcome is checked by running it again; no network is known by name.

How it is found: see `inspection.try_network`. How it is doubled: the network, its stem twice as wide, is
run on `[x, 0]` and on `[0, x]`. Each feature that now arrives at the stem must be one of those that
arrived for `x` alone, in one of the two runs. That gives the place of every kernel slice, even if
the network reorders its input before the stem (space to depth, cutting into patches, flattening).
"""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from killick.core.input_transforms import take_input_transform, take_leading_module
from killick.core.inspection import (
    LINEAR,
    Layer,
    Trial,
    describe,
    inputs_of,
    named_layers,
    outputs_of,
    relative_error,
    replace,
    run,
    try_example,
    try_network,
)
from killick.errors import StemError, one_line

Init = Literal["exact", "random"]


@dataclass(frozen=True)
class Stem:
    """Where one doubled layer is, and what each feature it reads stands for."""

    name: str  # of the layer in the network
    # for each feature, 0 if it comes from the reference, 1 if from the residual
    half: tuple[int, ...]
    # for each feature, its number among the features of the layer before doubling
    source: tuple[int, ...]

    @property
    def residual_order(self) -> list[int]:
        """Which features carry the residual, in the order of the layer before doubling."""
        found = {s: i for i, (h, s) in enumerate(zip(self.half, self.source, strict=True)) if h}
        return [found[s] for s in range(len(found))]


@dataclass(frozen=True)
class Widened:
    """A network that reads pairs, and what goes with it."""

    net: nn.Module  # reads pairs
    front: nn.Module | None  # what has to be done to images before they are paired
    stems: tuple[Stem, ...]  # the layers that were doubled
    # modules and attributes in which the network keeps its channel count, now doubled
    counts: tuple[tuple[str, str], ...]
    example: Tensor  # two images it was run on


class WrappedLayer(nn.Module):
    """A module in the place of the layer that it wraps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    @property
    def weight(self) -> Tensor:
        """Of the layer; some networks look at its dtype."""
        return cast(Tensor, self.layer.weight)


class GroupedStem(WrappedLayer):
    """A doubled convolution with groups: each group reads its reference and its residual channels.

    `[r1 r2 r3 d1 d2 d3]` arrives, and three groups need `[r1 d1 | r2 d2 | r3 d3]`.
    """

    order: Tensor

    def __init__(self, layer: Layer, order: Tensor) -> None:
        super().__init__(layer)
        self.register_buffer("order", order, persistent=False)

    def forward(self, pairs: Tensor) -> Tensor:
        """Regroup, then convolve."""
        return cast(Tensor, self.layer(pairs.index_select(1, self.order)))


def widen(
    net: nn.Module,
    *,
    stem: str | Sequence[str] | None = None,
    init: Init = "exact",
    example: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Widened:
    """A copy of `net` whose stem reads pairs; the arguments are those of `anchor`."""
    if isinstance(net, torch.jit.ScriptModule):
        raise StemError(
            "cannot anchor a TorchScript module: its layers cannot be changed. Anchor the network"
            " it was made from; deploy with torch.export."
        )
    try:  # it is only run: its weights need not be copied
        kept = (weight for weight in net.parameters() if not weight.is_inference())
        plain = copy.deepcopy(net, {id(weight): weight for weight in kept})
    except Exception as problem:
        raise StemError(
            f"cannot anchor {type(net).__name__}: it cannot be copied ({problem}). Where an old"
            " weight_norm is the cause, remove it first: torch.nn.utils.remove_weight_norm."
        ) from problem
    modes = {name: module.training for name, module in plain.named_modules()}
    plain.eval()
    trial = first = try_example(plain, example)
    names = [stem] if isinstance(stem, str) else list(stem or ())
    fronts: list[nn.Module] = []
    while True:
        layers = named_layers(plain, names) if names else trial.find_stem(plain)
        x = trial.images
        try:
            # Running may have left tensors in a module that cannot be copied.
            source = plain if fronts else net
            wide, stems, counts = _double(plain, x, layers, copy.deepcopy(source).eval())
            break
        except _NotAPairOfInputs as problem:
            moved = take_leading_module(plain, x, layers) or take_input_transform(plain, x, layers)
            if moved is None:
                raise StemError(problem.message) from problem.cause
            fronts.append(moved)
            trial = try_network(plain, moved(x))
    front = None if not fronts else fronts[0] if len(fronts) == 1 else nn.Sequential(*fronts)
    _check_unchanged(plain, wide, layers, x, front, first)
    if init == "random":
        for doubled in stems:
            _draw_afresh(wide.get_submodule(doubled.name), generator)
    for name, module in wide.named_modules():
        module.training = _nearest(modes, name)
    return Widened(wide, front, stems, counts, first.images)


def _nearest(modes: dict[str, bool], name: str) -> bool:
    """The mode of a module, or of the nearest one around it (a stem may be wrapped now)."""
    while name not in modes:
        name = name.rpartition(".")[0]
    return modes[name]


@dataclass
class _NotAPairOfInputs(Exception):
    """The doubled network does not read pairs: something stands before its stem."""

    message: str
    cause: Exception | None = None


def _double(
    plain: nn.Module,
    x: Tensor,
    layers: dict[str, Layer],
    wide: nn.Module,
) -> tuple[nn.Module, tuple[Stem, ...], tuple[tuple[str, str], ...]]:
    """`wide`, a copy of `plain`, with its `layers` doubled, and the channel counts that were, too."""
    channels = x.shape[1]
    start = f"cannot anchor {type(plain).__name__}: found {describe(layers)} reading the image"
    out = (
        " Take what stands before it out of the network: a module of its own in front"
        " (nn.Sequential(before, net)), or normalize=(mean, std)."
    )
    for name in layers:
        _stretch_layer(wide.get_submodule(name))

    nothing, other = torch.zeros_like(x), x.flip(0).roll(1, dims=-1)
    large = 200 * x  # far outside of anything that clips or saturates
    halves = [(x, nothing), (nothing, x), (200 * other, large - 200 * other)]
    pairs = [torch.cat(both, dim=1) for both in halves]
    before, before_large = inputs_of(plain, layers, x), inputs_of(plain, layers, large)
    counts: tuple[tuple[str, str], ...] = ()
    try:
        try:
            after = [inputs_of(wide, layers, pair) for pair in pairs]
        except Exception:  # it may check its channels
            counts = channel_counts(wide, layers, channels)
            if not counts:
                raise
            scale_counts(wide, counts, 2.0)
            after = [inputs_of(wide, layers, pair) for pair in pairs]
    except Exception as problem:
        message = f"{start}, but it does not run on {2 * channels} channels ({problem}).{out}"
        raise _NotAPairOfInputs(message, problem) from problem

    stems = []
    for name in layers:
        axis = -1 if isinstance(layers[name], nn.Linear) else 1
        first, second, both = (arrived[name].movedim(axis, 0) for arrived in after)
        stem = match_features(name, before[name].movedim(axis, 0), first, second)
        if stem is None or not _sums(stem, before_large[name].movedim(axis, 0), both):
            message = (
                f"{start}, but what reaches it for a pair is not what reaches it for the two"
                f" images: something changes the image before it.{out}"
            )
            raise _NotAPairOfInputs(message)
        stems.append(stem)
    for stem in stems:
        wide = _fill(wide, stem, layers[stem.name])
    return wide, tuple(stems), counts


def _stretch_layer(layer: nn.Module) -> None:
    """Twice the inputs, the weights still in any order: to see what arrives at it."""
    assert isinstance(layer, LINEAR)
    assign_weight(layer, torch.cat([layer.weight, layer.weight], dim=1))
    if isinstance(layer, nn.Linear):
        layer.in_features *= 2
    else:
        layer.in_channels *= 2


def assign_weight(layer: nn.Module, weight: Tensor) -> None:
    """Give `layer` another weight, through its parametrization if it has one."""
    if not parametrize.is_parametrized(layer, "weight"):
        old = cast(Tensor, layer.weight)
        layer.weight = nn.Parameter(weight.detach().clone(), old.requires_grad)
        return
    try:
        with torch.no_grad():
            layer.weight = weight.detach().clone()
    except Exception as problem:
        raise StemError(
            f"cannot anchor: the weight of {layer} is parametrized in a way that cannot be doubled"
            f" ({problem}). Bake it in with torch.nn.utils.parametrize.remove_parametrizations."
        ) from problem


# Names under which modules remember how many channels an image has, to check it.
_CHANNEL_COUNTS = ("num_channels", "in_channels", "in_chans", "in_chs", "input_channels", "in_dim")


def channel_counts(
    net: nn.Module, layers: Iterable[str], channels: int
) -> tuple[tuple[str, str], ...]:
    """Where the modules around the stem keep the number of channels: (module, attribute)."""
    around = {""}
    for name in layers:
        parts = name.split(".")
        around.update(".".join(parts[:i]) for i in range(1, len(parts)))
    return tuple(
        (path, name)
        for path in sorted(around)
        for name in _CHANNEL_COUNTS
        if vars(net.get_submodule(path)).get(name) == channels
    )


def scale_counts(net: nn.Module, counts: Iterable[tuple[str, str]], factor: float) -> None:
    """Multiply the channel counts that a network keeps."""
    for path, name in counts:
        module = net.get_submodule(path)
        setattr(module, name, int(getattr(module, name) * factor))


def _sums(stem: Stem, before: Tensor, both: Tensor) -> bool:
    """Whether what arrives for `[r, x - r]` sums to what arrives for `x`: a linear way."""
    source = torch.tensor(stem.source, device=before.device)
    total = torch.zeros_like(before).index_add_(0, source, both)
    return relative_error(total, before) <= 1e-4


def match_features(name: str, before: Tensor, first: Tensor, second: Tensor) -> Stem | None:
    """Which feature of the plain layer each feature of the doubled one is, and in which half.

    Features come first: `before` is `(c, …)`, `first` and `second` are `(2 c, …)`.
    """
    u, a, b = (t.flatten(1).double() for t in (before, first, second))
    if a.shape[0] != 2 * u.shape[0] or a.shape[1] != u.shape[1]:
        return None
    scale = u.abs().amax().item()
    a_is_zero = a.abs().amax(1) <= 1e-6 * scale
    b_is_zero = b.abs().amax(1) <= 1e-6 * scale
    if not torch.equal(a_is_zero, ~b_is_zero):
        return None
    arrived = torch.where(a_is_zero[:, None], b, a)
    # Fingerprints (projections on one axis) in ascending order pair the features of a half with
    # those of the plain layer, equal ones in their order; then they are compared in full.
    half = a_is_zero.long()
    weights = torch.linspace(1.0, 2.0, u.shape[1], dtype=u.dtype, device=u.device)
    wanted = (u @ weights).argsort(stable=True)
    source = torch.empty_like(half)
    for side in (0, 1):
        rows = (half == side).nonzero()[:, 0]
        if len(rows) != len(u):
            return None
        source[rows[(arrived[rows] @ weights).argsort(stable=True)]] = wanted
    if not torch.allclose(arrived, u[source], rtol=0, atol=1e-5 * scale):
        return None
    return Stem(name, tuple(half.tolist()), tuple(source.tolist()))


def _fill(net: nn.Module, stem: Stem, old: Layer) -> nn.Module:
    """`net`, its doubled layer filled; one with groups is wrapped so as to regroup its input."""
    layer = cast(Layer, net.get_submodule(stem.name))
    groups = 1 if isinstance(layer, nn.Linear) else layer.groups
    if groups == 1:
        assign_weight(layer, old.weight[:, list(stem.source)])
        return net
    assign_weight(layer, torch.cat([old.weight, old.weight], dim=1))
    per_group = len(stem.source) // (2 * groups)
    order = sorted(
        range(len(stem.source)),
        key=lambda i: (stem.source[i] // per_group, stem.half[i], stem.source[i]),
    )
    wrapped = GroupedStem(layer, torch.tensor(order, device=old.weight.device))
    return replace(net, stem.name, wrapped)


def _draw_afresh(layer: nn.Module, generator: torch.Generator | None) -> None:
    """Give a layer new weights, by PyTorch's rule for a new layer."""
    inner = layer.layer if isinstance(layer, GroupedStem) else layer
    assert isinstance(inner, LINEAR)
    where = inner.weight.device if generator is None else generator.device
    with torch.no_grad():
        weight = torch.empty_like(inner.weight, device=where)
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
        assign_weight(inner, weight.to(inner.weight.device))
        if inner.bias is not None:
            bound = 1 / math.sqrt(weight[0].numel())
            bias = torch.empty_like(inner.bias, device=where)
            inner.bias.copy_(bias.uniform_(-bound, bound, generator=generator))


def _check_unchanged(
    plain: nn.Module,
    wide: nn.Module,
    layers: dict[str, Layer],
    x: Tensor,
    front: nn.Module | None,
    trial: Trial,
) -> None:
    """Run the doubled network on a pair: stem and outputs must be what they were for the image."""
    reference = trial.images.flip(0).roll(1, dims=-1)
    if front is not None:
        reference = front(reference)
    pair = torch.cat([reference, x - reference], dim=1)
    before = outputs_of(plain, layers, x)
    try:
        after = outputs_of(wide, layers, pair)
    except Exception as problem:  # such as a weight that is computed for one size: spectral_norm
        raise StemError(
            f"cannot anchor {type(wide).__name__}: found {describe(layers)} reading the image, but"
            f" it does not run when doubled ({one_line(problem)}). If its weight is computed, bake"
            " it in first (torch.nn.utils.parametrize.remove_parametrizations)."
        ) from problem
    # Rounding only: the sum W r + W (x - r) has other terms than W x, and a deep network carries
    # that on. Both bounds are far above it and far below what a wrong kernel does.
    for name, layer in layers.items():
        if not (error := relative_error(after[name], before[name])) <= 1e-4:
            raise StemError(
                f"cannot anchor {type(wide).__name__}: found {describe({name: layer})} reading the"
                f" image, but doubling it changes what it computes by {error:.1e} of its size: its"
                " weight is computed in a way that doubling does not keep. Bake the weight in"
                " first (torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm)."
            )
    if not (error := relative_error(run(wide, pair), trial.logits)) <= 1e-3:
        raise StemError(
            f"cannot anchor {type(wide).__name__}: found {describe(layers)} reading the image, but"
            f" doubling it changes the network's outputs by {error:.1e} of their size: something"
            " else reads the image too. Name every layer that does: stem=['first', 'second']."
        )
