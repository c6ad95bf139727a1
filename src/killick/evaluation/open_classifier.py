"""The classifier of a model, a folder, a name or an exported file."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating
from killick.core.folding import Folded
from killick.core.image_model import (
    ImageModel,
    image_model_in,
    make_normalizer,
)
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView, view_for
from killick.errors import (
    InstallError,
    KillickError,
    OptionError,
    OutputError,
    check_least,
    one_line,
)
from killick.evaluation.classifier import Classifier
from killick.evaluation.other_networks import (
    FunctionNet,
    Normalization,
    make_by_name,
    refuse_options,
    wrap_network,
)
from killick.nets import remembered, weights_of
from killick.nets.custom import is_network_name
from killick.runtime.processes import choose_device
from killick.storage.exported_file import FILES, is_export, open_export
from killick.storage.loading import load
from killick.storage.weights import digest_weights


def open_classifier(
    model: "Classifier | nn.Module | Callable[[Tensor], Tensor] | str | os.PathLike[str]",
    *,
    references: int | None = None,
    device: torch.device | str | None = None,
    trust: bool = False,
    name: str | None = None,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    interpolation: str | None = None,
    like: Callable[[], ImageSet] | None = None,
) -> Classifier:
    """The classifier that a model, a folder, a name or an exported file stands for.

    The options are those of `killick.evaluate`; `references` is 1 by default, and `like` loads
    images with the classes and the size of a network that does not know its own.
    """
    if isinstance(model, Classifier):
        return model
    check_least("references", references)
    place = choose_device(place_of(model, device))
    own = {"normalize": normalize, "size": size, "resize": resize, "interpolation": interpolation}
    named = {"checkpoint": checkpoint, "pretrained": pretrained or None}
    if isinstance(model, str | os.PathLike):
        given = os.fspath(model)
        if is_export(Path(given)):
            refuse_options(given, **named, **own)
            must = isinstance(device, str) and device != "auto"
            return _open_exported(Path(given), references, place, trust, name, must)
        if is_network_name(given):
            name = name or given
            classes = None if like is None or checkpoint is None else like().classes
            model = make_by_name(given, checkpoint, pretrained, classes)
        else:
            refuse_options(given, **named, normalize=normalize)
            if Path(given).is_file():
                raise OptionError(
                    f"{given} is a file, not a folder. For bare weights, name their network:"
                    f" timm:NAME --checkpoint {given}."
                )
            name = name or name_model(given)
            model = load(given)
    elif not callable(model):
        raise OptionError(
            "expected a model, a folder, an exported file or a name such as timm:resnet50, found"
            f" {type(model).__name__}."
        )
    net = model if isinstance(model, nn.Module) else FunctionNet(model)
    inner = image_model_in(net) or net
    if not isinstance(inner, ImageModel | Folded):
        images = None if like is None else like()
        net = inner = wrap_network(net, images, normalize, size, resize, interpolation)
    name, shape = name or _describe(inner), tuple(inner.image_shape)
    if len(shape) != 3 or shape[0] != 3:
        raise OptionError(f"{name} takes inputs of shape {shape}, not RGB images.")
    view = view_for(inner) if isinstance(inner, ImageModel) else PlainView(shape[-1])
    view = view.override(size, resize, interpolation)
    weights, normalizer = digest_weights(inner), None
    if inner.normalize is None:
        normalizer = make_normalizer(normalize)
        if normalizer is None:
            raise OptionError(
                f"{name} takes floats, and images are uint8. Say how they are normalized:"
                " normalize=(mean, std)."
            )
        text = f"{weights} {normalizer.mean} {normalizer.std}"
        weights = hashlib.sha256(text.encode()).hexdigest()[:12]
        normalizer = normalizer.to(place)
    if isinstance(inner, Anchored):
        references = len(inner.stored_references(references or 1))
    elif references not in (None, 1):
        raise OptionError(f"{name} has no references, found references={references}.")
    else:
        references = None
    provenance = getattr(inner, "provenance", {}) or {}
    known = weights_of(getattr(inner, "net", inner))
    classifier = Classifier(
        name,
        net.to(place),
        place,
        view,
        inner.class_names,
        references,
        _facts(inner, provenance),
        weights,
        provenance=provenance,
        normalizer=normalizer,
        class_ids=None if known is None else known.class_ids,
    )
    classifier.classes = _try(classifier)
    return classifier


def name_model(place: str) -> str:
    """The name of a model: that of its folder, or of the run that it is in.

    Example:
        >>> name_model("runs/mine"), name_model("runs/mine/model")
        ('mine', 'mine')
    """
    whole = Path(place).absolute()
    return whole.parent.name if whole.name == "model" else whole.name


def place_of(model: object, device: torch.device | str | None) -> str:
    """The device given; else where the model is, if it is one already."""
    if device is not None or not isinstance(model, nn.Module):
        return str(device or "auto")
    weights = next(iter(model.parameters()), None)
    return "cpu" if weights is None else str(weights.device)


def _try(classifier: Classifier) -> int:
    """The number of logits; an error before data are read if the network does not work."""
    size = classifier.view.size
    trial = torch.zeros(2, 3, size, size, dtype=torch.uint8, device=classifier.device)
    with evaluating(classifier.model):
        try:
            logits = classifier.logits(trial)
        except KillickError:
            raise
        except Exception as problem:  # whatever a network raises for images of another size
            raise OutputError(
                f"cannot run {classifier.name} on images of {size} px: {one_line(problem)}. Give its"
                " own size: size= (--size)."
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
    if references not in (None, about.k or 1):
        raise OptionError(f"{path} was exported for references={about.k or 1}, found {references}.")
    own_name = file.absolute().parent.name if file.name in FILES.values() else file.stem
    with open(file, "rb") as opened:
        weights = hashlib.file_digest(opened, "sha256").hexdigest()[:12]
    return Classifier(
        name or own_name,
        FunctionNet(lambda images: exported(images)["logits"].to(images.device)),
        device,
        PlainView(about.image_shape[-1], about.resize, about.interpolation, about.squash),
        about.class_names,
        about.k or None,
        {"network": about.network, "protocol": "exported", "reference_policy": about.references},
        weights,
        exported.classes,
        exported=exported,
    )


def _describe(model: nn.Module) -> str:
    net = getattr(model, "net", model)
    made = net if isinstance(net, FunctionNet) else remembered(net)
    return type(net).__name__ if made is None else made.name


def _facts(model: nn.Module, provenance: dict[str, Any]) -> dict[str, Any]:
    """How it was trained, if known, and what kind of model it is."""
    known = dict(getattr(model, "trained_with", None) or provenance.get("facts") or {})
    known.pop("data", None)  # rows name the data they are about
    others = "folded" if isinstance(model, Folded) else "standard"
    kind = "anchored" if isinstance(model, Anchored) else others
    facts = {"network": _describe(model), "protocol": kind, "reference_policy": "", **known}
    if policy := getattr(model, "reference_policy", None):  # replaced since it was trained
        facts["reference_policy"] = policy
    return facts
