"""What a model answered to each image of a set, kept beside the rows.

A row is a mean; intervals of differences, curves, histograms and examples need the images one by
one. Each set has a file of its own in `answers/`, a few bytes an image, with some of its pictures.
Arrays alone: nothing in such a file can run code.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from killick.errors import DataError
from killick.runtime.atomic_files import write_atomic

FOLDER = "answers"
# What a set is and how it was asked about; with `weights`, all that the answers depend on.
IDENTITY = (
    *("data", "suite", "set", "source", "table", "corruption", "severity", "view", "limit"),
    *("evaluation_seed", "precision", "k", "pictures"),
)
LARGEST = 96  # px; larger pictures are kept smaller than they were
_LOSSLESS = 64

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Answers:
    """What one model said to all images of one set, in their order.

    Attributes:
        about: Columns as in a row: `suite`, `set`, `corruption`, `severity`, `weights`, ...
        single: From the first reference: `prediction`, `confidence`, `energy`, and where there are
            labels `label`, `correct` and `nll`; each `(n,)`.
        marginal: The same from the mean over `k` references, and `spread`: the standard deviation
            of the probabilities over references, mean over the classes. Empty with one reference.
        thumbnails: Some of the pictures, encoded, by their number in the set.
        class_names: What the numbers stand for; empty if unknown.
    """

    about: dict[str, Any]
    single: dict[str, Array]
    marginal: dict[str, Array] = field(default_factory=dict)
    thumbnails: dict[int, bytes] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Images."""
        return len(self.single["confidence"])

    @cached_property
    def place(self) -> tuple[str, ...]:
        """By which the same images, asked about alike, are known in another model's answers."""
        return tuple(str(self.about.get(name, "")) for name in IDENTITY if name != "k")


def write_answers(folder: Path, answers: Answers) -> Path:
    """A file in `folder/answers`, whole or as it was."""
    arrays: dict[str, Any] = {"about": np.array(json.dumps(answers.about))}
    arrays |= {f"single_{name}": _small(value) for name, value in answers.single.items()}
    arrays |= {f"marginal_{name}": _small(value) for name, value in answers.marginal.items()}
    numbers = sorted(answers.thumbnails)
    parts = [answers.thumbnails[number] for number in numbers]
    arrays["thumbnail_numbers"] = np.array(numbers, dtype=np.int64)
    arrays["thumbnail_ends"] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    arrays["thumbnail_bytes"] = np.frombuffer(b"".join(parts), dtype=np.uint8)
    arrays["class_names"] = np.array(answers.class_names, dtype=np.str_)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path = file_of(folder, answers.about)
    write_atomic(path, buffer.getvalue())
    return path


def read_answers(path: Path) -> Answers:
    """The answers in a file."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays["about"]))
        ends, data = arrays["thumbnail_ends"], arrays["thumbnail_bytes"].tobytes()
        numbers = arrays["thumbnail_numbers"].tolist()
        return Answers(
            about=about,
            single=_named(arrays, "single_"),
            marginal=_named(arrays, "marginal_"),
            thumbnails={
                number: data[first:last]
                for number, first, last in zip(numbers, ends[:-1], ends[1:], strict=True)
            },
            class_names=tuple(str(name) for name in arrays["class_names"]),
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as problem:
        raise DataError(
            f"cannot read the answers in {path}: it is damaged ({type(problem).__name__})."
            " Remove the file, and evaluate again."
        ) from None


def read_about(path: Path) -> dict[str, Any]:
    """What the answers in a file are about, without reading them; empty if it cannot be read."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return {}
    return about if isinstance(about, dict) else {}


def files_in(folder: Path) -> list[Path]:
    """The files with answers in a run folder."""
    return sorted((folder / FOLDER).glob("*.npz"))


def file_of(folder: Path, about: Mapping[str, Any]) -> Path:
    """Where the answers about a set are kept."""
    names = ("model", *IDENTITY)  # a folder may hold the answers of several models
    identity = [str("" if about.get(name) is None else about[name]) for name in names]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    words = [str(about[name]) for name in ("suite", "set", "corruption", "severity")]
    name = "-".join(word for word in words if word)
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:80]
    return folder / FOLDER / f"{safe}-{digest}.npz"


def encode(picture: Array) -> bytes:
    """A picture `(3, height, width)`, uint8, as a PNG file; a large one as a small JPEG file."""
    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    buffer = io.BytesIO()
    if max(image.size) <= _LOSSLESS:
        image.save(buffer, "PNG", optimize=True)
    else:
        image.thumbnail((LARGEST, LARGEST))
        image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def sample(count: int, wanted: int) -> Sequence[int]:
    """Numbers of pictures to keep: evenly over the set, the same for every model."""
    return sorted({count * (2 * i + 1) // (2 * wanted) for i in range(wanted)}) if count else ()


def _small(value: Array) -> Array:
    """The same numbers in fewer bytes."""
    if value.dtype == np.bool_ or value.dtype.kind == "f":
        return value.astype(np.float32) if value.dtype.kind == "f" else value
    return value.astype(np.int16) if _fits(value) else value.astype(np.int32)


def _fits(value: Array) -> bool:
    return not value.size or bool(abs(value.astype(np.int64)).max() < 2**15)


def _named(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def current(answers: Iterable[Answers], weights: Iterable[str]) -> list[Answers]:
    """Those of the models whose rows there are, not of weights that are gone."""
    known = set(weights)
    return [each for each in answers if str(each.about.get("weights")) in known]
