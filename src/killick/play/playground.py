"""What the page shows: an image, corrupted, and what each model predicts for it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from killick.attention import last_map
from killick.core.image_model import Threshold
from killick.core.inference import predict
from killick.corruptions.corruption import CORRUPTIONS, choose_table, corrupt
from killick.data.image_set import ImageSet
from killick.deploy.decoding_limits import decode_limited, read_file
from killick.deploy.image_paths import InputImage
from killick.deploy.prediction_records import Record, make_records
from killick.errors import OptionError
from killick.evaluation.classifier import Classifier
from killick.results.run_folder import JOB, read_job

MOST_IMAGES = 24  # of the test set, to pick from
MOST_REFERENCES = 5  # whose spread is shown
TOP = 5  # classes with a bar


@dataclass(frozen=True)
class ChosenImage:
    """An image as each model takes it, and its class if that is known."""

    views: tuple[Tensor, ...]
    label: str | None = None


@dataclass(frozen=True)
class ModelResult:
    """What a model predicts for an image."""

    model: str
    image: Tensor  # as the model takes it, corrupted: uint8 (3, size, size)
    record: Record
    threshold: Threshold | None  # of the energy; None if none is stored
    references: int  # whose spread `record.std` is, if there are several; 0 for a standard model
    true_label: str | None  # None if it is not known, or no class of the model
    attention: Tensor | None  # (size, size), from 0 to 1


@dataclass(frozen=True)
class Playground:
    """Models side by side, and test images to begin with."""

    classifiers: tuple[Classifier, ...]
    images: ImageSet | None = None
    # Visitors share the models, and attention is captured by hooks on them.
    _one_visitor: Lock = field(default_factory=Lock, repr=False)

    def corruptions(self) -> tuple[str, ...]:
        """The corruptions that have constants for the image size of every model."""
        tables = {choose_table((each.view.size,) * 2) for each in self.classifiers}
        return tuple(
            name
            for name, entry in CORRUPTIONS.items()
            if all(entry.choose_table(table) in entry.tables for table in tables)
        )

    def test_image(self, number: int) -> ChosenImage:
        """One of the test images."""
        assert self.images is not None
        label = self.images.class_names[int(self.images.labels[number])]
        return self._choose(self.images.read(number), label)

    def open_file(self, path: str | os.PathLike[str]) -> ChosenImage:
        """The image in an untrusted file; a `DataError` if it is none, or too large."""
        name = Path(path).name
        return self._choose(decode_limited(read_file(path, name), name), None)

    def _choose(self, image: Tensor, label: str | None) -> ChosenImage:
        return ChosenImage(tuple(each.view(image) for each in self.classifiers), label)

    def show(self, chosen: ChosenImage, corruption: str, severity: int) -> list[ModelResult]:
        """What each model predicts for the image, corrupted the same way each time; 0: as it is."""
        with self._one_visitor:
            return [
                _show(classifier, view, chosen.label, corruption, severity)
                for classifier, view in zip(self.classifiers, chosen.views, strict=True)
            ]


def _show(
    classifier: Classifier, view: Tensor, label: str | None, corruption: str, severity: int
) -> ModelResult:
    images = view[None]
    if severity:
        images = corrupt(images, corruption, severity, generator=torch.Generator().manual_seed(0))
    found, references = classifier.predict(images), 0
    if (anchored := classifier.anchored) is not None:
        references = min(len(anchored.references), MOST_REFERENCES)
    if references > 1:
        inputs = images.to(classifier.device)
        found = replace(found, std=predict(classifier.model, inputs, "marginal", references).std)
    names = classifier.class_names
    record = make_records([InputImage("the image")], found, names, top=TOP)[0]
    return ModelResult(
        classifier.name,
        images[0],
        record,
        classifier.threshold,
        references,
        label if label in (names or ()) else None,
        attention_map(classifier, images[0]),
    )


def attention_map(classifier: Classifier, image: Tensor) -> Tensor | None:
    """Where a transformer looks in the image, `(size, size)` from 0 to 1; None if it has no map."""
    kinds = (type(module).__name__.lower() for module in classifier.model.modules())
    if not any("attention" in kind for kind in kinds):
        return None  # at once: most networks have none
    prepared = classifier.prepare(image[None].to(classifier.device))
    try:
        found = last_map(classifier.model, prepared)
    except OptionError:  # attention that cannot be placed on the image
        return None
    if found is None:
        return None
    scaled = interpolate(found[None].float(), tuple(image.shape[1:]), mode="bilinear")[0, 0].cpu()
    lowest, highest = scaled.aminmax()
    return (scaled - lowest) / (highest - lowest).clamp_min(1e-12)


def choose_images(images: ImageSet) -> ImageSet:
    """Some of a test set, the same each time."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images.part(order[:MOST_IMAGES])


def find_models(places: Iterable[str]) -> list[tuple[str, str | None]]:
    """The models at some places, each with its name if that is not its folder's.

    A comparison's folder stands for the first seed of each of its arms.
    """
    return [found for place in places for found in _first_seeds(Path(place)) or [(place, None)]]


def _first_seeds(folder: Path) -> list[tuple[str, str | None]]:
    firsts: dict[str, tuple[int, str]] = {}
    for file in sorted(folder.glob(f"*/{JOB}")):
        job = read_job(file.parent)
        found = int(job.get("seed", 0)), str(file.parent)
        if (file.parent / "model").is_dir():
            arm = str(job.get("arm", file.parent.name))
            firsts[arm] = min(found, firsts.get(arm, found))
    return [(place, arm) for arm, (_, place) in firsts.items()]
