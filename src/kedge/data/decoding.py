"""Picture files to pixels: whatever a file holds becomes uint8 RGB, upright, or is refused by name.

Transparent pictures are laid on white, as they are seen on a page; on black, a dark logo would
vanish. Of animated files the first frame counts.
"""

import io
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from kedge.errors import DataError

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".bmp",
    ".gif",
    ".webp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
)
# Pillow's names for them. Its other decoders stay out: some start programs of their own.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")

ORIENTATION = 0x0112  # the EXIF tag; its values say how the camera was held
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: bytes | str | os.PathLike[str], name: str) -> Tensor:
    """The picture as uint8 `(3, height, width)`.

    Args:
        data: The bytes of an image file, or the path of one.
        name: What an error calls it.
    """
    try:
        return _pixels(_contents(data))
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        raise DataError(_complaint(name, error)) from error


def measure(data: bytes | str | os.PathLike[str], name: str) -> tuple[int, int]:
    """Height and width as the file states them, before it is turned upright; nothing is decoded."""
    try:
        with _open(_contents(data)) as picture:
            return picture.height, picture.width
    except Exception as error:
        raise DataError(_complaint(name, error)) from error


def _contents(data: bytes | str | os.PathLike[str]) -> bytes:
    """The bytes, read at once so that no file stays open."""
    contents = data if isinstance(data, bytes) else Path(data).read_bytes()
    if not contents:
        raise ValueError("it is empty")
    return contents


def _open(contents: bytes) -> Image.Image:
    """The picture, not yet decoded, if it is not too large to decode."""
    picture = Image.open(io.BytesIO(contents), formats=FORMATS)
    # Between this limit and twice as much Pillow only warns. Turning its warning into an error
    # would change a filter that all threads share.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and picture.width * picture.height > limit:
        raise Image.DecompressionBombError(
            f"its {picture.width} x {picture.height} pixels exceed Pillow's limit of {limit}"
        )
    return picture


def _pixels(contents: bytes) -> Tensor:
    with _open(contents) as picture:
        picture.load()
        method = UPRIGHT.get(_orientation(picture))
        colours = _to_rgb(picture)
    if method is not None:
        colours = colours.transpose(method)
    return torch.from_numpy(np.array(colours)).permute(2, 0, 1).contiguous()


def _orientation(picture: Image.Image) -> int:
    """The EXIF orientation; 1, upright, where there is none or none that can be read."""
    try:
        return int(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # damage there leaves the pixels as good as they are
        return 1


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode.startswith("I"):
        return _from_deep_grey(picture).convert("RGB")
    if picture.mode == "F":
        raise ValueError("its grey values are floats of an unknown range; save it with 8 bits")
    if picture.has_transparency_data:
        page = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(page, picture.convert("RGBA")).convert("RGB")
    return picture.convert("RGB")


def _from_deep_grey(picture: Image.Image) -> Image.Image:
    """16-bit grey scaled to 8 bits; Pillow's own conversion clips at 255."""
    grey = np.asarray(picture).astype(np.int64)
    if grey.min() < 0 or grey.max() > 65535:
        raise ValueError(
            f"its grey values, {grey.min()} to {grey.max()}, are not of 16 bits; save it with 8"
        )
    return Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8))


def _complaint(name: str, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        reason = "it is no image of a kind that can be read, or its beginning is damaged"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
    return f"cannot read {name}: {reason}. Replace it or leave it out."
