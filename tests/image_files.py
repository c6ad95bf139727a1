"""Image files made by hand, for tests of decoding."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def noise(height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(width: int, height: int, *chunks: bytes, bits: int = 8, colors: int = 2) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, bits, colors, 0, 0, 0)
    return b"".join((b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), *chunks, chunk(b"IEND", b"")))


def tiff(*tags: tuple[int, int, int, int], more: bytes = b"") -> bytes:
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + more


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 255, marker, len(content) + 2) + content


ONE_PIXEL = chunk(b"IDAT", zlib.compress(bytes(4)))
GRAY_TIFF = ((256, 4, 1, 4), (257, 4, 1, 4), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1))
