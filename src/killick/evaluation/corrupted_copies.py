"""Corrupted copies on disk, for `killick corrupt`: files, published layouts and contact sheets."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate

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
from killick.runtime.processes import choose_device
from killick.runtime.progress import choose_display

Array = npt.NDArray[np.generic]
_ON_SHEET = 3
_SHEET_SEVERITIES = (1, 3, 5)
_GAP, _HEAD, _NAME, _TILE = 4, 22, 210, 96


class CorruptedCopies:
    """Images to corrupt, and how.

    Args:
        files: Images of any size, or folders of them; a sheet shows their centers.
        data: Or a set, by name; shapes if neither is given.
        corruptions: Comma-separated names, "c" or "cbar"; all by default.
        severities: Comma-separated.
        table: See `killick.corrupt`.
        frost: See `killick.corrupt`.
        limit: At most so many images of the set.
        seed: Of the corruptions; the same pixels as `killick evaluate` makes.
        root: Where CIFAR is.
        device: Where to work.
        quiet: Show no progress.
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
            raise OptionError("images and --data exclude each other.")
        self._files = [file for given in files for file in _expand(Path(given))][:limit]
        if files and not self._files:
            raise DataError(f"{files[0]} has no images.")
        self._set: ImageSet | None = None
        if not files:
            self._set = limit_images(load_test(data or "shapes", root), limit, seed)
        self._table, self._frost, self._seed = table, frost, seed
        self._device, self._quiet = choose_device(device), quiet
        self._severities = None if severities is None else _parse_severities(severities)
        self._corruptions = corruptions

    def write_sheet(self, path: Path) -> str:
        """Draw the contact sheet; returns a line about it."""
        if any(path.exists() and path.samefile(file) for file in self._files):
            raise OptionError(f"{path} is one of the images. Name another file for the sheet.")
        images = self._few()
        table = choose_table(images.shape[-2:], self._table)
        names, severities = self._names(table), self._severities or _SHEET_SEVERITIES

        def make(images: Tensor, name: str, severity: int) -> Tensor:
            return self._make(images, name, severity, table)

        _save_image(draw_sheet(images, names, severities, make), path)
        return (
            f"{len(names)} corruptions at {len(severities)} severities, with {table}'s constants,"
            f" are on {path}"
        )

    def write(self, folder: Path) -> str:
        """Write the corrupted copies; returns a line about them."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(f"cannot make {folder}: {problem.strerror}.") from None
        if self._set is not None:
            return self._write_arrays(folder, self._set)
        count = 0
        for number, (file, stem) in enumerate(zip(self._files, _stems(self._files), strict=True)):
            image = decode(file, str(file))[None].to(self._device)
            table = choose_table(image.shape[-2:], self._table)
            for name in self._names(table):
                for severity in self._severities or SEVERITIES:
                    made = self._make(image, name, severity, table, number)[0]
                    copy = Image.fromarray(made.permute(1, 2, 0).cpu().numpy())
                    _save_image(copy, folder / f"{stem}-{name}-{severity}.png")
                    count += 1
        return f"{count} images are in {folder}"

    def _write_arrays(self, folder: Path, images: ImageSet) -> str:
        """`NAME.npy` with all severities, one after the other; existing files are kept."""
        if self._severities not in (None, SEVERITIES):
            raise OptionError(
                f"a set needs all five severities, as CIFAR-10-C has, found {self._severities}."
            )
        pixels = images.images()
        table = choose_table(pixels.shape[-2:], self._table)
        names = self._names(table)
        self._check_same(folder, images, table)
        _save_array(folder / "labels.npy", np.tile(images.labels.numpy(), len(SEVERITIES)))
        total, done = len(names) * len(SEVERITIES) * len(pixels), 0
        with choose_display(None, self._quiet)("corrupting", total, 0, "image") as display:
            for name in names:
                file = folder / f"{name}.npy"
                if file.exists():
                    display.message(f"{file} exists, and is kept")
                else:
                    parts = [self._blocks(pixels, name, s, table) for s in SEVERITIES]
                    _save_array(file, np.concatenate(parts))
                done += len(SEVERITIES) * len(pixels)
                display.update(done, name)
        return f"{len(names)} corruptions of {len(pixels):,} images are in {folder}"

    def _check_same(self, folder: Path, images: ImageSet, table: str) -> None:
        """Refuse to add to a folder that was made from other images, or otherwise."""
        frost = None if self._frost is None else str(self._frost)
        made = {"images": digest(images), "seed": self._seed, "table": table, "frost": frost}
        file = folder / "made.json"
        try:
            there = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        except (OSError, ValueError):
            there = {}
        if there is None and any(folder.glob("*.npy")):
            there = {}
        if there is not None and there != made:
            raise DataError(
                f"{folder} has corruptions of other images, or with another seed or table. Choose"
                " another --output."
            )
        write_atomic(file, json.dumps(made, indent=2) + "\n")

    def _blocks(self, pixels: Tensor, name: str, severity: int, table: str) -> Array:
        made = []
        for number, block in enumerate(pixels.split(BLOCK)):
            part = self._make(block.to(self._device), name, severity, table, number)
            made.append(part.permute(0, 2, 3, 1).cpu())
        return torch.cat(made).numpy()

    def _make(self, images: Tensor, name: str, severity: int, table: str, block: int = 0) -> Tensor:
        generator = block_generator(self._seed, name, severity, block, self._device)
        return corrupt(images, name, severity, table=table, generator=generator, frost=self._frost)

    def _names(self, table: str) -> list[str]:
        suites = {kind: list_corruptions(kind, table) for kind in ("c", "cbar")}
        if self._corruptions is None:
            return [*suites["c"], *suites["cbar"]]
        names: list[str] = []
        for name in self._corruptions.split(","):
            names += suites.get(name.strip(), [name.strip()])
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
    images: Tensor,
    names: Sequence[str],
    severities: Sequence[int],
    make: Callable[[Tensor, str, int], Tensor],
) -> Image.Image:
    """A contact sheet: corruptions down the page, severities across, the originals first."""
    scale = max(1, round(_TILE / max(images.shape[-2:])))
    original = _strip(images, scale)
    width, height = original.size
    across, down = width + 3 * _GAP, height + _GAP
    size = (_NAME + (len(severities) + 1) * across, _HEAD + len(names) * down)
    page = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(13)
    for column, title in enumerate(["original", *(f"severity {s}" for s in severities)]):
        draw.text((_NAME + column * across, 4), title, "black", font)
    for row, name in enumerate(names):
        top = _HEAD + row * down
        draw.text((_GAP, top + height // 2 - 8), name, "black", font)
        strips = [original, *(_strip(make(images, name, s), scale) for s in severities)]
        for column, strip in enumerate(strips):
            page.paste(strip, (_NAME + column * across, top))
    return page


def _strip(images: Tensor, scale: int) -> Image.Image:
    """The images side by side; small ones enlarged so that pixels can be seen."""
    large = interpolate(images.float(), scale_factor=scale, mode="nearest").to(torch.uint8).cpu()
    if max(large.shape[-2:]) > 2 * _TILE:
        shrink = 2 * _TILE / max(large.shape[-2:])
        large = interpolate(large.float(), scale_factor=shrink, mode="area").to(torch.uint8)
    joined = torch.cat(list(large), dim=-1)
    return Image.fromarray(joined.permute(1, 2, 0).contiguous().numpy())


def _save_image(image: Image.Image, path: Path) -> None:
    formats = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
    if path.suffix.lower() not in formats:
        raise DataError(f"cannot write {path}: its name must end in .png, .jpg or .webp.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            image.save(file, formats[path.suffix.lower()])
    except OSError as problem:
        raise DataError(f"cannot write {path}: {problem.strerror or problem}.") from None


def _save_array(path: Path, array: Array) -> None:
    try:
        with atomic_file(path) as file:
            np.save(file, array)
    except OSError as problem:
        raise DataError(f"cannot write {path}: {problem.strerror or problem}.") from None


def _expand(path: Path) -> list[Path]:
    """The images of a folder; a file is itself."""
    return [path / name for name in list_images(path)] if path.is_dir() else [path]


def _stems(files: Sequence[Path]) -> list[str]:
    """A name for each file: its own, or with the folder's where several have the same."""
    stems = [file.stem for file in files]
    if len(set(stems)) == len(stems):
        return stems
    return [f"{file.parent.name}-{file.name}".replace(".", "-") for file in files]


def _parse_severities(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"expected severities such as 1,3,5, found {text!r}.") from None
    for severity in found:
        check_severity(severity)
    return found
