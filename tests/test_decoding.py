"""Picture files of every kind to RGB, upright; damaged ones refused by name."""

import gc
import io
import os
import pickle
import re
import struct
import subprocess
import sys
import textwrap
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from killick.data import decoding
from killick.data.decoding import decode, measure, read_file
from killick.errors import DataError

RED, WHITE = [255, 0, 0], [255, 255, 255]


def encode(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def noise(height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def pixel(data: bytes, x: int = 0, y: int = 0) -> list[int]:
    return decode(data, "it")[:, y, x].tolist()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_pictures_come_out_as_they_went_in(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    found = decode(encode(Image.fromarray(noise()), kind, **options), "it")
    assert found.dtype == torch.uint8
    assert found.is_contiguous()
    assert np.array_equal(found.permute(1, 2, 0).numpy(), noise())


def test_jpeg_comes_out_nearly_as_it_went_in():
    smooth = Image.fromarray(noise(2, 2)).resize((32, 24), Image.Resampling.BILINEAR)
    found = decode(encode(smooth, "JPEG", quality=95), "it")
    assert found.shape == (3, 24, 32)
    assert (found.permute(1, 2, 0).int() - torch.tensor(np.array(smooth)).int()).abs().max() < 12


def test_a_path_is_read_and_its_file_closed(tmp_path):
    file = tmp_path / "a picture.png"
    file.write_bytes(encode(Image.fromarray(noise())))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(decode(file, "it"), decode(str(file), "it"))
        gc.collect()
    assert not [warning for warning in caught if warning.category is ResourceWarning]


def test_pixels_may_be_written_to():
    pixels = decode(encode(Image.new("RGB", (2, 2))), "it")
    pixels.add_(1)  # what PIL hands out may not be written to
    assert pixels.unique().tolist() == [1]


def test_grey_is_repeated_in_every_channel():
    assert pixel(encode(Image.new("L", (2, 2), 77))) == [77] * 3
    assert pixel(encode(Image.new("L", (8, 8), 77), "JPEG")) == [77] * 3


def test_one_bit_is_black_and_white():
    assert pixel(encode(Image.new("1", (2, 2), 1))) == WHITE
    assert pixel(encode(Image.new("1", (2, 2), 0), "TIFF")) == [0] * 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_is_scaled_and_not_clipped(kind):
    deep = np.array([[0, 128, 129, 257 * 100, 300, 65535]], dtype=np.uint16)
    found = decode(encode(Image.fromarray(deep), kind), "it")
    assert found.tolist() == [[[0, 0, 1, 100, 1, 255]]] * 3


def grey_tiff(values: np.ndarray, photometric: int) -> bytes:
    """A row of grey values, little end first."""
    bits, data = 8 * values.dtype.itemsize, values.astype(values.dtype.newbyteorder("<")).tobytes()
    tags = {256: values.size, 257: 1, 258: bits, 259: 1, 262: photometric, 277: 1, 278: 1}
    tags |= {273: 8 + 2 + 12 * 9 + 4, 279: len(data)}
    return tiff(*((tag, 4, 1, value) for tag, value in sorted(tags.items())), more=data)


@pytest.mark.parametrize("photometric", [0, 1])  # 0 is white, or black
@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_negatives_are_turned_round_whatever_their_depth(monkeypatch, depth, photometric):
    most = np.iinfo(depth).max
    values = np.linspace(0, most, 1001).astype(depth)
    found = decode(grey_tiff(values, photometric), "it")[0, 0].numpy()
    exact = values.astype(np.float64) * 255 / most
    assert np.array_equal(found, np.rint(255 - exact if photometric == 0 else exact))
    monkeypatch.setattr(decoding, "_PART", 7)
    assert np.array_equal(decode(grey_tiff(values, photometric), "it")[0, 0].numpy(), found)


def test_negatives_of_one_bit_are_turned_round():
    tags = [*GREY_TIFF[:2], (258, 3, 1, 1), (259, 3, 1, 1), (262, 3, 1, 0), (273, 4, 1, 98)]
    data = tiff(*tags, (279, 4, 1, 4), more=bytes([0b10100000] * 4))
    assert decode(data, "it")[0, 0].tolist() == [0, 255, 0, 255]


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_the_transparent_grey_of_a_png_is_white_whatever_its_depth(monkeypatch, bits):
    most = 2**bits - 1
    grey = [0, most // 3, most // 3, most, 0, most // 2, most, 1]
    row = int("".join(f"{value:0{bits}b}" for value in grey), 2).to_bytes(bits, "big")
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    for clear in {0, most // 3, most // 2, most}:
        data = png(8, 1, chunk(b"tRNS", struct.pack(">H", clear)), pixels, bits=bits, colours=0)
        expected = [255 if value == clear else round(value * 255 / most) for value in grey]
        assert decode(data, "it").tolist() == [[expected]] * 3
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "_PART", 3)
            assert decode(data, "it").tolist() == [[expected]] * 3
    without = png(8, 1, pixels, bits=bits, colours=0)
    assert decode(without, "it")[0, 0].tolist() == [round(value * 255 / most) for value in grey]


@pytest.mark.parametrize("bits", [8, 16])
def test_the_transparent_colour_of_a_png_is_white_whatever_its_depth(bits):
    colours = [(0x12, 0xAB, 0xFF), (0x12, 0xAB, 0xFE), (0, 0, 0)]
    # Lower bits that are not those of the upper ones.
    scale, more, form = (256, 0x34, ">3H") if bits == 16 else (1, 0, "3B")
    row = b"".join(struct.pack(form, *(part * scale + more for part in each)) for each in colours)
    clear = struct.pack(">3H", *(part * scale + more for part in colours[0]))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    data = png(3, 1, chunk(b"tRNS", clear), pixels, bits=bits)
    assert decode(data, "it")[:, 0].T.tolist() == [WHITE, *map(list, colours[1:])]


def test_grey_of_an_unknown_range_is_refused():
    whole = np.array([[0, 70_000]], dtype=np.int32)
    with pytest.raises(DataError, match="read it: its grey values, 0 to 70000, are not of 16 bits"):
        decode(encode(Image.fromarray(whole), "TIFF"), "it")
    with pytest.raises(DataError, match="read it: its grey values are floats"):
        decode(encode(Image.fromarray(whole.astype(np.float32)), "TIFF"), "it")


def test_a_palette_is_looked_up():
    assert pixel(encode(Image.new("RGB", (2, 2), "red").quantize(4))) == RED
    assert pixel(encode(Image.new("RGB", (2, 2), "red"), "GIF")) == RED


@pytest.mark.parametrize("transparency", [0, b"\x00\xff"])  # a colour; an opacity for each
def test_transparent_colours_of_a_palette_are_white(transparency):
    picture = Image.new("P", (2, 1))
    picture.putpalette([0, 0, 255, 255, 0, 0])
    picture.putpixel((1, 0), 1)
    data = encode(picture, transparency=transparency)
    assert pixel(data) == WHITE
    assert pixel(data, x=1) == RED


def test_transparent_pictures_are_laid_on_white():
    assert pixel(encode(Image.new("RGBA", (1, 1), (255, 0, 0, 0)))) == WHITE
    assert pixel(encode(Image.new("RGBA", (1, 1), (255, 0, 0, 255)))) == RED
    assert pixel(encode(Image.new("RGBA", (1, 1), (0, 100, 200, 51)))) == [204, 224, 244]
    assert pixel(encode(Image.new("LA", (1, 1), (0, 51)))) == [204] * 3


def test_a_transparent_colour_without_a_palette_is_white():
    assert pixel(encode(Image.new("RGB", (1, 1), "red"), transparency=(255, 0, 0))) == WHITE
    assert pixel(encode(Image.new("RGB", (1, 1), "red"), transparency=(0, 0, 0))) == RED
    assert pixel(encode(Image.new("L", (1, 1), 9), transparency=9)) == WHITE


def test_cmyk_becomes_rgb():
    cyan = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    assert pixel(encode(cyan, "TIFF")) == [0, 255, 255]
    red, green, blue = pixel(encode(cyan, "JPEG", quality=95))
    assert red < 10
    assert min(green, blue) > 245


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "JPEG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(kind, orientation):
    corners = Image.fromarray(np.kron([[10, 90], [170, 250], [30, 130]], np.ones((8, 8))))
    upright = torch.tensor(np.array(corners.convert("L")))
    stored = {  # how the rows and columns of the upright picture come to lie, from the standard
        1: upright,
        2: upright.flip(1),
        3: upright.flip(0, 1),
        4: upright.flip(0),
        5: upright.T,
        6: upright.T.flip(0),
        7: upright.T.flip(0, 1),
        8: upright.T.flip(1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(Image.fromarray(stored.numpy()).convert("RGB"), kind, exif=exif, **options)
    found = decode(data, "it")
    assert found.shape == (3, 24, 16)
    assert (found[0].int() - upright.int()).abs().max() < 10


def test_damaged_orientation_is_passed_over():
    data = encode(Image.new("RGB", (8, 8), "red"), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert decode(data, "it").shape == (3, 8, 8)


@pytest.mark.parametrize("kind_and_value", [(2, b"abc\0"), (3, b"\x09\0\0\0")])  # text; nine
def test_an_orientation_that_means_nothing_is_passed_over(kind_and_value):
    kind, value = kind_and_value
    tag = struct.pack("<HHHI", 1, 0x0112, kind, 4 if kind == 2 else 1) + value
    exif = b"Exif\0\0II*\0" + struct.pack("<I", 8) + tag + bytes(4)
    data = encode(Image.new("RGB", (8, 6), "red"), "JPEG", exif=exif)
    assert decode(data, "it").shape == (3, 6, 8)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation_counts(kind):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    assert pixel(encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)) == RED


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP"])
def test_a_truncated_file_is_refused_by_name(kind, tmp_path):
    whole = encode(Image.fromarray(noise(64, 64)), kind)
    file = tmp_path / "half.img"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=rf"cannot read {re.escape(str(file))}: .+\. Replace it"):
        decode(file, str(file))


def test_wherever_a_file_is_cut_it_is_refused_or_whole():
    data = encode(Image.fromarray(noise(8, 8)))
    refused = 0
    for length in range(len(data)):
        try:
            assert torch.equal(decode(data[:length], "it"), decode(data, "it"))
        except DataError:
            refused += 1
    assert refused > len(data) - 30  # the last bytes are checksums and an end mark


def test_bytes_that_are_no_picture_are_refused():
    with pytest.raises(DataError, match="cannot read it: it is no image of a kind that can be"):
        decode(b"%PDF-1.7 and so on, for some more bytes", "it")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "none.png").touch()
    with pytest.raises(DataError, match="cannot read none.png: it is empty. Replace it or"):
        decode(tmp_path / "none.png", "none.png")


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot read it: No such file or directory"):
        decode(tmp_path / "gone.png", "it")
    with pytest.raises(DataError, match="cannot read it: Is a directory"):
        decode(tmp_path, "it")


@pytest.mark.parametrize("filters", ["error", "ignore"])
@pytest.mark.parametrize("limit", [60, 99, 20])  # 100 pixels: Pillow warns, warns, refuses
def test_too_many_pixels_are_refused_whatever_is_done_with_warnings(monkeypatch, filters, limit):
    data = encode(Image.new("RGB", (10, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with warnings.catch_warnings():
        warnings.simplefilter(filters)
        with pytest.raises(DataError, match="cannot read big.png: .*(exceed|bomb)"):
            decode(data, "big.png")


def test_a_picture_at_the_limit_is_read(monkeypatch):
    data = encode(Image.new("RGB", (10, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert decode(data, "it").shape == (3, 10, 10)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode(data, "it").shape == (3, 10, 10)


def test_formats_beyond_the_known_are_not_tried():
    with pytest.raises(DataError, match="no image of a kind that can be read"):
        decode(encode(Image.new("RGB", (4, 4)), "EPS"), "it")


def test_size_is_measured_from_the_header():
    whole = encode(Image.fromarray(noise(40, 30)))
    assert measure(whole, "it") == (40, 30)
    assert measure(whole[:60], "it") == (40, 30)
    with pytest.raises(DataError, match="cannot read it: it is no image"):
        measure(b"nothing", "it")


def test_a_file_is_read_once_for_measuring_and_decoding(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(encode(Image.fromarray(noise())))
    contents = read_file(file, "it")
    assert contents == file.read_bytes()
    assert measure(contents, "it") == (5, 7)
    assert torch.equal(decode(contents, "it"), decode(file, "it"))
    file.write_bytes(b"")
    with pytest.raises(DataError, match="cannot read it: it is empty"):
        read_file(file, "it")
    with pytest.raises(DataError, match="cannot read it: Is a directory"):
        read_file(tmp_path, "it")


def test_threads_decode_the_same(tmp_path):
    data = [encode(Image.fromarray(noise(20, width)), "JPEG") for width in range(8, 40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: decode(each, "it"), data * 4))
    assert all(torch.equal(decode(a, "it"), b) for a, b in zip(data * 4, found, strict=True))


def test_it_can_be_sent_to_a_worker():
    assert pickle.loads(pickle.dumps(decode)) is decode


# From strangers.


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(width: int, height: int, *chunks: bytes, bits: int = 8, colours: int = 2) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    return b"".join((b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), *chunks, chunk(b"IEND", b"")))


def tiff(*tags: tuple[int, int, int, int], more: bytes = b"") -> bytes:
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + more


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 255, marker, len(content) + 2) + content


ONE_PIXEL = chunk(b"IDAT", zlib.compress(bytes(4)))
GREY_TIFF = ((256, 4, 1, 4), (257, 4, 1, 4), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1))


def test_a_file_is_known_by_its_content_and_not_by_its_name(tmp_path):
    (tmp_path / "a.png").write_bytes(encode(Image.new("RGB", (8, 8), "white"), "JPEG"))
    assert decode(tmp_path / "a.png", "it").unique().tolist() == [255]
    for text in (b"%PDF-1.7\n1 0 obj", b"<html>", b"hello\n" * 100, b"PK\x03\x04" + bytes(60)):
        (tmp_path / "b.jpg").write_bytes(text)
        with pytest.raises(DataError, match="read b.jpg: it is no image of a kind that can be"):
            decode(tmp_path / "b.jpg", "b.jpg")


def test_what_is_no_plain_file_is_refused_unread_and_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", "/dev/zero"):
        for read in (decode, measure):
            with pytest.raises(DataError, match="cannot read it: it is no plain file but a pipe"):
                read(path, "it")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "huge.png", "wb") as file:
        file.write(encode(Image.new("RGB", (2, 2))))
        file.truncate(5 * 2**30)  # takes no room on the disk
    began = time.perf_counter()
    with pytest.raises(DataError, match="its 5368709120 bytes exceed the limit of 536870912"):
        decode(tmp_path / "huge.png", "it")
    assert time.perf_counter() - began < 0.2  # to read it would take seconds


def test_bytes_and_files_have_the_same_limit(tmp_path, monkeypatch):
    data = encode(Image.new("RGB", (2, 2)))
    (tmp_path / "a.png").write_bytes(data)
    monkeypatch.setattr(decoding, "LARGEST_FILE", len(data))
    assert torch.equal(decode(data, "it"), decode(tmp_path / "a.png", "it"))
    monkeypatch.setattr(decoding, "LARGEST_FILE", len(data) - 1)
    for each in (data, tmp_path / "a.png"):
        with pytest.raises(DataError, match=f"its {len(data)} bytes exceed the limit"):
            decode(each, "it")


def test_links_that_lead_nowhere_are_refused(tmp_path):
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    with pytest.raises(DataError, match="No such file"):
        decode(tmp_path / "gone.png", "it")
    with pytest.raises(DataError, match="Too many levels of symbolic links"):
        decode(tmp_path / "loop.png", "it")
    with pytest.raises(DataError, match="null byte"):
        decode("a\0b.png", "a\0b.png")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(encode(Image.new("RGB", (2, 2))))
    (tmp_path / "a.png").chmod(0)
    with pytest.raises(DataError, match="cannot read it: Permission denied"):
        decode(tmp_path / "a.png", "it")


def test_a_name_of_any_bytes_is_told_in_one_line_that_can_be_written(tmp_path):
    name = os.fsdecode(b"caf\xe9 \n\x1b[31m.png")
    (tmp_path / name).write_bytes(b"no picture")
    with pytest.raises(DataError) as caught:
        decode(tmp_path / name, name)
    assert str(caught.value).startswith(r"cannot read caf\udce9 \n\x1b[31m.png: it is no image")
    assert str(caught.value).encode().decode().isprintable()
    (tmp_path / name).write_bytes(encode(Image.new("RGB", (2, 3))))
    assert decode(tmp_path / name, name).shape == (3, 3, 2)


LIES = {
    "png": png(60_000, 60_000, chunk(b"IDAT", b"")),
    "png, just too large": png(10_000, 8_948, chunk(b"IDAT", b"")),
    "gif": b"GIF89a" + struct.pack("<HH", 60_000, 60_000) + b"\0\0\0\x2c" + bytes(9) + b"\x02\0;",
    "gif, frame": b"GIF89a\1\0\1\0\0\0\0\x2c" + bytes(4) + b"\xff\xff\xff\xff\0\x02\0;",
    "webp": b"RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\xff\0" * 2,
    "tiff": tiff((256, 4, 1, 2**31), (257, 4, 1, 2**31), *GREY_TIFF[2:], (273, 4, 1, 8)),
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
        with pytest.raises(DataError, match=r"cannot read it: .*(exceed|too large)"):
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
    with pytest.raises(DataError, match="it is cut into too many pieces to be read in good time"):
        decode(hostile, "it")
    assert time.perf_counter() - began < 10


def test_tags_of_very_many_numbers_are_refused_or_passed_over():
    many = tiff(*GREY_TIFF, (273, 4, 300_000, 100), more=b"abcd" * 300_000)
    with pytest.raises(DataError, match="its tags hold more than 262144 numbers"):
        decode(many, "it")
    inside = tiff(
        *GREY_TIFF, (0x8769, 4, 1, 8 + 2 + 72 + 4), more=struct.pack("<HHHII", 1, 700, 5, 2**20, 9)
    )
    with pytest.raises(DataError, match="its tags hold more than 262144 numbers"):
        decode(inside, "it")
    turned = tiff((0x0112, 3, 2**20, 8), more=b"\6\0" * 2**20)
    pixels = chunk(b"IDAT", zlib.compress(bytes(7)))
    assert decode(png(2, 1, chunk(b"eXIf", turned), pixels), "it").shape == (3, 1, 2)


def test_tiles_larger_than_a_picture_are_refused():
    tiles = (
        (277, 3, 1, 1),
        (322, 4, 1, 30_000),
        (323, 4, 1, 30_000),
        (324, 4, 1, 8),
        (325, 4, 1, 9),
    )
    packed = tuple(tag if tag[0] != 259 else (259, 3, 1, 8) for tag in GREY_TIFF)
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


def test_a_very_wide_picture_is_read_in_good_time():
    data = encode(Image.new("RGB", (8_000_000, 2), "red"), "BMP")
    began = time.process_time()
    assert decode(data, "it").shape == (3, 2, 8_000_000)
    assert time.process_time() - began < 1.5  # block by block it takes four times as long, or more


def test_of_very_many_frames_only_the_first_is_decoded():
    frames = [Image.new("P", (2, 2), number % 250) for number in range(300)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=20)
    began = time.perf_counter()
    assert decode(data + data[800:] * 2000, "it").shape == (3, 2, 2)
    assert time.perf_counter() - began < 1


def test_colours_of_16_bits_lose_the_lower_ones():
    row = b"\0" + struct.pack(">6H", 0x1234, 0xABFF, 0xFFFF, 0, 0x80, 0x100)
    deep = png(2, 1, chunk(b"IDAT", zlib.compress(row)), bits=16)
    assert decode(deep, "it")[:, 0].T.tolist() == [[0x12, 0xAB, 0xFF], [0, 0, 1]]


@pytest.mark.parametrize("ink", [(0, 0, 0, 0), (255, 0, 0, 0), (30, 60, 90, 120), (0, 0, 0, 255)])
def test_inks_of_adobe_are_turned_round_also_when_coded_as_brightness_and_colour(ink):
    flat = encode(Image.new("CMYK", (8, 8), ink), "JPEG", quality=100)
    cyan, magenta, yellow, black = ink
    expected = [(255 - part) * (255 - black) / 255 for part in (cyan, magenta, yellow)]
    assert np.allclose(pixel(flat), expected, atol=4)
    # The same bytes as YCCK: the first three are Y, Cb and Cr of what is not the ink.
    place = flat.index(b"Adobe") + 11
    assert flat[place] == 0
    y, cb, cr = (255 - part for part in (cyan, magenta, yellow))
    light = [
        y + 1.402 * (cr - 128),
        y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128),
        y + 1.772 * (cb - 128),
    ]
    # libjpeg gives 255 less that as inks, which are stored the other way round.
    inks = [np.clip(part, 0, 255) for part in light]
    expected = [(255 - part) * (255 - black) / 255 for part in inks]
    coded = flat[:place] + b"\x02" + flat[place + 1 :]
    assert np.allclose(pixel(coded), expected, atol=5)


def test_lab_becomes_rgb():
    def shown(*value: int) -> list[int]:
        return pixel(encode(Image.new("LAB", (2, 2), value), "TIFF"))

    assert min(shown(255, 128, 128)) > 250
    assert max(shown(0, 128, 128)) < 5
    # L* = 50 is sRGB 119
    assert np.allclose(shown(128, 128, 128), 119, atol=3)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16", "I"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_a_picture_converted_in_parts_is_the_same(monkeypatch, mode, orientation):
    colours = Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (23, 31, 4), dtype=np.uint8)
    )
    if mode.startswith("I"):
        values = np.random.default_rng(0).integers(0, 65536, (23, 31))
        picture = Image.fromarray(values.astype(np.uint16 if mode == "I;16" else np.int32))
    else:
        picture = colours.convert("RGB").convert("P") if mode == "P" else colours.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture, "TIFF" if mode in ("I", "CMYK") else "PNG", exif=exif)
    whole = decode(data, "it")
    for size in (7, 97, 700):
        monkeypatch.setattr(decoding, "_PART", size)
        assert torch.equal(decode(data, "it"), whole)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP"])
def test_wherever_any_file_is_cut_it_is_refused_or_whole(kind):
    data = encode(Image.fromarray(noise(6, 6)), kind)
    whole, refused = decode(data, "it"), 0
    for length in range(0, len(data), max(1, len(data) // 150)):
        try:
            assert torch.equal(decode(data[:length], "it"), whole)
        except DataError:
            refused += 1
    assert refused > 50


def warning_files() -> list[bytes]:
    plain = encode(Image.new("RGB", (8, 8)), "JPEG")
    exif = encode(Image.new("RGB", (8, 8)), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    frames = segment(0xE2, b"MPF\0II*\0\x08\0\0\0\0\0")
    animated = png(1, 1, chunk(b"acTL", bytes(8)), ONE_PIXEL)
    return [exif, plain[:2] + frames + plain[2:], animated]


@pytest.mark.parametrize("which", range(3))
def test_pillows_warnings_are_neither_shown_nor_errors(which):
    data = warning_files()[which]
    with pytest.warns(UserWarning, match="EXIF|MPO|APNG|Truncated|read"):
        Image.open(io.BytesIO(data)).getexif()
    for filters in ("error", "always"):
        with warnings.catch_warnings(record=filters == "always") as caught:
            warnings.simplefilter(filters)
            assert decode(data, "it").shape[0] == 3
            measure(data, "it")
        assert not caught


def test_threads_that_decode_are_quiet_and_others_keep_their_warnings():
    data = warning_files()[0]
    with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("always")
        found = [pool.submit(decode, data, "it") for _ in range(200)]
        for _ in range(50):
            warnings.warn("of ours", UserWarning, stacklevel=1)
        assert all(each.result().shape == (3, 8, 8) for each in found)
    assert {str(each.message) for each in caught} == {"of ours"}
    assert len(caught) == 50


def test_the_rule_for_warnings_stands_once_in_front_of_all_others():
    with warnings.catch_warnings():
        for action in ("error", "always", "error"):
            warnings.simplefilter(action)
            decode(warning_files()[0], "it")
        assert warnings.filters[0] is decoding._RULE
        assert sum(rule is decoding._RULE for rule in warnings.filters) == 1


# At most so many bytes for a pixel, in the worst picture of each kind; PEAK_BYTES is for all.
WORST = {
    "grey of 16 bits, PNG": ("I;16", "PNG", {"compress_level": 1}, 7.5),
    "opacity, PNG": ("RGBA", "PNG", {"compress_level": 1}, 9.5),
    "colours with opacities, PNG": ("P", "PNG", {"transparency": b"\0\x80"}, 6.5),
    "four inks, progressive JPEG": ("CMYK", "JPEG", {"progressive": True, "subsampling": 0}, 13.5),
    "opacity, WebP": ("RGBA", "WEBP", {"lossless": True, "method": 0, "quality": 0}, 18),
    "whole numbers, turned TIFF": ("I", "TIFF", {"compression": "tiff_lzw", "turned": True}, 10),
}
MEASURE = """
    import os, sys
    sys.path.insert(0, {tests!r})
    from fuzz import limit_memory
    from killick.data.decoding import decode
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


def test_memory_is_bounded_for_each_pixel_of_the_worst_pictures(tmp_path):
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


def test_a_photo_of_60_megapixels_is_read(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(encode(Image.new("RGB", (9600, 6400), "white"), "JPEG"))
    decode_in_little_memory([(str(path), 9600 * 6400 * 9 + 40 * 2**20)])


def test_large_metadata_are_copied_a_few_times_at_most(tmp_path):
    size = 2**26
    small = encode(Image.new("RGB", (8, 8)), "WEBP")
    junk = small[12:] + b"JUNK" + struct.pack("<I", size) + bytes(size)
    files = {
        "a.png": png(1, 1, chunk(b"abCd", bytes(size)), ONE_PIXEL),
        "b.webp": b"RIFF" + struct.pack("<I", len(junk) + 4) + b"WEBP" + junk,
    }
    cases = []
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        bound = decoding.FILE_COPIES * len(content) + 40 * 2**20
        cases.append((str(tmp_path / name), bound))
    if "could not create" in _refusal(files["b.webp"]):  # this libwebp reads no such files
        cases.pop()
    decode_in_little_memory(cases)


def _refusal(data: bytes) -> str:
    try:
        decode(data, "it")
    except DataError as error:
        return str(error)
    return ""
