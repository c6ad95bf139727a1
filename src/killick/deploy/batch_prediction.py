"""Batch prediction: image files in, one record for each out, in order."""

import os
import shlex
import time
from collections.abc import Generator, Iterable, Iterator

import torch
from torch import nn

from killick.core.standard import model_in
from killick.deploy.image_paths import ImagePath, find_images, require_images
from killick.deploy.image_reading import read_batches
from killick.deploy.prediction_records import Record, make_records
from killick.errors import OptionError
from killick.evaluation.classifier import Classifier, open_classifier


def label(
    model: "Classifier | nn.Module | str | os.PathLike[str]",
    images: "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]",
    *,
    references: int | None = None,
    device: str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    top: int = 0,
    probabilities: bool = False,
    trust: bool = False,
) -> Iterator[Record]:
    """Label, confidence, uncertainty and more of image files: a record for each, in order.

    Images are read by several threads while the model works, and never held all at once. An
    unreadable one has a record with an `error`, and the rest goes on.

    Args:
        model: Anchored or standard; a folder written by `killick.save`, or a run folder; a file or
            folder written by `killick export`; or a `Classifier`.
        images: Paths of files, of folders (all images below them) and patterns such as
            `"photos/**/*.jpg"`: one, or any number of them. What is named twice is labeled twice.
        references: How many of its stored references an anchored model uses, 1 by default; with
            several, `std` is their spread.
        device: "auto", "cpu", "cuda" or "cuda:1"; by default where the model is, if it is one.
        batch: Images of a forward pass; by default what suits their size and the device.
        workers: Threads that read; by default one for each core, at most 16.
        top: Include so many of the most likely classes.
        probabilities: Include the probabilities of all classes.
        trust: Needed for an exported .pt2 file, which can run code when it is opened.

    Returns:
        Records, each as soon as its batch is done.

    Raises:
        DataError: If there is no image at all, when the first record is requested.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> import killick
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
        >>> half = ((0.5,) * 3, (0.25,) * 3)
        >>> model = killick.standard(net, half, image_shape=(3, 8, 8)).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (30, 20)).save(f"{folder}/night.png")
        ...     for record in killick.labelling.label(model, folder):
        ...         print(os.path.basename(record.image), record.confidence >= 0.5)
        night.png True
    """
    classifier = open_classifier(model, references=references, device=device, trust=trust)
    given = [images] if isinstance(images, str | os.PathLike) else images
    batches = predict_batches(
        classifier,
        require_images(find_images(given)),
        batch=batch,
        workers=workers,
        top=top,
        probabilities=probabilities,
    )
    return (record for records in batches for record in records)


def predict_batches(
    classifier: Classifier,
    paths: Iterable[ImagePath],
    *,
    batch: int | None = None,
    workers: int | None = None,
    top: int = 0,
    probabilities: bool = False,
) -> Generator[list[Record], None, None]:
    """The records of images, a batch at a time; see `label`."""
    for option, value, least in (("batch", batch, 1), ("workers", workers, 1), ("top", top, 0)):
        if value is not None and (type(value) is not int or value < least):
            raise OptionError(f"{option} must be at least {least}, found {value!r}.")
    loaded_batches = read_batches(
        paths,
        classifier.view,
        batch=batch or classifier.usual_batch,
        workers=workers or _cores(),
    )

    def predicted() -> Generator[list[Record], None, None]:
        for loaded in loaded_batches:
            images = [each.image for each in loaded if each.image is not None]
            found = classifier.predict(torch.stack(images)) if images else None
            names = classifier.class_names
            yield make_records(loaded, found, names, top=top, probabilities=probabilities)

    return predicted()


class RecordCounts:
    """Counts of all records so far, and the time since it was made.

    Args:
        has_threshold: Whether OOD images are counted.
    """

    def __init__(self, has_threshold: bool) -> None:
        self.images = self.broken = self.out = 0
        self._has_threshold, self._began = has_threshold, time.monotonic()

    def add(self, records: list[Record]) -> None:
        """Count some more."""
        self.images += len(records)
        self.broken += sum(record.error is not None for record in records)
        self.out += sum(record.in_distribution is False for record in records)

    @property
    def speed(self) -> str:
        """Images per second."""
        speed = self.images / max(1e-9, time.monotonic() - self._began)
        return f"{speed:,.0f} images/s" if speed >= 10 else f"{speed:.1f} images/s"

    def describe(self) -> str:
        """All of it in a line."""
        parts = [f"{self.images:,} image{'s' * (self.images != 1)}"]
        parts += [f"{self.broken:,} unreadable"] if self.broken else []
        parts += [f"{self.out:,} out of distribution"] if self._has_threshold else []
        return ", ".join([*parts, self.speed])


def explain_missing_threshold(classifier: Classifier, model: str) -> str:
    """Why OOD images are not detected, and how to store a threshold.

    Args:
        classifier: Without a threshold.
        model: As the user named it.
    """
    count, name = classifier.references or 1, shlex.quote(model)
    why = f"no OOD threshold is stored in {name}" + (f" for {count} references" * (count > 1))
    if classifier.exported is not None:
        return f"{why}. Store one, killick evaluate MODEL --store-threshold, and export again."
    stored = model_in(classifier.model).threshold
    if stored is not None:
        return f"{why}. There is one for --references {stored.k}."
    if count > 1:
        return f"{why}. Fit one: killick.fit_threshold(model, images, k={count}); save the model."
    return f"{why}. Store one: killick evaluate {name} --store-threshold."


def _cores() -> int:
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, found or 1)
