"""Packs of encoded images: what comes out, in memory or not, and what is refused."""

import io
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from killick.data.image_set import digest
from killick.data.sources import LoadOptions, load_whole
from killick.data.sources.pack import load_pack
from killick.errors import DataError, OptionError
from killick.evaluation.evaluation_data import load_test


def test_a_pack_without_a_test_set_says_how_to_add_one(tmp_path):
    file = "pack:" + write(tmp_path, good())
    with pytest.raises(DataError, match="has no test set"):
        load_test(file, trained_on=file)


def draw(n: int, height: int = 6, width: int = 4, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return list(rng.integers(0, 256, (n, height, width, 3), dtype=np.uint8))


def encode(pixels: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def split(name: str, files: list[bytes], labels: list[int]) -> dict[str, np.ndarray]:
    return {
        f"{name}_bytes": np.frombuffer(b"".join(files), dtype=np.uint8),
        f"{name}_offsets": np.cumsum([0] + [len(file) for file in files]),
        f"{name}_labels": np.array(labels, dtype=np.uint8),
    }


def good(n: int = 3) -> dict[str, np.ndarray]:
    """A pack with a split to train on."""
    files = [encode(pixels) for pixels in draw(n)]
    return split("train", files, [0] * n) | {"class_names": np.array(["cat", "dog"])}


def write(folder: Path, arrays: dict[str, np.ndarray]) -> str:
    np.savez(folder / "pack.npz", **arrays)
    return str(folder / "pack.npz")


def refused(folder: Path, changes: dict[str, np.ndarray], pattern: str, mark: str = "") -> None:
    with pytest.raises(DataError, match=pattern.replace("FILE", r"\S+pack\.npz")):
        load_pack(write(folder, good() | changes) + mark)


def test_lossless_images_come_out_exactly_in_order(tmp_path):
    pixels = draw(5)
    train = split("train", [encode(each) for each in pixels[:3]], [2, 0, 1])
    test = split("test", [encode(each) for each in pixels[3:]], [1, 1])
    file = write(tmp_path, train | test | {"class_names": np.array(["ant", "bee", "cat"])})
    sets = load_pack(file)
    expected = torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2)
    assert torch.equal(sets.train.images(), expected[:3])
    assert torch.equal(sets.test.images(), expected[3:])
    assert sets.train.labels.tolist() == [2, 0, 1]
    assert sets.test.class_names == ("ant", "bee", "cat")
    assert sets.train.name == sets.test.name == "pack"


@pytest.mark.parametrize("only", ["train", "test"])
def test_either_split_may_be_missing(tmp_path, only):
    arrays = split(only, [encode(draw(1)[0])], [0]) | {"class_names": np.array(["cat"])}
    sets = load_pack(write(tmp_path, arrays))
    assert [part is None for part in (sets.train, sets.test)] == [only != "train", only != "test"]


def test_a_split_may_be_named_and_has_its_own_classes(tmp_path):
    odd = split("scenes", [encode(pixels) for pixels in draw(2)], [1, 0])
    own = {"scenes_class_names": np.array(["sea", "sky"])}
    sets = load_pack(write(tmp_path, good() | odd | own) + "#scenes")
    assert sets.train is None
    assert sets.test.name == "pack#scenes"
    assert sets.test.class_names == ("sea", "sky")
    assert sets.test.labels.tolist() == [1, 0]


def test_the_training_split_may_be_named_to_test_on(tmp_path):
    sets = load_pack(write(tmp_path, good()) + "#train")
    assert sets.train is None
    assert len(sets.test) == 3


def test_a_file_with_a_mark_in_its_name_is_found(tmp_path):
    (tmp_path / "a#b").mkdir()
    file = write(tmp_path / "a#b", good())
    assert len(load_pack(file).train) == 3
    assert len(load_pack(f"{file}#train").test) == 3


def test_compressed_packs_and_mixed_formats_are_read(tmp_path):
    files = [encode(draw(1)[0], kind) for kind in ("PNG", "BMP", "JPEG", "WEBP", "GIF")]
    arrays = split("train", files, [0] * 5) | {"class_names": np.array(["cat"])}
    np.savez_compressed(tmp_path / "pack.npz", **arrays)
    train = load_pack(str(tmp_path / "pack.npz")).train
    assert train.images().shape == (5, 3, 6, 4)
    assert torch.equal(train.read(0), train.read(1))


def test_images_of_several_sizes_are_decoded_when_read(tmp_path):
    pixels = [draw(1, height)[0] for height in (4, 5, 6)]
    changes = split("train", [encode(each) for each in pixels], [0, 1, 0])
    train = load_pack(write(tmp_path, good() | changes)).train
    assert not train.in_memory
    assert torch.equal(train.read(1), torch.tensor(pixels[1]).permute(2, 0, 1))
    with pytest.raises(DataError, match="3 sizes"):
        train.images()


def test_a_image_that_is_turned_upright_has_another_size(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    files = [encode(draw(1)[0]), encode(draw(1)[0], exif=exif)]
    train = load_pack(write(tmp_path, good() | split("train", files, [0, 0]))).train
    assert not train.in_memory
    assert train.read(1).shape == (3, 4, 6)


def test_readers_survive_pickling(tmp_path):
    train = load_pack(write(tmp_path, good())).train
    copy = pickle.loads(pickle.dumps(train))
    assert torch.equal(copy.read(2), torch.tensor(draw(3)[2]).permute(2, 0, 1))


def test_every_image_counts_for_the_digest(tmp_path):
    images = draw(40)
    files = [encode(image) for image in images]
    before = digest(load_pack(write(tmp_path, {**good(), **split("test", files, [0] * 40)})).test)
    files[7] = encode(255 - images[7])
    after = digest(load_pack(write(tmp_path, {**good(), **split("test", files, [0] * 40)})).test)
    assert before != after


def test_a_damaged_image_is_named(tmp_path):
    files = [encode(pixels) for pixels in draw(3)]
    files[1] = files[1][:50]
    train = load_pack(write(tmp_path, good() | split("train", files, [0, 0, 0]))).train
    with pytest.raises(DataError, match=r"image 1 of 'train' in \S+pack.npz: "):
        train.images()


def test_an_empty_image_is_named(tmp_path):
    files = [encode(draw(1)[0]), b""]
    train = load_pack(write(tmp_path, good() | split("train", files, [0, 0]))).train
    with pytest.raises(DataError, match=r"image 1 of 'train' in \S+pack.npz: it is empty"):
        train.read(1)


def test_to_be_tested_on_a_pack_is_not_read_to_train(tmp_path):
    arrays = good() | split("test", list(map(encode, draw(2))), [0, 1])
    file = write(tmp_path, arrays)
    assert load_pack(file, LoadOptions(test_only=True)).train is None
    for name in (f"pack:{file}", f"pack:{file}#test"):
        assert len(load_whole(name)) == 2
        assert len(load_test(name, trained_on=f"pack:{file}")) == 2


def test_a_pack_without_known_splits_is_refused_and_its_splits_told(tmp_path):
    odd = split("sea", [], []) | split("sky", [], [])
    file = write(tmp_path, odd)
    with pytest.raises(DataError, match="'train' or 'test', found 'sea', 'sky'.*npz#SPLIT"):
        load_pack(file)
    with pytest.raises(DataError, match="split 'land', found 'sea', 'sky'"):
        load_pack(file + "#land")


def test_an_npz_of_something_else_is_refused(tmp_path):
    with pytest.raises(DataError, match="found none"):
        load_pack(write(tmp_path, {"x": np.zeros(3)}))


@pytest.mark.parametrize("missing", ["train_offsets", "train_labels", "class_names"])
def test_a_missing_array_is_named(tmp_path, missing):
    arrays = good()
    del arrays[missing]
    with pytest.raises(DataError, match=f"no array '{missing}', only train_bytes, "):
        load_pack(write(tmp_path, arrays))


@pytest.mark.parametrize(
    ("key", "array", "pattern"),
    [
        ("train_bytes", np.zeros(9), "a row of uint8, found float64"),
        (
            "train_bytes",
            np.zeros((3, 3), np.uint8),
            r"a row of uint8, found uint8 of shape \(3, 3\)",
        ),
        ("train_offsets", np.zeros(4), "a row of whole numbers, found float64"),
        ("train_labels", np.zeros(3), "a row of whole numbers, found float64"),
        ("class_names", np.array([b"cat"]), "a row of unicode strings, found |S3"),
        ("class_names", np.array("cat"), r"a row of unicode strings, found <U3 of shape \(\)"),
    ],
)
def test_arrays_of_another_kind_are_refused(tmp_path, key, array, pattern):
    refused(tmp_path, {key: array}, f"'{key}' in FILE .*{pattern}".replace("|", r"\|"))


def test_lengths_must_agree(tmp_path):
    labels = {"train_labels": np.zeros(5, np.uint8)}
    refused(tmp_path, labels, "'train' in FILE.* found 4 offsets and 5 labels")
    refused(tmp_path, split("train", [], []), "found 1 offsets and 0 labels")


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (lambda offsets: offsets[[0, 2, 1, 3]], "found 0 to .* not ascending"),
        (lambda offsets: offsets + 1, r"found 1 to"),
        (lambda offsets: offsets - 1, "found -1 to"),
        (lambda offsets: np.full(4, 2**63, dtype=np.uint64), "found -"),
    ],
)
def test_offsets_must_ascend_within_the_bytes(tmp_path, change, pattern):
    changes = {"train_offsets": change(good()["train_offsets"])}
    refused(tmp_path, changes, f"the offsets of 'train' in FILE .*{pattern}")


def test_labels_must_have_names(tmp_path):
    changes = {"train_labels": np.array([0, 1, 2], np.uint8)}
    refused(tmp_path, changes, "the labels of pack .*found 0 to 2")


def test_train_and_test_must_have_the_same_classes(tmp_path):
    changes = split("test", [encode(draw(1)[0])], [0])
    changes["test_class_names"] = np.array(["cat", "eel"])
    refused(tmp_path, changes, "'dog', 'eel'")


def test_pickled_arrays_are_not_loaded(tmp_path):
    names = np.array(["cat", "dog"], dtype=object)
    refused(tmp_path, {"class_names": names}, "cannot read FILE: Object arrays")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=rf"{re.escape(str(tmp_path))}/x.npz"):
        load_pack(f"{tmp_path}/x.npz#train")


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    (tmp_path / "pack.npz").write_text("not a pack")
    with pytest.raises(DataError, match=r"\S+pack.npz is not"):
        load_pack(str(tmp_path / "pack.npz"))


def test_a_damaged_pack_is_refused(tmp_path):
    file = Path(write(tmp_path, good()))
    contents = bytearray(file.read_bytes())
    contents[300] ^= 255  # within the first array; the checksum tells
    file.write_bytes(contents)
    with pytest.raises(DataError, match=r"cannot read \S+pack.npz: Bad CRC-32.*Make or copy"):
        load_pack(str(file))


@pytest.mark.parametrize("where", ["#train", "pack.npz#"])
def test_a_mark_needs_a_file_and_a_split(where):
    with pytest.raises(OptionError, match=f"found 'pack:{where}'"):
        load_pack(where)
