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
from killick.core.transduction import residual_bank, residual_distances
from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView, view_for
from killick.errors import InstallError, KillickError, OptionError, OutputError, one_line
from killick.evaluation.augmented_views import AugmentedViews
from killick.evaluation.mc_dropout import MCDropout, mean_logits
from killick.evaluation.other_networks import (
    FunctionNet,
    Normalization,
    make_by_name,
    refuse_options,
    wrap_network,
)
from killick.nets import remembered, weights_of
from killick.nets.custom import is_network_name
from killick.nets.ensemble_net import EnsembleNet
from killick.runtime.processes import choose_device
from killick.storage.exported_file import FILES, Exported, is_export, open_export
from killick.storage.loading import load
from killick.storage.weights import digest_weights

BANK_IMAGES = 2000


@dataclass
class Classifier:
    """A network with its preprocessing."""

    name: str  # in rows and messages
    model: nn.Module  # anchored, standard or folded, perhaps inside DDP or `torch.compile`
    device: torch.device
    view: PlainView  # how images are resized and cropped for it
    class_names: tuple[str, ...] | None  # in the order of the logits, if known
    references: int | None  # how many of the stored ones it uses; None if it has none
    facts: dict[str, Any]  # how it was trained, as columns of rows
    weights: str  # a digest of them
    classes: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)  # of the model, if known
    normalizer: Normalize | None = None  # for a model that takes floats
    class_ids: tuple[str, ...] | None = None  # other names of the classes
    exported: Exported | None = None  # the file that `model` runs, if it is one
    bank: Tensor | None = field(default=None, repr=False)  # residuals like those of training
    dropout: MCDropout | None = None  # of predictions with dropout on
    views: AugmentedViews | None = None  # of test-time augmentation
    candidates: int = 0  # references that transduction chooses from; 0: no transduction

    @property
    def recipe(self) -> dict[str, Any]:
        """Of its training; empty if unknown."""
        return self.provenance.get("recipe") or {}

    @property
    def outputs(self) -> int:
        """How many outputs `logits` gives for each image: one for each reference."""
        averaged = self.dropout is not None or self.views is not None
        once = self.exported is not None or self.candidates or averaged
        return 1 if once else self.references or 1

    @property
    def inference(self) -> str:
        """How it predicts from its first reference, as in rows."""
        if self.dropout is not None:
            return "mc-dropout"
        if self.views is not None:
            return "tta"
        return "transductive" if self.candidates else "single"

    @property
    def cost(self) -> int | None:
        """Forward passes of a prediction from one reference; None for an exported file."""
        if self.exported is not None:
            return None
        members = 1 if self.ensemble is None else self.ensemble.cost
        draws = 1 if self.dropout is None else self.dropout.draws
        return members * draws * (1 if self.views is None else len(self.views))

    @property
    def several(self) -> bool:
        """Whether it has several references, draws, views or networks, which may disagree."""
        return self.outputs > 1 or self.inference in ("mc-dropout", "tta") or bool(self.ensemble)

    @property
    def ensemble(self) -> EnsembleNet | None:
        """The ensemble, if it is one."""
        net = getattr(image_model_in(self.model), "net", None)
        return net if isinstance(net, EnsembleNet) else None

    @property
    def anchored(self) -> Anchored | None:
        """The anchored model, if it is one."""
        inner = image_model_in(self.model)
        return inner if isinstance(inner, Anchored) else None

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
        return many if self.view.size <= 64 else many // 4

    def describe_view(self) -> str:
        """The preprocessing of a network by name, which nobody may have given."""
        normalize = getattr(image_model_in(self.model), "normalize", None)
        assert normalize is not None
        return (
            f"{self.name}: images of {self.view.described}, normalized by mean {normalize.mean} and"
            f" std {normalize.std} (--size, --resize, --interpolation, --mean, --std)"
        )

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """`(references, n, classes)`: the logits of uint8 images for each reference, as float32."""
        found = self.passes(images, self._logits)
        return found[0] if len(found) == 1 else mean_logits(torch.cat(found))

    @torch.no_grad()
    def members(self, images: Tensor) -> Tensor | None:
        """`(members, n, classes)`: the logits whose probabilities a prediction is the mean of.

        They are those of dropout draws, augmented views or an ensemble's networks; None if it is no
        such mean.
        """
        inner = image_model_in(self.model)
        if self.ensemble is not None and inner is not None and self.inference == "single":
            images = self.prepare(images).contiguous(memory_format=torch.channels_last)
            return self.ensemble.each(
                images if inner.normalize is None else inner.normalize(images)
            )
        found = self.passes(images, self._logits)
        return None if len(found) == 1 else torch.cat(found)

    def passes(
        self, images: Tensor, run: Callable[[Tensor], Tensor], draws: int | None = None
    ) -> list[Tensor]:
        """What `run` gives in each pass of a prediction: one for each draw of dropout, or view."""
        if self.dropout is not None:
            found = []
            for _ in range(draws or self.dropout.draws):
                with self.dropout.drawing():
                    found.append(run(images))
            return found
        return [run(images)] if self.views is None else [run(each) for each in self.views(images)]

    def _logits(self, images: Tensor) -> Tensor:
        images = self.prepare(images).contiguous(memory_format=torch.channels_last)
        if image_model_in(self.model) is None:
            output: Tensor = self.model(images)
            return output.float()[None]
        found = self._predict(images, members=True)
        return (found.logits[None] if found.members is None else found.members).float()

    @torch.no_grad()
    def predict(self, images: Tensor) -> Prediction:
        """The prediction for uint8 images, `(n, 3, size, size)`, over all of its references."""
        images = images.to(self.device)
        if self.exported is None:
            return self._predict(self.prepare(images))
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
        inner = self.anchored
        if self.bank is None or inner is None:
            return None
        images = self.prepare(images)
        stored = inner.stored_references(self.outputs, like=images)
        return residual_distances(inner, images, stored, self.bank).T

    def store_residuals(self, inner: Anchored, train: ImageSet | None, seed: int) -> None:
        """Take the residual bank of the anchored model, or make one from training images."""
        if len(inner.residuals):
            self.bank = inner.residuals
        elif train is not None:
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(train), generator=generator)[:BANK_IMAGES]
            images = torch.cat(list(read_all(train.part(chosen), self.view)))
            images = self.prepare(images.to(inner.references.device))
            self.bank = residual_bank(inner, images, generator=generator)

    def _predict(self, images: Tensor, *, members: bool = False) -> Prediction:
        if self.candidates:
            return predict(self.model, images, "transductive", self.candidates)
        if self.references in (None, 1):
            return predict(self.model, images, members=members)
        return predict(self.model, images, "marginal", self.references, members=members)

    def prepare(self, images: Tensor) -> Tensor:
        """uint8 images as the model takes them."""
        return images if self.normalizer is None else self.normalizer(images)


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
    if references is not None and (type(references) is not int or references < 1):
        raise OptionError(f"references must be at least 1, found {references!r}.")
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
