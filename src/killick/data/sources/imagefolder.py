"""Folders of image files, one folder for each class; an image is read when it is needed.

`FOLDER#without=FILE` leaves out the images that a text file lists, one path in a line, such as those
that `killick check --list FILE` could not read.
"""

import codecs
import hashlib
import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from killick.data.decoding import EXTENSIONS, decode
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.data.splits import stratified
from killick.errors import DataError

TEST_FOLDERS = ("test", "val", "valid", "validation")  # the first that exists
SPLIT_SEED = 0
WITHOUT = "#without="
_log = logging.getLogger("killick")


class FileReader:
    """Images in files below one folder, by their paths within it."""

    def __init__(self, folder: str | os.PathLike[str], names: list[str]) -> None:
        self.folder = os.fspath(folder)
        # One array: every worker would copy a million strings as it counts references to them.
        self._names = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: int) -> Tensor:
        path = self.path(number)
        return decode(path, path)

    def digest(self, numbers: Tensor) -> str:
        """A hash of the names of some images, wherever the folder is."""
        names: list[bytes] = self._names[numbers.numpy()].tolist()
        return hashlib.sha256(b"\0".join(names)).hexdigest()

    def path(self, number: int) -> str:
        """The file of an image."""
        return os.path.join(self.folder, os.fsdecode(bytes(self._names[number])))


@dataclass(frozen=True)
class LeftOut:
    """Images that a list leaves out: their paths, the list, and those that were found."""

    listed: frozenset[str] = frozenset()
    file: str = ""
    met: set[str] = field(default_factory=set)

    def remove(self, images: ImageSet, *, training: bool = False) -> ImageSet:
        """The images that are not left out; a training set must keep some of every class."""
        if not self.listed:
            return images
        assert isinstance(images.source, FileReader)
        paths = [images.source.path(row) for row in images.rows.tolist()]
        kept = torch.tensor([path not in self.listed for path in paths])
        self.met.update(path for path in paths if path in self.listed)
        found = images.part(kept.nonzero().squeeze(1))
        gone = set(images.labels.tolist()) - set(found.labels.tolist())
        if gone and (training or not len(found)):
            kind = f" of {images.class_names[min(gone)]!r}" if training else ""
            raise DataError(
                f"{self.file} leaves out all images{kind} in {images.source.folder}. Replace some,"
                " or remove the folder."
            )
        return found

    def check(self, top: Path) -> None:
        """Refuse a list that names no image of the folder; warn of lines that name none."""
        missed = sorted(self.listed - self.met)
        if missed and not self.met:
            raise DataError(
                f"{self.file} names no image of {top} in its {len(self.listed)} lines, such as"
                f" {missed[0][:200]!r}."
            )
        if missed:
            told = "%s: %d of its %d lines name no image of %s, such as %r"
            _log.warning(told, self.file, len(missed), len(self.listed), top, missed[0][:200])


def split_off(path: str) -> tuple[str, LeftOut]:
    """The parts of `FOLDER#without=FILE`.

    The file has a path in each line, relative to the folder or absolute; # begins a comment.
    """
    folder, marked, file = path.partition(WITHOUT)
    if not marked:
        return path, LeftOut()
    top = os.path.abspath(os.path.expanduser(folder))
    try:
        lines = Path(os.path.expanduser(file)).read_bytes().split(b"\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"cannot read the list of images to leave out, {os.path.abspath(file)}: {reason}."
            " killick check DATA --list FILE writes one."
        ) from error
    lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
    names = [os.fsdecode(line.rstrip(b"\r")) for line in lines]
    names = [name for name in names if name.strip() and not name.startswith("#")]
    return folder, LeftOut(frozenset(os.path.normpath(os.path.join(top, n)) for n in names), file)


def load_folder(path: str, options: LoadOptions | None = None) -> Sets:
    """The sets of a folder: its `train` and `test`, or its classes less a fifth to test on.

    The fifth is fixed, and of every class in proportion; each class keeps at least one image for
    training. A list leaves out images after that, so that the others stay on their side.
    """
    path, left_out = split_off(path)
    top = _check_folder(path)
    folders = _list_folders(top)
    if "train" in folders:
        tests = [name for name in TEST_FOLDERS if name in folders]
        return _pair(top, tests[0] if tests else None, left_out)
    if folders and set(folders) <= set(TEST_FOLDERS):
        raise DataError(
            f"{top} has {_quoted(folders)} but no folder 'train'. Add it, or name the folder that"
            f" has the class folders: imagefolder:{top / folders[0]}."
        )
    whole = _read_split(top, top.name, None)
    room = len(whole) - len(set(whole.labels.tolist()))  # so that every class keeps one
    count = min(round(len(whole) / 5), room)
    train, test = whole, None
    if count:
        train, test = (whole.part(part) for part in stratified(whole.labels, count, SPLIT_SEED))
    train = left_out.remove(train, training=True)
    test = None if test is None else left_out.remove(test)
    left_out.check(top)
    return Sets(train, test, None if test is None else _join(train, test))


def _join(train: ImageSet, test: ImageSet) -> ImageSet:
    """Two parts of one set as one, in their old order."""
    rows, labels = torch.cat([train.rows, test.rows]), torch.cat([train.labels, test.labels])
    order = rows.argsort()
    return replace(test, rows=rows[order], labels=labels[order])


def load_imagenet(path: str, options: LoadOptions | None = None) -> Sets:
    """The sets of a folder with `train` and `val`, both with class folders."""
    path, left_out = split_off(path)
    top = _check_folder(path)
    missing = [name for name in ("train", "val") if not (top / name).is_dir()]
    if missing:
        raise DataError(
            f"{top} has no {_quoted(missing)}; imagenet: needs 'train' and 'val'. For another"
            f" layout: imagefolder:{top}."
        )
    return _pair(top, "val", left_out)


def load_images(path: str, options: LoadOptions | None = None) -> Sets:
    """All images below a folder, in any layout; they have no classes, all labels are 0."""
    path, left_out = split_off(path)
    top = _check_folder(path)
    names = list_images(top)
    if not names:
        raise DataError(f"no images in {top} (known are {' '.join(EXTENSIONS)}).")
    labels = torch.zeros(len(names), dtype=torch.long)
    images = ImageSet.of(top.name, FileReader(top, names), labels, ("unknown",))
    images = left_out.remove(images)
    left_out.check(top)
    return Sets(None, images)


def read_classes(folder: Path, name: str) -> ImageSet:
    """All images of a folder that has a folder for each class."""
    return _read_split(_check_folder(str(folder)), name, None)


def _pair(top: Path, test_name: str | None, left_out: LeftOut) -> Sets:
    train = left_out.remove(_read_split(top / "train", top.name, None), training=True)
    test = None
    if test_name is not None:
        test = left_out.remove(_read_split(top / test_name, top.name, train.class_names))
    left_out.check(top)
    return Sets(train, test)


def _read_split(folder: Path, name: str, known: tuple[str, ...] | None) -> ImageSet:
    """The images of the class folders in `folder`, with the labels of the `known` classes."""
    classes = _list_folders(folder)
    _check_layout(folder, classes)
    known = known or tuple(classes)
    unknown = [kind for kind in classes if kind not in known]
    if unknown:
        raise DataError(
            f"{folder} has classes that are not trained on: {_quoted(unknown)}. Remove them, or"
            " add them to the training set."
        )
    numbers = {kind: number for number, kind in enumerate(known)}
    names: list[str] = []
    labels: list[int] = []
    for kind in classes:
        files = list_images(folder / kind)
        if not files:
            raise DataError(
                f"no images in the class folder {folder / kind} (known are {' '.join(EXTENSIONS)})."
                " Add some or remove the folder."
            )
        names += [os.path.join(kind, file) for file in files]
        labels += [numbers[kind]] * len(files)
    return ImageSet.of(name, FileReader(folder, names), torch.tensor(labels), known)


def _check_folder(path: str) -> Path:
    top = Path(os.path.abspath(os.path.expanduser(path)))
    if not top.is_dir():
        raise DataError(
            f"{top} is {'a file, not a folder' if top.exists() else 'not there'}. Check the path,"
            " or download and unpack the data first."
        )
    return top


def _check_layout(folder: Path, classes: list[str]) -> None:
    loose = [name for name in _list(folder) if _is_image(name) and (folder / name).is_file()]
    if loose:
        raise DataError(
            f"{folder} has {len(loose)} images outside of class folders, such as {loose[0]!r}. Move"
            f" them: {folder / 'CLASS' / loose[0]}."
        )
    if not classes:
        raise DataError(
            f"no class folders in {folder}. Move the images: {folder / 'CLASS' / 'FILE.jpg'}."
        )


def _list(folder: Path) -> list[str]:
    """What is in the folder, in an order that is the same on every file system."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise DataError(
            f"cannot list {folder}: {error.strerror}. Check its permissions."
        ) from error


def _list_folders(folder: Path) -> list[str]:
    return [name for name in _list(folder) if (folder / name).is_dir()]


def list_images(folder: Path) -> list[str]:
    """The paths of the images below `folder`, at any depth, sorted; links are followed."""

    def refuse(error: OSError) -> None:
        raise DataError(
            f"cannot list {error.filename}: {error.strerror}. Check its permissions."
        ) from error

    found: list[str] = []
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(place)
        if real in seen:  # a link that leads back up
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            os.path.relpath(os.path.join(place, name), folder)
            for name in files
            if _is_image(name) and not name.startswith(".")
        ]
    return sorted(found)


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _quoted(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:5])
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5} more"


_FOLDER = "a folder for each class, or train/ and test/ with such folders"
_WITHOUT = "; PATH#without=LIST leaves out images"
_IMAGENET = "train/ and val/ with a folder for each class"
_IMAGES = "any images below a folder, without classes; for evaluate --ood"
for _source in (
    DataSource("imagefolder", load_folder, _FOLDER + _WITHOUT, "PATH"),
    DataSource("imagenet", load_imagenet, _IMAGENET, "PATH"),
    DataSource("images", load_images, _IMAGES, "PATH"),
):
    DATA_SOURCES.register(_source.name, _source)
