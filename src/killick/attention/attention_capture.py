"""Reads the attention weights of a network while it runs, one layer at a time.

Attention is seen where it is computed: as a softmax, as `scaled_dot_product_attention` (whose
weights are computed again from queries and keys), or as `nn.MultiheadAttention`. So the network
runs as it is, with its fused kernels, and nothing in it is changed.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from killick.errors import OptionError

_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
_MOST_PREFIX = 16


class Tokens(NamedTuple):
    """How the tokens of an attention layer lie on the image."""

    layer: int  # in the order in which they run, from 0
    name: str  # of the module
    grid: tuple[int, int]  # rows and columns of patches; of a window, if there are windows
    prefix: int  # tokens before the patches: class, distillation and register tokens
    windows: int  # of an image; 1 if each patch sees the whole image


@dataclass
class _Call:
    """A module that is running."""

    module: nn.Module
    shape: tuple[int, ...]  # of its input
    computed: bool = False  # whether it itself computed attention
    seen: bool = False  # whether it or a module in it did


class AttentionCapture(TorchFunctionMode):
    """Runs a network, and hands over the attention weights of each layer.

    `receive(tokens, weights)` gets weights `(images * windows, heads, tokens, tokens)`;
    `receive_norms(layer, norms)` the norms `(images, patches)` of the patch tokens that leave the
    block around the layer, where there is one.
    """

    def __init__(
        self,
        net: nn.Module,
        receive: Callable[[Tokens, Tensor], None],
        receive_norms: Callable[[int, Tensor], None] = lambda layer, norms: None,
    ) -> None:
        super().__init__()
        self._net, self._receive, self._receive_norms = net, receive, receive_norms
        self._names = {module: name for name, module in net.named_modules()}
        if any(map(_is_traced, self._names)):
            raise OptionError(
                "cannot measure an exported or traced network. Give the one that it was made from."
            )

    def run(self, images: int, forward: Callable[[], object]) -> None:
        """Call `forward`, which runs the network on so many images."""
        self._images, self._layers, self._skipped, self._missed = images, 0, "", ""
        self._inside: list[_Call] = []
        self._grid = (0, 0)
        self._blocks: dict[nn.Module, list[Tokens]] = {}
        with ExitStack() as stack:
            for module in self._names:
                stack.enter_context(module.register_forward_pre_hook(self._enter))
                stack.enter_context(module.register_forward_hook(self._leave))
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self)
            forward()
        if self._missed or not self._layers:
            net = getattr(self._net, "net", self._net)
            none = f"{type(net).__name__} has no attention. Measure a transformer."
            raise OptionError(self._missed or self._skipped or none)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See the weights of functions that compute attention."""
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            asked = {**kwargs, "need_weights": True, "average_attn_weights": False}
            _, weights = func(*args, **asked)
            assert weights is not None
            self._see(weights)
        elif func is functional.scaled_dot_product_attention:
            self._see(attention_weights(*args, **kwargs))
        elif func in _SOFTMAX:
            scores, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
            if scores.ndim == 4 and dim in (-1, 3):
                self._see(_precise(scores).softmax(-1))
        return func(*args, **kwargs)

    def _see(self, weights: Tensor) -> None:
        calls = [call for call in self._inside if not isinstance(call.module, nn.Softmax)]
        name = self._names[calls[-1].module]
        for call in calls:
            call.seen = True
        queries, keys = weights.shape[-2:]
        if queries == 1:  # attention pooling
            self._skipped = f"{name!r} pools {keys} tokens, and there is no self-attention."
            return
        if weights.ndim != 4 or queries != keys or not _reads(calls[-1].shape, queries):
            raise OptionError(
                f"cannot measure {name!r}: attention of shape {tuple(weights.shape)} is not that of"
                " each patch to all others."
            )
        if calls[-1].computed:
            raise OptionError(f"cannot measure {name!r}: it computes attention twice in one call.")
        calls[-1].computed = True
        tokens = self._locate(calls, name, len(weights), queries)
        if math.prod(tokens.grid) == 1:
            self._skipped = f"{name!r} sees a single patch. Give larger images."
            return
        self._layers += 1
        for call in reversed(calls):
            above = self._net.get_submodule(self._names[call.module].rpartition(".")[0])
            if isinstance(above, nn.Sequential | nn.ModuleList):
                self._blocks.setdefault(call.module, []).append(tokens)
                break
        self._receive(tokens, weights)

    def _locate(self, calls: list[_Call], name: str, batch: int, count: int) -> Tokens:
        """Where tokens lie: in the windows of the module, or in the grid of the patch embedding."""
        windows, rest = divmod(batch, self._images)
        for call in reversed(calls):
            size = getattr(call.module, "window_size", None)
            height, width = (size, size) if isinstance(size, int) else tuple(size or (0, 0))
            if height * width == count and rest == 0:
                shapes = (each.shape for each in reversed(calls[:-1]))
                whole = next((s for s in shapes if len(s) > 2 and s[0] == self._images), ())
                if windows * count not in (math.prod(whole[1:-1]), math.prod(whole[2:])):
                    raise OptionError(
                        f"cannot measure {name!r}: its {windows} windows of {height} x {width}"
                        " patches are padded. Give images of a size that they divide."
                    )
                return Tokens(self._layers, name, (height, width), 0, windows)
        prefix = count - math.prod(self._grid)
        if batch != self._images or not 0 <= prefix <= _MOST_PREFIX or not all(self._grid):
            raise OptionError(
                f"cannot place the {count} tokens of {name!r} on the image: the patch embedding"
                f" before it has {self._grid[0]} x {self._grid[1]} patches, and it names no windows."
            )
        return Tokens(self._layers, name, self._grid, prefix, 1)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        shape = tuple(args[0].shape) if args and isinstance(args[0], Tensor) else ()
        self._inside.append(_Call(module, shape))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        call, kind = self._inside.pop(), type(module).__name__
        if not call.seen and _is_self_attention(kind):
            self._missed = self._missed or (
                f"cannot measure the attention of {self._names[module]!r} ({kind}): it shows no"
                " weights of each patch to all others."
            )
        if isinstance(module, nn.Conv2d):
            self._grid = tuple(output.shape[-2:])
        elif isinstance(module, nn.Linear) and not any(self._grid) and len(call.shape) == 3:
            self._grid = self._square_grid(call.shape[1])
        for tokens in self._blocks.pop(module, ()):
            found = output if isinstance(output, Tensor) else output[0]
            patches = found.flatten(1, -2)[:, tokens.prefix :]
            self._receive_norms(tokens.layer, _precise(patches).norm(dim=-1))

    def _square_grid(self, patches: int) -> tuple[int, int]:
        """The grid of so many patches of square images, which a linear layer embeds."""
        height, width = self._inside[0].shape[-2:]
        side = math.isqrt(patches)
        return (side, side) if height == width and side**2 == patches else (0, 0)


def attention_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights that `scaled_dot_product_attention` applies, without dropout."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = _precise(query) * scale @ _precise(key).mT
    if is_causal:
        attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1)


def _is_traced(module: nn.Module) -> bool:
    """Whether a module no longer calls torch's functions: of torch.export or torch.jit."""
    nodes = module.graph.nodes if isinstance(module, GraphModule) else ()
    exported = any(isinstance(node.target, torch._ops.OpOverload) for node in nodes)
    return exported or isinstance(module, torch.jit.ScriptModule)


def _is_self_attention(kind: str) -> bool:
    """Whether a class is one of self-attention by its name; not of pooling or class attention."""
    kind = kind.lower()
    pools = "pool" in kind or "class" in kind
    return ("attention" in kind or "attn" in kind) and not pools


def _reads(shape: tuple[int, ...], count: int) -> bool:
    """Whether an input `(n, tokens, channels)` has so many tokens; others cannot be told."""
    return len(shape) != 3 or count in shape[:2]


def _precise(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
