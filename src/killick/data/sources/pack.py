"""Packs: many encoded images end to end in one `.npz` file, in splits, nothing pickled.

For each split S there are `S_bytes` (uint8, the files end to end), `S_offsets` (n + 1 numbers,
where each begins and the last ends), `S_labels`, and `S_class_names` or `class_names` for all.
"""

import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from killick.data.decoding import decode, measure
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.errors import DataError, OptionError

MEMORY_LIMIT = 4 * 2**30  # bytes of decoded images; larger packs are decoded when read
HEADERS = 500  # sizes that are compared, spread over the pack, before all images are decoded
KEPT_BYTES = 2**30  # of decoded images that stay in memory for the next call

_DEFAULTS = LoadOptions()
Key = tuple[str, int, int, str]  # a file as it is now, and a split
_kept: dict[Key, ImageSet] = {}  # the oldest first


class PackReader:
    """Encoded images, end to end in memory; image i is `contents[offsets[i] : offsets[i + 1]]`."""

    def __init__(self, name: str, contents: Tensor, offsets: Tensor) -> None:
        self.name = name  # what an error calls the pack
        self.contents = contents  # tensors, which worker processes share instead of copying
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Tensor:
        return decode(*self.encoded(number))

    def encoded(self, number: int) -> tuple[bytes, str]:
        """The bytes of one image, and what to call it."""
        number = range(len(self))[number]  # refuses what is out of range: iteration ends there
        start, stop = self.offsets[number : number + 2].tolist()
        return self.contents[start:stop].numpy().tobytes(), f"image {number} of {self.name}"


def load_pack(where: str, options: LoadOptions = _DEFAULTS) -> Sets:
    """The sets of a pack: its splits `train` and `test`, or with `FILE.npz#SPLIT` that as test set.

    Images that all have one size are decoded at once, if they fit into `MEMORY_LIMIT`. A run loads
    its data several times, so what was decoded is kept.
    """
    file, split = _parse(where)
    if not file.is_file():
        raise DataError(f"no pack at {file}. Check the path.")
    state = file.stat()
    known = (str(file.resolve()), state.st_mtime_ns, state.st_size)
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file} is not a .npz file, or only a part of one. Make or copy it again.")
    try:
        # Opened here: numpy leaves the files of broken archives open.
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as pack:
            splits = _wanted(file, pack, split, options.test_only)
            found = {
                name: _load_once((*known, name), file, pack, name)
                if options.decoded
                else _open_split(file, pack, name)
                for name in splits
            }
    except DataError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
        raise DataError(f"cannot read {file}: {reason}. Make or copy it again.") from error
    if split is not None:
        return Sets(None, replace(found[split], name=f"{file.stem}#{split}"))
    return Sets(found.get("train"), found.get("test"))


def _wanted(
    file: Path, pack: np.lib.npyio.NpzFile, split: str | None, test_only: bool
) -> list[str]:
    if split is not None:
        return [split]
    present = [name for name in ("train", "test") if f"{name}_bytes" in pack]
    if not present:
        raise _no_split(file, pack, "'train' or 'test'")
    return ["test"] if test_only and "test" in present else present


def _load_once(key: Key, file: Path, pack: np.lib.npyio.NpzFile, split: str) -> ImageSet:
    """A split, kept for the next call; beyond `KEPT_BYTES` the oldest is forgotten."""
    if key not in _kept:
        found = _open_split(file, pack, split)
        assert isinstance(found.source, PackReader)
        images = decode_all(found.source)
        if images is None:  # it was quick to open
            return found
        found = replace(found, source=images)
        if images.nbytes > KEPT_BYTES:
            return found
        _kept[key] = found
        while sum(each.images().nbytes for each in _kept.values()) > KEPT_BYTES:
            del _kept[next(iter(_kept))]
    return _kept[key]


def _parse(where: str) -> tuple[Path, str | None]:
    whole = Path(os.path.expanduser(where))
    path, mark, split = where.rpartition("#")
    if not mark or whole.exists():
        return whole, None
    if not path or not split:
        raise OptionError(f"write 'pack:FILE.npz' or 'pack:FILE.npz#SPLIT', found 'pack:{where}'.")
    return Path(os.path.expanduser(path)), split


def _open_split(file: Path, pack: np.lib.npyio.NpzFile, split: str) -> ImageSet:
    if f"{split}_bytes" not in pack:
        raise _no_split(file, pack, repr(split))
    contents = _array(file, pack, f"{split}_bytes", "u1")
    offsets = _array(file, pack, f"{split}_offsets", "iu").astype(np.int64)
    labels = _array(file, pack, f"{split}_labels", "iu").astype(np.int64)
    own = f"{split}_class_names"
    names = _array(file, pack, own if own in pack else "class_names", "U")
    _check_offsets(file, split, offsets, len(contents), len(labels))
    reader = PackReader(
        f"{split!r} in {file}", torch.from_numpy(contents), torch.from_numpy(offsets)
    )
    kinds = [str(kind) for kind in names]
    return ImageSet.of(file.stem, reader, torch.from_numpy(labels), kinds)


def _array(file: Path, pack: np.lib.npyio.NpzFile, key: str, kinds: str) -> npt.NDArray[np.generic]:
    """A one-dimensional array of the pack, of one of the kinds of numbers."""
    if key not in pack:
        raise DataError(f"{file} has no array {key!r}, only {', '.join(pack.files)}. Add it.")
    try:
        array: npt.NDArray[np.generic] = pack[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{key!r} in {file} holds Python objects, which are not loaded. Write it again as"
            " np.array(values, dtype=str) or whole numbers."
        ) from None
    fits = array.dtype == np.uint8 if kinds == "u1" else array.dtype.kind in kinds
    if array.ndim != 1 or not fits:
        what = {"u1": "uint8", "iu": "whole numbers", "U": "unicode strings"}[kinds]
        raise DataError(
            f"{key!r} in {file} must be a row of {what}, found {array.dtype} of shape"
            f" {array.shape}."
        )
    return array


def _check_offsets(
    file: Path, split: str, offsets: npt.NDArray[np.int64], size: int, labels: int
) -> None:
    if len(offsets) != labels + 1 or labels == 0:
        raise DataError(
            f"{split!r} in {file} must have labels, and one more offset than labels, found"
            f" {len(offsets)} offsets and {labels} labels."
        )
    if offsets[0] < 0 or offsets[-1] > size or (np.diff(offsets) < 0).any():
        raise DataError(
            f"the offsets of {split!r} in {file} must ascend from 0 to at most {size}, the bytes"
            f" there are, found {offsets.min()} to {offsets.max()}"
            + (", not ascending." if (np.diff(offsets) < 0).any() else ".")
        )


def _no_split(file: Path, pack: np.lib.npyio.NpzFile, wanted: str) -> DataError:
    splits = [key.removesuffix("_bytes") for key in pack.files if key.endswith("_bytes")]
    hint = f" Name one of them: pack:{file}#{splits[0]}." if splits else " It is not a pack."
    return DataError(
        f"{file} has no split {wanted}, found {', '.join(map(repr, splits)) or 'none'}.{hint}"
    )


def decode_all(reader: PackReader) -> Tensor | None:
    """All images as one tensor, or None if they differ in size or need too much memory."""
    n = len(reader)
    sizes = {measure(*reader.encoded(number)) for number in range(0, n, max(1, n // HEADERS))}
    if len(sizes) > 1:
        return None
    height, width = sizes.pop()
    if n * 3 * height * width > MEMORY_LIMIT:
        return None
    images = torch.empty(n, 3, height, width, dtype=torch.uint8)
    for number in range(n):  # threads were measured to be no faster, at any size of image
        image = reader[number]
        if image.shape != images.shape[1:]:  # its header was not read, or it was turned upright
            return None
        images[number] = image
    return images


_HELP = "encoded images in one file; pack:FILE.npz#SPLIT for one of its splits"
DATA_SOURCES.register("pack", DataSource("pack", load_pack, _HELP, "FILE.npz"))
