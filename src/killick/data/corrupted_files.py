"""Published corrupted sets: CIFAR-10-C and its like as arrays, ImageNet-C and its like as folders.

```
CIFAR-10-C/fog.npy              uint8 (5 n, 32, 32, 3): severity 1 first, then 2, ...
CIFAR-10-C/labels.npy           (5 n) or (n)
ImageNet-C/fog/3/n01440764/     images; C-bar names its folders by its own numbers, 0.70 to 4.20
ImageNet-C/weather/fog/3/...    also so
```
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from killick.data.image_set import ImageSet
from killick.data.sources.imagefolder import read_classes
from killick.errors import DataError

SEVERITIES = 5
Array = npt.NDArray[np.generic]


class CorruptedFiles:
    """The corruptions in a folder; `names` are those of `known` that are there."""

    def __init__(self, path: str, known: Sequence[str], class_names: tuple[str, ...]) -> None:
        self.path = Path(path).expanduser().absolute()
        self._class_names = class_names
        if not self.path.is_dir():
            raise DataError(f"no folder of corrupted images at {self.path}. Check the path.")
        folders = [self.path, *sorted(place for place in self.path.iterdir() if place.is_dir())]
        self._places: dict[str, Path] = {}  # of each corruption: an array, or a folder
        for name in known:
            places = (self.path / f"{name}.npy", *(folder / name for folder in folders))
            found = next(filter(Path.exists, places), None)
            if found is not None:
                self._places[name] = found
            if found == places[0]:
                _open_images(found)  # refuses a wrong shape, before any of them is read
        self.names = tuple(self._places)
        if not self.names:
            raise DataError(
                f"{self.path} has none of the {len(known)} corruptions: neither files such as"
                f" {known[0]}.npy nor folders such as {known[0]}/1. Check the path."
            )

    def load(self, name: str, severity: int) -> ImageSet:
        """The images of a corruption at a severity, 1 to 5."""
        place = self._places[name]
        if place.is_file():
            return self._load_array(name, severity)
        levels = [each for each in place.iterdir() if re.fullmatch(r"[0-9]+(\.[0-9]+)?", each.name)]
        if len(levels) != SEVERITIES:
            raise DataError(
                f"{place} must have {SEVERITIES} folders of rising severity, found {len(levels)}."
            )
        levels.sort(key=lambda level: float(level.name))
        return read_classes(levels[severity - 1], f"{name} {severity}")

    def digest(self, name: str) -> str:
        """A hash of the names, sizes and times of the files of a corruption."""
        place = self._places[name]
        places = [place, self.path / "labels.npy"]
        if place.is_dir():
            places = [place, *sorted(place.iterdir())]
        found = hashlib.sha256(str(self.path).encode())
        for each in places:
            if each.exists():
                state = each.stat()
                found.update(f"{each.name} {state.st_size} {state.st_mtime_ns}".encode())
        return found.hexdigest()[:12]

    def _load_array(self, name: str, severity: int) -> ImageSet:
        pixels = _open_images(self._places[name])
        count, file = len(pixels) // SEVERITIES, self.path / "labels.npy"
        labels = _open(file)
        if labels.shape not in ((count,), (SEVERITIES * count,)) or labels.dtype.kind not in "iu":
            raise DataError(
                f"{file} must hold {count} or {SEVERITIES * count} whole numbers for {name}.npy,"
                f" found {labels.dtype} {labels.shape}."
            )
        part = slice((severity - 1) * count, severity * count)
        images = torch.from_numpy(np.array(pixels[part])).permute(0, 3, 1, 2)
        chosen = torch.from_numpy(
            (labels[part] if len(labels) > count else labels).astype(np.int64)
        )
        return ImageSet.of(f"{name} {severity}", images, chosen, self._class_names)


def _open(file: Path) -> Array:
    """An array, without reading all of it."""
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise DataError(f"cannot read {file}: {problem}.") from None
    return array


def _open_images(file: Path) -> Array:
    images = _open(file)
    fits = images.ndim == 4 and images.shape[-1] == 3 and images.dtype == np.uint8
    if not fits or len(images) % SEVERITIES or not len(images):
        raise DataError(
            f"{file} must hold uint8 images of shape (5 n, height, width, 3), found {images.dtype}"
            f" {images.shape}."
        )
    return images
