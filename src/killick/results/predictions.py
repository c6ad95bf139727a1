"""The prediction of a model for each image of a set, kept beside the rows.

A row is a mean; intervals of differences, curves, histograms and examples need the images one by
one. Each set has a file of its own in `predictions/`, a few bytes an image, with some thumbnails.
The files hold arrays alone: nothing in them can run code.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from killick.errors import DataError, FileError
from killick.runtime.atomic_files import write_atomic
from killick.runtime.plain_files import check_archive, open_plain

FOLDER = "predictions"
# With `weights`, all that predictions depend on.
IDENTITY = (
    *("data", "suite", "set", "source", "frost", "class_map", "table", "corruption", "severity"),
    *("view", "limit", "evaluation_seed", "precision", "k", "images"),
)
LARGEST = 96  # px; larger images are kept smaller than they were
_LOSSLESS = 64
_KINDS = {"prediction": "iu", "label": "iu", "correct": "b"}  # of arrays; the others are floats
_DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Predictions:
    """The predictions of one model for all images of one set, in their order."""

    about: dict[str, Any]  # as in a row: `suite`, `set`, `corruption`, `severity`, `weights`, ...
    # From the first reference: `prediction`, `confidence`, `energy`, and where there are labels
    # `label`, `correct` and `nll`; each `(n,)`.
    single: dict[str, Array]
    # The same from the mean over `k` references, and `spread`: the standard deviation of the
    # probabilities over references, mean over the classes. Empty with one reference.
    marginal: dict[str, Array] = field(default_factory=dict)
    thumbnails: dict[int, bytes] = field(default_factory=dict)  # encoded images by number
    class_names: tuple[str, ...] = ()  # empty if unknown

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.single["confidence"])

    @cached_property
    def place(self) -> tuple[str, ...]:
        """The test set: equal in the predictions of another model for the same images."""
        return tuple(str(self.about.get(name, "")) for name in IDENTITY if name != "k")


def write_predictions(folder: Path, predictions: Predictions) -> Path:
    """Write a file into `folder/predictions`."""
    arrays: dict[str, Any] = {"about": np.array(json.dumps(predictions.about))}
    arrays |= {f"single_{name}": _small(value) for name, value in predictions.single.items()}
    arrays |= {f"marginal_{name}": _small(value) for name, value in predictions.marginal.items()}
    numbers = sorted(predictions.thumbnails)
    parts = [predictions.thumbnails[number] for number in numbers]
    arrays["thumbnail_numbers"] = np.array(numbers, dtype=np.int64)
    arrays["thumbnail_ends"] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    arrays["thumbnail_bytes"] = np.frombuffer(b"".join(parts), dtype=np.uint8)
    arrays["class_names"] = np.array(predictions.class_names, dtype=np.str_)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path = file_of(folder, predictions.about)
    write_atomic(path, buffer.getvalue())
    return path


def read_predictions(path: Path) -> Predictions:
    """The predictions in a file."""
    try:
        with open_arrays(path) as file:
            arrays = {name: file[name] for name in file.files}
        _check_arrays(arrays)
        ends, data = arrays["thumbnail_ends"], arrays["thumbnail_bytes"].tobytes()
        parts = [data[first:last] for first, last in zip(ends[:-1], ends[1:], strict=True)]
        return Predictions(
            about=dict(json.loads(str(arrays["about"]))),
            single=_named(arrays, "single_"),
            marginal=_named(arrays, "marginal_"),
            thumbnails=dict(zip(arrays["thumbnail_numbers"].tolist(), parts, strict=True)),
            class_names=tuple(str(name) for name in arrays["class_names"]),
        )
    except FileError:
        raise
    except _DAMAGED as problem:
        raise DataError(
            f"cannot read the predictions in {path}: it is damaged ({type(problem).__name__})."
            " Remove the file, and evaluate again."
        ) from None


def read_about(path: Path) -> dict[str, Any]:
    """`Predictions.about` of a file; empty if it cannot be read."""
    try:
        with open_arrays(path) as file:
            return dict(json.loads(str(file["about"])))
    except _DAMAGED:
        return {}


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """The arrays in a file, if it does not unpack to far more than it is."""
    with open_plain(path) as opened:
        check_archive(path, opened)
        with np.load(opened, allow_pickle=False) as file:
            yield file


def _check_arrays(arrays: Mapping[str, Array]) -> None:
    """Refuse arrays that are not what `write_predictions` writes."""
    count = len(arrays["single_confidence"])
    for name, array in arrays.items():
        group, _, field = name.partition("_")
        if group in ("single", "marginal"):
            kinds, shape = _KINDS.get(field, "f"), (count,)
        elif group == "thumbnail":
            kinds, shape = "iu", (array.size,)
        else:
            continue
        if array.shape != shape or array.dtype.kind not in kinds:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")


def prediction_files(folder: Path) -> list[Path]:
    """The files with predictions in a run folder."""
    return sorted((folder / FOLDER).glob("*.npz"))


def file_of(folder: Path, about: Mapping[str, Any]) -> Path:
    """The file of the predictions for a set."""
    names = ("model", *IDENTITY)  # a folder may hold the predictions of several models
    identity = [str("" if about.get(name) is None else about[name]) for name in names]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    words = [str(about[name]) for name in ("suite", "set", "corruption", "severity")]
    name = "-".join(word for word in words if word)
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:80]
    return folder / FOLDER / f"{safe}-{digest}.npz"


def encode(pixels: Array) -> bytes:
    """An image `(3, height, width)`, uint8, as a PNG file; a large one as a small JPEG file."""
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    buffer = io.BytesIO()
    if max(image.size) <= _LOSSLESS:
        image.save(buffer, "PNG", optimize=True)
    else:
        image.thumbnail((LARGEST, LARGEST))
        image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def sample(count: int, wanted: int) -> Sequence[int]:
    """Numbers of images to keep: evenly over the set, the same for every model."""
    return sorted({count * (2 * i + 1) // (2 * wanted) for i in range(wanted)}) if count else ()


def _small(value: Array) -> Array:
    """The same numbers in fewer bytes."""
    if value.dtype.kind == "f":
        return value.astype(np.float32)
    if value.dtype.kind == "b":
        return value
    return value.astype(np.int16 if abs(value).max(initial=0) < 2**15 else np.int32)


def _named(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
