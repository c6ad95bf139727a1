"""Attention maps of a few heads and images, kept beside the rows for reports; arrays alone."""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from killick.errors import DataError, FileError
from killick.results.predictions import Array, open_arrays
from killick.runtime.atomic_files import write_atomic

FOLDER = "attention"


class AttentionMap(NamedTuple):
    """Where one patch of each image looks in one head."""

    layer: int
    head: int
    query: tuple[int, int]  # row and column of the patch
    weights: Array  # (images, rows, columns)


@dataclass(frozen=True)
class AttentionMaps:
    """The maps of one model."""

    model: str
    weights: str  # their digest
    images: list[bytes]  # encoded
    maps: list[AttentionMap]


def write_maps(
    folder: Path, model: str, weights: str, images: Sequence[bytes], maps: Sequence[AttentionMap]
) -> Path:
    """Write a file into `folder/attention`."""
    heads = [[each.layer, each.head, *each.query] for each in maps]
    about = {"model": model, "weights": weights, "heads": heads}
    arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
    arrays |= {f"image_{n}": np.frombuffer(each, np.uint8) for n, each in enumerate(images)}
    arrays |= {f"map_{n}": each.weights.astype(np.float32) for n, each in enumerate(maps)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path = folder / FOLDER / f"maps-{weights}.npz"
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, buffer.getvalue())
    return path


def read_maps(folder: Path) -> list[AttentionMaps]:
    """All maps in a run folder."""
    return [_read(path) for path in sorted((folder / FOLDER).glob("maps-*.npz"))]


def _read(path: Path) -> AttentionMaps:
    try:
        with open_arrays(path) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays["about"]))
        images = [v.tobytes() for k, v in arrays.items() if k.startswith("image_")]
        maps = []
        for number, (layer, head, row, column) in enumerate(about["heads"]):
            weights = arrays[f"map_{number}"]
            if weights.dtype.kind != "f" or weights.ndim != 3 or len(weights) != len(images):
                raise ValueError(f"map {number} is {weights.dtype} of shape {weights.shape}")
            maps.append(AttentionMap(int(layer), int(head), (int(row), int(column)), weights))
        return AttentionMaps(str(about["model"]), str(about["weights"]), images, maps)
    except FileError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as problem:
        raise DataError(
            f"cannot read the attention maps in {path}: it is damaged ({type(problem).__name__})."
            " Remove the file, and evaluate again."
        ) from None
