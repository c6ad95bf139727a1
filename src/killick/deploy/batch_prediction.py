"""Batch prediction: image files in, one record for each out, in order."""

import os
import shlex
from collections.abc import Generator, Iterable, Iterator

import torch
from torch import nn

from killick.deploy.image_paths import InputImage, find_images, require_images
from killick.deploy.image_reading import read_batches
from killick.deploy.prediction_records import Record, make_records
from killick.errors import check_least
from killick.evaluation.classifier import Classifier
from killick.evaluation.open_classifier import open_classifier
from killick.runtime.processes import usual_workers


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
    unreadable one has a record with an `error`; the others are predicted.

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
    images: Iterable[InputImage],
    *,
    batch: int | None = None,
    workers: int | None = None,
    top: int = 0,
    probabilities: bool = False,
) -> Generator[list[Record], None, None]:
    """The records of images, a batch at a time; see `label`."""
    for option, value, least in (("batch", batch, 1), ("workers", workers, 1), ("top", top, 0)):
        check_least(option, value, least)
    batches = read_batches(
        images,
        classifier.view,
        batch=batch or classifier.usual_batch,
        workers=workers or usual_workers(),
    )

    def predict(loaded: list[InputImage]) -> list[Record]:
        pixels = [each.pixels for each in loaded if each.pixels is not None]
        found = classifier.predict(torch.stack(pixels)) if pixels else None
        about = classifier.class_names, classifier.threshold
        return make_records(loaded, found, *about, top=top, probabilities=probabilities)

    return (predict(loaded) for loaded in batches)


def explain_missing_threshold(classifier: Classifier, model: str) -> str:
    """Why OOD images are not detected in `model`, as the user named it; how to store a threshold."""
    count, name = classifier.references or 1, shlex.quote(model)
    fix = f"killick evaluate {name} --store-threshold"
    if classifier.exported is not None:
        fix = "killick evaluate MODEL --store-threshold, and export again"
    elif count > 1:
        fix = f"killick.fit_threshold(model, images, k={count}), and save the model"
    elif not classifier.recipe:
        fix += " --data DATA --validation DATA"
    return f"no OOD threshold for k={count} is stored in {name}. Store one: {fix}."
