"""Mean and synthetic references, made from statistics of the training images.

References travel with a model. Where training images must not leave, it takes the mean image or
synthetic ones instead. This keeps images out of the file. It promises no more: statistics of many
images say a little about each, and so do the weights that were trained on them.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from killick.core.anchored import Anchored, anchored_in
from killick.core.references import ReferencePool, check_tensor
from killick.errors import OptionError, ReferencesError, check_option

Kind = Literal["mean", "synthetic"]
FEWEST = 100  # different images, so that none of them shows in their statistics


def replace_references(
    model: Anchored, kind: Kind, images: Tensor, *, k: int | None = None, seed: int = 0
) -> None:
    """Store references made of statistics of training images, in the place of those of `model`.

    What was made with the references before goes with them. The threshold is dropped, since
    energies depend on the references: fit another one, `killick.fit_threshold`. The bank of residuals
    is dropped, since it holds differences of training images: `predict` with
    `protocol="transductive"` needs another one. Results in `model.provenance` stay as they are;
    they name the references they were measured with.

    Args:
        model: Whose references are replaced, in place.
        kind: "mean": one image, the mean of all. "synthetic": images with the mean spectrum and the
            mean color of all, see `ReferencePool.synthetic`.
        images: Training images as the model takes them, the more the better; at least 100 different
            ones.
        k: How many synthetic ones. By default as many as are stored now, and at least one.
        seed: Of the synthetic ones.

    Raises:
        ReferencesError: If there are so few images that their statistics would show them.

    Example:
        >>> from killick import anchor
        >>> model = anchor(torch.nn.Linear(4, 2), example=torch.rand(2, 4))
        >>> replace_references(model, "mean", torch.rand(500, 4))
        >>> model.reference_policy
        'mean of 500 training images'
    """
    model = anchored_in(model)
    check_tensor(images, "the training images")
    model.check(images, "the training images")
    if k is None and kind == "synthetic":
        k = max(len(model.references), 1)
    references, policy = make_references(kind, images, k=k, seed=seed)
    model.set_references(references, policy=policy)
    model.reference_kind = kind
    forget_old_references(model)


def make_references(
    kind: Kind, images: Tensor, *, k: int | None = None, seed: int = 0
) -> tuple[Tensor, str]:
    """References made of statistics of `images`, and in words what they are; by default one."""
    check_option("the kind of references", kind, get_args(Kind))
    if kind == "mean" and k not in (None, 1):
        raise OptionError(f"expected k of 1 with the mean, which is one image, found {k}.")
    pool = ReferencePool(images)
    _check_many(images)
    if kind == "mean":
        return pool.mean(), f"mean of {len(pool):,} training images"
    made = pool.synthetic(1 if k is None else k, seed=seed)
    what = "the moments" if images.ndim == 2 else "the spectrum"
    count = "1 image" if len(made) == 1 else f"{len(made):,} images"
    return made, f"synthetic, {count} with {what} of {len(pool):,} training images"


def forget_old_references(model: Anchored) -> None:
    """Drop what was made with other references: the threshold, and the bank of residuals."""
    model.threshold = None
    model.residuals = torch.empty(0, device=model.residuals.device)


def _check_many(images: Tensor) -> None:
    """Refuse few images, also where they come many times: their mean would be them."""
    different: set[bytes] = set()
    for image in images:
        different.add(image.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        if len(different) == FEWEST:
            return
    raise ReferencesError(
        f"expected at least {FEWEST} different training images for references that show none of"
        f" them, found {len(different)}. Give all images the model was trained on, or store"
        " references that may leave: model.set_references(images)."
    )
