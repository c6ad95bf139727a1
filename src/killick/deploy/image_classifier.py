"""Who answers: a model of Killick, or a file that was exported from one.

Both are shown uint8 pictures and say the same things of them, so nothing after this knows which of
the two it was.
"""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.image_model import Threshold
from killick.core.inference import Prediction, predict
from killick.core.standard import model_in
from killick.data.preprocessing import PlainView, view_for
from killick.errors import InstallError, KillickError, OptionError, OutputError
from killick.runtime.processes import choose_device
from killick.storage.model_folder import load

if TYPE_CHECKING:
    from killick.storage.exported_file import Exported


@dataclass(frozen=True)
class Answered:
    """What is said of `n` pictures, on the CPU.

    Attributes:
        probs: `(n, classes)`.
        energy: `(n,)`: higher is more out-of-distribution.
        std: `(n, classes)`, of the probabilities over references; None with one reference.
        in_distribution: `(n,)`, whether; None without a threshold.
    """

    probs: Tensor
    energy: Tensor
    std: Tensor | None = None
    in_distribution: Tensor | None = None


@runtime_checkable
class Classifier(Protocol):
    """Whoever can be shown pictures."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of the probabilities, if known."""
        ...

    @property
    def classes(self) -> int:
        """How many there are."""
        ...

    @property
    def view(self) -> PlainView:
        """What it is shown of a picture."""
        ...

    @property
    def references(self) -> int | None:
        """How many it answers from; None if it has none."""
        ...

    @property
    def threshold(self) -> Threshold | None:
        """Where in-distribution ends, if known for so many references."""
        ...

    @property
    def usual_batch(self) -> int:
        """How many pictures it is best asked about at once."""
        ...

    def answer(self, images: Tensor) -> Answered:
        """What it says of pictures, uint8 `(n, 3, size, size)`."""
        ...


class ModelClassifier:
    """An anchored or standard model.

    Args:
        model: In eval mode; it takes uint8 RGB images.
        name: What messages call it.
        references: From how many of its stored references an anchored one answers; 1 by default.
        device: Where the model is.

    Attributes:
        fitted_for: The number of references that the stored threshold is for, if there is one.
    """

    def __init__(
        self, model: nn.Module, name: str, references: int | None, device: torch.device
    ) -> None:
        inner = model_in(model)
        _check_images(inner.image_shape, inner.normalize is not None, name)
        anchored = isinstance(inner, Anchored)
        if references is not None and (type(references) is not int or references < 1):
            raise OptionError(f"expected references of at least 1, found {references!r}.")
        if not anchored and references not in (None, 1):
            raise OptionError(
                f"expected no references with {name}, a standard model, found {references}. Leave"
                " the option out."
            )
        self.name, self.class_names, self.view = name, inner.class_names, view_for(inner)
        self.references = (references or 1) if anchored else None
        fits = inner.threshold is not None and inner.threshold.k == (self.references or 1)
        self.threshold = inner.threshold if fits else None
        self.fitted_for = None if inner.threshold is None else inner.threshold.k
        self.usual_batch = _usual_batch(self.view.size, device)
        self._model, self._device = model, device
        self.classes = self._try()

    def answer(self, images: Tensor) -> Answered:
        """What it says of pictures, uint8 `(n, 3, size, size)`."""
        said = self._predict(images)
        assert said.probs is not None
        assert said.energy is not None
        std = None if said.std is None else said.std.cpu()
        inside = None if said.in_distribution is None else said.in_distribution.cpu()
        return Answered(said.probs.cpu(), said.energy.cpu(), std, inside)

    def _predict(self, images: Tensor) -> Prediction:
        images = images.to(self._device)
        if self.references in (None, 1):
            return predict(self._model, images)
        return predict(self._model, images, "marginal", self.references)

    def _try(self) -> int:
        """How many classes it tells apart; also, whether it works at all, before files are read."""
        size = self.view.size
        try:
            said = self._predict(torch.zeros(1, 3, size, size, dtype=torch.uint8))
        except KillickError:
            raise
        except Exception as problem:  # whatever a network raises for images of another size
            reason = " ".join(str(problem).split()).rstrip(".")
            raise OutputError(
                f"cannot run {self.name} on images of {size} px: {reason}. Save it with the size"
                " of its images."
            ) from problem
        return int(said.logits.shape[1])


class ExportedClassifier:
    """A network in a file that `killick export` wrote.

    Args:
        exported: The opened file.
        references: How many are expected in it; by default whatever there are.
        device: Where it runs.
    """

    def __init__(self, exported: "Exported", references: int | None, device: torch.device) -> None:
        name, about = str(exported.path), exported.about
        _check_images(about.image_shape, about.takes == "uint8", name)
        if references not in (None, exported.k or 1):
            raise OptionError(
                f"expected references of {exported.k or 1}, as {name} was exported with, found"
                f" {references}. Leave the option out, or export the model again."
            )
        self.name, self.class_names = name, exported.class_names
        self.classes, self.references = exported.classes, exported.k or None
        self.view = PlainView(exported.size, exported.resize, exported.interpolation)
        self.threshold = exported.threshold
        self.usual_batch = _usual_batch(exported.size, device)
        self._exported = exported

    def answer(self, images: Tensor) -> Answered:
        """What it says of pictures, uint8 `(n, 3, size, size)`."""
        said = {name: values.cpu() for name, values in self._exported(images).items()}
        inside = said.get("in_distribution")
        return Answered(
            said["probabilities"].float(),
            said["energy"].float().flatten(),
            said.get("std"),
            None if inside is None else inside.bool().flatten(),
        )


def open_classifier(
    model: "Classifier | nn.Module | str | os.PathLike[str]",
    *,
    references: int | None = None,
    device: str | None = None,
    trust: bool = False,
) -> Classifier:
    """Who answers for a model, a folder, a name or an exported file.

    Args:
        model: Anchored or standard; a folder written by `killick.save`, a run folder or a name on a
            hub, as for `killick.load`; a file or folder written by `killick export`.
        references: From how many an anchored model answers; 1 by default. An exported file has
            its own number.
        device: "auto", "cpu", "cuda" or "cuda:1"; by default where the model is, if it is one.
        trust: Needed for an exported .pt2 file, which can run code when it is opened.
    """
    if isinstance(model, nn.Module):
        weights = next(iter(model.parameters()), None)
        if device is not None:
            place = choose_device(device)
            model = model.to(place)
        else:
            place = torch.device("cpu") if weights is None else weights.device
        return ModelClassifier(model, type(model_in(model).net).__name__, references, place)
    if isinstance(model, Classifier):
        if references not in (None, model.references or 1) or device is not None:
            raise OptionError(
                f"expected no references and no device with {model.name}, which is open already."
            )
        return model
    if not isinstance(model, str | os.PathLike):
        raise OptionError(
            f"expected a model, a folder or an exported file, found {type(model).__name__}."
        )
    from killick.storage.exported_file import is_export

    if is_export(Path(model)):
        return _open_exported(Path(model), references, device or "auto", trust)
    place = choose_device(device or "auto")
    return ModelClassifier(load(model, device=place), os.fspath(model), references, place)


def _open_exported(
    path: Path, references: int | None, device: str, trust: bool
) -> ExportedClassifier:
    from killick.storage.exported_file import open_export

    place = choose_device(device)
    try:
        exported = open_export(path, device=str(place), trust=trust)
    except InstallError:
        if device != "auto" or place.type == "cpu":
            raise
        # There is a GPU, but this file's runtime cannot use it.
        place = torch.device("cpu")
        exported = open_export(path, device="cpu", trust=trust)
    return ExportedClassifier(exported, references, place)


def explain_missing_threshold(classifier: Classifier) -> str:
    """Why in and out of distribution are not told apart, and how they would be."""
    name, count = shlex.quote(classifier.name), classifier.references or 1
    why = f"no threshold is stored with {name}"
    why += f" for {count} references" if count > 1 else ""
    if isinstance(classifier, ExportedClassifier):
        way = "Store one with the model, killick evaluate MODEL --store-threshold, and export again"
    elif isinstance(classifier, ModelClassifier) and classifier.fitted_for is not None:
        way = f"There is one for --references {classifier.fitted_for}"
    elif count > 1:
        way = (
            f"Fit one, killick.fit_threshold(model, images, k={count}), and save the model; or leave"
            f" --references out after killick evaluate {name} --store-threshold"
        )
    else:
        way = f"Store one: killick evaluate {name} --store-threshold"
    return f"{why}, so in and out of distribution are not told apart. {way}."


def _check_images(shape: tuple[int, ...], normalizes: bool, name: str) -> None:
    if len(shape) != 3 or shape[0] != 3:
        raise OptionError(f"expected a model of RGB images, found {name} for inputs of {shape}.")
    if not normalizes:
        raise OptionError(
            f"expected a model that normalizes uint8 images itself, found {name}, which takes"
            " floats. Make it with normalize=(mean, std), and save or export it again."
        )


def _usual_batch(size: int, device: torch.device) -> int:
    """Pictures of a forward pass: many on a GPU, on a CPU as many as its cache takes well."""
    few = device.type == "cpu"
    if size <= 64:
        return 100 if few else 500
    return 25 if few else 125
