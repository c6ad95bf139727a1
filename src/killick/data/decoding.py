"""Image files to pixels: uint8 RGB, upright, or an error that names the file.

Transparent images are laid on white. Of animated files the first frame counts. Untrusted files go
through `killick.deploy.decoding_limits` instead, which bounds their memory and time.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from killick.errors import DataError, FileError

EXTENSIONS = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif"),
    *(".webp", ".tif", ".tiff", ".ppm", ".pgm"),
)
# Pillow's names for them. Its other decoders stay out: some start programs of their own.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
WAY_OUT = " Replace it or leave it out."
_TILE = 1024  # pixels each way that are converted at a time, to bound the memory of large images


class UnreadableImage(Exception):
    """Why an image is not read."""


def decode(data: bytes | str | os.PathLike[str], name: str) -> Tensor:
    """The image of a file, given by its bytes or its path, as uint8 `(3, height, width)`.

    A DataError, which calls it `name`, says why it cannot be read.
    """
    with explained(name):
        if data == b"" or (not isinstance(data, bytes) and os.stat(data).st_size == 0):
            raise UnreadableImage("it is empty")
        file = io.BytesIO(data) if isinstance(data, bytes) else data
        with Image.open(file, formats=FORMATS) as image:
            return to_pixels(image)


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn whatever a damaged file makes a decoder raise into one line that names the file."""
    try:
        yield
    except Exception as error:
        reason = error.reason if isinstance(error, FileError) else getattr(error, "strerror", None)
        reason = reason or str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image of a known format, or its beginning is damaged"
        reason = printable(reason)[:200].rstrip(". ")
        raise DataError(f"cannot read {printable(name)}: {reason}.{WAY_OUT}") from error


def to_pixels(image: Image.Image, *, upright: bool = True) -> Tensor:
    """The pixels of an open image, uint8 `(3, height, width)`, turned `upright` by its EXIF."""
    image.load()
    if upright:
        with contextlib.suppress(Exception):  # damaged EXIF leaves the pixels as good as they are
            ImageOps.exif_transpose(image, in_place=True)
    pixels = torch.empty(3, image.height, image.width, dtype=torch.uint8)
    for top, left in product(range(0, image.height, _TILE), range(0, image.width, _TILE)):
        place = pixels[:, top : top + _TILE, left : left + _TILE]
        tile = image.crop((left, top, left + place.shape[2], top + place.shape[1]))
        place.copy_(torch.from_numpy(np.array(_to_rgb(tile))).permute(2, 0, 1))
    return pixels


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UnreadableImage("its gray values are floats of unknown range; save it with 8 bits")
    if image.mode.startswith("I"):  # 16-bit gray: Pillow's own conversion clips at 255
        low, high = np.array(image.getextrema())
        if low < 0 or high > 65535:
            raise UnreadableImage(f"its gray values, {low} to {high}, exceed 16 bits")
        gray = (np.asarray(image).astype(np.uint32) * 255 + 32767) // 65535
        return Image.fromarray(gray.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        page = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(page, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def printable(text: str) -> str:
    r"""In one line that can be written anywhere: file names may hold nearly any bytes.

    Example:
        >>> printable("a/b.png"), printable("a\nb\udcff")
        ('a/b.png', 'a\\nb\\udcff')
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
