"""JPEG headers: which files a GPU decodes as Pillow does."""

import io
import struct

import numpy as np
import pytest
from image_files import encode, noise, png, segment
from PIL import Image

from killick.data.jpeg_header import read_jpeg_header, suits_gpu

IMAGE = Image.fromarray(noise(24, 33))


def jpeg(image: Image.Image = IMAGE, **options) -> bytes:
    return encode(image, "JPEG", **options)


def with_exif(tag: int, value: object) -> bytes:
    exif = Image.Exif()
    exif[tag] = value
    return jpeg(exif=exif.tobytes())


def insert(data: bytes, marker: int, content: bytes) -> bytes:
    """A file with one more segment at its beginning."""
    return data[:2] + segment(marker, content) + data[2:]


def replace_frame(data: bytes, **changes: int) -> bytes:
    """A file whose frame header says something else."""
    place = next(i for i in range(len(data)) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
    found = bytearray(data)
    offsets = {"marker": 1, "bits": 4, "first": 10, "sampling": 11, "color_sampling": 14}
    for name, value in changes.items():
        found[place + offsets[name]] = value
    return bytes(found)


XMP = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'
USUAL = {
    "plain": jpeg(),
    "progressive": jpeg(progressive=True),
    "full colors": jpeg(subsampling=0),
    "4:2:2": jpeg(subsampling=1),
    "restart markers": jpeg(restart_marker_blocks=1),
    "optimized": jpeg(optimize=True, quality=30),
    "exif without orientation": with_exif(271, "a camera"),
    "upright": with_exif(274, 1),
    "fill bytes": jpeg()[:2] + b"\xff\xff" + jpeg()[2:],
    "profile and comment": jpeg(icc_profile=bytes(70_000), comment=b"\xff\xc0 not a frame"),
}
ODD = {
    "gray": jpeg(IMAGE.convert("L")),
    "cmyk": jpeg(IMAGE.convert("CMYK")),
    "rgb": jpeg(keep_rgb=True),
    "turned": with_exif(274, 6),
    "turned, by xmp": insert(jpeg(), 0xE1, XMP),
    "damaged exif": insert(jpeg(), 0xE1, b"Exif\0\0II*\0" + struct.pack("<I", 10**6)),
    "12 bits": replace_frame(jpeg(), bits=12),
    "arithmetic": replace_frame(jpeg(), marker=0xC9),
    "lossless": replace_frame(jpeg(), marker=0xC3),
    "odd component": replace_frame(jpeg(), first=82),
    "odd sampling": replace_frame(jpeg(), sampling=0x33),
    "odd color sampling": replace_frame(jpeg(), color_sampling=0x21),
    "cut off": jpeg()[:-2],
    "cut off in the header": jpeg()[:150],
    "empty": b"",
    "start alone": b"\xff\xd8",
    "png": png(2, 2),
    "webp": encode(IMAGE, "WEBP"),
    "no scan": jpeg()[:2] + b"\xff\xd9",
}


@pytest.mark.parametrize("kind", USUAL)
def test_usual_jpegs_are_for_the_gpu(kind):
    assert suits_gpu(USUAL[kind])


@pytest.mark.parametrize("kind", ODD)
def test_odd_files_are_for_pillow(kind):
    assert not suits_gpu(ODD[kind])


@pytest.mark.parametrize("kind", USUAL)
def test_a_header_says_what_pillow_says(kind):
    header = read_jpeg_header(USUAL[kind])
    with Image.open(io.BytesIO(USUAL[kind])) as image:
        assert (header.width, header.height) == image.size
        assert len(header.components) == len(image.getbands())
        assert [part[:3] for part in image.layer] == list(header.components)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_orientations_are_read_in_both_byte_orders(orientation, order):
    kind = {"<": b"II*\0", ">": b"MM\0*"}[order]
    entry = struct.pack(f"{order}HHHIHH", 1, 274, 3, 1, orientation, 0)
    exif = b"Exif\0\0" + kind + struct.pack(f"{order}I", 8) + entry + bytes(4)
    data = insert(jpeg(), 0xE1, exif)
    assert Image.open(io.BytesIO(data)).getexif()[274] == orientation  # Pillow agrees
    assert read_jpeg_header(data).orientation == orientation


def test_an_image_that_pillow_finds_too_large_is_left_to_it(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 24 * 33)
    assert suits_gpu(jpeg())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 24 * 33 - 1)
    assert not suits_gpu(jpeg())


def test_any_damage_to_a_header_is_survived():
    whole, chance = jpeg(), np.random.default_rng(0)
    for _ in range(2000):
        data = bytearray(whole)
        for place in chance.integers(2, 200, 3):
            data[place] = chance.integers(256)
        suits_gpu(bytes(data[: chance.integers(len(data))]))
        suits_gpu(bytes(data))
