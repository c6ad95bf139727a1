"""CSV lists of image files: a table with the columns `path` and `label`."""

import csv
import os
from pathlib import Path

import torch

from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions, split_options
from killick.data.sources.imagefolder import FileReader
from killick.errors import DataError

COLUMNS = ("path", "label")


def load_list(argument: str, options: LoadOptions | None = None) -> Sets:
    """The images of `FILE`; with `FILE#test=OTHER` also a test set.

    Paths are relative to the folder of the file. Labels are class names, or numbers from 0.
    """
    place, found = split_options(argument, ("test",))
    files = [place, *found.values()]
    tables = [_read_table(Path(os.path.expanduser(file))) for file in files]
    labels = {label for _, table in tables for _, label in table}
    numbered = all(label.isdecimal() and len(label) < 7 for label in labels)
    names = tuple(sorted(labels))
    if numbered:
        names = tuple(map(str, range(max(map(int, labels)) + 1)))
    numbers = {name: number for number, name in enumerate(names)}
    sets = [
        ImageSet.of(
            Path(place).stem,
            FileReader(folder, [path for path, _ in table]),
            torch.tensor([numbers[str(int(label)) if numbered else label] for _, label in table]),
            names,
        )
        for folder, table in tables
    ]
    return Sets(sets[0], sets[1] if len(sets) > 1 else None)


def _read_table(file: Path) -> tuple[Path, list[tuple[str, str]]]:
    """The folder of a list, and its paths and labels."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, skipinitialspace=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            if not set(COLUMNS) <= set(header):
                raise DataError(
                    f"{file} must have the columns 'path' and 'label' in its first line, found"
                    f" {', '.join(map(repr, header[:8])) or 'nothing'}."
                )
            reader.fieldnames = header
            rows = [((row["path"] or "").strip(), (row["label"] or "").strip()) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataError(f"cannot read the list of images {file}: {reason}.") from problem
    if not rows:
        raise DataError(f"{file} lists no images.")
    for number, (path, label) in enumerate(rows, 2):
        if not path or not label:
            missing = "path" if not path else "label"
            raise DataError(
                f"{file} has no {missing} in line {number}. Add it, or remove the line."
            )
    folder = Path(os.path.abspath(file)).parent
    if not os.path.exists(first := os.path.join(folder, rows[0][0])):
        raise DataError(
            f"{file} lists {first}, which is not there. Paths are relative to {folder}."
        )
    return folder, rows


_HELP = "a CSV file with the columns path and label; csv:FILE#test=OTHER with a test set"
DATA_SOURCES.register("csv", DataSource("csv", load_list, _HELP, "FILE"))
