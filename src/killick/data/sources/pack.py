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

from killick.data.decoding import decode
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.errors import DataError, FileError, OptionError, one_line
from killick.runtime.plain_files import check_memory, open_plain

_KINDS = {"u": "uint8", "iu": "whole numbers", "U": "unicode strings"}  # of arrays


class PackReader:
    """Encoded images, end to end in memory; image i is `contents[offsets[i] : offsets[i + 1]]`."""

    def __init__(self, name: str, contents: Tensor, offsets: Tensor) -> None:
        self.name = name  # what an error calls the pack
        self.contents, self.offsets = contents, offsets  # shared with worker processes, not copied

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Tensor:
        return decode(self.encoded(number), f"image {number} of {self.name}")

    def encoded(self, number: int) -> bytes:
        """The bytes of one image."""
        start, stop = self.offsets[number : number + 2].tolist()
        return self.contents[start:stop].numpy().tobytes()


def load_pack(where: str, options: LoadOptions | None = None) -> Sets:
    """The sets of a pack: its splits `train` and `test`, or with `FILE.npz#SPLIT` that as test set."""
    file, split = _parse(where)
    if not file.is_file():
        raise DataError(f"no pack at {file}. Check the path.")
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file} is not a .npz file, or only a part of one. Make or copy it again.")
    try:
        # Opened here: numpy leaves the files of broken archives open.
        with open_plain(file) as stream, np.load(stream, allow_pickle=False) as pack:
            names = ("train", "test") if split is None else (split,)
            present = [name for name in names if f"{name}_bytes" in pack]
            if not present:
                splits = [key.removesuffix("_bytes") for key in pack if key.endswith("_bytes")]
                raise DataError(
                    f"{file} has no split {' or '.join(map(repr, names))}, found"
                    f" {', '.join(map(repr, splits)) or 'none'}. Name one: pack:FILE.npz#SPLIT."
                )
            if options is not None and options.test_only and "test" in present:
                present = ["test"]
            size, parts = os.fstat(stream.fileno()).st_size, tuple(f"{name}_" for name in present)
            members = [
                member for member in pack.zip.infolist() if member.filename.startswith(parts)
            ]
            check_memory(file, size, sum(member.file_size for member in members))
            found = {name: _open_split(file, pack, name) for name in present}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError | FileError):
            raise
        raise DataError(f"cannot read {file}: {one_line(error)}. Make or copy it again.") from error
    if split is not None:
        return Sets(None, replace(found[split], name=f"{file.stem}#{split}"))
    return Sets(found.get("train"), found.get("test"))


def _parse(where: str) -> tuple[Path, str | None]:
    whole = Path(os.path.expanduser(where))
    path, mark, split = where.rpartition("#")
    if not mark or whole.exists():
        return whole, None
    if not path or not split:
        raise OptionError(f"write 'pack:FILE.npz' or 'pack:FILE.npz#SPLIT', found 'pack:{where}'.")
    return Path(os.path.expanduser(path)), split


def _open_split(file: Path, pack: np.lib.npyio.NpzFile, split: str) -> ImageSet:
    contents = _array(file, pack, f"{split}_bytes", "u").astype(np.uint8)
    offsets = _array(file, pack, f"{split}_offsets", "iu").astype(np.int64)
    labels = _array(file, pack, f"{split}_labels", "iu").astype(np.int64)
    own = f"{split}_class_names"
    names = _array(file, pack, own if own in pack else "class_names", "U")
    size = len(contents)
    if len(offsets) != len(labels) + 1 or len(labels) == 0:
        raise DataError(
            f"{split!r} in {file} must have labels, and one more offset than labels, found"
            f" {len(offsets)} offsets and {len(labels)} labels."
        )
    if offsets[0] < 0 or offsets[-1] > size or (np.diff(offsets) < 0).any():
        raise DataError(
            f"the offsets of {split!r} in {file} must ascend from 0 to at most {size}, the bytes"
            f" there are, found {offsets.min()} to {offsets.max()}, or not ascending."
        )
    name = f"{split!r} in {file}"
    reader = PackReader(name, torch.from_numpy(contents), torch.from_numpy(offsets))
    return ImageSet.of(file.stem, reader, torch.from_numpy(labels), [str(name) for name in names])


def _array(file: Path, pack: np.lib.npyio.NpzFile, key: str, kinds: str) -> npt.NDArray[np.generic]:
    """A one-dimensional array of the pack, of one of numpy's kinds."""
    if key not in pack:
        raise DataError(f"{file} has no array {key!r}, only {', '.join(pack.files)}. Add it.")
    array: npt.NDArray[np.generic] = pack[key]
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise DataError(
            f"{key!r} in {file} must be a row of {_KINDS[kinds]}, found {array.dtype} of shape"
            f" {array.shape}."
        )
    return array


_HELP = "encoded images in one file; pack:FILE.npz#SPLIT for one of its splits"
DATA_SOURCES.register("pack", DataSource("pack", load_pack, _HELP, "FILE.npz"))
