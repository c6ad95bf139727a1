"""Image files to pixels: uint8 RGB, upright, or an error that names the file.

Transparent images are laid on white. Of animated files the first frame counts. Files from strangers
go through `killick.deploy.decoding_limits` instead, which bounds what they may cost.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from killick.errors import DataError

EXTENSIONS = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif"),
    *(".webp", ".tif", ".tiff", ".ppm", ".pgm"),
)
# Pillow's names for them. Its other decoders stay out: some start programs of their own.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
WAY_OUT = " Replace it or leave it out."

_PART = 2**20  # pixels that are converted at a time, to bound the memory of large images
_ORIENTATION, _PHOTOMETRIC, _WHITE_IS_ZERO = 0x0112, 262, 0  # EXIF and TIFF tags


class UnreadableImage(Exception):
    """Why an image is not read."""


def decode(data: bytes | str | os.PathLike[str], name: str) -> Tensor:
    """The image as uint8 `(3, height, width)`.

    Args:
        data: The bytes of an image file, or its path.
        name: What an error calls it.

    Raises:
        DataError: If it cannot be read.
    """
    with explained(name), _open(data) as image:
        return to_pixels(image)


def measure(data: bytes | str | os.PathLike[str], name: str) -> tuple[int, int]:
    """Height and width in the file's header, before it is turned upright."""
    with explained(name), _open(data) as image:
        return image.height, image.width


def _open(data: bytes | str | os.PathLike[str]) -> ImageFile.ImageFile:
    if data == b"" or (not isinstance(data, bytes) and os.stat(data).st_size == 0):
        raise UnreadableImage("it is empty")
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    return Image.open(file, formats=FORMATS)


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn whatever a damaged file makes a decoder raise into one line that names the file."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image of a known format, or its beginning is damaged"
        elif isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        elif isinstance(error, MemoryError):
            reason = "not enough memory"
        elif isinstance(
            error, (OSError, ValueError, UnreadableImage, Image.DecompressionBombError)
        ):
            reason = printable(str(error))[:200].rstrip(". ") or "it is damaged"
        else:
            reason = f"it is damaged ({printable(f'{type(error).__name__}: {error}')[:200]})"
        raise DataError(f"cannot read {printable(name)}: {reason}.{WAY_OUT}") from error


def read_orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1, upright, if there is none that can be read."""
    try:
        found = int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF leaves the pixels as good as they are
        return 1
    return found if 1 <= found <= 8 else 1


def to_pixels(
    image: ImageFile.ImageFile, orientation_of: Callable[[Image.Image], int] = read_orientation
) -> Tensor:
    """The pixels of an open image, uint8 `(3, height, width)`, upright."""
    stored_as = _raw_mode(image)
    image.load()
    _scale_transparent_color(image, stored_as)
    negative = _is_negative(image)
    orientation = orientation_of(image)
    if image.mode == "I":
        _check_range(image)
    height, width = image.height, image.width
    shape = (width, height) if orientation > 4 else (height, width)
    pixels = torch.empty(3, *shape, dtype=torch.uint8)
    stored = _as_stored(pixels.permute(1, 2, 0).numpy(), orientation)
    for left, top, right, bottom in _parts(width, height):
        whole = (right - left, bottom - top) == (width, height)
        rgb = np.asarray(_to_rgb(image if whole else image.crop((left, top, right, bottom))))
        stored[top:bottom, left:right] = 255 - rgb if negative else rgb
    return pixels


def _parts(width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """Boxes that cover an image; one for all but very large ones."""
    across = min(width, _PART)
    down = max(1, _PART // across)
    for top in range(0, height, down):
        for left in range(0, width, across):
            yield left, top, min(left + across, width), min(top + down, height)


def _as_stored(upright: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """A view of an upright image with its rows and columns as they are in the file."""
    if orientation > 4:
        upright = upright.swapaxes(0, 1)
    if orientation in (3, 4, 6, 7):
        upright = upright[::-1]
    if orientation in (2, 3, 7, 8):
        upright = upright[:, ::-1]
    return upright


def _raw_mode(image: ImageFile.ImageFile) -> str:
    """Pillow's name for the values in a PNG, such as "L;4"; its `load` forgets it."""
    known = [tile.args for tile in image.tile if isinstance(tile.args, str)]
    return known[0] if image.format == "PNG" and known else ""


def _scale_transparent_color(image: Image.Image, stored_as: str) -> None:
    """Give the color as many bits as the pixels have now; Pillow leaves it as it was stored."""
    color = image.info.get("transparency")
    factor = {"L;2": 85, "L;4": 17}.get(stored_as)
    if isinstance(color, int) and factor:
        image.info["transparency"] = color * factor
    if isinstance(color, tuple) and stored_as == "RGB;16B":
        image.info["transparency"] = tuple(part >> 8 for part in color)


def _is_negative(image: Image.Image) -> bool:
    """Whether 0 is white in a TIFF of 16 bits; with fewer bits Pillow inverts it itself."""
    if image.format != "TIFF" or not image.mode.startswith("I"):
        return False
    return bool(image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO)  # type: ignore[attr-defined]


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        return _from_deep_gray(image).convert("RGB")
    if image.mode == "F":
        raise UnreadableImage("its gray values are floats of unknown range; save it with 8 bits")
    if image.has_transparency_data:
        page = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(page, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _check_range(image: Image.Image) -> None:
    low, high = np.array(image.getextrema())
    if low < 0 or high > 65535:
        raise UnreadableImage(f"its gray values, {low} to {high}, exceed 16 bits; save it with 8")


def _from_deep_gray(image: Image.Image) -> Image.Image:
    """16-bit gray scaled to 8 bits; Pillow's own conversion clips at 255 and ignores tRNS."""
    gray = np.asarray(image).astype(np.uint32)
    scaled = ((gray * 255 + 32767) // 65535).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        scaled[gray == clear] = 255
    return Image.fromarray(scaled)


def printable(text: str) -> str:
    r"""In one line that can be written anywhere: file names may hold nearly any bytes.

    Example:
        >>> printable("a/b.png"), printable("a\nb\udcff")
        ('a/b.png', 'a\\nb\\udcff')
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
