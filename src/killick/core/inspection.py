"""Which layers of a network read its input, and what layers read and compute, found by running it.

No network is known by name.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from killick.errors import StemError, one_line
from killick.runtime.devices import precise_device

Layer = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
LINEAR = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def logits_of(output: Any) -> Tensor:
    """The logits in what a network returned: a tensor, `.logits`, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return cast(Tensor, output.logits)
    if isinstance(output, Sequence) and output and isinstance(output[0], Tensor):
        return output[0]
    raise StemError(
        "expected the network to return logits (a tensor, an output with .logits, or a tuple that"
        f" starts with a tensor), found {type(output).__name__}."
        " Wrap it in a module that returns the logits."
    )


def run(net: nn.Module, x: Tensor) -> Tensor:
    """The logits of `net` for `x`, which is left as it is."""
    with torch.no_grad():
        return logits_of(net(x.clone()))


def inputs_of(net: nn.Module, names: Iterable[str], x: Tensor) -> dict[str, Tensor]:
    """What the named layers read (at their first call) when `net` runs on `x`."""

    def watch(layer: nn.Module, see: Callable[[Tensor], None]) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            see(next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)))

        return layer.register_forward_pre_hook(hook, with_kwargs=True)

    return _observe(net, names, x, watch)


def outputs_of(net: nn.Module, names: Iterable[str], x: Tensor) -> dict[str, Tensor]:
    """What the named layers compute (at their first call) when `net` runs on `x`."""

    def watch(layer: nn.Module, see: Callable[[Tensor], None]) -> Any:
        return layer.register_forward_hook(lambda _, args, output: see(output))

    return _observe(net, names, x, watch)


class _AllSeen(BaseException):
    """Ends a forward pass: the rest of the network need not run."""


def _observe(
    net: nn.Module, names: Iterable[str], x: Tensor, watch: Callable[..., Any]
) -> dict[str, Tensor]:
    """What `watch` sees of the named layers; the network runs no further than the last."""
    names = list(names)
    seen: dict[str, Tensor] = {}

    def see(name: str, value: Tensor) -> None:
        if name not in seen:
            seen[name] = value.detach().clone()
        if len(seen) == len(names):
            raise _AllSeen

    with ExitStack() as hooks, suppress(_AllSeen):
        for name in names:
            hooks.enter_context(watch(net.get_submodule(name), partial(see, name)))
        run(net, x)
    if missing := [name for name in names if name not in seen]:
        raise StemError(
            f"cannot anchor {type(net).__name__}: expected {missing[0]!r} to run when the network"
            " is called, and it does not. Name a layer that reads the image."
        )
    return seen


@dataclass(frozen=True)
class Trial:
    """A forward pass on two images, and the layers that read them before any other parameter does."""

    images: Tensor
    logits: Tensor
    reading: tuple[str, ...]

    def find_stem(self, net: nn.Module) -> dict[str, Layer]:
        """The layers of `net` that read the image, by name; an error if they cannot be doubled."""
        found = {name: net.get_submodule(name) for name in self.reading}
        others = {n: m for n, m in found.items() if not isinstance(m, LINEAR)}
        if others:
            raise StemError(
                f"cannot anchor {type(net).__name__}: expected the image to be read by a convolution"
                f" or a linear layer, found {describe(others)}. If it normalizes the image, take"
                " it out of the network and pass normalize= instead."
            )
        if not found:
            raise StemError(
                f"cannot anchor {type(net).__name__}: expected a convolution or a linear layer that"
                " reads the image, found none when running it. Name it: stem='path.of.the.layer'."
            )
        return cast(dict[str, Layer], found)


def try_network(net: nn.Module, x: Tensor) -> Trial:
    """Run `net` once on `x`, with gradients on.

    A layer belongs to the stem if its input depends on the image and on no parameter: nothing
    learnt stands before it. Autograd's graph answers that for any network, however its `forward`
    is written.
    """
    image = x.detach().clone().requires_grad_()
    inputs: dict[str, bool] = {}  # whether a layer reads the image alone

    def record(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        read = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
        if read is not None and name not in inputs:
            inputs[name] = _reads_only(read, image)

    with ExitStack() as undo:
        for name, module in net.named_modules():
            childless = next(module.children(), None) is None
            owns = any(p is not None for p in module._parameters.values())
            if isinstance(module, LINEAR) or (childless and owns):
                hook = partial(record, name)
                undo.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        for parameter in net.parameters():
            if parameter.is_floating_point() and not parameter.requires_grad:
                undo.callback(parameter.requires_grad_, False)
                parameter.requires_grad_()
        # Nothing is kept for a backward pass: there is none, and it would fill the memory.
        undo.enter_context(torch.autograd.graph.saved_tensors_hooks(_drop, _drop))
        with torch.enable_grad():
            output = net(image.clone())  # a clone, so that a network may change its input in place
    reading = tuple(name for name, alone in inputs.items() if alone)
    return Trial(x, logits_of(output).detach(), reading)


def _drop(_: Any) -> Any:
    """Keep nothing."""


def _reads_only(tensor: Tensor, image: Tensor) -> bool:
    """Whether `tensor` was computed from `image` and from no parameter."""
    if tensor.grad_fn is None:
        return tensor is image
    seen, waiting, reached = set(), [tensor.grad_fn], False
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is image:
            reached = True
        elif leaf is not None:
            return False
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
    return reached


def named_layers(net: nn.Module, names: Sequence[str]) -> dict[str, Layer]:
    """The layers called `names`; an error if one is missing or of another kind."""
    known = dict(net.named_modules())
    for name in names:
        if not isinstance(known.get(name), LINEAR):
            choices = [n for n, m in known.items() if isinstance(m, LINEAR)]
            found = f"found {type(known[name]).__name__}" if name in known else "there is none"
            raise StemError(
                f"cannot anchor {type(net).__name__}: expected stem={name!r} to name a convolution"
                f" or a linear layer, {found}. The first ones are {', '.join(choices[:5])}."
            )
    return {name: cast(Layer, known[name]) for name in names}


def describe(layers: Mapping[str, nn.Module]) -> str:
    """Layers in one line."""
    found = [f"{str(module).splitlines()[0]} at {name!r}" for name, module in layers.items()]
    return " and ".join(found)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value; for coarser arithmetic, as if in float32.

    Coarser are shorter dtypes, and float32 on accelerators, which may round products to ten bits.
    """
    if found.shape != expected.shape:
        return math.inf
    coarse = expected.device.type != "cpu" and expected.dtype == torch.float32
    found, expected = (t.to(precise_device(t.device)) for t in (found, expected))
    scale = expected.double().abs().amax().clamp_min(1e-12)
    coarser = max(1.0, torch.finfo(expected.dtype).eps / torch.finfo(torch.float32).eps)
    if coarse:
        coarser = 50.0
    return ((found.double() - expected.double()).abs().amax() / scale / coarser).item()


def replace(net: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """`net` with `module` in the place of the one called `name` (which may be all of it: "")."""
    if name == "":
        return module
    old = net.get_submodule(name)
    for parent in list(net.modules()):  # it may be registered under several names
        for child in [key for key, value in parent._modules.items() if value is old]:
            parent._modules[child] = module
    return net


_SIDES = (32, 224, 64, 28, 96, 128, 256, 299, 384, 512, 16, 8)


def try_example(net: nn.Module, example: Tensor | None) -> Trial:
    """Run the network on two images: like those given, or noise of the first shape it runs on."""
    parameter = next((p for p in net.parameters() if p.is_floating_point()), None)
    if parameter is None:
        raise StemError(
            f"cannot anchor {type(net).__name__}: expected a network with a convolution or a linear"
            " layer that reads the image, found no parameters at all."
        )
    dtype, device = parameter.dtype, parameter.device
    generator = torch.Generator().manual_seed(0)
    if example is not None:
        if example.ndim < 2 or len(example) == 0:
            raise StemError(
                "expected example to be a batch the network accepts, such as (2, 3, 32, 32) or"
                f" (2, features), found shape {tuple(example.shape)}."
            )
        given = example.detach().to(device, dtype)
        given = torch.cat([given, given])[:2] if len(given) == 1 else given[:2]
        noise = torch.rand(given.shape, generator=generator).to(device, dtype) - 0.5
        try:  # noise of that shape tells features apart; the example itself may be constant
            return try_network(net, noise)
        except Exception:
            pass
        try:
            return try_network(net, given)
        except Exception as problem:
            raise StemError(
                f"cannot anchor {type(net).__name__}: it does not run on the example of shape"
                f" {tuple(example.shape)} ({one_line(problem)}). Pass a batch it accepts."
            ) from problem
    tried = []
    for shape in _likely_shapes(net):
        x = torch.rand(2, *shape, generator=generator).to(device, dtype) - 0.5
        try:
            trial = try_network(net, x)
        except StemError:
            raise
        except Exception:  # whatever a network raises on a shape it was not made for
            tried.append(shape)
            continue
        if trial.logits.ndim == 2 and len(trial.logits) == 2 or trial.logits.ndim == 1:
            return trial
        tried.append(shape)
    shapes = ", ".join(str(shape) for shape in tried[:4])
    raise StemError(
        f"cannot anchor {type(net).__name__}: expected it to run on images of a usual shape, and it"
        f" ran on none of {len(tried)} ({shapes}, …). Pass example=, a batch it accepts."
    )


def _likely_shapes(net: nn.Module) -> list[tuple[int, ...]]:
    """Shapes to try, the likeliest first: what the network says of itself, then usual sizes."""
    hints: list[tuple[int, ...]] = []
    for module in net.modules():
        for name in ("pretrained_cfg", "default_cfg"):
            size = (getattr(module, name, None) or {}).get("input_size")
            if size:
                hints.append(tuple(size))
        config = getattr(module, "config", None)
        side, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
        if isinstance(side, int) and isinstance(channels, int):
            hints.append((channels, side, side))
        for name in ("image_size", "img_size"):
            side = getattr(module, name, None)
            if isinstance(side, int):
                hints.append((3, side, side))
            elif isinstance(side, tuple) and len(side) == 2:
                hints.append((3, *side))
    first = next((m for m in net.modules() if isinstance(m, LINEAR)), None)
    if isinstance(first, nn.Conv2d):  # a network made for other channels than its hint says
        hints += [(first.in_channels, *hint[1:]) for hint in hints]
    shapes = list(hints)
    if isinstance(first, nn.Linear):
        shapes.append((first.in_features,))
        for c in (1, 3, 4):
            side = math.isqrt(first.in_features // c)
            if c * side * side == first.in_features:
                shapes.append((c, side, side))
    counts = [first.in_channels] if isinstance(first, nn.Conv1d | nn.Conv2d | nn.Conv3d) else []
    ranks = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
    rank = next((r for kind, r in ranks.items() if isinstance(first, kind)), 2)
    for c in dict.fromkeys([*counts, 3, 1, 4]):
        shapes.extend((c, *[side] * rank) for side in _SIDES)
    return list(dict.fromkeys(shapes))
