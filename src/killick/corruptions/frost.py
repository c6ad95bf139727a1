"""Frost: ice on the window through which an image is seen."""

import math
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from killick.corruptions.corruption import Generator, Photographs, corruption, to_bytes, to_floats
from killick.corruptions.ice import make_ice
from killick.errors import DataError, ShapeError

_USED = 5  # the originals have six photographs and draw among the first five
_KINDS = {".png", ".jpg", ".jpeg"}
_SPARE = 1.1  # how much larger than the image a texture is made that was too small for it


@corruption(
    cifar=((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    tiny=((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
    imagenet=((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
)
def frost(
    images: Tensor,
    image_weight: float,
    frost_weight: float,
    scale: float,
    *,
    generator: Generator,
    textures: Photographs = None,
) -> Tensor:
    """The images behind ice: to each a crop is added of one of the textures, both at random.

    The textures are those of `ice.make_ice`; the originals have photographs. A texture that is not
    larger than the images is enlarged until it is, with a tenth to spare; the originals fail there.

    Constants:
        image_weight: How much of the image is left.
        frost_weight: How much of the texture is added.
        scale: By which the texture is resized before it is cropped.
        textures: uint8 `(3, height, width)` each, or where `load_photographs` finds them; ice by
            default.
    """
    n, _, height, width = images.shape
    device = images.device
    if isinstance(textures, str | os.PathLike):
        textures = _load_once(os.fspath(textures))
    textures = make_ice() if textures is None else tuple(textures)
    panes = _prepare(textures, scale, height, width, device)
    which = torch.randint(len(panes.begins), (n,), device=device, generator=generator)
    place = torch.rand(2, n, device=device, generator=generator)
    crops = _cut_out(panes, which, place, height, width)
    levels = to_floats(images).mul_(image_weight)
    return to_bytes(levels.add_(crops.float(), alpha=frost_weight))


def load_photographs(where: str | os.PathLike[str]) -> list[Tensor]:
    """The photographs of frost that the originals use, uint8 `(3, height, width)` each.

    `where` is a folder with frost1.png, frost2.png and so on, in itself or in a folder `frost`, or
    the name of an installed package that has them, such as imagecorruptions. (It is not imported.)
    Of more than five the first five are used, as in the originals.
    """
    folder = _find_folder(where)
    for place in (folder, folder / "frost"):
        found = sorted(p for p in place.glob("[fF]rost*") if p.suffix.lower() in _KINDS)
        if len(found) >= _USED:
            return [_read(path) for path in found[:_USED]]
    raise DataError(
        f"expected {_USED} photographs frost1.png, frost2.png … in {folder} or in its folder frost,"
        " found fewer. Take them from the code of ImageNet-C, or leave them out for procedural ice."
    )


@lru_cache(maxsize=4)
def _load_once(where: str) -> tuple[Tensor, ...]:
    return tuple(load_photographs(where))


def _find_folder(where: str | os.PathLike[str]) -> Path:
    """A folder as it is given, or that of an installed package."""
    if os.path.isdir(where):
        return Path(where)
    name = os.fspath(where)
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"expected a folder with photographs of frost, or an installed package that has one,"
            f" found neither at {name!r}. Leave it out for procedural ice."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _read(path: Path) -> Tensor:
    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
    except OSError as error:
        raise DataError(f"cannot read the photograph {path}: {error}.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


class Panes(NamedTuple):
    """Textures, resized, one after the other in memory; where each begins; how large each is."""

    pixels: Tensor
    begins: Tensor
    heights: Tensor
    widths: Tensor


@lru_cache(maxsize=8)
def _prepare(
    textures: tuple[Tensor, ...], scale: float, height: int, width: int, device: torch.device
) -> Panes:
    """The textures in the scale that is asked for, each larger than `height` and `width`."""
    if not textures:
        raise DataError("expected at least one texture of frost, found none.")
    resized = []
    for texture in textures:
        if texture.dtype != torch.uint8 or texture.ndim != 3 or texture.shape[0] != 3:
            raise ShapeError(
                "expected textures of frost as uint8 (3, height, width), found"
                f" {texture.dtype} {tuple(texture.shape)}."
            )
        pane = texture.to(device)
        tall, wide = max(1, round(pane.shape[1] * scale)), max(1, round(pane.shape[2] * scale))
        pane = _resize(pane, scale, tall, wide)
        if tall <= height or wide <= width:
            factor = _SPARE * max(height / tall, width / wide)
            pane = _resize(pane, factor, math.ceil(tall * factor), math.ceil(wide * factor))
        resized.append(pane)
    sizes = torch.tensor([pane.shape for pane in resized]).to(device)
    counts = sizes.prod(1)
    pixels = torch.cat([pane.reshape(-1) for pane in resized])
    return Panes(pixels, counts.cumsum(0) - counts, sizes[:, 1], sizes[:, 2])


def _resize(texture: Tensor, scale: float, height: int, width: int) -> Tensor:
    """The texture, linearly interpolated but not smoothed before, as OpenCV does by default."""
    levels = texture.float()
    for dim, size in ((1, height), (2, width)):
        last = levels.shape[dim] - 1
        places = (torch.arange(size, dtype=torch.float64) + 0.5).div_(scale).sub_(0.5)
        places = places.clamp_(0, last).to(texture.device)
        low = places.long()
        share = (places - low).float().view((-1, 1) if dim == 1 else (-1,))
        upper = levels.index_select(dim, (low + 1).clamp_(max=last))
        levels = levels.index_select(dim, low).lerp_(upper, share)
    return levels.round_().to(torch.uint8)


def _cut_out(panes: Panes, which: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    """Crops `(n, 3, height, width)` of the textures number `which`, `(n,)`.

    `place`, `(2, n)`, is where each begins: shares of the room downwards and to the right. As in
    the originals, the last possible row and column are never reached.
    """
    tall, wide = panes.heights[which], panes.widths[which]
    top = (place[0] * (tall - height)).long()
    left = (place[1] * (wide - width)).long()
    channels = torch.arange(3, device=which.device)[:, None]
    rows = torch.arange(height, device=which.device) + top[:, None, None]
    rows = (channels * tall[:, None, None] + rows) * wide[:, None, None]
    starts = rows + (panes.begins[which] + left)[:, None, None]
    # Every run of `width` pixels, overlapping: a row of a crop is one of them, copied at a stroke.
    runs = panes.pixels.as_strided((len(panes.pixels) - width + 1, width), (1, 1))
    return runs.index_select(0, starts.view(-1)).view(-1, 3, height, width)
