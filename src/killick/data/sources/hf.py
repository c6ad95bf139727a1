"""Sets of the Hugging Face `datasets` library, from its hub or from a folder it wrote."""

import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from killick.data.decoding import decode, explained
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions, split_options
from killick.data.sources.pack import PackReader
from killick.data.streams import SampleStream, read_head
from killick.data.worker_processes import iterate
from killick.errors import DataError, import_library

OPTIONS = ("config", "split", "test", "revision", "streaming")
TEST_SPLITS = ("test", "validation", "valid", "val")  # the first that has labels
_SHUFFLED = 1000  # rows of a stream that are shuffled at a time

logger = logging.getLogger("killick")


class RowStream:
    """Images and labels of a stream of rows, one pass after the other.

    With `shuffle` each pass has an order of its own, drawn from torch's global generator.
    """

    def __init__(self, name: str, rows: Any, shuffle: bool = False) -> None:
        import datasets

        self.name, self._shuffle = name, shuffle
        self.image, self.label = find_columns(name, rows.features or {})
        self.classes: list[str] | None = getattr(rows.features[self.label], "names", None)
        self.rows = rows.cast_column(self.image, datasets.Image(decode=False))

    def __len__(self) -> int:
        info = self.rows.info.splits or {}
        if (split := info.get(str(self.rows.split))) is None or not split.num_examples:
            raise TypeError(f"{self.name} has no length")
        return int(split.num_examples)

    def set_epoch(self, epoch: int) -> None:
        """For shuffled rows."""
        self.rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for number, (data, label) in enumerate(self.encoded()):
            yield decode(data, f"image {number} of a pass over {self.name}"), label

    def encoded(self) -> Iterator[tuple[bytes, int]]:
        """The bytes of each image, and its label."""
        rows = self.rows
        if self._shuffle:
            seed = int(torch.randint(2**31, ()))
            rows = rows.shuffle(seed=seed, buffer_size=_SHUFFLED)
        for number, row in enumerate(iterate(rows, self.name)):
            cell = row[self.image] or {}
            data = cell.get("bytes") or (cell.get("path") and Path(cell["path"]).read_bytes())
            if not data or row[self.label] is None:
                raise DataError(f"row {number} of {self.name} has no image or no label.")
            yield data, int(row[self.label])


class RowReader:
    """Images in one column of a set, decoded here, not by the library, to the same pixels."""

    def __init__(self, name: str, rows: Any, image: str) -> None:
        self.name, self.rows, self.image = name, rows, image

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Tensor:
        return decode(*self._read(number))

    def encoded(self, number: int) -> bytes:
        """The bytes of one image."""
        return self._read(number)[0]

    def _read(self, number: int) -> tuple[bytes, str]:
        """The bytes of one image, and what errors call it."""
        cell, name = self.rows[number][self.image], f"image {number} of {self.name}"
        if cell is None:
            raise DataError(f"{name} is missing. Leave out such rows.")
        if cell["bytes"] is not None:
            return cell["bytes"], name
        name += f", {cell['path']}"
        with explained(name):
            return Path(cell["path"]).read_bytes(), name


def load_hub(argument: str, options: LoadOptions | None = None) -> Sets:
    """The sets of a folder that `save_to_disk` wrote, if there is one of that name, or of the hub.

    `NAME#config=C,revision=R,split=S,test=T,streaming` takes another configuration, revision or split;
    `streaming` trains on passes over the hub's files and downloads the test split alone.

    The image column is the first of the kind `Image`; the labels are the first `ClassLabel`, or
    a column of whole numbers called `label` or `labels`, whose numbers are then the class names.
    """
    name, chosen = split_options(argument, OPTIONS)
    splits = _open(name, chosen)
    present = [split for split in ("train", *TEST_SPLITS) if split in splits]
    if "split" in chosen:
        present = list(splits)
    if not present:
        raise DataError(
            f"hf:{name} has no split 'train' or 'test', found {', '.join(map(repr, splits))}. Name"
            f" one: hf:{name}#split={next(iter(splits), 'SPLIT')}."
        )
    if "streaming" in chosen:
        return _stream(f"hf:{name}", {split: splits[split] for split in present}, options)
    found = {split: _read_split(f"{split!r} of hf:{name}", splits[split]) for split in present}
    highest = max((int(labels.max()) for _, labels, _ in found.values() if len(labels)), default=-1)
    numbers = [str(number) for number in range(highest + 1)]
    sets = {}
    for split, (reader, labels, names) in found.items():
        if split != "train" and bool((labels < 0).any()):
            logger.info("hf:%s has no labels for its split %r: not tested on.", name, split)
        else:
            sets[split] = ImageSet.of(name, reader, labels, names or numbers)
    train = sets.pop(chosen.get("split", "train"), None)
    return Sets(train, next(iter(sets.values()), None))


def read_hub_set(name: str, rows: Any, labeled: bool = True) -> ImageSet | None:
    """A `datasets.Dataset` as an image set; None if it makes its samples by a transform."""
    if rows.format["type"] == "custom":
        return None
    reader, labels, names = _read_split(name, rows.with_format(None), labeled)
    numbers = [str(number) for number in range(int(labels.max()) + 1)]
    return ImageSet.of(name, reader, labels, names or numbers)


def _open(name: str, chosen: dict[str, str]) -> dict[str, Any]:
    """The splits by name, each a `datasets.Dataset`, or with `streaming` an `IterableDataset`."""
    datasets = import_library("datasets", "hf", f"hf:{name}")
    folder = Path(os.path.expanduser(name))
    saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
    wanted = [chosen[key] for key in ("split", "test") if key in chosen]
    streaming = "streaming" in chosen
    try:
        if saved:
            found = datasets.load_from_disk(str(folder))
        else:
            asked: dict[str, Any] = {"split": wanted} if wanted else {}
            asked |= {"streaming": True} if streaming else {}
            asked |= {"name": chosen["config"]} if "config" in chosen else {}
            asked |= {"revision": chosen["revision"]} if "revision" in chosen else {}
            found = datasets.load_dataset(name, **asked)
    except Exception as error:  # of the library, of what it downloads with, of the file system
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
        raise DataError(
            f"cannot load hf:{name}: {reason}. Check the name and the connection, or name a folder"
            " written by save_to_disk."
        ) from error
    if wanted and not saved:
        return dict(zip(wanted, found, strict=True))
    if isinstance(found, datasets.Dataset):
        found = {str(found.split or "train"): found}
    splits = dict(found)
    if missing := [split for split in wanted if split not in splits]:
        raise DataError(
            f"hf:{name} has no split {missing[0]!r}, found {', '.join(map(repr, splits))}."
        )
    splits = {split: splits[split] for split in wanted or splits}
    if saved and streaming:
        return {split: rows.to_iterable_dataset() for split, rows in splits.items()}
    return splits


def _stream(name: str, splits: dict[str, Any], options: LoadOptions | None) -> Sets:
    """A stream to train on, and the test split, which is read once."""
    train = splits.get("train")
    test = next((rows for split, rows in splits.items() if split != "train"), None)
    if options is None or options.test_only:
        return Sets(None, read_hub_stream(name, train if test is None else test))
    if train is None:
        train, test = test, None
    rows = RowStream(name, train, shuffle=True)
    if rows.classes is None:
        raise DataError(
            f"the labels of {name} have no class names, and a stream cannot be searched for them."
            " Leave out 'streaming', or cast the column to ClassLabel."
        )
    return Sets(train_on(rows), None if test is None else read_hub_stream(name, test))


def train_on(rows: RowStream) -> ImageSet:
    """A stream of rows to train on."""
    found = read_head(SampleStream(rows.name, rows))
    return replace(found, side=None)  # these are files as they are, of whatever size


def read_hub_stream(name: str, rows: Any) -> ImageSet:
    """All images of a stream of rows, still encoded, in a temporary file."""
    stream, labels, ends = RowStream(name, rows), list[int](), [0]
    with tempfile.TemporaryFile() as file:
        for data, label in stream.encoded():
            file.write(data)
            ends.append(ends[-1] + len(data))
            labels.append(label)
        file.flush()
        if not labels:
            raise DataError(f"{name} is empty.")
        contents = torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=(ends[-1],)))
    numbers = [str(number) for number in range(max(labels) + 1)]
    reader = PackReader(name, contents, torch.tensor(ends))
    found = ImageSet.of(name, reader, torch.tensor(labels), stream.classes or numbers)
    return replace(found, access="stream")


def find_columns(name: str, features: Any, labeled: bool = True) -> tuple[str, str]:
    """The columns of images and labels, the latter empty if it is not there and not needed."""
    import datasets

    images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    labels += [
        key for key in ("label", "labels") if "int" in str(getattr(features.get(key), "dtype", ""))
    ]
    if not images or (labeled and not labels):
        raise DataError(
            f"{name} needs a column of images (Image) and one of labels (ClassLabel, or whole"
            f" numbers called 'label'), found {', '.join(features)}. Cast and rename the columns,"
            " then save the set with save_to_disk."
        )
    return images[0], labels[0] if labeled else ""


def _read_split(
    name: str, rows: Any, labeled: bool = True
) -> tuple[RowReader, Tensor, list[str] | None]:
    """Images, labels (-1, as on the hub, where there is none), and the names of the classes."""
    import datasets

    image, label = find_columns(name, rows.features, labeled)
    column = rows.select_columns([image])
    encoded = column.cast_column(image, datasets.Image(decode=False))
    reader = RowReader(name, encoded, image)
    if not labeled:
        return reader, torch.zeros(len(rows), dtype=torch.long), ["unknown"]
    values = rows.select_columns([label])[label][:]
    numbers = torch.tensor([-1 if value is None else int(value) for value in values]).long()
    return reader, numbers, getattr(rows.features[label], "names", None)


_HELP = "Hugging Face datasets, by name or folder (extra hf); NAME#config=C,split=S,streaming"
DATA_SOURCES.register("hf", DataSource("hf", load_hub, _HELP, "NAME"))
