"""Folders of image files, one folder for each class; an image is read when it is needed.

`FOLDER#without=FILE` leaves out the images that a text file lists, one path in a line, such as those
that `killick check --list FILE` could not read.
"""

import codecs
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from killick.data.decoding import EXTENSIONS, decode, explained, printable
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.data.splits import stratified
from killick.errors import DataError

TRAIN_FOLDERS = ("train", "training")  # the first that exists; also of the next
TEST_FOLDERS = ("test", "val", "valid", "validation", "eval", "evaluation")
SPLIT_SEED = 0
WITHOUT = "#without="


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

    def encoded(self, number: int) -> bytes:
        """The bytes of one file."""
        path = self.path(number)
        with explained(path), open(path, "rb") as file:
            return file.read()

    def digest(self, numbers: Tensor) -> str:
        """A hash of the names of some images, wherever the folder is."""
        names: list[bytes] = self._names[numbers.numpy()].tolist()
        return hashlib.sha256(b"\0".join(names)).hexdigest()

    def path(self, number: int) -> str:
        """The file of an image."""
        return os.path.join(self.folder, os.fsdecode(bytes(self._names[number])))


def _with_lists(load: Callable[[Path], Sets]) -> Callable[..., Sets]:
    """A source of `FOLDER` and of `FOLDER#without=FILE`, made from one of existing folders."""

    @functools.wraps(load)
    def load_part(path: str, options: LoadOptions | None = None) -> Sets:
        folder, marked, file = path.partition(WITHOUT)
        sets = load(_check_folder(folder))
        if not marked:
            return sets
        listed = read_list(folder, file)
        train = sets.train and _leave_out(sets.train, listed, file, training=True)
        others = (sets.test, sets.whole, sets.validation)
        return Sets(train, *(each and _leave_out(each, listed, file) for each in others))

    return load_part


@_with_lists
def load_folder(top: Path) -> Sets:
    """The sets of a folder: its `train` and `test`, or its classes less a fifth to test on.

    Without `test`, `val` is the test set; beside it, `val` is for validation. A folder with `val` or
    `test` alone can be evaluated on.

    The fifth is fixed, and of every class in proportion; each class keeps at least one image for
    training. A list leaves out images after that, so that the others stay on their side.
    """
    folders = _list_folders(top)
    train_name = next((name for name in TRAIN_FOLDERS if name in folders), None)
    test_name, *others = [*(name for name in TEST_FOLDERS if name in folders), None]
    if train_name is not None:
        held_out = others[0] if others and test_name == "test" else None
        return _read_parts(top, train_name, test_name, held_out)
    if test_name is not None and set(folders) <= set(TEST_FOLDERS):
        return Sets(None, read_classes(top / test_name, top.name))
    whole = read_classes(top, top.name)
    room = len(whole) - len(set(whole.labels.tolist()))  # so that every class keeps one
    count = min(round(len(whole) / 5), room)
    if not count:
        return Sets(whole, None)
    train, test = stratified(whole.labels, count, SPLIT_SEED)
    return Sets(whole.part(train), whole.part(test), whole)


@_with_lists
def load_imagenet(top: Path) -> Sets:
    """The sets of a folder with `train` and `val`, both with class folders."""
    missing = [name for name in ("train", "val") if not (top / name).is_dir()]
    if missing:
        raise DataError(
            f"{top} has no {_quoted(missing)}; imagenet: needs 'train' and 'val'. For another"
            f" layout: imagefolder:{top}."
        )
    return _read_parts(top, "train", "val")


@_with_lists
def load_images(top: Path) -> Sets:
    """All images below a folder, in any layout; they have no classes, all labels are 0."""
    names = list_images(top)
    if not names:
        raise DataError(f"no images in {top} (known are {' '.join(EXTENSIONS)}).")
    labels = torch.zeros(len(names), dtype=torch.long)
    return Sets(None, ImageSet.of(top.name, FileReader(top, names), labels, ("unknown",)))


def read_list(folder: str, file: str) -> set[str]:
    """The paths in a list of images to leave out, one in a line; # begins a comment.

    They are absolute, or relative to the folder.
    """
    try:
        text = Path(os.path.expanduser(file)).read_bytes().removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot read the list of images to leave out, {os.path.abspath(file)}:"
            f" {getattr(error, 'strerror', error)}. killick check DATA --list FILE writes one."
        ) from error
    top = os.path.abspath(os.path.expanduser(folder))
    names = [os.fsdecode(line.rstrip(b"\r")) for line in text.split(b"\n")]
    names = [name for name in names if name.strip() and not name.startswith("#")]
    paths = {os.path.normpath(os.path.join(top, name)) for name in names}
    if paths and not any(map(os.path.lexists, paths)):
        raise DataError(
            f"{file} names no image of {top} in its {len(paths)} lines, such as"
            f" {min(paths)[:200]!r}."
        )
    return paths


def _leave_out(
    images: ImageSet, listed: set[str], file: str, *, training: bool = False
) -> ImageSet:
    """The images that are not listed; a training set must keep some of every class."""
    kept = torch.tensor([path not in listed for path in images.paths() or ()])
    found = images.part(kept.nonzero().squeeze(1))
    gone = set(images.labels.tolist()) - set(found.labels.tolist())
    if gone and (training or not len(found)):
        raise DataError(
            f"{file} leaves out all images of {images.class_names[min(gone)]!r} in {images.name}."
            " Replace some, or remove the folder."
        )
    return found


def _read_parts(
    top: Path, train_name: str, test_name: str | None, validation_name: str | None = None
) -> Sets:
    train = read_classes(top / train_name, top.name)
    test, validation = (
        name and read_classes(top / name, top.name, train.class_names)
        for name in (test_name, validation_name)
    )
    return Sets(train, test or None, validation=validation or None)


def read_classes(folder: Path, name: str, known: tuple[str, ...] = ()) -> ImageSet:
    """All images of a folder that has a folder for each class; labels are those of `known`."""
    entries = sorted(entry.name for entry in _scan(_check_folder(str(folder))))
    classes = _list_folders(folder)
    loose = [name for name in entries if _is_image(name) and name not in classes]
    if loose:
        raise DataError(
            f"{folder} has {len(loose)} images outside of class folders, such as {loose[0]!r}. Move"
            f" them: {folder / 'CLASS' / loose[0]}."
        )
    if not classes:
        raise DataError(
            f"no class folders in {folder}. Move the images: {folder / 'CLASS' / 'FILE.jpg'}."
        )
    class_names = [_name_class(folder / kind) for kind in classes]
    known = known or tuple(class_names)
    unknown = [kind for kind in class_names if kind not in known]
    if unknown:
        raise DataError(
            f"{folder} has classes that are not trained on: {_quoted(unknown)}. Remove them, or"
            " add them to the training set."
        )
    names, labels = list[str](), list[int]()
    for kind, class_name in zip(classes, class_names, strict=True):
        files = list_images(folder / kind)
        if not files:
            raise DataError(
                f"no images in the class folder {folder / kind} (known are {' '.join(EXTENSIONS)})."
                " Add some or remove the folder."
            )
        names += [os.path.join(kind, file) for file in files]
        labels += [known.index(class_name)] * len(files)
    return ImageSet.of(name, FileReader(folder, names), torch.tensor(labels), known)


def _check_folder(path: str) -> Path:
    top = Path(os.path.abspath(os.path.expanduser(path)))
    if not top.is_dir():
        raise DataError(
            f"{top} is {'a file, not a folder' if top.exists() else 'not there'}. Check the path,"
            " or download and unpack the data first."
        )
    return top


def _list_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in _scan(folder) if entry.is_dir())


def list_images(folder: Path) -> list[str]:
    """The paths of the images below `folder`, at any depth, sorted."""
    found, waiting = list[str](), [""]
    while waiting:
        place = waiting.pop()
        for entry in _scan(folder / place):
            path = os.path.join(place, entry.name)
            if entry.is_dir():
                waiting.append(path)
            elif _is_image(entry.name):
                found.append(path)
    return sorted(found)


def _scan(folder: Path) -> list["os.DirEntry[str]"]:
    """What is in the folder; hidden files are left out, links are refused.

    A link could give images of another class, or unrelated files, the label of its folder.
    """
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(
            f"cannot list {folder}: {error.strerror}. Check its permissions."
        ) from error
    for entry in found:
        if entry.is_symlink():
            place = printable(f"{entry.path} -> {os.path.realpath(entry.path)}")
            raise DataError(
                f"{place} is a link, which can give images a wrong label. Copy what it stands for:"
                " cp -rL FOLDER COPY."
            )
    return found


def _name_class(folder: Path) -> str:
    """The name of a class folder, in any locale."""
    try:
        return os.fsencode(folder.name).decode()
    except UnicodeDecodeError:
        raise DataError(
            f"the name of the class folder {printable(str(folder))} is not UTF-8. Rename it."
        ) from None


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names[:5]))


_FOLDER = "a folder for each class, or train/ and val/ or test/ with such; PATH alone will do"
_WITHOUT = "; PATH#without=LIST leaves out images"
_IMAGENET = "train/ and val/ with a folder for each class"
_IMAGES = "any images below a folder, without classes; for evaluate --ood"
for _source in (
    DataSource("imagefolder", load_folder, _FOLDER + _WITHOUT, "PATH"),
    DataSource("imagenet", load_imagenet, _IMAGENET, "PATH"),
    DataSource("images", load_images, _IMAGES, "PATH"),
):
    DATA_SOURCES.register(_source.name, _source)
