"""A contact sheet: corruptions down the page, severities across, a few pictures in each."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate

from killick.errors import DataError

_GAP, _HEAD, _NAME = 4, 22, 210
_TILE = 96


def draw_sheet(
    images: Tensor,
    names: Sequence[str],
    severities: Sequence[int],
    make: Callable[[Tensor, str, int], Tensor],
) -> Image.Image:
    """The sheet; the first column has the pictures as they are.

    Args:
        images: A few, uint8 `(n, 3, height, width)`.
        names: Of the corruptions.
        severities: Of each.
        make: The corrupted pictures of a name and a severity.
    """
    scale = max(1, round(_TILE / max(images.shape[-2:])))
    cell = _strip(images, scale)
    width, height = cell.size
    page = Image.new(
        "RGB",
        (
            _NAME + (len(severities) + 1) * (width + 3 * _GAP),
            _HEAD + len(names) * (height + _GAP),
        ),
        "white",
    )
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(13)
    for column, title in enumerate(["original", *(f"severity {s}" for s in severities)]):
        draw.text((_NAME + column * (width + 3 * _GAP), 4), title, "black", font)
    for row, name in enumerate(names):
        top = _HEAD + row * (height + _GAP)
        draw.text((_GAP, top + height // 2 - 8), name, "black", font)
        strips = [cell, *(_strip(make(images, name, s), scale) for s in severities)]
        for column, strip in enumerate(strips):
            page.paste(strip, (_NAME + column * (width + 3 * _GAP), top))
    return page


def _strip(images: Tensor, scale: int) -> Image.Image:
    """The pictures side by side; small ones enlarged so that pixels can be seen."""
    large = interpolate(images.float(), scale_factor=scale, mode="nearest").to(torch.uint8).cpu()
    if max(large.shape[-2:]) > 2 * _TILE:
        shrink = 2 * _TILE / max(large.shape[-2:])
        large = interpolate(large.float(), scale_factor=shrink, mode="area").to(torch.uint8)
    joined = torch.cat(list(large), dim=-1)
    return Image.fromarray(joined.permute(1, 2, 0).contiguous().numpy())


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture, whole or not at all."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise DataError(f"expected a .png, .jpg or .webp file to write, found {path}.")
    beside = path.with_name(f".part-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(beside)
        beside.replace(path)
    except OSError as problem:
        beside.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {problem.strerror or problem}.") from None
