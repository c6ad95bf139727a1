"""Sets of the Hugging Face `datasets` library, from its hub or from a folder it wrote."""

import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.data.decoding import decode
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.errors import DataError, import_library

TEST_SPLITS = ("test", "validation", "valid", "val")  # the first that has labels

logger = logging.getLogger("killick")


class RowReader:
    """Images in one column of a set, decoded here, not by the library, to the same pixels."""

    def __init__(self, name: str, rows: Any, image: str) -> None:
        self.name, self.rows, self.image = name, rows, image

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
    found = {split: _read_split(f"{split!r} of hf:{name}", splits[split]) for split in present}
    highest = max((int(labels.max()) for _, labels, _ in found.values() if len(labels)), default=-1)
    numbers = [str(number) for number in range(highest + 1)]
    sets = {}
    for split, (reader, labels, names) in found.items():
        if split != "train" and bool((labels < 0).any()):
            logger.info("hf:%s has no labels for its split %r: not tested on.", name, split)
        else:
            sets[split] = ImageSet.of(name, reader, labels, names or numbers)
    return Sets(sets.pop("train", None), next(iter(sets.values()), None))


def _open(name: str) -> dict[str, Any]:
    """The splits by name, each a `datasets.Dataset`."""
    datasets = import_library("datasets", "hf", f"hf:{name}")
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


def _read_split(name: str, rows: Any) -> tuple[RowReader, Tensor, list[str] | None]:
    """Images, labels (-1, as on the hub, where there is none), and the names of the classes."""
    import datasets

    features = rows.features
    images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    labels += [
        key for key in ("label", "labels") if "int" in str(getattr(features.get(key), "dtype", ""))
    ]
    if not images or not labels:
        raise DataError(
            f"{name} needs a column of images (Image) and one of labels (ClassLabel, or whole"
            f" numbers called 'label'), found {', '.join(features)}. Cast and rename the columns,"
            " then save the set with save_to_disk."
        )
    values = rows.select_columns([labels[0]])[labels[0]][:]
    numbers = torch.tensor([-1 if value is None else int(value) for value in values]).long()
    column = rows.select_columns([images[0]])
    encoded = column.cast_column(images[0], datasets.Image(decode=False))
    return RowReader(name, encoded, images[0]), numbers, getattr(features[labels[0]], "names", None)


_HELP = "of the Hugging Face datasets library, by name or folder (extra hf)"
DATA_SOURCES.register("hf", DataSource("hf", load_hub, _HELP, "NAME"))
