"""Decoding untrusted image files, with a bound on the memory and time of each.

Refused are: anything but a plain file; more than `LARGEST_FILE` bytes; more pixels than Pillow's own
`MAX_IMAGE_PIXELS` (89 million); a JPEG of more than `MOST_SCANS` scans; a file cut into very many
pieces. Reading one takes at most `FILE_COPIES` times the file, `PEAK_BYTES` for each pixel and
`SPARE_BYTES` of memory: 2.1 GB for the most pixels in a small file, 1.5 GB for 60 megapixels.
"""

import contextlib
import io
import os
import re
import struct
import warnings
from pathlib import Path

from PIL import Image, ImageFile
from torch import Tensor

from killick.data.decoding import FORMATS, UnreadableImage, explained, to_pixels
from killick.runtime.plain_files import read_plain

LARGEST_FILE = 2**29  # bytes: room for 16-bit RGB of nearly as many pixels as Pillow allows
MOST_SCANS = 100  # of a JPEG: a scan of a few bytes makes its decoder walk through all pixels
MOST_EXIF_SEGMENTS = 16  # of a JPEG, of 64 kB: Pillow joins them one by one
MOST_NUMBERS = 2**18  # in the tags of a TIFF or of EXIF: each becomes a Python object
LARGEST_TILE = 2**24  # pixels of a TIFF's tile, unless the image itself is larger
MOST_READS_TO_OPEN = 2**12  # pieces before the pixels: a hundred are many, a bomb has millions
MOST_READS_TO_DECODE = 2**20
MOST_READS_OF_PLAIN = 2**24  # BMP and PPM have kinds that Pillow reads byte by byte, or by pixel
MOST_RUN_LENGTH_PIXELS = 2**24  # of a BMP: Pillow unpacks them one by one, in Python
LARGEST_PLAIN_PPM = 2**26  # bytes: Python reads a few million of such numbers a second

# The bound on memory; a test decodes the worst cases under it.
FILE_COPIES = 3
PEAK_BYTES = 22  # WebP: 4 each for two canvases, what was decoded, a row of it, and Pillow's own
SPARE_BYTES = 2**27

_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF


def read_file(path: str | os.PathLike[str], name: str) -> bytes:
    """The bytes of an image file; `name` is what an error calls it."""
    with explained(name):
        return read_plain(Path(path), LARGEST_FILE)


def measure_limited(contents: bytes, name: str) -> tuple[int, int]:
    """Height and width in the header of an image file, if it is within the limits."""
    with explained(name), _open(contents) as image:
        return image.height, image.width


def decode_limited(contents: bytes, name: str) -> Tensor:
    """The image as uint8 `(3, height, width)`, if it is within the limits."""
    with explained(name), _open(contents) as image:
        # Pillow gathers a row block by block, and copies what it has each time: take it at once.
        image.decodermaxblock = max(image.decodermaxblock, 8 * image.width)
        return to_pixels(image, upright=_has_short_exif(image))


class _CountedReads(io.BytesIO):
    """The bytes of a file, which refuses to be read in too many pieces."""

    left = MOST_READS_TO_OPEN

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise UnreadableImage("it is cut into too many pieces")
        return super().read(size)


def _open(contents: bytes) -> ImageFile.ImageFile:
    """The image, not yet decoded, if it is within the limits."""
    if not contents:
        raise UnreadableImage("it is empty")
    if contents.startswith(b"\xff\xd8"):
        _check_jpeg(contents)
    if contents[:2] in (b"II", b"MM") and _count_numbers(contents) > MOST_NUMBERS:
        raise UnreadableImage(f"its tags hold more than {MOST_NUMBERS} numbers")
    stream = _CountedReads(contents)
    with warnings.catch_warnings():
        # Between its limit and twice as much Pillow only warns: refused below.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        image = Image.open(stream, formats=FORMATS)
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise UnreadableImage(
            f"its {image.width} x {image.height} pixels exceed Pillow's limit of {limit}"
        )
    if image.format == "TIFF":
        _check_tiles(image)
    if contents[:2] in (b"P1", b"P2", b"P3") and len(contents) > LARGEST_PLAIN_PPM:
        raise UnreadableImage(
            f"its {len(contents)} bytes of text exceed the limit of {LARGEST_PLAIN_PPM}"
        )
    _check_run_lengths(image)
    plain = image.format in ("BMP", "PPM")
    stream.left = MOST_READS_OF_PLAIN if plain else MOST_READS_TO_DECODE
    return image


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
            raise UnreadableImage(f"it has more than {MOST_SCANS} scans")
        if segments > MOST_EXIF_SEGMENTS:
            raise UnreadableImage(f"it has more than {MOST_EXIF_SEGMENTS} segments of EXIF")
        if kind not in _LENGTHLESS:
            place += max(2, int.from_bytes(contents[place : place + 2], "big"))


_TEXTS = (1, 2, 7)  # types of tags that stay bytes; the others are numbers
_DIRECTORIES = (0x8769, 0x8825, 0xA005)  # tags that point to more tags: EXIF, GPS and the like


def _count_numbers(block: bytes) -> int:
    """How many numbers the tags of a TIFF, or of EXIF, claim to hold."""
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


def _check_run_lengths(image: Image.Image) -> None:
    packed = image.format == "BMP" and image.info.get("compression") in (1, 2)
    if packed and image.width * image.height > MOST_RUN_LENGTH_PIXELS:
        raise UnreadableImage(
            f"its {image.width} x {image.height} pixels exceed {MOST_RUN_LENGTH_PIXELS}, the"
            " limit for BMP with run lengths; save it as PNG"
        )


def _check_tiles(image: Image.Image) -> None:
    tags = image.tag_v2  # type: ignore[attr-defined]
    width, length = tags.get(_TILE_WIDTH, 1), tags.get(_TILE_LENGTH, 1)
    if width * length > max(LARGEST_TILE, image.width * image.height):
        raise UnreadableImage(f"its tiles of {width} x {length} pixels are larger than it is")


def _has_short_exif(image: Image.Image) -> bool:
    """Whether EXIF holds few enough numbers to be read."""
    exif = image.info.get("exif")
    head = b"Exif\0\0"  # once, or twice by mistake
    block = exif.removeprefix(head).removeprefix(head) if isinstance(exif, bytes) else b""
    return _count_numbers(block) <= MOST_NUMBERS
