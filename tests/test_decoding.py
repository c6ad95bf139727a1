"""Picture files of every kind to RGB, upright; damaged ones refused by name."""

import gc
import io
import pickle
import re
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from kedge.data.decoding import decode, measure
from kedge.errors import DataError

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


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
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


def test_threads_decode_the_same(tmp_path):
    data = [encode(Image.fromarray(noise(20, width)), "JPEG") for width in range(8, 40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: decode(each, "it"), data * 4))
    assert all(torch.equal(decode(a, "it"), b) for a, b in zip(data * 4, found, strict=True))


def test_it_can_be_sent_to_a_worker():
    assert pickle.loads(pickle.dumps(decode)) is decode
