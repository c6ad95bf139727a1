"""Image files of every kind to RGB, upright; damaged ones refused by name."""

import gc
import os
import pickle
import re
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from image_files import GRAY_TIFF, chunk, encode, noise, png, tiff
from PIL import Image

from killick.data.decoding import decode
from killick.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


RED, WHITE = [255, 0, 0], [255, 255, 255]


def pixel(data: bytes, x: int = 0, y: int = 0) -> list[int]:
    return decode(data, "it")[:, y, x].tolist()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_images_come_out_as_they_went_in(kind):
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
    file = tmp_path / "an image.png"
    file.write_bytes(encode(Image.fromarray(noise())))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(decode(file, "it"), decode(str(file), "it"))
        gc.collect()
    assert not [warning for warning in caught if warning.category is ResourceWarning]


def test_gray_is_repeated_in_every_channel():
    assert pixel(encode(Image.new("L", (2, 2), 77))) == [77] * 3
    assert pixel(encode(Image.new("L", (8, 8), 77), "JPEG")) == [77] * 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_gray_is_scaled_and_not_clipped(kind):
    deep = np.array([[0, 128, 129, 257 * 100, 300, 65535]], dtype=np.uint16)
    found = decode(encode(Image.fromarray(deep), kind), "it")
    assert found.tolist() == [[[0, 0, 1, 100, 1, 255]]] * 3


def test_negatives_of_one_bit_are_turned_round():
    tags = [*GRAY_TIFF[:2], (258, 3, 1, 1), (259, 3, 1, 1), (262, 3, 1, 0), (273, 4, 1, 98)]
    data = tiff(*tags, (279, 4, 1, 4), more=bytes([0b10100000] * 4))
    assert decode(data, "it")[0, 0].tolist() == [0, 255, 0, 255]


def test_the_transparent_gray_of_a_png_is_white():
    bits, most = 8, 255
    gray = [0, most // 3, most // 3, most, 0, most // 2, most, 1]
    row = int("".join(f"{value:0{bits}b}" for value in gray), 2).to_bytes(bits, "big")
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    for clear in {0, most // 3, most // 2, most}:
        data = png(8, 1, chunk(b"tRNS", struct.pack(">H", clear)), pixels, bits=bits, colors=0)
        expected = [255 if value == clear else round(value * 255 / most) for value in gray]
        assert decode(data, "it").tolist() == [[expected]] * 3
    without = png(8, 1, pixels, bits=bits, colors=0)
    assert decode(without, "it")[0, 0].tolist() == [round(value * 255 / most) for value in gray]


def test_the_transparent_color_of_a_png_is_white():
    colors = [(0x12, 0xAB, 0xFF), (0x12, 0xAB, 0xFE), (0, 0, 0)]
    row = b"".join(map(bytes, colors))
    clear = struct.pack(">3H", *colors[0])
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    data = png(3, 1, chunk(b"tRNS", clear), pixels)
    assert decode(data, "it")[:, 0].T.tolist() == [WHITE, *map(list, colors[1:])]


def test_gray_of_an_unknown_range_is_refused():
    whole = np.array([[0, 70_000]], dtype=np.int32)
    with pytest.raises(DataError, match="read it: its gray values, 0 to 70000"):
        decode(encode(Image.fromarray(whole), "TIFF"), "it")
    with pytest.raises(DataError, match="read it: its gray values are floats"):
        decode(encode(Image.fromarray(whole.astype(np.float32)), "TIFF"), "it")


def test_a_palette_is_looked_up():
    assert pixel(encode(Image.new("RGB", (2, 2), "red").quantize(4))) == RED
    assert pixel(encode(Image.new("RGB", (2, 2), "red"), "GIF")) == RED


@pytest.mark.parametrize("transparency", [0, b"\x00\xff"])  # a color; an opacity for each
def test_transparent_colors_of_a_palette_are_white(transparency):
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 255, 255, 0, 0])
    image.putpixel((1, 0), 1)
    data = encode(image, transparency=transparency)
    assert pixel(data) == WHITE
    assert pixel(data, x=1) == RED


def test_transparent_images_are_laid_on_white():
    assert pixel(encode(Image.new("RGBA", (1, 1), (255, 0, 0, 0)))) == WHITE
    assert pixel(encode(Image.new("RGBA", (1, 1), (255, 0, 0, 255)))) == RED
    assert pixel(encode(Image.new("RGBA", (1, 1), (0, 100, 200, 51)))) == [204, 224, 244]
    assert pixel(encode(Image.new("LA", (1, 1), (0, 51)))) == [204] * 3


def test_a_transparent_color_without_a_palette_is_white():
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
def test_images_are_turned_upright(kind, orientation):
    corners = Image.fromarray(np.kron([[10, 90], [170, 250], [30, 130]], np.ones((8, 8))))
    upright = torch.tensor(np.array(corners.convert("L")))
    stored = {  # how the rows and columns of the upright image come to lie, from the standard
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
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    assert pixel(encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)) == RED


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP"])
def test_a_truncated_file_is_refused_by_name(kind, tmp_path):
    whole = encode(Image.fromarray(noise(64, 64)), kind)
    file = tmp_path / "half.img"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=rf"cannot read {re.escape(str(file))}: .+\. Replace it"):
        decode(file, str(file))


def test_formats_beyond_the_known_are_not_tried():
    with pytest.raises(DataError, match="not an image"):
        decode(encode(Image.new("RGB", (4, 4)), "EPS"), "it")


def test_it_can_be_sent_to_a_worker():
    assert pickle.loads(pickle.dumps(decode)) is decode


def test_a_file_is_known_by_its_content_and_not_by_its_name(tmp_path):
    (tmp_path / "a.png").write_bytes(encode(Image.new("RGB", (8, 8), "white"), "JPEG"))
    assert decode(tmp_path / "a.png", "it").unique().tolist() == [255]
    for text in (b"%PDF-1.7\n1 0 obj", b"<html>", b"hello\n" * 100, b"PK\x03\x04" + bytes(60)):
        (tmp_path / "b.jpg").write_bytes(text)
        with pytest.raises(DataError, match="read b.jpg: not an image"):
            decode(tmp_path / "b.jpg", "b.jpg")


def test_colors_of_16_bits_lose_the_lower_ones():
    row = b"\0" + struct.pack(">6H", 0x1234, 0xABFF, 0xFFFF, 0, 0x80, 0x100)
    deep = png(2, 1, chunk(b"IDAT", zlib.compress(row)), bits=16)
    assert decode(deep, "it")[:, 0].T.tolist() == [[0x12, 0xAB, 0xFF], [0, 0, 1]]


@pytest.mark.parametrize("ink", [(0, 0, 0, 0), (255, 0, 0, 0), (30, 60, 90, 120), (0, 0, 0, 255)])
def test_inks_of_adobe_are_turned_round_also_when_coded_as_brightness_and_color(ink):
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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.png", "it is empty"),
        ("gone.png", "No such file"),
        (".", "Is a directory"),
        ("a\0b", "null"),
    ],
)
def test_what_cannot_be_opened_is_refused(tmp_path, name, reason):
    (tmp_path / "none.png").touch()
    with pytest.raises(DataError, match=f"cannot read it: .*{reason}"):
        decode(f"{tmp_path}/{name}", "it")


def test_a_name_of_any_bytes_is_written_in_one_line(tmp_path):
    name = os.fsdecode(b"caf\xe9 \n\x1b[31m.png")
    (tmp_path / name).write_bytes(b"not an image")
    with pytest.raises(DataError) as caught:
        decode(tmp_path / name, name)
    assert str(caught.value).startswith(r"cannot read caf\udce9 \n\x1b[31m.png: ")
    assert str(caught.value).encode().decode().isprintable()
    (tmp_path / name).write_bytes(encode(Image.new("RGB", (2, 3))))
    assert decode(tmp_path / name, name).shape == (3, 3, 2)
