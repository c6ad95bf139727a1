"""Runs any model on images: an anchored one once for each reference, others once."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.image_model import check_dtype, check_network, image_model_in
from killick.errors import KillickError, OptionError, ShapeError, one_line

Forward = Callable[[Tensor], object]


def forwards_of(model: nn.Module, references: int | None = None) -> list[Forward]:
    """A forward pass from each of the first `references` stored references, all by default.

    A model without references has one forward pass.
    """
    check_network(model)
    inner = image_model_in(model)
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))

    def run(images: Tensor, reference: Tensor | None = None) -> object:
        if images.ndim != 4 or len(images) == 0:
            raise ShapeError(
                f"expected images of shape (n, channels, height, width), found"
                f" {tuple(images.shape)}."
            )
        images = images.to(weight.device)
        if inner is None:  # of Killick's models, a folded one is not one of these
            check_dtype(images, getattr(model, "normalize", None) is not None)
        if images.is_floating_point():
            images = images.to(weight.dtype)
        try:
            if reference is None:
                return model(images)
            return model(images, reference.to(images.dtype).expand_as(images))
        except KillickError:
            raise
        except Exception as problem:  # whatever a network raises for images of another size
            raise OptionError(
                f"cannot run {type(inner or model).__name__} on images of"
                f" {images.shape[2]} x {images.shape[3]} px: {one_line(problem)}."
            ) from problem

    if isinstance(inner, Anchored):
        stored = inner.stored_references(references or len(inner.references))
        return [lambda images, own=own: run(images, own) for own in stored]  # type: ignore[misc]
    if references not in (None, 1):
        raise OptionError(
            f"{type(inner or model).__name__} has no references, found references={references}."
        )
    return [run]
