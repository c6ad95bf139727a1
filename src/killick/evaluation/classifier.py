"""Who is evaluated: an anchored, folded or ordinary network, asked from each of its references."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating
from killick.core.folding import Folded
from killick.core.image_model import ImageModel, Normalize, image_model_in, make_normalizer
from killick.core.standard import Standard, standard
from killick.core.transduction import residual_bank, residual_distances
from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView
from killick.errors import KillickError, OptionError, OutputError
from killick.nets import IMAGENET_MEAN, IMAGENET_STD, create, remembered
from killick.nets.custom import TAKEN, own_libraries
from killick.storage.model_folder import digest_weights, load
from killick.storage.weights import fill, read_weights

USUAL_REFERENCES = 5
BANK_PICTURES = 2000
_OTHER_CLASSES = "Evaluate it on data with the classes that it was trained for."
Normalization = tuple[Sequence[float], Sequence[float]]


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
        normalizer: For a model that takes floats: makes them of uint8 images.
        precision: That it computes in whatever is asked for, if it has one of its own.
        trained_on: What stands for its training set, see `killick.training.run_inputs.fingerprint`.
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
    normalizer: Normalize | None = None
    precision: str | None = None
    trained_on: str | None = None

    @property
    def members(self) -> int:
        """How many logits there are for each image: one for each reference."""
        return self.references or 1

    @torch.no_grad()
    def ask(self, images: Tensor) -> Tensor:
        """`(references, n, classes)`: the logits from each reference, as float32."""
        inner = image_model_in(self.model)
        images = self._prepared(images).contiguous(memory_format=torch.channels_last)
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
        images = self._prepared(images)
        stored = inner.stored_references(self.members, like=images)
        return residual_distances(inner, images, stored, self.bank).T

    def _prepared(self, images: Tensor) -> Tensor:
        """As the model takes them."""
        return images if self.normalizer is None else self.normalizer(images)

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
            images = self._prepared(images.to(inner.references.device))
            self.bank = residual_bank(inner, images, generator=generator)


def make_subject(
    model: "nn.Module | Callable[[Tensor], Tensor] | str | os.PathLike[str]",
    *,
    name: str | None = None,
    references: int = USUAL_REFERENCES,
    checkpoint: Path | None = None,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    classes: int | None = None,
    usual_size: int | None = None,
    device: torch.device | str = "cpu",
) -> Subject:
    """The subject that a model, a folder or a name stands for, on `device`.

    Args:
        model: Anchored, standard or folded; any network or function, with `normalize` and `size`; a
            folder written by `killick.save` or a run folder; or `timm:NAME`, `torchvision:NAME`.
        name: What rows call it.
        references: How many of the stored references to ask an anchored model from.
        checkpoint: Weights for a network made by name.
        normalize: `(mean, std)` for images in 0 to 1, for a model that does not normalize itself.
        size: Of the images; the model's own where that is known.
        resize: See `Subject`.
        classes: Of the data, for a network made by name.
        usual_size: That of the data, for a network that does not say its own.
        device: Where it is asked.
    """
    if type(references) is not int or references < 1:
        raise OptionError(f"expected references of at least 1, found {references!r}.")
    for option, pixels in (("size", size), ("resize", resize)):
        if pixels is not None and (type(pixels) is not int or pixels < 1):
            raise OptionError(f"expected {option} of at least 1 pixel, found {pixels!r}.")
    if name == "":
        raise OptionError("expected a name for the model, found none between the quotes.")
    _check_normalize(normalize)
    view = (resize, "bilinear")
    if isinstance(model, nn.Module):
        if image_model_in(model) is None and not isinstance(model, Folded):
            model = _wrap(model, normalize, size or usual_size)
    elif callable(model):
        model = _wrap(_Function(model), normalize, size or usual_size)
    elif isinstance(model, str | os.PathLike):
        given = os.fspath(model)
        if given.split(":")[0] in (*TAKEN, *own_libraries()) and ":" in given:
            model, name = _make_by_name(given, checkpoint, normalize, size, classes), name or given
            view = _usual_view(model, given, size, resize)
        else:
            if checkpoint is not None or normalize is not None:
                option = "--checkpoint" if checkpoint is not None else "--mean and --std"
                raise OptionError(
                    f"expected {option} with a network by name, such as timm:resnet50, found it"
                    f" with {given}, which has its own."
                )
            folder = Path(given)
            if folder.is_file():
                raise OptionError(
                    f"expected a folder or a name such as timm:resnet50, found the file {given}. Of"
                    f" bare weights say which network they are of: timm:NAME --checkpoint {given}."
                )
            model, name = load(folder), name or _folder_name(folder)
    else:
        raise OptionError(
            "expected a model, a folder or a name such as timm:resnet50, found"
            f" {type(model).__name__}."
        )
    inner = image_model_in(model) or model
    assert isinstance(inner, ImageModel | Folded)
    shape, normalizer = tuple(inner.image_shape), None
    if len(shape) != 3 or shape[0] != 3:
        raise OptionError(f"expected a model of RGB images, found one of inputs of shape {shape}.")
    if inner.normalize is None:
        if normalize is None:
            raise OptionError(
                "expected normalize=(mean, std) with a model that takes floats: images are uint8,"
                " and nothing says how to normalize them."
            )
        normalizer = make_normalizer(normalize)
        assert normalizer is not None
        normalizer = normalizer.to(device)
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
        view[0] or recipe.get("data", {}).get("resize"),
        recipe.get("data", {}).get("interpolation") or view[1],
        recipe,
        normalizer=normalizer,
        trained_on=known if isinstance(known := provenance.get("trained_on"), str) else None,
    )
    if normalizer is not None:
        how = f"{subject.weights} {normalizer.mean} {normalizer.std}"
        subject.weights = hashlib.sha256(how.encode()).hexdigest()[:12]
    with evaluating(model):
        trial = torch.zeros(2, 3, side, side, dtype=torch.uint8, device=device)
        try:
            logits = subject.ask(trial)
        except KillickError:
            raise
        except Exception as problem:  # whatever a network raises for images of another size
            reason = " ".join(str(problem).split())
            raise OutputError(
                f"cannot run {subject.name} on images of {side} px: {reason}. Give its own size:"
                " size= (--size)."
            ) from problem
    if logits.ndim != 3 or logits.shape[2] < 2:
        raise OutputError(
            "expected logits of shape (n, classes) with at least two classes, found"
            f" {tuple(logits.shape[1:])} for 2 images."
        )
    if _are_probabilities(logits):
        raise OutputError(
            "expected logits, found probabilities, which would be taken for logits. Return what"
            " comes before the softmax, or the logarithm."
        )
    subject.classes = logits.shape[2]
    return subject


def _are_probabilities(logits: Tensor) -> bool:
    """Whether every row is positive and adds up to 1; answers that are 0 or 1 could be either."""
    sums = (logits.sum(2) - 1).abs().amax()
    return bool((logits >= 0).all() and sums < 1e-5 and ((logits > 0) & (logits < 1)).any())


class _Function(nn.Module):
    """A function that maps images to logits, in a module's clothes."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function
        own = str(getattr(function, "__name__", type(function).__name__))
        self.name = "function" if own == "<lambda>" else own

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


def _wrap(net: nn.Module, normalize: Normalization | None, size: int | None) -> Standard:
    """A network of which nothing is known but what timm's say."""
    config = getattr(net, "pretrained_cfg", None) or {}
    if normalize is None and config.get("mean"):
        normalize = (config["mean"], config["std"])
    if size is None and config.get("input_size"):
        size = int(config["input_size"][-1])
    missing = [
        option
        for option, value in (("normalize=(mean, std)", normalize), ("size=", size))
        if value is None
    ]
    if missing:
        raise OptionError(
            f"expected {' and '.join(missing)} with {type(net).__name__}, which does not say what"
            " images it takes. For a network that takes images in 0 to 1: normalize=((0, 0, 0),"
            " (1, 1, 1))."
        )
    assert size is not None
    return standard(net, normalize, image_shape=(3, size, size))


def _make_by_name(
    name: str,
    checkpoint: Path | None,
    normalize: Normalization | None,
    size: int | None,
    classes: int | None,
) -> Standard:
    net = create(name, **({} if classes is None else {"num_classes": classes}))
    if checkpoint is None:
        raise OptionError(
            f"expected --checkpoint FILE with {name}: without it the network knows nothing."
        )
    hint = "Name the data it was trained on: --data." if classes is None else _OTHER_CLASSES
    if checkpoint.is_dir():
        raise OptionError(
            f"expected --checkpoint to be a file with weights, found the folder {checkpoint}. Of a"
            f" run or a saved model, name the folder alone: killick evaluate {checkpoint}."
        )
    which = "Name the network that it is of: timm:resnet50, for example."
    weights = read_weights(checkpoint)
    fill(net, weights, checkpoint, name, new_head=False, hint=hint, which=which)
    if name.partition(":")[0] not in TAKEN and (normalize is None or size is None):
        raise OptionError(
            f"expected --mean, --std and --size with {name}, a network of your own: what images it"
            " was trained with is not known."
        )
    config = getattr(net, "pretrained_cfg", None) or {}
    mean, std = config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD)
    side = size or int((config.get("input_size") or (3, 32 if name[:5] == "killick" else 224))[-1])
    return standard(net.eval(), normalize or (mean, std), image_shape=(3, side, side))


def _usual_view(
    model: Standard, name: str, size: int | None, resize: int | None
) -> tuple[int | None, str]:
    """To what pictures are usually resized for a library's networks, and how."""
    config = getattr(model.net, "pretrained_cfg", None) or {}
    how = config.get("interpolation", "bilinear")
    if resize is not None or size is not None:
        return resize, how
    side = model.image_shape[-1]
    if config.get("crop_pct"):
        return int(side / config["crop_pct"]), how
    return (round(side * 256 / 224) if name.startswith("torchvision") else None), how


def _check_normalize(normalize: Any) -> None:
    try:
        fits = normalize is None or [len(part) for part in normalize] == [3, 3]
    except TypeError:
        fits = False
    if not fits:
        raise OptionError(
            "expected normalize=(mean, std) with three numbers each, for images in 0 to 1, found"
            f" {normalize!r}."
        )


def _folder_name(folder: Path) -> str:
    """A run is called by its folder, also when the model in it was named."""
    whole = folder.absolute()
    return whole.parent.name if whole.name == "model" else whole.name


def _describe(model: nn.Module) -> str:
    made = remembered(model.net) if hasattr(model, "net") else None  # type: ignore[arg-type]
    if made is not None:
        return made.name
    net = getattr(model, "net", model)
    return net.name if isinstance(net, _Function) else type(net).__name__


def _facts(model: nn.Module, provenance: dict[str, Any]) -> dict[str, Any]:
    """How it was trained, as far as it says; what it is, in any case."""
    known = dict(provenance.get("facts") or {})
    known.pop("data", None)  # rows name the data they are about
    kinds = {Anchored: "anchored", Folded: "folded", Standard: "standard"}
    kind = next(kind for made, kind in kinds.items() if isinstance(model, made))
    facts = {"network": _describe(model), "protocol": kind, "reference_policy": "", **known}
    if policy := getattr(model, "reference_policy", None):  # replaced since it was trained
        facts["reference_policy"] = policy
    return facts
