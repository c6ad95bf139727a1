"""Corrupted copies on disk: of some pictures, or of a whole set, laid out as the published ones."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from killick.corruptions.corruption import CORRUPTIONS, Photographs, choose_table, corrupt
from killick.corruptions.suites import (
    SEVERITIES,
    check_severity,
    list_corruptions,
)
from killick.data.decoding import decode
from killick.data.image_set import ImageSet, digest
from killick.data.preprocessing import PlainView
from killick.data.sources.imagefolder import list_images
from killick.data.splits import stratified
from killick.errors import DataError, OptionError
from killick.evaluation.contact_sheet import draw_sheet, save_picture
from killick.evaluation.image_blocks import BLOCK, block_generator
from killick.evaluation.test_sets import load_test
from killick.runtime.atomic_files import write_atomic
from killick.runtime.processes import choose_device
from killick.runtime.progress import choose_display

Array = npt.NDArray[np.generic]
_ON_SHEET = 3
_SHEET_SEVERITIES = (1, 3, 5)


class Copies:
    """Pictures to corrupt, and how.

    Args:
        files: Pictures of any size, or folders of them; on a sheet, their middle squares.
        data: Or a set, by name; shapes if neither is given.
        corruptions: Comma-separated names, "c" or "cbar"; all by default.
        severities: Comma-separated.
        table: See `killick.corrupt`.
        frost: See `killick.corrupt`.
        limit: At most so many pictures of the set.
        seed: Of the corruptions; the same pixels as `killick evaluate` makes.
        root: Where CIFAR is.
        device: Where to work.
        quiet: Show nothing.
    """

    def __init__(
        self,
        files: Sequence[Path] = (),
        data: str | None = None,
        *,
        corruptions: str | None = None,
        severities: str | None = None,
        table: str | None = None,
        frost: Photographs = None,
        limit: int | None = None,
        seed: int = 0,
        root: str | None = None,
        device: str = "auto",
        quiet: bool = False,
    ) -> None:
        if files and data is not None:
            raise OptionError("expected pictures or --data, found both.")
        self._files = [file for given in files for file in _expand(Path(given))][:limit]
        if files and not self._files:
            raise DataError(f"expected pictures in {files[0]}, found none.")
        self._set: ImageSet | None = None
        if not files:
            self._set = load_test(data or "shapes", root)
            if limit is not None and limit < len(self._set):
                _, kept = stratified(self._set.labels, limit, seed)
                self._set = self._set.part(kept.sort().values)
        self._table, self._frost, self._seed = table, frost, seed
        self._device, self._quiet = choose_device(device), quiet
        self._severities = None if severities is None else _parse_severities(severities)
        self._asked = corruptions

    def write_sheet(self, path: Path) -> str:
        """Draw the contact sheet; what was done, in a line."""
        if any(path.exists() and path.samefile(file) for file in self._files):
            raise OptionError(
                f"expected another file for the sheet than the picture {path} itself."
            )
        images = self._few()
        table = choose_table(images.shape[-2:], self._table)
        names = self._names(table)
        severities = self._severities or _SHEET_SEVERITIES
        page = draw_sheet(images, names, severities, lambda x, n, s: self._make(x, n, s, table))
        save_picture(page, path)
        return (
            f"{len(names)} corruptions at {len(severities)} severities, with {table}'s constants,"
            f" are on {path}"
        )

    def write(self, folder: Path) -> str:
        """Write the corrupted copies; what was done, in a line."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(f"cannot make {folder}: {problem.strerror}.") from None
        if self._set is not None:
            return self._write_arrays(folder, self._set)
        count = 0
        names = _distinct(self._files)
        for number, file in enumerate(self._files):
            picture = decode(file, str(file))
            table = choose_table(picture.shape[-2:], self._table)
            for name in self._names(table):
                for severity in self._severities or SEVERITIES:
                    one = picture[None].to(self._device)
                    made = self._make(one, name, severity, table, number)[0]
                    whole = Image.fromarray(made.permute(1, 2, 0).cpu().numpy())
                    save_picture(whole, folder / f"{names[number]}-{name}-{severity}.png")
                    count += 1
        return f"{count} pictures are in {folder}"

    def _write_arrays(self, folder: Path, images: ImageSet) -> str:
        """`NAME.npy` with all severities, one after the other; a file that is there is kept."""
        if self._severities not in (None, SEVERITIES):
            raise OptionError(
                "expected all five severities for a set, which is laid out as CIFAR-10-C is, found"
                f" {self._severities}."
            )
        pictures = _whole(images)
        table = choose_table(pictures.shape[-2:], self._table)
        names = self._names(table)
        self._check_same(folder, images, table)
        _save_array(folder / "labels.npy", np.tile(images.labels.numpy(), len(SEVERITIES)))
        total = len(names) * len(SEVERITIES) * len(pictures)
        done = 0
        with choose_display(None, self._quiet)("corrupting", total, 0, "image") as display:
            for name in names:
                file = folder / f"{name}.npy"
                if file.exists():
                    display.message(f"{file} is there already, and kept")
                else:
                    parts = [self._blocks(pictures, name, s, table) for s in SEVERITIES]
                    _save_array(file, np.concatenate(parts))
                done += len(SEVERITIES) * len(pictures)
                display.update(done, name)
        return f"{len(names)} corruptions of {len(pictures):,} pictures are in {folder}"

    def _check_same(self, folder: Path, images: ImageSet, table: str) -> None:
        """Refuse to add to a folder that was made of other pictures, or otherwise."""
        frost = None if self._frost is None else str(self._frost)
        made = {"pictures": digest(images), "seed": self._seed, "table": table, "frost": frost}
        file = folder / "made.json"
        try:
            there = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        except (OSError, ValueError):
            there = {}
        if there is None and any(folder.glob("*.npy")):
            there = {}
        if there is not None and there != made:
            raise DataError(
                f"expected an empty folder, or one with corruptions of the same pictures with the"
                f" same seed and table, found others in {folder}. Choose another --output."
            )
        write_atomic(file, json.dumps(made, indent=2) + "\n")

    def _blocks(self, pictures: Tensor, name: str, severity: int, table: str) -> Array:
        made = []
        for number, block in enumerate(pictures.split(BLOCK)):
            part = self._make(block.to(self._device), name, severity, table, number)
            made.append(part.permute(0, 2, 3, 1).cpu())
        return torch.cat(made).numpy()

    def _make(self, images: Tensor, name: str, severity: int, table: str, block: int = 0) -> Tensor:
        generator = block_generator(self._seed, name, severity, block, self._device)
        return corrupt(images, name, severity, table=table, generator=generator, frost=self._frost)

    def _names(self, table: str) -> list[str]:
        lists = {kind: list_corruptions(kind, table) for kind in ("c", "cbar")}
        if self._asked is None:
            return [*lists["c"], *lists["cbar"]]
        names: list[str] = []
        for name in self._asked.split(","):
            names += lists.get(name.strip(), [name.strip()])
        for name in names:
            CORRUPTIONS.find(name).arguments(1, table)
        return list(dict.fromkeys(names))

    def _few(self) -> Tensor:
        """Some pictures of one size, for a sheet."""
        if self._set is not None:
            places = torch.linspace(0, len(self._set) - 1, min(_ON_SHEET, len(self._set))).long()
            pictures = [self._set.read(int(place)) for place in places]
        else:
            pictures = [decode(file, str(file)) for file in self._files[:_ON_SHEET]]
        side = min(224, *(min(picture.shape[-2:]) for picture in pictures))
        view = PlainView(side)
        return torch.stack([view(picture) for picture in pictures]).to(self._device)


def _expand(path: Path) -> list[Path]:
    """The pictures of a folder; a file is itself."""
    return [path / name for name in list_images(path)] if path.is_dir() else [path]


def _distinct(files: Sequence[Path]) -> list[str]:
    """A name for each file: its own, or with the folder's where several have the same."""
    stems = [file.stem for file in files]
    if len(set(stems)) == len(stems):
        return stems
    return [f"{file.parent.name}-{file.name}".replace(".", "-") for file in files]


def _whole(images: ImageSet) -> Tensor:
    """All pictures as one tensor; they must be of one size."""
    if images.in_memory:
        return images.images()
    pictures = [images.read(number) for number in range(len(images))]
    sizes = {tuple(picture.shape) for picture in pictures}
    if len(sizes) > 1:
        raise DataError(
            f"expected pictures of one size in {images.name}, found {len(sizes)} sizes. Corrupt"
            " them one by one: killick corrupt FILES --output FOLDER."
        )
    return torch.stack(pictures)


def _save_array(path: Path, array: Array) -> None:
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(beside, "wb") as file:
            np.save(file, array)
        os.replace(beside, path)
    except OSError as problem:
        beside.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {problem.strerror or problem}.") from None


def _parse_severities(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"expected severities such as 1,3,5, found {text!r}.") from None
    for severity in found:
        check_severity(severity)
    return found
