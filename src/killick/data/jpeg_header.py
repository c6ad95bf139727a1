"""What the markers of a JPEG file say before its pixels: whether a GPU decodes it as Pillow does."""

import struct
from dataclasses import dataclass

from PIL import Image

START, END = b"\xff\xd8", b"\xff\xd9"
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2  # frames with Huffman codes
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # C4, C8 and CC begin other things
_SCAN, _EXIF, _ADOBE = 0xDA, 0xE1, 0xEE
_ORIENTATION = 0x0112
# Of brightness, width and height in blocks, where each color has one: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1
_SAMPLING = ((1, 1), (2, 1), (2, 2), (1, 2), (4, 1))


@dataclass(frozen=True)
class JpegHeader:
    """The frame of a JPEG file, its orientation, and Adobe's mark of how colors are stored."""

    frame: int  # the marker
    bits: int
    height: int
    width: int
    components: tuple[tuple[int, int, int], ...]  # number, and sampling across and down
    orientation: int = 1  # 0: unknown
    adobe: int | None = None  # 1: YCbCr


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """The header of a JPEG file; None of anything else, and of a damaged one."""
    if not data.startswith(START):
        return None
    place, frame, orientation, adobe = 2, None, 1, None
    try:
        while True:
            if data[place] != 0xFF:
                return None
            marker = data[place + 1]
            if marker == 0xFF:  # a fill byte
                place += 1
                continue
            (length,) = struct.unpack_from(">H", data, place + 2)
            content = data[place + 4 : place + 2 + length]
            if marker == _SCAN:
                return None if frame is None else JpegHeader(*frame, orientation, adobe)
            if marker in _FRAMES:
                bits, height, width, count = struct.unpack_from(">BHHB", content)
                parts = [struct.unpack_from(">BB", content, 6 + 3 * n) for n in range(count)]
                components = tuple((number, both >> 4, both & 15) for number, both in parts)
                frame = (marker, bits, height, width, components)
            elif marker == _EXIF and content.startswith(b"Exif\0\0"):
                orientation = _read_orientation(content[6:])
            elif marker == _EXIF and b"tiff:Orientation" in content:  # XMP
                orientation = 0
            elif marker == _ADOBE and content.startswith(b"Adobe"):
                adobe = content[11]
            place += 2 + length
    except (IndexError, struct.error):  # it ends too early
        return None


def suits_gpu(data: bytes) -> bool:
    """Whether a file is a JPEG of the usual kind: 8 bits, YCbCr, upright and whole.

    Others (CMYK, gray, RGB, 12 bits, arithmetic codes, turned, cut off) are for Pillow.
    """
    header = read_jpeg_header(data)
    if header is None or not data.endswith(END):
        return False
    numbers, *sampling = zip(*header.components, strict=True) if header.components else ((),)
    limit = Image.MAX_IMAGE_PIXELS
    return (
        header.frame in (_BASELINE, _EXTENDED, _PROGRESSIVE)
        and header.bits == 8
        and header.height > 0
        and header.width > 0
        and (limit is None or header.height * header.width <= limit)
        and numbers == (1, 2, 3)
        and header.adobe in (None, 1)
        and header.orientation == 1
        and header.components[0][1:] in _SAMPLING
        and all(part[1:] == (1, 1) for part in header.components[1:])
    )


def _read_orientation(data: bytes) -> int:
    """The orientation in the first directory of EXIF data; 1, upright, if there is none; 0: unknown."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        return 1
    (place,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, place)
    for entry in range(count):
        tag, kind, _, value = struct.unpack_from(f"{order}HHIH", data, place + 2 + 12 * entry)
        if tag == _ORIENTATION:
            return int(value) if kind == 3 else 0
    return 1
