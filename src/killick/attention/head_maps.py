"""Attention maps: where one patch of an image looks, in chosen heads."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from killick.attention.attention_capture import AttentionCapture, Tokens
from killick.attention.reference_views import forwards_of
from killick.core.anchored import evaluating

Head = tuple[int, int]  # layer, head


class HeadMap(NamedTuple):
    """Where the middle patch of each image looks, in one head."""

    layer: int
    head: int
    weights: Tensor  # (n, rows, columns), adding up to 1; of the first of an image's windows
    query: tuple[int, int]  # row and column of the patch that looks


def attention_maps(model: nn.Module, images: Tensor, heads: Sequence[Head]) -> list[HeadMap]:
    """The attention of the middle patch in some heads; of an anchored model, its first reference.

    Args:
        model: As for `measure`.
        images: A few, `(n, channels, height, width)`, all in one forward pass.
        heads: Layer and head of each, numbered as by `measure`.
    """
    found: dict[Head, HeadMap] = {}

    def receive(tokens: Tokens, weights: Tensor) -> None:
        rows, columns = tokens.grid
        middle = (rows // 2, columns // 2)
        place = tokens.prefix + middle[0] * columns + middle[1]
        for head in (head for layer, head in heads if layer == tokens.layer):
            each = weights[:: tokens.windows, head, place, tokens.prefix :]
            shares = each / each.sum(-1, keepdim=True)
            shaped = shares.unflatten(-1, tokens.grid).cpu()
            found[tokens.layer, head] = HeadMap(tokens.layer, head, shaped, middle)

    _run(model, images, receive)
    return [found[head] for head in heads]


def last_map(model: nn.Module, images: Tensor) -> Tensor | None:
    """Where the last layer that sees whole images looks, `(n, rows, columns)`; None if none does.

    The mean over heads of what the class token sees; without one, over all patches.

    Args:
        model: As for `measure`; of an anchored model, its first reference.
        images: `(n, channels, height, width)`.
    """
    found: list[Tensor] = []

    def receive(tokens: Tokens, weights: Tensor) -> None:
        if tokens.windows == 1:
            looking = slice(0, 1) if tokens.prefix else slice(None)
            seen = weights[:, :, looking, tokens.prefix :].mean((1, 2))
            found[:] = [seen.unflatten(-1, tokens.grid)]

    _run(model, images, receive)
    return found[0] if found else None


def _run(model: nn.Module, images: Tensor, receive: Callable[[Tokens, Tensor], None]) -> None:
    """Hand over the attention of each layer, from the first reference of an anchored model."""
    capture, forward = AttentionCapture(model, receive), forwards_of(model)[0]
    with evaluating(model):
        capture.run(len(images), partial(forward, images))
