"""Pictures in, records out: read, shown to whoever answers, batch by batch, in order."""

import os
from collections.abc import Generator, Iterable, Iterator

import torch
from torch import nn

from killick.deploy.image_classifier import Classifier, open_classifier
from killick.deploy.image_paths import Found, check_some, find_pictures
from killick.deploy.image_reading import read_batches
from killick.deploy.prediction_records import Record, make_records
from killick.errors import OptionError


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
    """Label, confidence, uncertainty and more of picture files: a record for each, in order.

    Pictures are read by several threads while the model works, and never held all at once. A
    broken one has a record with an `error`, and the rest goes on.

    Args:
        model: Anchored or standard; a folder written by `killick.save`, or a run folder; a file or
            folder written by `killick export`; or whatever `open_classifier` gives.
        images: Paths of files, of folders (all pictures below them) and patterns such as
            `"photos/**/*.jpg"`: one, or any number of them. What is named twice is labelled twice.
        references: From how many of its stored references an anchored model answers, 1 by default;
            their spread is `std` then.
        device: "auto", "cpu", "cuda" or "cuda:1"; by default where the model is, if it is one.
        batch: Pictures of a forward pass; by default what suits their size and the device.
        workers: Threads that read; by default one for each core, at most 16.
        top: Name so many of the likeliest classes.
        probabilities: Tell the probabilities of all classes.
        trust: Needed for an exported .pt2 file, which can run code when it is opened.

    Returns:
        Records, each as soon as its batch is done.

    Raises:
        DataError: If there is no picture at all, when the first record is asked for.

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
    batches = answer_batches(
        classifier,
        check_some(find_pictures(given)),
        batch=batch,
        workers=workers,
        top=top,
        probabilities=probabilities,
    )
    return (record for records in batches for record in records)


def answer_batches(
    classifier: Classifier,
    found: Iterable[Found],
    *,
    batch: int | None = None,
    workers: int | None = None,
    top: int = 0,
    probabilities: bool = False,
) -> Generator[list[Record], None, None]:
    """The records of pictures, a batch at a time; see `label`."""
    for option, value, least in (("batch", batch, 1), ("workers", workers, 1), ("top", top, 0)):
        if value is not None and (type(value) is not int or value < least):
            raise OptionError(f"expected {option} of at least {least}, found {value!r}.")
    coming = read_batches(
        found,
        classifier.view,
        batch=batch or classifier.usual_batch,
        workers=workers or _cores(),
    )

    def answered() -> Generator[list[Record], None, None]:
        for seen in coming:
            images = [each.image for each in seen if each.image is not None]
            said = classifier.answer(torch.stack(images)) if images else None
            names = classifier.class_names
            yield make_records(seen, said, names, top=top, probabilities=probabilities)

    return answered()


def _cores() -> int:
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, found or 1)
