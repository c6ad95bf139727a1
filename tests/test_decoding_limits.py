"""Limits on image files of strangers: what is refused, and how much memory decoding takes."""

import os
import struct
import subprocess
import sys
import textwrap
import time
import warnings
import zlib

import pytest
import torch
from image_files import GRAY_TIFF, ONE_PIXEL, chunk, encode, noise, png, segment, tiff
from PIL import Image

import killick.data.decoding
from killick.deploy import decoding_limits as decoding
from killick.deploy.decoding_limits import decode_limited as decode
from killick.deploy.decoding_limits import measure_limited as measure
from killick.deploy.decoding_limits import read_file
from killick.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def pixel(data: bytes) -> list[int]:
    return decode(data, "it")[:, 0, 0].tolist()


def test_pixels_are_those_of_the_plain_decoder(tmp_path):
    (tmp_path / "a.png").write_bytes(encode(Image.fromarray(noise())))
    contents = read_file(tmp_path / "a.png", "it")
    assert contents == (tmp_path / "a.png").read_bytes()
    assert measure(contents, "it") == (5, 7)
    expected = killick.data.decoding.decode(tmp_path / "a.png", "it")
    assert torch.equal(decode(contents, "it"), expected)
    with pytest.raises(DataError, match="cannot read it: it is empty"):
        decode(b"", "it")
    with pytest.raises(DataError, match="cannot read it: Is a directory"):
        read_file(tmp_path, "it")


@pytest.mark.parametrize("limit", [60, 99, 20])  # 100 pixels: Pillow warns, warns, refuses
def test_too_many_pixels_are_refused(monkeypatch, limit):
    data = encode(Image.new("RGB", (10, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    refused = pytest.raises(DataError, match=r"cannot read big.png: .*exceeds? (Pillow's )?limit")
    with warnings.catch_warnings(record=True) as told, refused:
        decode(data, "big.png")
    assert told == []
    for allowed in (100, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", allowed)
        assert decode(data, "it").shape == (3, 10, 10)


def test_what_is_not_a_plain_file_is_refused_unread_and_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", "/dev/zero"):
        with pytest.raises(DataError, match="not a plain file"):
            read_file(path, "it")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "huge.png", "wb") as file:
        file.write(encode(Image.new("RGB", (2, 2))))
        file.truncate(5 * 2**30)  # takes no room on the disk
    began = time.perf_counter()
    with pytest.raises(DataError, match="its 5368709120 bytes exceed the limit of 536870912"):
        read_file(tmp_path / "huge.png", "it")
    assert time.perf_counter() - began < 0.2  # to read it would take seconds


LIES = {
    "png": png(60_000, 60_000, chunk(b"IDAT", b"")),
    "png, just too large": png(10_000, 8_948, chunk(b"IDAT", b"")),
    "gif": b"GIF89a" + struct.pack("<HH", 60_000, 60_000) + b"\0\0\0\x2c" + bytes(9) + b"\x02\0;",
    "gif, frame": b"GIF89a\1\0\1\0\0\0\0\x2c" + bytes(4) + b"\xff\xff\xff\xff\0\x02\0;",
    "webp": b"RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\xff\0" * 2,
    "tiff": tiff((256, 4, 1, 2**31), (257, 4, 1, 2**31), *GRAY_TIFF[2:], (273, 4, 1, 8)),
    "bmp": b"BM"
    + bytes(8)
    + struct.pack("<IIiiHHI", 54, 40, 2**31 - 1, 2**31 - 1, 1, 24, 0)
    + bytes(20),
    "ppm": b"P6\n99999 99999\n255\n" + bytes(100),
    "jpeg": encode(Image.new("RGB", (8, 8)), "JPEG").replace(
        b"\0\x08\0\x08\3", b"\xff\xff\xff\xff\3"
    ),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_header_that_promises_too_many_pixels_is_refused(kind):
    for read in (decode, measure):
        with pytest.raises(
            DataError, match=r"cannot read it: .*(exceed|too large|could not create decoder)"
        ):
            read(LIES[kind], "it")


def repeated_scans(count: int) -> bytes:
    whole = encode(Image.fromarray(noise(16, 16)), "JPEG", progressive=True)
    own, last = whole.count(b"\xff\xda"), whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * (count - own) + whole[-2:]


def test_a_jpeg_of_too_many_scans_is_refused():
    assert decode(repeated_scans(100), "it").shape == (3, 16, 16)
    with pytest.raises(DataError, match="it has more than 100 scans"):
        decode(repeated_scans(101), "it")
    # What looks like scans, in a comment or behind the end, is none.
    whole = repeated_scans(20)
    decode(whole[:2] + segment(0xFE, b"\xff\xda" * 500) + whole[2:] + b"\xff\xda\0\2" * 500, "it")


def test_a_jpeg_of_too_much_exif_is_refused():
    whole = encode(Image.new("RGB", (8, 8)), "JPEG")
    exif = segment(0xE1, b"Exif\0\0" + bytes(60_000))
    assert decode(whole[:2] + exif * 16 + whole[2:], "it").shape == (3, 8, 8)
    with pytest.raises(DataError, match="it has more than 16 segments of EXIF"):
        decode(whole[:2] + exif * 17 + whole[2:], "it")


@pytest.mark.parametrize("hostile", [
    png(1, 1, chunk(b"abCd", b"") * 300_000, ONE_PIXEL),
    png(1, 1, ONE_PIXEL, chunk(b"abCd", b"") * 600_000),
    png(1, 1, chunk(b"IDAT", b"") * 600_000, ONE_PIXEL),
    b"GIF89a\1\0\1\0\0\0\0\x21\xfe" + b"\1a" * 100_000,
    b"P6\n#" + b"a" * 100_000,
    tiff(*((tag, 7, 50_000, 8) for tag in range(20_000))),
], ids=["before", "after", "pixels", "gif", "ppm", "tiff"])  # fmt: skip
def test_a_file_of_very_many_pieces_is_refused(hostile):
    began = time.perf_counter()
    with pytest.raises(DataError, match="too many pieces"):
        decode(hostile, "it")
    assert time.perf_counter() - began < 10


def test_tags_of_very_many_numbers_are_refused_or_passed_over():
    many = tiff(*GRAY_TIFF, (273, 4, 300_000, 100), more=b"abcd" * 300_000)
    with pytest.raises(DataError, match="its tags hold more than 262144 numbers"):
        decode(many, "it")
    inside = tiff(
        *GRAY_TIFF, (0x8769, 4, 1, 8 + 2 + 72 + 4), more=struct.pack("<HHHII", 1, 700, 5, 2**20, 9)
    )
    with pytest.raises(DataError, match="its tags hold more than 262144 numbers"):
        decode(inside, "it")
    turned = tiff((0x0112, 3, 2**20, 8), more=b"\6\0" * 2**20)
    pixels = chunk(b"IDAT", zlib.compress(bytes(7)))
    assert decode(png(2, 1, chunk(b"eXIf", turned), pixels), "it").shape == (3, 1, 2)


def test_tiles_larger_than_a_image_are_refused():
    tiles = (
        (277, 3, 1, 1),
        (322, 4, 1, 30_000),
        (323, 4, 1, 30_000),
        (324, 4, 1, 8),
        (325, 4, 1, 9),
    )
    packed = tuple(tag if tag[0] != 259 else (259, 3, 1, 8) for tag in GRAY_TIFF)
    with pytest.raises(DataError, match="its tiles of 30000 x 30000 pixels are larger than it is"):
        decode(tiff(*packed, *tiles, more=bytes(100)), "it")


def test_text_and_profiles_that_unpack_to_very_much_are_refused():
    bomb = zlib.compress(bytes(2**24))
    with pytest.raises(DataError, match="read it: Decompressed data too large"):
        decode(png(1, 1, chunk(b"iCCP", b"a\0\0" + bomb), ONE_PIXEL), "it")
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**20 - 1))) * 70
    with pytest.raises(DataError, match="read it: Too much memory used in text chunks"):
        decode(png(1, 1, text, ONE_PIXEL), "it")


def test_what_pillow_unpacks_slowly_has_its_own_limits(monkeypatch):
    head = struct.pack("<IiiHHIIiiII", 40, 16, 12, 1, 8, 1, 0, 0, 0, 256, 0)
    runs = b"BM" + struct.pack("<IHHI", 0, 0, 0, 1078) + head + b"\7" * 1024 + b"\x10\1\0\0" * 12
    assert pixel(runs) == [7] * 3
    monkeypatch.setattr(decoding, "MOST_RUN_LENGTH_PIXELS", 16 * 12 - 1)
    with pytest.raises(
        DataError, match="its 16 x 12 pixels exceed 191, the limit for BMP with run"
    ):
        decode(runs, "it")
    assert pixel(b"P2 1 1 255 7") == [7] * 3
    monkeypatch.setattr(decoding, "LARGEST_PLAIN_PPM", 11)
    with pytest.raises(DataError, match="its 12 bytes of text exceed the limit of 11"):
        decode(b"P2 1 1 255 7", "it")


@pytest.mark.slow
def test_a_very_wide_image_is_read_in_good_time():
    data = encode(Image.new("RGB", (8_000_000, 2), "red"), "BMP")
    began = time.process_time()
    assert decode(data, "it").shape == (3, 2, 8_000_000)
    assert time.process_time() - began < 1.5  # block by block it takes four times as long, or more


WORST = {
    "gray of 16 bits, PNG": ("I;16", "PNG", {"compress_level": 1}, 7.5),
    "opacity, PNG": ("RGBA", "PNG", {"compress_level": 1}, 9.5),
    "colors with opacities, PNG": ("P", "PNG", {"transparency": b"\0\x80"}, 6.5),
    "four inks, progressive JPEG": ("CMYK", "JPEG", {"progressive": True, "subsampling": 0}, 13.5),
    "opacity, WebP": ("RGBA", "WEBP", {"lossless": True, "method": 0, "quality": 0}, 18),
    "whole numbers, turned TIFF": ("I", "TIFF", {"compression": "tiff_lzw", "turned": True}, 10),
}


MEASURE = """
    import os, sys
    sys.path.insert(0, {tests!r})
    from fuzz import limit_memory
    from killick.deploy.decoding_limits import decode_limited, read_file
    decode = lambda path, name: decode_limited(read_file(path, name), name)
    decode({small!r}, "so that all libraries are loaded")
    failed = []
    for path, spare in {cases!r}:
        child = os.fork()
        if not child:
            limit_memory(int(spare))
            try:
                decode(path, path)
            except BaseException as error:
                print(error)
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            failed.append(path)
    print(failed)
    sys.exit(len(failed))
"""


def decode_in_little_memory(cases: list[tuple[str, float]]) -> None:
    """In processes that may take so many bytes beside what they have, and not one more."""
    small = str(cases[0][0]) + ".small"
    with open(small, "wb") as file:
        file.write(encode(Image.new("RGB", (8, 8)), "PNG"))
    code = textwrap.dedent(MEASURE).format(
        tests=os.path.dirname(__file__), small=small, cases=cases
    )
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def worst_files(folder, width: int, height: int) -> list[str]:
    paths = []
    for name, (mode, kind, options, _) in WORST.items():
        options, exif = dict(options), Image.Exif()
        if options.pop("turned", False):
            exif[0x0112] = 6
            options["exif"] = exif
        value = (10, 200, 30, 40) if len(Image.new(mode, (1, 1)).getbands()) == 4 else 1
        path = folder / f"{name}.bin"
        path.write_bytes(encode(Image.new(mode, (width, height), value), kind, **options))
        paths.append(str(path))
    return paths


@pytest.mark.slow
def test_memory_is_bounded_for_each_pixel_of_the_worst_images(tmp_path):
    width, height = 4000, 3000
    paths = worst_files(tmp_path, width, height)
    spare = 40 * 2**20
    limits = [width * height * limit + spare for *_, limit in WORST.values()]
    assert max(limit for *_, limit in WORST.values()) < decoding.PEAK_BYTES
    decode_in_little_memory(list(zip(paths, limits, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(9459, 9459), (16_000, 5592)])
def test_memory_is_bounded_for_the_most_pixels(tmp_path, shape):
    paths = worst_files(tmp_path, *shape)
    limits = [
        shape[0] * shape[1] * decoding.PEAK_BYTES
        + decoding.FILE_COPIES * os.path.getsize(path)
        + decoding.SPARE_BYTES
        for path in paths
    ]
    decode_in_little_memory(list(zip(paths, limits, strict=True)))


@pytest.mark.slow
def test_a_photo_of_60_megapixels_is_read(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(encode(Image.new("RGB", (9600, 6400), "white"), "JPEG"))
    decode_in_little_memory([(str(path), 9600 * 6400 * 9 + 40 * 2**20)])
