"""Who is evaluated: an anchored, folded or ordinary network, asked from each of its references."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kedge.anchored import Anchored, evaluating
from kedge.data.batches import read_all
from kedge.data.images import ImageSet
from kedge.data.views import PlainView
from kedge.errors import OptionError, OutputError
from kedge.folding import Folded
from kedge.image_model import ImageModel, image_model_in
from kedge.nets import create, remembered
from kedge.standard import Standard, standard
from kedge.storage import digest_weights, load
from kedge.training.start import IMAGENET_MEAN, IMAGENET_STD, fill, read_weights
from kedge.transduction import residual_bank, residual_distances

BANK_PICTURES = 2000
Normalisation = tuple[Sequence[float], Sequence[float]]


@dataclass
class Subject:
    """A classifier of uint8 images.

    Attributes:
        name: What rows call it.
        model: In eval mode while it is asked.
        size: Height and width of the images it takes.
        class_names: In the order of the logits, if known.
        classes: How many logits it has.
        references: How many it is asked from: those stored first. None if it has none.
        facts: How it was trained, as rows have it.
        weights: A digest of them.
        resize: To what the shorter side of a picture is brought before the middle is cut out.
        interpolation: How.
        recipe: Of its training, if known.
        bank: Residuals like those of training, of an anchored model, if known.
    """

    name: str
    model: nn.Module
    size: int
    class_names: tuple[str, ...] | None
    classes: int
    references: int | None
    facts: dict[str, Any]
    weights: str
    resize: int | None = None
    interpolation: str = "bilinear"
    recipe: dict[str, Any] = field(default_factory=dict)
    bank: Tensor | None = field(default=None, repr=False)

    @property
    def members(self) -> int:
        """How many logits there are for each image: one for each reference."""
        return self.references or 1

    @torch.no_grad()
    def ask(self, images: Tensor) -> Tensor:
        """`(references, n, classes)`: the logits from each reference, as float32."""
        inner = image_model_in(self.model)
        images = images.contiguous(memory_format=torch.channels_last)
        if isinstance(inner, Anchored):
            stored = inner.stored_references(self.members, like=images)
            layout = torch.channels_last
            views = (r.expand_as(images).contiguous(memory_format=layout) for r in stored)
            found = [self.model(images, view) for view in views]
        else:
            found = [self.model(images)]
        return torch.stack([logits.float() for logits in found])

    @torch.no_grad()
    def measure_distance(self, images: Tensor) -> Tensor | None:
        """`(references, n)`: how far residuals are from those of training, where that is known."""
        inner = image_model_in(self.model)
        if self.bank is None or not isinstance(inner, Anchored):
            return None
        stored = inner.stored_references(self.members, like=images)
        return residual_distances(inner, images, stored, self.bank).T

    def remember_residuals(self, train: ImageSet | None, seed: int) -> None:
        """Take the bank that the model has, or make one from pictures it was trained on."""
        inner = image_model_in(self.model)
        if not isinstance(inner, Anchored):
            return
        if len(inner.residuals):
            self.bank = inner.residuals
        elif train is not None:
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(train), generator=generator)[:BANK_PICTURES]
            view = PlainView(self.size, self.resize, self.interpolation)
            images = torch.cat(list(read_all(train.part(chosen), view)))
            bank = residual_bank(inner, images.to(inner.references.device), generator=generator)
            self.bank = bank


def make_subject(
    model: "nn.Module | str | os.PathLike[str]",
    *,
    name: str | None = None,
    references: int = 5,
    checkpoint: Path | None = None,
    normalise: Normalisation | None = None,
    size: int | None = None,
    resize: int | None = None,
    classes: int | None = None,
    device: torch.device | str = "cpu",
) -> Subject:
    """The subject that a model, a folder or a name stands for, on `device`.

    Args:
        model: Anchored, standard or folded; any network, with `normalise` and `size`; a folder
            written by `kedge.save` or a run folder; or `timm:NAME`, `torchvision:NAME`.
        name: What rows call it.
        references: How many of the stored references to ask an anchored model from.
        checkpoint: Weights for a network made by name.
        normalise: `(mean, std)` for images in 0 to 1; a network's own where that is known.
        size: Of the images; the model's own where that is known.
        resize: See `Subject`.
        classes: Of the data, for a network made by name.
        device: Where it is asked.
    """
    if type(references) is not int or references < 1:
        raise OptionError(f"expected references of at least 1, found {references!r}.")
    interpolation = "bilinear"
    if not isinstance(model, nn.Module):
        given = os.fspath(model)
        if given.split(":")[0] in ("timm", "torchvision", "kedge") and ":" in given:
            made = _make_by_name(given, checkpoint, normalise, size, classes)
            config = getattr(made.net, "pretrained_cfg", None) or {}
            interpolation = config.get("interpolation", interpolation)
            if resize is None and config.get("crop_pct"):
                resize = int(made.image_shape[-1] / config["crop_pct"])
            model, name = made, name or given
        else:
            if checkpoint is not None:
                raise OptionError(
                    "expected --checkpoint with a network by name, such as timm:resnet50, found it"
                    f" with {given}."
                )
            folder = Path(given)
            model, name = load(folder), name or _folder_name(folder)
    elif image_model_in(model) is None and not isinstance(model, Folded):
        if normalise is None or size is None:
            raise OptionError(
                f"expected normalise=(mean, std) and size= with {type(model).__name__}, which does"
                " not say what images it takes. For a network that takes images in 0 to 1:"
                " normalise=((0, 0, 0), (1, 1, 1))."
            )
        model = standard(model, normalise, image_shape=(3, size, size))
    inner = image_model_in(model) or model
    assert isinstance(inner, ImageModel | Folded)
    shape, normalises = tuple(inner.image_shape), inner.normalise
    if len(shape) != 3 or shape[0] != 3 or normalises is None:
        raise OptionError(
            "expected a model of RGB images that normalises by itself, found one that takes"
            f" {'floats' if normalises is None else 'inputs'} of shape {shape}. Make it"
            " with normalise=(mean, std)."
        )
    model = model.to(device)
    provenance = getattr(inner, "provenance", {}) or {}
    recipe = provenance.get("recipe") or {}
    side = size or int(recipe.get("data", {}).get("size") or shape[-1])
    asked = None
    if isinstance(inner, Anchored):
        asked = min(references, len(inner.stored_references(1)) and len(inner.references))
    subject = Subject(
        name or _describe(inner),
        model,
        side,
        getattr(inner, "class_names", None),
        0,
        asked,
        _facts(inner, provenance),
        digest_weights(inner),
        resize or recipe.get("data", {}).get("resize"),
        recipe.get("data", {}).get("interpolation") or interpolation,
        recipe,
    )
    with evaluating(model):
        trial = torch.zeros(2, 3, side, side, dtype=torch.uint8, device=device)
        logits = subject.ask(trial)
    if logits.ndim != 3 or logits.shape[2] < 2:
        raise OutputError(
            "expected logits of shape (n, classes) with at least two classes, found"
            f" {tuple(logits.shape[1:])} for 2 images."
        )
    subject.classes = logits.shape[2]
    return subject


def _make_by_name(
    name: str,
    checkpoint: Path | None,
    normalise: Normalisation | None,
    size: int | None,
    classes: int | None,
) -> Standard:
    if checkpoint is None:
        raise OptionError(
            f"expected --checkpoint FILE with {name}: without it the network knows nothing."
        )
    net = create(name, **({} if classes is None else {"num_classes": classes}))
    fill(net, read_weights(checkpoint), checkpoint, name, new_head=False)
    config = getattr(net, "pretrained_cfg", None) or {}
    mean, std = config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD)
    side = size or int((config.get("input_size") or (3, 32 if name[:5] == "kedge" else 224))[-1])
    return standard(net.eval(), normalise or (mean, std), image_shape=(3, side, side))


def _folder_name(folder: Path) -> str:
    """A run is called by its folder, also when the model in it was named."""
    whole = folder.absolute()
    return whole.parent.name if whole.name == "model" else whole.name


def _describe(model: nn.Module) -> str:
    made = remembered(model.net) if hasattr(model, "net") else None  # type: ignore[arg-type]
    return type(getattr(model, "net", model)).__name__ if made is None else made.name


def _facts(model: nn.Module, provenance: dict[str, Any]) -> dict[str, Any]:
    """How it was trained, as far as it says; what it is, in any case."""
    known = dict(provenance.get("facts") or {})
    known.pop("data", None)  # rows name the data they are about
    kinds = {Anchored: "anchored", Folded: "folded", Standard: "standard"}
    kind = next(kind for made, kind in kinds.items() if isinstance(model, made))
    return {
        "network": _describe(model),
        "protocol": kind,
        "reference_policy": getattr(model, "reference_policy", None) or "",
        **known,
    }
