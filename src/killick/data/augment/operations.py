"""The operations of augmentation policies on a batch, where each image has its own.

All of them are computed for all images, and each image takes the result of its own: that needs no
wait for the device. Shared work is done once: a single warp serves all five affine operations, and a
single table lookup all that map values (see `value_tables`). On a CPU, where there is nothing to wait for,
each operation is computed for its images alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from killick.data.augment import value_tables, warps

WARPS = {
    "ShearX": warps.shear_x,
    "ShearY": warps.shear_y,
    "TranslateX": warps.translate_x,
    "TranslateY": warps.translate_y,
    "Rotate": warps.rotate,
}
TABLES = ("Brightness", "Contrast", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert")
OPERATIONS = ("Identity", *WARPS, "Color", "Sharpness", *TABLES)  # its place is its number

CACHED = 2**19  # values that a CPU works on at a time


def number_of(name: str) -> int:
    """The number of an operation."""
    return OPERATIONS.index(name)


def apply(
    images: Tensor,
    operations: Tensor,
    magnitudes: Tensor,
    *,
    among: Sequence[str] = OPERATIONS,
    interpolation: str = "bilinear",
    fill: Sequence[float] | None = None,
) -> Tensor:
    """Images `(n, 3, height, width)`, uint8, after an operation on each.

    Args:
        images: In any layout; the result is channels_last.
        operations: Numbers of operations, `(n,)`.
        magnitudes: As torchvision's policies have them, with their sign, `(n,)`.
        among: The operations that occur; others are not computed.
        interpolation: Of warps: "nearest" or "bilinear".
        fill: Color outside of a warped image; by default black.
    """
    options = {"interpolation": interpolation, "fill": fill}
    pixels = images.permute(0, 2, 3, 1).contiguous()
    if images.device.type != "cpu" or torch.compiler.is_compiling():
        return _apply_all(pixels, operations, magnitudes, among, options).permute(0, 3, 1, 2)
    changed = pixels.clone()
    few = max(1, CACHED // pixels[0].numel())
    used = [tuple(WARPS), *((name,) for name in among if name not in WARPS and name != "Identity")]
    for group in used:
        numbers = torch.tensor([number_of(name) for name in group])
        found = torch.isin(operations, numbers).nonzero()[:, 0]
        for rows in found.split(few) if len(found) else ():
            part = pixels.index_select(0, rows)
            done = _apply_all(part, operations[rows], magnitudes[rows], group, options)
            changed.index_copy_(0, rows, done)
    return changed.permute(0, 3, 1, 2)


def _apply_all(
    pixels: Tensor,
    operations: Tensor,
    magnitudes: Tensor,
    among: Sequence[str],
    options: dict[str, Any],
) -> Tensor:
    """Images `(n, height, width, 3)` after their operations, by static shapes."""

    def chosen(name: str) -> Tensor:
        return (operations == number_of(name))[:, None, None]

    changed = _map_values(pixels, operations, magnitudes, among)
    if "Color" in among:
        changed = torch.where(chosen("Color")[..., None], _color(pixels, magnitudes), changed)
    if "Sharpness" in among and min(pixels.shape[1:3]) > 2:
        sharp = _sharpness(pixels, magnitudes)
        changed = torch.where(chosen("Sharpness")[..., None], sharp, changed)
    if used := [name for name in WARPS if name in among]:
        matrices = torch.zeros(len(pixels), 2, 3, device=pixels.device)
        warped = torch.zeros_like(operations, dtype=torch.bool)
        for name in used:
            found = WARPS[name](magnitudes, pixels.shape[1], pixels.shape[2])
            matrices = torch.where(chosen(name), found, matrices)
            warped = warped | (operations == number_of(name))
        moved = warps.warp(pixels, matrices, **options)
        changed = torch.where(warped[:, None, None, None], moved, changed)
    return changed


def _map_values(
    pixels: Tensor, operations: Tensor, magnitudes: Tensor, among: Sequence[str]
) -> Tensor:
    """What tables make of images; other operations leave them as they are."""
    if not any(name in among for name in TABLES):
        return pixels
    places = value_tables.table_places(pixels)
    found = {"Identity": torch.arange(256, device=pixels.device, dtype=torch.uint8)}
    if "Brightness" in among:
        found["Brightness"] = value_tables.brightness(magnitudes)
    if "Contrast" in among:
        rows = _gray(pixels).sum(2)  # whole numbers, so that sums are exact in any order
        mean = rows.long().sum(1).float() / (pixels.shape[1] * pixels.shape[2])
        found["Contrast"] = value_tables.contrast(magnitudes, mean)
    if "Posterize" in among:
        found["Posterize"] = value_tables.posterize(magnitudes)
    if "Solarize" in among:
        found["Solarize"] = value_tables.solarize(magnitudes)
    if "AutoContrast" in among:
        found["AutoContrast"] = value_tables.autocontrast(pixels.amin((1, 2)), pixels.amax((1, 2)))
    if "Equalize" in among:
        found["Equalize"] = value_tables.equalize(value_tables.count_values(places, len(pixels)))
    if "Invert" in among:
        found["Invert"] = value_tables.invert(magnitudes)
    table = found["Identity"].expand(len(pixels), 3, 256)
    for name, values in found.items():
        table = torch.where((operations == number_of(name))[:, None, None], values, table)
    return value_tables.look_up(table, places)


def _gray(pixels: Tensor) -> Tensor:
    """Brightness of each pixel, a whole number as float."""
    red, green, blue = pixels.float().unbind(3)
    return (red * 0.2989 + green * 0.587 + blue * 0.114).floor()


def _color(pixels: Tensor, magnitudes: Tensor) -> Tensor:
    """Colors moved away from gray, or towards it if the magnitude is negative."""
    magnitude = magnitudes[:, None, None, None]
    gray = _gray(pixels)[..., None]
    return (pixels * (1 + magnitude) + gray * -magnitude).clamp(0, 255).to(torch.uint8)


def _sharpness(pixels: Tensor, magnitudes: Tensor) -> Tensor:
    """Pixels moved away from a blurred image, or towards it; the border stays."""
    whole = pixels.short()
    rows = whole[:, :-2] + whole[:, 1:-1] + whole[:, 2:]
    box = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]
    middle = whole[:, 1:-1, 1:-1]
    blurred = ((box + 4 * middle).float() / 13).round()
    sharp = middle + (blurred - middle) * -magnitudes[:, None, None, None]
    sharp = sharp.clamp(0, 255).to(torch.uint8)
    inner = torch.nn.functional.pad(sharp, (0, 0, 1, 1, 1, 1))
    y, x = (torch.arange(side, device=pixels.device) for side in pixels.shape[1:3])
    inside = ((y > 0) & (y < len(y) - 1))[:, None] & ((x > 0) & (x < len(x) - 1))
    return torch.where(inside[..., None], inner, pixels)
