"""Picture files to pixels: whatever a file holds becomes uint8 RGB, upright, or is refused by name.

Transparent pictures are laid on white, as they are seen on a page; on black, a dark logo would
vanish. Of animated files the first frame counts.

Files come from strangers, so what they may cost is bounded. Anything but a plain file is refused
unread: a folder, a pipe, a device. So are a file of more than `LARGEST_FILE` bytes, a picture of
more pixels than Pillow's own `MAX_IMAGE_PIXELS` (89 million), a JPEG of more than `MOST_SCANS`
scans, and a file that is cut into so many pieces that walking through them is all the work. At any
time at most `FILE_COPIES` times the file, `PEAK_BYTES` for each pixel and `SPARE_BYTES` for all
else are in memory: 2.1 GB for the most pixels in a small file, 1.5 GB for 60 megapixels.
"""

import contextlib
import io
import os
import re
import stat
import struct
import threading
import unicodedata
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from killick.errors import DataError

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
WAY_OUT = " Replace it or leave it out."
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")

LARGEST_FILE = 2**29  # bytes: room for 16-bit RGB of nearly as many pixels as Pillow allows
MOST_SCANS = 100  # of a JPEG: a scan of a few bytes makes its decoder walk through all pixels
MOST_EXIF_SEGMENTS = 16  # of a JPEG, of 64 kB: Pillow joins them one by one
MOST_NUMBERS = 2**18  # in the tags of a TIFF or of EXIF: each becomes an object of Python's
LARGEST_TILE = 2**24  # pixels of a TIFF's tile, unless the picture itself is larger
MOST_READS_TO_OPEN = 2**12  # pieces before the pixels: a hundred are many, a bomb has millions
MOST_READS_TO_DECODE = 2**20
MOST_READS_OF_PLAIN = 2**24  # BMP and PPM have kinds that Pillow reads byte by byte, or by pixel
MOST_RUN_LENGTH_PIXELS = 2**24  # of a BMP: Pillow unpacks them one by one, in Python
LARGEST_PLAIN_PPM = 2**26  # bytes: Python reads a few million of such numbers a second

# The bound on memory; a test decodes the worst cases under it.
FILE_COPIES = 3
PEAK_BYTES = 22  # WebP: 4 each for two canvases, what was decoded, a row of it, and Pillow's own
SPARE_BYTES = 2**27
_PART = 2**20  # pixels that are converted at a time

ORIENTATION = 0x0112  # the EXIF tag; its values say how the camera was held
_TILE_WIDTH, _TILE_LENGTH, _PHOTOMETRIC = 322, 323, 262  # tags of TIFF
_WHITE_IS_ZERO = 0


def decode(data: bytes | str | os.PathLike[str], name: str) -> Tensor:
    """The picture as uint8 `(3, height, width)`.

    Args:
        data: The bytes of an image file, or the path of one.
        name: What an error calls it.

    Raises:
        DataError: If it cannot be read, or is too large to be read.
    """
    try:
        with _quiet():
            return _pixels(_contents(data))
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        raise DataError(_complaint(name, error)) from error


def read_file(path: str | os.PathLike[str], name: str) -> bytes:
    """The bytes of a picture file, for `measure` and `decode`, so that it is read once for both.

    Args:
        path: Of a plain file.
        name: What an error calls it.

    Raises:
        DataError: If it cannot be read, or is too large to be read.
    """
    try:
        return _contents(path)
    except Exception as error:
        raise DataError(_complaint(name, error)) from error


def measure(data: bytes | str | os.PathLike[str], name: str) -> tuple[int, int]:
    """Height and width as the file states them, before it is turned upright; nothing is decoded."""
    try:
        with _quiet(), _open(_contents(data)) as picture:
            return picture.height, picture.width
    except Exception as error:
        raise DataError(_complaint(name, error)) from error


class _Refusal(Exception):
    """Why a file is not read, in words for people."""


class _Stream(io.BytesIO):
    """The bytes of a file, which counts how often they are asked for."""

    left = MOST_READS_TO_OPEN

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise _Refusal("it is cut into too many pieces to be read in good time")
        return super().read(size)


def _contents(data: bytes | str | os.PathLike[str]) -> bytes:
    """The bytes, read at once so that no file stays open."""
    contents = data if isinstance(data, bytes) else _read(data)
    if not contents:
        raise _Refusal("it is empty")
    _check_length(len(contents))
    return contents


def _read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb", opener=_open_at_once) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _Refusal("it is no plain file but a pipe, a device or the like")
        _check_length(found.st_size)
        return file.read(found.st_size + 1)  # never more, should it grow meanwhile


def _open_at_once(path: str, flags: int) -> int:
    """A file descriptor; of a pipe without waiting for someone to write into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_length(length: int) -> None:
    if length > LARGEST_FILE:
        raise _Refusal(f"its {length} bytes exceed the limit of {LARGEST_FILE}")


def _open(contents: bytes) -> ImageFile.ImageFile:
    """The picture, not yet decoded, if it is not too large to decode."""
    if contents.startswith(b"\xff\xd8"):
        _check_jpeg(contents)
    if contents[:2] in (b"II", b"MM") and _count_numbers(contents) > MOST_NUMBERS:
        raise _Refusal(f"its tags hold more than {MOST_NUMBERS} numbers")
    stream = _Stream(contents)
    picture = Image.open(stream, formats=FORMATS)
    # Between this limit and twice as much Pillow only warns.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and picture.width * picture.height > limit:
        raise _Refusal(
            f"its {picture.width} x {picture.height} pixels exceed Pillow's limit of {limit}"
        )
    if picture.format == "TIFF":
        _check_tiles(picture)
    if contents[:2] in (b"P1", b"P2", b"P3") and len(contents) > LARGEST_PLAIN_PPM:
        raise _Refusal(f"its {len(contents)} bytes of text exceed the limit of {LARGEST_PLAIN_PPM}")
    _check_run_lengths(picture)
    plain = picture.format in ("BMP", "PPM")
    stream.left = MOST_READS_OF_PLAIN if plain else MOST_READS_TO_DECODE
    return picture


# A marker of a JPEG. Within pixels 0xFF is followed by 0; by 0xD0 to 0xD7 where they are cut.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_LENGTHLESS = (0x01, 0xD8)  # markers that nothing belongs to
_END, _SCAN, _APP1 = 0xD9, 0xDA, 0xE1


def _check_jpeg(contents: bytes) -> None:
    scans, segments, place = 0, 0, 0
    while found := _MARKER.search(contents, place):
        kind, place = contents[found.start() + 1], found.end()
        if kind == _END:
            return
        scans += kind == _SCAN
        segments += kind == _APP1 and contents.startswith(b"Exif", place + 2)
        if scans > MOST_SCANS:
            raise _Refusal(f"it has more than {MOST_SCANS} scans")
        if segments > MOST_EXIF_SEGMENTS:
            raise _Refusal(f"it has more than {MOST_EXIF_SEGMENTS} segments of EXIF")
        if kind not in _LENGTHLESS:
            place += max(2, int.from_bytes(contents[place : place + 2], "big"))


_TEXTS = (1, 2, 7)  # types of tags that stay bytes; the others are numbers
_DIRECTORIES = (0x8769, 0x8825, 0xA005)  # tags that point to more tags: EXIF, GPS and the like


def _count_numbers(block: bytes) -> int:
    """How many numbers the tags of a TIFF state, whether they are there or not.

    Args:
        block: Such a file, or EXIF, which is written in the same way.
    """
    order = "<" if block.startswith(b"II") else ">"
    big = 43 in block[2:4]
    first, length, entry = (
        struct.Struct(order + form) for form in (("Q", "Q", "HHQQ") if big else ("I", "H", "HHII"))
    )
    count, places = 0, [first.unpack_from(block, 8 if big else 4)[0]] if len(block) >= 16 else []
    for place in places:
        with contextlib.suppress(struct.error, OverflowError):  # beyond the end there is nothing
            (tags,) = length.unpack_from(block, place)
            for index in range(min(tags, MOST_READS_TO_OPEN)):
                at = place + length.size + index * entry.size
                tag, kind, many, value = entry.unpack_from(block, at)
                count += 0 if kind in _TEXTS else many
                if tag in _DIRECTORIES and len(places) < 16:
                    # A short number stands at the beginning, whichever way round.
                    places += [value, value & 0xFFFF, value >> 16]
    return count


def _check_run_lengths(picture: Image.Image) -> None:
    packed = picture.format == "BMP" and picture.info.get("compression") in (1, 2)
    if packed and picture.width * picture.height > MOST_RUN_LENGTH_PIXELS:
        raise _Refusal(
            f"its {picture.width} x {picture.height} pixels exceed {MOST_RUN_LENGTH_PIXELS}, the"
            " limit for BMP with run lengths; save it as PNG"
        )


def _check_tiles(picture: Image.Image) -> None:
    tags = picture.tag_v2  # type: ignore[attr-defined]
    width, length = tags.get(_TILE_WIDTH, 1), tags.get(_TILE_LENGTH, 1)
    if width * length > max(LARGEST_TILE, picture.width * picture.height):
        raise _Refusal(f"its tiles of {width} x {length} pixels are larger than it is")


def _pixels(contents: bytes) -> Tensor:
    with _open(contents) as picture:
        # Pillow gathers a row block by block, and copies what it has each time: a wide one at once.
        picture.decodermaxblock = max(picture.decodermaxblock, 8 * picture.width)
        stored_as = _raw_mode(picture)
        picture.load()
        _scale_transparent_colour(picture, stored_as)
        negative = _is_unturned_negative(picture)
        orientation = _orientation(picture)
        if picture.mode == "I":
            _check_range(picture)
        height, width = picture.height, picture.width
        shape = (width, height) if orientation > 4 else (height, width)
        pixels = torch.empty(3, *shape, dtype=torch.uint8)
        stored = _as_stored(pixels.permute(1, 2, 0).numpy(), orientation)
        for left, top, right, bottom in _parts(width, height):
            whole = (right - left, bottom - top) == (width, height)
            part = picture if whole else picture.crop((left, top, right, bottom))
            shown = np.asarray(_to_rgb(part))
            stored[top:bottom, left:right] = 255 - shown if negative else shown
    return pixels


def _parts(width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """Boxes that cover a picture: one for most of them, many for one that fills the memory."""
    across = min(width, _PART)
    down = max(1, _PART // across)
    for top in range(0, height, down):
        for left in range(0, width, across):
            yield left, top, min(left + across, width), min(top + down, height)


def _orientation(picture: Image.Image) -> int:
    """The EXIF orientation; 1, upright, where there is none or none that can be read."""
    exif = picture.info.get("exif")
    head = b"Exif\0\0"  # once, or twice by mistake
    block = exif.removeprefix(head).removeprefix(head) if isinstance(exif, bytes) else b""
    if _count_numbers(block) > MOST_NUMBERS:
        return 1
    try:
        found = int(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # damage there leaves the pixels as good as they are
        return 1
    return found if 1 <= found <= 8 else 1


def _as_stored(upright: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """A view of an upright picture whose rows and columns lie as they do in the file."""
    if orientation > 4:
        upright = upright.swapaxes(0, 1)
    if orientation in (3, 4, 6, 7):
        upright = upright[::-1]
    if orientation in (2, 3, 7, 8):
        upright = upright[:, ::-1]
    return upright


def _raw_mode(picture: ImageFile.ImageFile) -> str:
    """What Pillow calls the values as they lie in a PNG, such as "L;4"; forgotten by its `load`."""
    known = [tile.args for tile in picture.tile if isinstance(tile.args, str)]
    return known[0] if picture.format == "PNG" and known else ""


# By what the transparent colour of a PNG becomes what Pillow makes of such pixels.
_FEW_BITS = {"L;2": 85, "L;4": 17}


def _scale_transparent_colour(picture: Image.Image, stored_as: str) -> None:
    """Give the colour as many bits as the pixels have now; Pillow leaves it as it was stored."""
    colour = picture.info.get("transparency")
    if isinstance(colour, int) and stored_as in _FEW_BITS:
        picture.info["transparency"] = colour * _FEW_BITS[stored_as]
    if isinstance(colour, tuple) and stored_as == "RGB;16B":
        picture.info["transparency"] = tuple(part >> 8 for part in colour)


def _is_unturned_negative(picture: Image.Image) -> bool:
    """Whether 0 is white, in a TIFF of 16 bits; of fewer bits, Pillow turns the values round."""
    if picture.format != "TIFF" or not picture.mode.startswith("I"):
        return False
    return bool(picture.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO)  # type: ignore[attr-defined]


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode.startswith("I"):
        return _from_deep_grey(picture).convert("RGB")
    if picture.mode == "F":
        raise _Refusal("its grey values are floats of an unknown range; save it with 8 bits")
    if picture.has_transparency_data:
        page = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(page, picture.convert("RGBA")).convert("RGB")
    return picture.convert("RGB")


def _check_range(picture: Image.Image) -> None:
    low, high = np.array(picture.getextrema())
    if low < 0 or high > 65535:
        raise _Refusal(f"its grey values, {low} to {high}, are not of 16 bits; save it with 8")


def _from_deep_grey(picture: Image.Image) -> Image.Image:
    """16-bit grey scaled to 8 bits; Pillow's own conversion clips at 255, and knows no tRNS."""
    grey = np.asarray(picture).astype(np.uint32)
    shown = ((grey * 255 + 32767) // 65535).astype(np.uint8)
    clear = picture.info.get("transparency")
    if isinstance(clear, int):
        shown[grey == clear] = 255
    return Image.fromarray(shown)


class _InThisThread(threading.local):
    """Matches any warning, in a thread that is decoding."""

    decoding = False

    def match(self, _text: str) -> bool:
        return self.decoding


_here = _InThisThread()
_RULE: Any = ("ignore", _here, Warning, None, 0)
_changing = threading.Lock()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Pillow's warnings, which would be errors to some users; other threads keep theirs.

    `warnings.catch_warnings` changes what all threads share. So does this rule, but it stays, and
    holds for nobody who is not decoding.
    """
    rules: Any = warnings.filters
    if not rules or rules[0] is not _RULE:
        with _changing:
            if _RULE in rules:  # somebody put other rules in front of it
                rules.remove(_RULE)
            rules.insert(0, _RULE)
    before, _here.decoding = _here.decoding, True
    try:
        yield
    finally:
        _here.decoding = before


def _complaint(name: str, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        reason = "it is no image of a kind that can be read, or its beginning is damaged"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    elif isinstance(error, MemoryError):
        reason = "there is not enough memory for it"
    elif isinstance(error, (OSError, ValueError, _Refusal, Image.DecompressionBombError)):
        reason = printable(str(error))[:200].rstrip(". ") or "it is damaged"
    else:
        reason = f"it is damaged ({printable(f'{type(error).__name__}: {error}')[:200]})"
    return f"cannot read {printable(name)}: {reason}.{WAY_OUT}"


def printable(text: str) -> str:
    """In one line that can be written anywhere: names of files may hold nearly any bytes."""
    odd = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of characters, ends of lines
    return "".join(
        ascii(letter)[1:-1] if unicodedata.category(letter) in odd else letter for letter in text
    )
