"""Sets of the Hugging Face `datasets` library, from its hub or from a folder it wrote."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from killick.data.decoding import decode
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.errors import DataError, InstallError

if TYPE_CHECKING:
    from datasets import Dataset

TEST_SPLITS = ("test", "validation", "valid", "val")  # the first that has labels

logger = logging.getLogger("killick")


class RowReader:
    """Images in one column of a set, decoded here, not by the library, to the same pixels."""

    def __init__(self, name: str, rows: "Dataset", image: str) -> None:
        self.name = name
        self.rows = rows
        self.image = image

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Tensor:
        cell = self.rows[number][self.image]
        name = f"image {number} of {self.name}"
        if cell is None:
            raise DataError(f"{name} is missing. Leave out such rows.")
        if cell["bytes"] is not None:
            return decode(cell["bytes"], name)
        return decode(cell["path"], f"{name}, {cell['path']}")


def load_hub(name: str, options: LoadOptions | None = None) -> Sets:
    """The sets of a folder that `save_to_disk` wrote, if there is one of that name, or of the hub.

    The image column is the first of the kind `Image`; the labels are the first `ClassLabel`, or
    a column of whole numbers called `label` or `labels`, whose numbers are then the class names.
    """
    splits = _open(name)
    present = [split for split in ("train", *TEST_SPLITS) if split in splits]
    if not present:
        raise DataError(
            f"hf:{name} has no split 'train' or 'test', found {', '.join(map(repr, splits))}. Rename"
            " one and save the set with save_to_disk."
        )
    columns = {split: _find_columns(f"{split!r} of hf:{name}", splits[split]) for split in present}
    labels = {split: _read_labels(splits[split], columns[split][1]) for split in present}
    highest = max((int(each.max()) for each in labels.values() if len(each)), default=-1)
    sets = {}
    for split in present:
        if split != "train" and bool((labels[split] < 0).any()):
            logger.info("hf:%s has no labels for its split %r: not tested on.", name, split)
            continue
        image, label = columns[split]
        names = getattr(splits[split].features[label], "names", None)
        sets[split] = ImageSet.of(
            name,
            RowReader(f"{split!r} of hf:{name}", _undecoded(splits[split], image), image),
            labels[split],
            names or [str(number) for number in range(highest + 1)],
        )
    return Sets(sets.pop("train", None), next(iter(sets.values()), None))


def _open(name: str) -> "dict[str, Dataset]":
    """The splits by name."""
    try:
        import datasets
    except ImportError as error:
        raise InstallError(
            f"hf:{name} needs the datasets library. Install it: pip install 'killick[hf]'."
        ) from error
    folder = Path(os.path.expanduser(name))
    saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
    try:
        found = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(name)
    except Exception as error:  # of the library, of what it downloads with, of the file system
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
        raise DataError(
            f"cannot load hf:{name}: {reason}. Check the name and the connection, or name a folder"
            " written by save_to_disk."
        ) from error
    if isinstance(found, datasets.Dataset):
        return {str(found.split or "train"): found}
    return dict(found)


def _find_columns(where: str, split: "Dataset") -> tuple[str, str]:
    """The names of the columns of images and of labels."""
    import datasets

    features = split.features
    images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    labels += [key for key in ("label", "labels") if "int" in _kind(features.get(key))]
    if not images or not labels:
        listed = ", ".join(f"{key} ({_kind(kind)})" for key, kind in features.items())
        raise DataError(
            f"{where} needs a column of images (Image) and one of labels (ClassLabel, or whole"
            f" numbers called 'label'), found {listed}. Cast and rename the columns, then save the"
            " set with save_to_disk."
        )
    return images[0], labels[0]


def _kind(feature: object) -> str:
    """What a column holds, such as `int64`, `string` or `Image`."""
    name = type(feature).__name__
    return str(getattr(feature, "dtype", name)) if name == "Value" else name


def _read_labels(split: "Dataset", column: str) -> Tensor:
    """The labels; -1, as on the hub, where there is none."""
    values = split.select_columns([column])[column][:]
    return torch.tensor([-1 if value is None else int(value) for value in values]).long()


def _undecoded(split: "Dataset", column: str) -> "Dataset":
    """That column alone, its images as bytes."""
    import datasets

    return split.select_columns([column]).cast_column(column, datasets.Image(decode=False))


_HELP = "of the Hugging Face datasets library, by name or folder (killick[hf])"
DATA_SOURCES.register("hf", DataSource("hf", load_hub, _HELP, "NAME"))
