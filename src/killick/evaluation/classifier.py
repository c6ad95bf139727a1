"""The classifier adapter: uint8 images in, logits out, one output for each reference.

Evaluation and deployment see a model of Killick, any other network or function, a network by name
and an exported file alike, as a `Classifier`. `open_classifier` makes one.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating
from killick.core.folding import Folded
from killick.core.image_model import (
    ImageModel,
    Normalize,
    Threshold,
    image_model_in,
    make_normalizer,
)
from killick.core.inference import Prediction, predict
from killick.core.standard import Standard
from killick.core.transduction import residual_bank, residual_distances
from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView
from killick.errors import InstallError, KillickError, OptionError, OutputError
from killick.evaluation.other_networks import (
    FunctionNet,
    Normalization,
    check_statistics,
    make_by_name,
    usual_view,
    wrap_network,
)
from killick.nets import remembered
from killick.nets.custom import LIBRARIES, own_libraries
from killick.runtime.processes import choose_device
from killick.storage.exported_file import FILES, Exported, is_export, open_export
from killick.storage.loading import load
from killick.storage.weights import digest_weights

BANK_IMAGES = 2000


@dataclass
class Classifier:
    """A network with its preprocessing.

    Attributes:
        name: For rows and messages.
        model: Anchored, standard or folded, perhaps inside DDP or `torch.compile`.
        exported: The exported file, instead of a model.
        device: Where it runs.
        size: Height and width of its images.
        class_names: In the order of the logits, if known.
        classes: Number of logits.
        references: How many stored references it uses; None if it has none.
        facts: How it was trained, as columns of rows.
        weights: A digest of them.
        resize: What the shorter side of an image is resized to before the center crop.
        interpolation: For resizing.
        recipe: Of its training, if known.
        bank: Residuals like those of training, of an anchored model, if known.
        normalizer: For a model that takes floats.
        precision: Its own, if it has one.
        trained_on: Fingerprint of its training set, if known.
    """

    name: str
    model: nn.Module
    device: torch.device
    size: int
    class_names: tuple[str, ...] | None
    references: int | None
    facts: dict[str, Any]
    weights: str
    classes: int = 0
    resize: int | None = None
    interpolation: str = "bilinear"
    recipe: dict[str, Any] = field(default_factory=dict)
    bank: Tensor | None = field(default=None, repr=False)
    normalizer: Normalize | None = None
    precision: str | None = None
    trained_on: str | None = None
    exported: Exported | None = None

    @property
    def outputs(self) -> int:
        """How many outputs `logits` gives for each image: one for each reference."""
        return 1 if self.exported is not None else self.references or 1

    @property
    def stored(self) -> int:
        """How many references are stored in the model."""
        inner = image_model_in(self.model)
        return len(inner.references) if isinstance(inner, Anchored) else 0

    @property
    def view(self) -> PlainView:
        """How images are resized and cropped for it."""
        return PlainView(self.size, self.resize, self.interpolation)

    @property
    def threshold(self) -> Threshold | None:
        """The stored energy threshold, if there is one for so many references."""
        if self.exported is not None:
            return self.exported.threshold
        found: Threshold | None = getattr(image_model_in(self.model), "threshold", None)
        return found if found is not None and found.k == (self.references or 1) else None

    @property
    def usual_batch(self) -> int:
        """A good number of images for a forward pass."""
        many = 100 if self.device.type == "cpu" else 1000
        return many if self.size <= 64 else many // 4

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """`(references, n, classes)`: the logits of uint8 images for each reference, as float32."""
        images = self._normalized(images).contiguous(memory_format=torch.channels_last)
        if image_model_in(self.model) is None:
            output: Tensor = self.model(images)
            return output.float()[None]
        found = self._predict(images, members=True).members
        assert found is not None
        return found.float()

    @torch.no_grad()
    def predict(self, images: Tensor) -> Prediction:
        """The prediction for uint8 images, `(n, 3, size, size)`, over all of its references."""
        images = images.to(self.device)
        if self.exported is None:
            return self._predict(self._normalized(images))
        found = self.exported(images)
        inside = found.get("in_distribution")
        return Prediction(
            found["logits"].float(),
            torch.arange(self.references or 0),
            probs=found["probabilities"].float(),
            energy=found["energy"].float().flatten(),
            std=found.get("std"),
            in_distribution=None if inside is None else inside.bool().flatten(),
        )

    @torch.no_grad()
    def residual_distances(self, images: Tensor) -> Tensor | None:
        """`(references, n)`: distances of residuals from those of training, where these are known."""
        inner = image_model_in(self.model)
        if self.bank is None or not isinstance(inner, Anchored):
            return None
        images = self._normalized(images)
        stored = inner.stored_references(self.outputs, like=images)
        return residual_distances(inner, images, stored, self.bank).T

    def store_residuals(self, train: ImageSet | None, seed: int) -> None:
        """Take the model's residual bank, or make one from training images."""
        inner = image_model_in(self.model)
        if not isinstance(inner, Anchored):
            return
        if len(inner.residuals):
            self.bank = inner.residuals
        elif train is not None:
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(train), generator=generator)[:BANK_IMAGES]
            images = torch.cat(list(read_all(train.part(chosen), self.view)))
            images = self._normalized(images.to(inner.references.device))
            self.bank = residual_bank(inner, images, generator=generator)

    def _predict(self, images: Tensor, *, members: bool = False) -> Prediction:
        if self.references in (None, 1):
            return predict(self.model, images, members=members)
        return predict(self.model, images, "marginal", self.references, members=members)

    def _normalized(self, images: Tensor) -> Tensor:
        return images if self.normalizer is None else self.normalizer(images)


def open_classifier(
    model: "Classifier | nn.Module | Callable[[Tensor], Tensor] | str | os.PathLike[str]",
    *,
    references: int | None = None,
    device: torch.device | str | None = None,
    trust: bool = False,
    name: str | None = None,
    checkpoint: Path | None = None,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    classes: int | None = None,
    usual_size: int | None = None,
) -> Classifier:
    """The classifier that a model, a folder, a name or an exported file stands for.

    Args:
        model: Anchored, standard or folded; any network or function, with `normalize` and `size`; a
            folder written by `killick.save`, a run folder or a name on a hub; a file or folder
            written by `killick export`; or `timm:NAME`, `torchvision:NAME`.
        references: How many stored references an anchored model uses; 1 by default. An exported
            file has its own number.
        device: "auto", "cpu", "cuda"; by default where the model is.
        trust: Needed for .pt2 files, which can run code when they are opened.
        name: For rows and messages.
        checkpoint: Weights for a network by name.
        normalize: `(mean, std)` for images in 0 to 1, for a model that does not normalize itself.
        size: Of the images; the model's own where that is known.
        resize: The shorter side is resized to this before the center crop.
        classes: Of the data, for a network by name.
        usual_size: Of the data's images, for a network that does not know its own.
    """
    if isinstance(model, Classifier):
        return model
    if references is not None and (type(references) is not int or references < 1):
        raise OptionError(f"references must be at least 1, found {references!r}.")
    for option, pixels in (("size", size), ("resize", resize)):
        if pixels is not None and (type(pixels) is not int or pixels < 1):
            raise OptionError(f"{option} must be at least 1 pixel, found {pixels!r}.")
    if name == "":
        raise OptionError("the name of the model is empty. Give one, or leave the option out.")
    check_statistics(normalize)
    place = _choose_place(device, model)
    view: tuple[int | None, str] = (resize, "bilinear")
    if isinstance(model, nn.Module):
        if image_model_in(model) is None and not isinstance(model, Folded):
            model = wrap_network(model, normalize, size or usual_size)
    elif callable(model):
        model = wrap_network(FunctionNet(model), normalize, size or usual_size)
    elif isinstance(model, str | os.PathLike):
        given = os.fspath(model)
        if is_export(Path(given)):
            own = {"checkpoint": checkpoint, "normalize": normalize, "size": size, "resize": resize}
            for option, value in own.items():
                if value is not None:
                    raise OptionError(
                        f"the exported file {given} takes no {option}, found {value}."
                    )
            must = isinstance(device, str) and device != "auto"
            return _open_exported(Path(given), references, place, trust, name, must)
        if given.split(":")[0] in (*LIBRARIES, *own_libraries()) and ":" in given:
            model, name = make_by_name(given, checkpoint, normalize, size, classes), name or given
            view = usual_view(model, given, size, resize)
        else:
            model, name = _load(given, checkpoint, normalize), name or _folder_name(Path(given))
    else:
        raise OptionError(
            "expected a model, a folder, an exported file or a name such as timm:resnet50, found"
            f" {type(model).__name__}."
        )
    return _adapt(model, name, references, place, normalize, size, view)


def _adapt(
    model: nn.Module,
    name: str | None,
    references: int | None,
    device: torch.device,
    normalize: Normalization | None,
    size: int | None,
    view: tuple[int | None, str],
) -> Classifier:
    inner = image_model_in(model) or model
    assert isinstance(inner, ImageModel | Folded)
    name = name or _describe(inner)
    shape, normalizer = tuple(inner.image_shape), None
    if len(shape) != 3 or shape[0] != 3:
        raise OptionError(f"{name} takes inputs of shape {shape}, not RGB images.")
    if inner.normalize is None:
        normalizer = make_normalizer(normalize)
        if normalizer is None:
            raise OptionError(
                f"{name} takes floats, and images are uint8. Say how they are normalized:"
                " normalize=(mean, std)."
            )
        normalizer = normalizer.to(device)
    if isinstance(inner, Anchored):
        references = len(inner.stored_references(references or 1))
    elif references not in (None, 1):
        raise OptionError(f"{name} has no references, found references={references}.")
    else:
        references = None
    model = model.to(device)
    provenance = getattr(inner, "provenance", {}) or {}
    recipe = provenance.get("recipe") or {}
    data = recipe.get("data", {})
    weights, trained_on = digest_weights(inner), provenance.get("trained_on")
    if normalizer is not None:
        text = f"{weights} {normalizer.mean} {normalizer.std}"
        weights = hashlib.sha256(text.encode()).hexdigest()[:12]
    classifier = Classifier(
        name,
        model,
        device,
        size or int(data.get("size") or shape[-1]),
        getattr(inner, "class_names", None),
        references,
        _facts(inner, provenance),
        weights,
        resize=view[0] or data.get("resize"),
        interpolation=data.get("interpolation") or view[1],
        recipe=recipe,
        normalizer=normalizer,
        trained_on=trained_on if isinstance(trained_on, str) else None,
    )
    classifier.classes = _try(classifier)
    return classifier


def _try(classifier: Classifier) -> int:
    """The number of logits; an error before data are read if the network does not work."""
    size = classifier.size
    trial = torch.zeros(2, 3, size, size, dtype=torch.uint8, device=classifier.device)
    with evaluating(classifier.model):
        try:
            logits = classifier.logits(trial)
        except KillickError:
            raise
        except Exception as problem:  # whatever a network raises for images of another size
            reason = " ".join(str(problem).split()).rstrip(".")
            raise OutputError(
                f"cannot run {classifier.name} on images of {size} px: {reason}. Give its own size:"
                " size= (--size)."
            ) from problem
    if logits.ndim != 3 or logits.shape[2] < 2:
        raise OutputError(
            "expected logits of shape (n, classes) with at least two classes, found"
            f" {tuple(logits.shape[1:])} for 2 images."
        )
    if _are_probabilities(logits):
        raise OutputError(
            "the network returns probabilities. Return the logits, or the logarithm of the"
            " probabilities."
        )
    return int(logits.shape[2])


def _are_probabilities(logits: Tensor) -> bool:
    """Whether every row is positive and adds up to 1; rows of zeros and ones could be either."""
    sums = (logits.sum(2) - 1).abs().amax()
    return bool((logits >= 0).all() and sums < 1e-5 and ((logits > 0) & (logits < 1)).any())


class ExportedNet(nn.Module):
    """An exported file as a module: uint8 images to logits on their device."""

    def __init__(self, exported: Exported) -> None:
        super().__init__()
        self._exported = exported

    def forward(self, images: Tensor) -> Tensor:
        """The logits of uint8 images."""
        return self._exported(images)["logits"].to(images.device)


def _open_exported(
    path: Path,
    references: int | None,
    device: torch.device,
    trust: bool,
    name: str | None,
    must_use_device: bool,
) -> Classifier:
    try:
        exported = open_export(path, device=str(device), trust=trust)
    except InstallError:
        if must_use_device or device.type == "cpu":
            raise
        exported = open_export(path, device="cpu", trust=trust)  # its runtime cannot use the GPU
    about, file = exported.about, exported.path
    if about.takes != "uint8" or len(about.image_shape) != 3 or about.image_shape[0] != 3:
        raise OptionError(
            f"{path} takes {about.takes} of shape {about.image_shape}, not uint8 RGB images. Make"
            " its model with normalize=(mean, std), and export it again."
        )
    if references not in (None, exported.k or 1):
        raise OptionError(
            f"{path} was exported with {exported.k or 1} references, found {references}. Leave the"
            " option out, or export the model again."
        )
    own_name = file.absolute().parent.name if file.name in FILES.values() else file.stem
    with open(file, "rb") as opened:
        weights = hashlib.file_digest(opened, "sha256").hexdigest()[:12]
    return Classifier(
        name or own_name,
        ExportedNet(exported),
        device,
        about.image_shape[-1],
        about.class_names,
        exported.k or None,
        {"network": about.network, "protocol": "exported", "reference_policy": about.references},
        weights,
        exported.classes,
        about.resize,
        about.interpolation,
        precision=about.precision,
        exported=exported,
    )


def _choose_place(device: torch.device | str | None, model: object) -> torch.device:
    """The device given; else where the model is, if it is one already."""
    if isinstance(device, torch.device):
        return device
    if device is not None or not isinstance(model, nn.Module):
        return choose_device(device or "auto")
    weights = next(iter(model.parameters()), None)
    return torch.device("cpu") if weights is None else weights.device


def _load(given: str, checkpoint: Path | None, normalize: Normalization | None) -> nn.Module:
    if checkpoint is not None or normalize is not None:
        option = "--checkpoint" if checkpoint is not None else "--mean and --std"
        raise OptionError(
            f"{option} requires a network by name, such as timm:resnet50; {given} has its own."
        )
    if Path(given).is_file():
        raise OptionError(
            f"{given} is a file, not a folder. For bare weights, name their network: timm:NAME"
            f" --checkpoint {given}."
        )
    return load(given)


def _folder_name(folder: Path) -> str:
    """A run is named by its folder, also when the model in it was given."""
    whole = folder.absolute()
    return whole.parent.name if whole.name == "model" else whole.name


def _describe(model: nn.Module) -> str:
    made = remembered(model.net) if hasattr(model, "net") else None  # type: ignore[arg-type]
    if made is not None:
        return made.name
    net = getattr(model, "net", model)
    return net.name if isinstance(net, FunctionNet) else type(net).__name__


def _facts(model: nn.Module, provenance: dict[str, Any]) -> dict[str, Any]:
    """How it was trained, if known, and what kind of model it is."""
    known = dict(provenance.get("facts") or {})
    known.pop("data", None)  # rows name the data they are about
    kinds = {Anchored: "anchored", Folded: "folded", Standard: "standard"}
    kind = next(kind for made, kind in kinds.items() if isinstance(model, made))
    facts = {"network": _describe(model), "protocol": kind, "reference_policy": "", **known}
    if policy := getattr(model, "reference_policy", None):  # replaced since it was trained
        facts["reference_policy"] = policy
    return facts
