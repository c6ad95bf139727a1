"""Corrupted copies on disk, for `killick corrupt`: files, published layouts and contact sheets."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.utils import make_grid

from killick.corruptions.corruption import CORRUPTIONS, Photographs, choose_table, corrupt
from killick.corruptions.suites import SEVERITIES, check_severity, list_corruptions
from killick.data.decoding import decode
from killick.data.image_set import ImageSet, digest
from killick.data.preprocessing import PlainView
from killick.data.sources.imagefolder import list_images
from killick.data.splits import limit_images
from killick.errors import DataError, OptionError
from killick.evaluation.evaluation_data import load_test
from killick.evaluation.image_blocks import BLOCK, block_generator
from killick.runtime.atomic_files import atomic_file, write_atomic
from killick.runtime.devices import choose_device, precise_device
from killick.runtime.progress import choose_display

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_ON_SHEET, _SHEET_SEVERITIES = 3, (1, 3, 5)
_GAP, _HEAD, _NAME, _TILE = 4, 22, 210, 96  # px


@dataclass
class CorruptedCopies:
    """Images to corrupt, and how; for the options see `killick.corrupt` and `killick.evaluate`."""

    files: Sequence[Path] = ()  # images, or folders of them; a sheet shows their centers
    data: str | None = None  # or a set, by name; shapes if neither is given
    corruptions: Sequence[str] | None = None  # names, "c" or "cbar"; all by default
    severities: tuple[int, ...] | None = None  # all five by default; on sheets 1, 3 and 5
    table: str | None = None
    frost: Photographs = None
    limit: int | None = None
    seed: int = 0  # the same pixels as `killick evaluate` makes
    root: str | None = None
    device: str = "auto"
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.files and self.data is not None:
            raise OptionError("images and --data exclude each other.")
        self._files = [file for given in self.files for file in _expand(given)][: self.limit]
        if self.files and not self._files:
            raise DataError(f"{self.files[0]} has no images.")
        self._set = None
        if not self.files:
            whole = load_test(self.data or "shapes", self.root)
            self._set = limit_images(whole, self.limit, self.seed)
        for severity in self.severities or ():
            check_severity(severity)
        self._device = precise_device(choose_device(self.device))

    def write_sheet(self, path: Path) -> str:
        """Draw the contact sheet; returns a line about it."""
        if any(path.exists() and path.samefile(file) for file in self._files):
            raise OptionError(f"{path} is one of the images. Name another file for the sheet.")
        images = self._few()
        table = choose_table(images.shape[-2:], self.table)
        names, severities = self._names(table), self.severities or _SHEET_SEVERITIES
        rows = [
            [images, *(self._make(images, name, severity, table) for severity in severities)]
            for name in names
        ]
        _save_image(draw_sheet(rows, names, severities), path)
        return f"{len(names)} corruptions at {len(severities)} severities are on {path}"

    def write(self, folder: Path) -> str:
        """Write the corrupted copies; returns a line about them."""
        if self._set is not None:
            return self._write_arrays(folder, self._set)
        count, stems = 0, [file.stem for file in self._files]
        if len(set(stems)) < len(stems):  # files of the same name, in several folders
            stems = [f"{file.parent.name}-{file.name}".replace(".", "-") for file in self._files]
        for number, (file, stem) in enumerate(zip(self._files, stems, strict=True)):
            image = decode(file, str(file))[None].to(self._device)
            table = choose_table(image.shape[-2:], self.table)
            for name, severity in product(self._names(table), self.severities or SEVERITIES):
                made = self._make(image, name, severity, table, number)[0]
                copy = Image.fromarray(made.permute(1, 2, 0).cpu().numpy())
                _save_image(copy, folder / f"{stem}-{name}-{severity}.png")
                count += 1
        return f"{count} images are in {folder}"

    def _write_arrays(self, folder: Path, images: ImageSet) -> str:
        """`NAME.npy` with all severities, one after the other; existing files are kept."""
        if self.severities not in (None, SEVERITIES):
            raise OptionError(
                f"a set needs all five severities, as CIFAR-10-C has, found {self.severities}."
            )
        pixels = images.images()
        table = choose_table(pixels.shape[-2:], self.table)
        names = self._names(table)
        labels = np.tile(images.labels.numpy(), len(SEVERITIES))
        self._check_same(folder, digest(images), table)
        _save(folder / "labels.npy", partial(np.save, arr=labels))
        total, done = len(names) * len(SEVERITIES) * len(pixels), 0
        with choose_display(None, self.quiet)("corrupting", total, 0, "image") as display:
            for name in names:
                file = folder / f"{name}.npy"
                if file.exists():
                    display.message(f"{file} exists, and is kept")
                else:
                    made = [
                        self._make(block.to(self._device), name, severity, table, number)
                        for severity in SEVERITIES
                        for number, block in enumerate(pixels.split(BLOCK))
                    ]
                    array = torch.cat([part.permute(0, 2, 3, 1).cpu() for part in made]).numpy()
                    _save(file, partial(np.save, arr=array))
                done += len(SEVERITIES) * len(pixels)
                display.update(done, name)
        return f"{len(names)} corruptions of {len(pixels):,} images are in {folder}"

    def _check_same(self, folder: Path, images: str, table: str) -> None:
        """Refuse to add to a folder that was made from other images, or otherwise."""
        frost = None if self.frost is None else str(self.frost)
        made = {"images": images, "seed": self.seed, "table": table, "frost": frost}
        file, text = folder / "made.json", json.dumps(made, indent=2) + "\n"
        there = file.read_text(encoding="utf-8") if file.exists() else text
        if there != text or (not file.exists() and any(folder.glob("*.npy"))):
            raise DataError(
                f"{folder} has corruptions of other images, or with another seed or table. Choose"
                " another --output."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text)

    def _make(self, images: Tensor, name: str, severity: int, table: str, block: int = 0) -> Tensor:
        generator = block_generator(self.seed, name, severity, block, self._device)
        return corrupt(images, name, severity, table=table, generator=generator, frost=self.frost)

    def _names(self, table: str) -> list[str]:
        suites = {kind: list_corruptions(kind, table) for kind in ("c", "cbar")}
        given = suites if self.corruptions is None else self.corruptions
        names = [name for each in given for name in suites.get(each, (each,))]
        for name in names:
            CORRUPTIONS.find(name).arguments(1, table)
        return list(dict.fromkeys(names))

    def _few(self) -> Tensor:
        """Some images of one size, for a sheet."""
        if self._set is not None:
            places = torch.linspace(0, len(self._set) - 1, min(_ON_SHEET, len(self._set))).long()
            images = [self._set.read(int(place)) for place in places]
        else:
            images = [decode(file, str(file)) for file in self._files[:_ON_SHEET]]
        view = PlainView(min(224, *(min(image.shape[-2:]) for image in images)))
        return torch.stack([view(image) for image in images]).to(self._device)


def draw_sheet(
    rows: Sequence[Sequence[Tensor]], names: Sequence[str], severities: Sequence[int]
) -> Image.Image:
    """A contact sheet: corruptions down the page; across, the originals and each severity."""
    few, side = rows[0][0].shape[0], rows[0][0].shape[-1]
    # Small images are enlarged so that pixels can be seen.
    scale = max(1, round(_TILE / side)) if side <= 2 * _TILE else 2 * _TILE / side
    tiles = torch.cat([images for row in rows for images in row]).float().cpu()
    tiles = interpolate(tiles, scale_factor=scale, mode="nearest" if scale >= 1 else "area")
    grid = make_grid(tiles, nrow=few * len(rows[0]), padding=_GAP, pad_value=255).to(torch.uint8)
    page = Image.new("RGB", (_NAME + grid.shape[2], _HEAD + grid.shape[1]), "white")
    page.paste(Image.fromarray(grid.permute(1, 2, 0).numpy()), (_NAME, _HEAD))
    draw, font, tile = ImageDraw.Draw(page), ImageFont.load_default(13), tiles.shape[-1] + _GAP
    for column, title in enumerate(["original", *(f"severity {s}" for s in severities)]):
        draw.text((_NAME + column * few * tile + _GAP, 4), title, "black", font)
    for row, name in enumerate(names):
        draw.text((_GAP, _HEAD + row * tile + tile // 2 - 8), name, "black", font)
    return page


def _save_image(image: Image.Image, path: Path) -> None:
    if path.suffix.lower() not in _FORMATS:
        raise DataError(f"cannot write {path}: its name must end in .png, .jpg or .webp.")
    _save(path, lambda file: image.save(file, _FORMATS[path.suffix.lower()]))


def _save(path: Path, write: Callable[[BinaryIO], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            write(file)
    except OSError as problem:
        raise DataError(f"cannot write {path}: {problem.strerror or problem}.") from None


def _expand(path: Path) -> list[Path]:
    """The images of a folder; a file is itself."""
    return [path / name for name in list_images(path)] if path.is_dir() else [path]
