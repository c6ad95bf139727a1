"""Published corrupted sets: CIFAR-10-C and its like as arrays, ImageNet-C and its like as folders.

```
CIFAR-10-C/fog.npy              uint8 (5 n, 32, 32, 3): severity 1 first, then 2, ...
CIFAR-10-C/labels.npy           (5 n) or (n)
ImageNet-C/fog/3/n01440764/     images; C-bar names its folders by its own numbers, 0.70 to 4.20
ImageNet-C/weather/fog/3/...    also so
```
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from killick.data.image_set import ImageSet
from killick.data.sources.imagefolder import read_classes
from killick.errors import DataError

SEVERITIES = 5
Array = npt.NDArray[np.generic]


class CorruptedFiles:
    """The corruptions in a folder; `names` are those of `known` that are there."""

    def __init__(self, path: str, known: Sequence[str], class_names: tuple[str, ...]) -> None:
        self.path = Path(os.path.abspath(os.path.expanduser(path)))
        self._class_names = class_names
        if not self.path.is_dir():
            raise DataError(f"no folder of corrupted images at {self.path}. Check the path.")
        self._arrays = {name: self.path / f"{name}.npy" for name in known}
        self._arrays = {name: file for name, file in self._arrays.items() if file.is_file()}
        self._folders = {} if self._arrays else _find_folders(self.path, known)
        self.names = tuple(name for name in known if name in self._arrays or name in self._folders)
        if not self.names:
            raise DataError(
                f"{self.path} has none of the {len(known)} corruptions: neither files such as"
                f" {known[0]}.npy nor folders such as {known[0]}/1. Check the path."
            )

    def load(self, name: str, severity: int) -> ImageSet:
        """The images of a corruption at a severity, 1 to 5."""
        if name in self._arrays:
            return self._load_array(name, severity)
        levels = sorted(filter(_is_number, os.listdir(self._folders[name])), key=float)
        if len(levels) != SEVERITIES:
            raise DataError(
                f"{self._folders[name]} must have {SEVERITIES} folders of rising severity, found"
                f" {len(levels)}."
            )
        folder = self._folders[name] / levels[severity - 1]
        return read_classes(folder, f"{name} {severity}")

    def check(self) -> None:
        """Refuse arrays of a wrong shape, before any of them is read."""
        for name in self._arrays:
            self._count(name, _open(self._arrays[name]))

    def digest(self, name: str) -> str:
        """A hash of the names, sizes and times of the files of a corruption."""
        places = [self._arrays[name], self.path / "labels.npy"] if self._arrays else []
        if not places:
            top = self._folders[name]
            places = [top, *sorted(top.iterdir())]
        found = hashlib.sha256(str(self.path).encode())
        for place in places:
            if place.exists():
                state = place.stat()
                found.update(f"{place.name} {state.st_size} {state.st_mtime_ns}".encode())
        return found.hexdigest()[:12]

    def _count(self, name: str, images: Array) -> int:
        """How many images an array has for each severity."""
        count, rest = divmod(len(images), SEVERITIES) if images.ndim else (0, 1)
        fits = images.ndim == 4 and images.shape[-1] == 3 and images.dtype == np.uint8
        if not fits or rest or not count:
            raise DataError(
                f"{self._arrays[name]} must hold uint8 images of shape (5 n, height, width, 3),"
                f" found {images.dtype} {images.shape}."
            )
        return count

    def _load_array(self, name: str, severity: int) -> ImageSet:
        pixels = _open(self._arrays[name])
        count = self._count(name, pixels)
        labels = _open(self.path / "labels.npy")
        if labels.shape not in ((count,), (SEVERITIES * count,)) or labels.dtype.kind not in "iu":
            raise DataError(
                f"{self.path / 'labels.npy'} must hold {count} or {SEVERITIES * count} whole"
                f" numbers for {name}.npy, found {labels.dtype} {labels.shape}."
            )
        part = slice((severity - 1) * count, severity * count)
        images = torch.from_numpy(np.array(pixels[part])).permute(0, 3, 1, 2)
        chosen = labels[part] if len(labels) > count else labels
        numbers: Tensor = torch.from_numpy(chosen.astype(np.int64))
        return ImageSet.of(f"{name} {severity}", images, numbers, self._class_names)


def _open(file: Path) -> Array:
    """An array, without reading all of it."""
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise DataError(f"cannot read {file}: {problem}.") from None
    return array


def _find_folders(path: Path, known: Sequence[str]) -> dict[str, Path]:
    """The folder of each corruption, in `path` or one below it."""
    places = [path, *sorted(place for place in path.iterdir() if place.is_dir())]
    found: dict[str, Path] = {}
    for name in known:
        for place in places:
            if (place / name).is_dir():
                found[name] = place / name
                break
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
