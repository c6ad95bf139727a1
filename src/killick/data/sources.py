"""Where pictures come from: a name, such as `shapes` or `imagefolder:PATH`, to its sets.

| name | what it is |
| --- | --- |
| `shapes` | 10,000 pictures of ten shapes, made on the spot |
| `digits` | 1,797 handwritten digits that come with scikit-learn |
| `cifar10`, `cifar100` | as torchvision stores them, under `root` |
| `imagefolder:PATH` | a folder for each class, or `train` and `test` with such folders |
| `imagenet:PATH` | `train` and `val` with a folder for each class |
| `pack:FILE.npz`, `pack:FILE.npz#SPLIT` | encoded pictures in one file |
| `pictures:PATH` | any pictures below a folder, without classes; to evaluate on alone |
| `hf:NAME` | a set of the Hugging Face hub, or a folder written by `save_to_disk` |
"""

import difflib
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from killick.data.folders import load_folder, load_imagenet, load_pictures
from killick.data.hf_datasets import load_hub
from killick.data.image_set import ImageSet, Sets
from killick.data.packs import load_pack
from killick.data.splits import stratified
from killick.errors import DataError, OptionError

SHAPES_TRAIN = 8000
SHAPES_TEST = 2000
SHAPES_SEED = 0
SHAPES_VERSION = 1  # one more whenever `make_shapes` makes other pictures
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")  # in the cache

DIGITS_TEST = 360
DIGITS_SEED = 0
DIGITS_SIZE = 32

# How each kind is written, and for those with a path what reads it.
PLAIN = ("shapes", "digits", "cifar10", "cifar100")
WITH_PATH: dict[str, tuple[str, Callable[[str], Sets]]] = {
    "imagefolder": ("imagefolder:PATH", load_folder),
    "imagenet": ("imagenet:PATH", load_imagenet),
    "pack": ("pack:FILE.npz", load_pack),
    "hf": ("hf:NAME", load_hub),
}

logger = logging.getLogger("killick")


def load_sets(
    name: str,
    *,
    root: str | None = None,
    download: bool = False,
    test_only: bool = False,
    decoded: bool = True,
) -> Sets:
    """The sets to train and to test on that a name stands for.

    Args:
        name: See the table above.
        root: Where CIFAR is; `$KILLICK_DATA` or `./data` if not given.
        download: Whether to fetch CIFAR if it is not there.
        test_only: The set to train on is not asked for, and may be left out where it would take
            long to read.
        decoded: False leaves the pictures of a pack encoded until each is read.
    """
    kind, colon, path = name.partition(":")
    if kind in WITH_PATH:
        written, load = WITH_PATH[kind]
        if not path:
            raise OptionError(
                f"expected {kind} with what to read, as in '{written}', found {name!r}."
            )
        if load is load_pack:
            return load_pack(path, test_only=test_only, decoded=decoded)
        return load(path)
    if kind not in PLAIN or colon:
        raise OptionError(_describe_unknown(name))
    if kind == "shapes":
        return load_shapes()
    if kind == "digits":
        return load_digits()
    return load_cifar(kind, root, download)


def load_whole(name: str, *, root: str | None = None, download: bool = False) -> ImageSet:
    """One set to evaluate on: the test set of a name; all of it where it has no split of its own.

    `pictures:PATH` is every picture below a folder, without classes.
    """
    kind, _, path = name.partition(":")
    if kind == "pictures" and path:
        return load_pictures(path)
    sets = load_sets(name, root=root, download=download, test_only=True)
    if sets.test is None:
        assert sets.train is not None
        return sets.train
    train, test = sets.train, sets.test
    if kind == "imagefolder" and train is not None and train.source is test.source:  # cut by us
        rows = torch.cat([train.rows, test.rows])
        labels = torch.cat([train.labels, test.labels])
        order = rows.argsort()
        return replace(test, rows=rows[order], labels=labels[order])
    return test


def _describe_unknown(name: str) -> str:
    written = {kind: kind for kind in PLAIN} | {kind: how for kind, (how, _) in WITH_PATH.items()}
    choices = ", ".join(f"'{how}'" for how in written.values())
    near = difflib.get_close_matches(name.partition(":")[0].lower(), written, n=1)
    if near:
        hint = written[near[0]]
    elif name.endswith(".npz"):
        hint = f"pack:{name}"
    else:
        hint = f"imagefolder:{name}" if os.path.isdir(os.path.expanduser(name)) else ""
    return f"expected data to be one of {choices}, found {name!r}" + (
        f" (did you mean '{hint}'?)." if hint else "."
    )


def load_shapes() -> Sets:
    """The shapes, made or, from the second time on, read from the cache."""
    from killick.data.shapes import CLASS_NAMES, make_shapes

    file = cache_folder() / f"shapes-v{SHAPES_VERSION}-{SHAPES_TRAIN}-{SHAPES_TEST}.npz"
    parts = _read_cache(file)
    if parts is None:
        parts = make_shapes(SHAPES_TRAIN, SHAPES_TEST, SHAPES_SEED)
        _write_cache(file, parts)
    images, labels, test_images, test_labels = parts
    return Sets(
        ImageSet.of("shapes", images, labels, CLASS_NAMES),
        ImageSet.of("shapes", test_images, test_labels, CLASS_NAMES),
    )


def cache_folder() -> Path:
    """`$KILLICK_CACHE`, else `$XDG_CACHE_HOME/killick`, else `~/.cache/killick`; it may not exist."""
    own, common = os.environ.get("KILLICK_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(os.path.expanduser(own))
    return Path(common or os.path.expanduser("~/.cache")) / "killick"


def _read_cache(file: Path) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    try:
        # Opened here: numpy leaves the files of broken archives open.
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            images, labels, test_images, test_labels = (
                torch.from_numpy(arrays[key]) for key in ARRAYS
            )
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever is wrong with it, it can be made again
        logger.info("%s cannot be read and is made again: %s.", file, error)
        return None
    if len(images) != SHAPES_TRAIN or len(test_images) != SHAPES_TEST:
        return None
    return images, labels, test_images, test_labels


def _write_cache(file: Path, parts: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    arrays: dict[str, Any] = {key: part.numpy() for key, part in zip(ARRAYS, parts, strict=True)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Beside it first: others never see a half-written file.
        handle, beside = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
        try:
            with open(handle, "wb") as stream:
                np.savez(stream, **arrays)
            os.replace(beside, file)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        logger.info("%s is not kept: %s. Another folder is named by KILLICK_CACHE.", file, error)


def load_digits() -> Sets:
    """Scikit-learn's digits, from 8 px in grey to 32 px in RGB; 360 of them to test on."""
    from sklearn import datasets

    digits = datasets.load_digits()
    grey = torch.from_numpy(digits.images).float().unsqueeze(1)  # 0 to 16
    grey = functional.interpolate(
        grey, (DIGITS_SIZE, DIGITS_SIZE), mode="bilinear", align_corners=False
    )
    # Scaled only now: 64ths, which floats hold exactly, are rounded alike on every machine.
    images = (grey * 255 / 16).round().to(torch.uint8).repeat(1, 3, 1, 1)
    names = [str(name) for name in digits.target_names]
    whole = ImageSet.of("digits", images, torch.from_numpy(digits.target), names)
    kept, cut = stratified(whole.labels, DIGITS_TEST, DIGITS_SEED)
    return Sets(whole.part(kept), whole.part(cut))


def load_cifar(name: str, root: str | None = None, download: bool = False) -> Sets:
    """CIFAR-10 or CIFAR-100, from torchvision's files under `root`."""
    from torchvision import datasets

    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    folder = os.path.abspath(os.path.expanduser(root or os.environ.get("KILLICK_DATA") or "data"))
    sets = []
    for train in (True, False):
        try:
            part = kind(folder, train=train, download=download)
        except (RuntimeError, OSError) as error:
            where = os.path.join(folder, kind.base_folder)
            found = "damaged or missing files" if os.path.isdir(where) else "no such folder"
            found = f"no way to download it: {error}" if download else found
            raise DataError(
                f"expected {name} in {where}, found {found}. Say where it is (--data.root FOLDER;"
                " --root FOLDER to evaluate), fetch it (killick train --data.download true) or use a"
                " copy (--data pack:FILE.npz)."
            ) from error
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        sets.append(ImageSet.of(name, images, torch.tensor(part.targets), part.classes))
    return Sets(*sets)
