"""Names to sets: the shapes and their cache, digits, CIFAR, and names that are refused."""

import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import cifar

from killick.data.drawn_images import cache_folder
from killick.data.image_set import Sets
from killick.data.sources import DATA_SOURCES, DataSource, load_sets, load_whole, shapes
from killick.errors import DataError, OptionError


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache folder of its own, and shapes that are few and counted."""
    monkeypatch.setenv("KILLICK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shapes, "TRAIN_COUNT", 40)
    monkeypatch.setattr(shapes, "TEST_COUNT", 20)
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch) -> list[tuple[int, int, int]]:
    """What was asked of `make_shapes`, in order."""
    calls = []
    make = shapes.make_shapes

    def count(train: int, test: int, seed: int, **looks):
        calls.append((train, test, seed))
        return make(train, test, seed, **looks)

    monkeypatch.setattr(shapes, "make_shapes", count)
    return calls


def test_there_are_8000_shapes_to_train_on_and_2000_to_test_on():
    assert (shapes.TRAIN_COUNT, shapes.TEST_COUNT, shapes.SEED) == (8000, 2000, 0)


def test_shapes_are_made_once_and_then_read(cache, made):
    first, again = load_sets("shapes"), load_sets("shapes")
    assert made == [(40, 20, 0)]
    assert os.listdir(cache) == ["shapes-v1-40-20.npz"]
    expected = shapes.make_shapes(40, 20, 0)
    for sets in (first, again):
        found = (sets.train.images(), sets.train.labels, sets.test.images(), sets.test.labels)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert sets.train.class_names == shapes.CLASS_NAMES
        assert sets.train.name == sets.test.name == "shapes"


def test_the_cache_holds_plain_arrays_uncompressed(cache):
    load_sets("shapes")
    with np.load(cache / "shapes-v1-40-20.npz", allow_pickle=False) as arrays:
        assert arrays["train_images"].shape == (40, 3, 32, 32)
        assert {entry.compress_type for entry in arrays.zip.infolist()} == {0}


def damage(file: Path) -> None:
    contents = bytearray(file.read_bytes())
    contents[5000] ^= 1
    file.write_bytes(contents)


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def exchange(file: Path) -> None:
    np.savez(file, something=np.zeros(3))


def pickled(file: Path) -> None:
    np.savez(file, train_images=np.array([{}], dtype=object))


@pytest.mark.parametrize("harm", [damage, shorten, exchange, pickled, Path.write_text])
def test_a_damaged_cache_is_made_again(cache, made, harm):
    expected = load_sets("shapes").train.images()
    file = cache / "shapes-v1-40-20.npz"
    harm(file, "") if harm is Path.write_text else harm(file)
    assert torch.equal(load_sets("shapes").train.images(), expected)
    assert len(made) == 2
    assert torch.equal(load_sets("shapes").train.images(), expected)
    assert len(made) == 2


class Trap:
    """What leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_nothing_in_the_cache_is_unpickled(cache, tmp_path):
    cache.mkdir()
    np.savez(cache / "shapes-v1-40-20.npz", train_images=np.array([Trap(tmp_path / "trace")]))
    assert len(load_sets("shapes").train) == 40
    assert not (tmp_path / "trace").exists()


def test_other_sizes_and_versions_have_their_own_files(cache, monkeypatch):
    load_sets("shapes")
    monkeypatch.setattr(shapes, "VERSION", 2)
    monkeypatch.setattr(shapes, "TEST_COUNT", 10)
    assert len(load_sets("shapes").test) == 10
    assert sorted(os.listdir(cache)) == ["shapes-v1-40-20.npz", "shapes-v2-40-10.npz"]


def test_a_cache_that_cannot_be_written_is_no_error(cache, caplog):
    cache.write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, "killick"):
        assert len(load_sets("shapes").train) == 40
    assert "shapes-v1-40-20.npz is not kept: " in caplog.text


def test_a_write_that_fails_leaves_nothing_behind(cache, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    assert len(load_sets("shapes").train) == 40
    assert os.listdir(cache) == []


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/common")
    monkeypatch.setenv("KILLICK_CACHE", "~/own")
    assert cache_folder() == Path("/home/someone/own")
    monkeypatch.delenv("KILLICK_CACHE")
    assert cache_folder() == Path("/common/killick")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path("/home/someone/.cache/killick")


def test_digits_are_cut_into_1437_and_360_by_class():
    sets = load_sets("digits")
    assert (len(sets.train), len(sets.test)) == (1437, 360)
    train, test = sets.train.labels.bincount(), sets.test.labels.bincount()
    assert ((test - (train + test) * 360 / 1797).abs() < 1).all()
    assert set(sets.train.rows.tolist()) | set(sets.test.rows.tolist()) == set(range(1797))
    assert sets.train.class_names == tuple("0123456789")
    assert torch.equal(load_sets("digits").test.rows, sets.test.rows)


def test_digits_are_enlarged_between_their_pixels():
    from sklearn.datasets import load_digits

    raw = load_digits()
    train = load_sets("digits").train
    row = int(train.rows[5])
    image = train.read(5)
    assert image.shape == (3, 32, 32)
    assert torch.equal(image[0], image[2])
    assert int(train.labels[5]) == raw.target[row]
    places = np.clip((np.arange(32) + 0.5) / 4 - 0.5, 0, 7)  # the centre of each, in old pixels
    lines = np.stack([np.interp(places, np.arange(8), line) for line in raw.images[row]])
    slow = np.stack([np.interp(places, np.arange(8), line) for line in lines.T]).T
    assert np.array_equal(image[0].numpy(), np.round(slow * 255 / 16).astype(np.uint8))


def test_digits_use_the_whole_range():
    images = load_sets("digits").train.images()
    assert (int(images.min()), int(images.max())) == (0, 255)


def write_cifar(root: Path, kind: type[cifar.CIFAR10], label_key: str, monkeypatch) -> np.ndarray:
    """Two images in each of torchvision's files; what is in them, file after file."""
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    files = [name for name, _ in kind.train_list + kind.test_list]
    pixels = np.random.default_rng(0).integers(0, 256, (len(files), 2, 3072), dtype=np.uint8)
    for number, name in enumerate(files):
        batch = {"data": pixels[number], label_key: [number % 3, 1]}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: list("abc")}))
    # The checksums of the true files cannot be those of these.
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5=None: os.path.isfile(path))
    return pixels.reshape(-1, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "kind", "label_key", "train"),
    [("cifar10", cifar.CIFAR10, "labels", 10), ("cifar100", cifar.CIFAR100, "fine_labels", 2)],
)
def test_cifar_is_read_from_torchvisions_files(tmp_path, monkeypatch, name, kind, label_key, train):
    pixels = torch.tensor(write_cifar(tmp_path, kind, label_key, monkeypatch))
    sets = load_sets(name, root=str(tmp_path))
    assert torch.equal(sets.train.images(), pixels[:train])
    assert torch.equal(sets.test.images(), pixels[train:])
    assert sets.train.images().is_contiguous()
    assert sets.train.labels.tolist()[:2] == [0, 1]
    assert sets.test.class_names == ("a", "b", "c")
    assert sets.test.name == name


def test_cifar_is_looked_for_where_the_environment_says(tmp_path, monkeypatch):
    write_cifar(tmp_path / "there", cifar.CIFAR10, "labels", monkeypatch)
    monkeypatch.setenv("KILLICK_DATA", str(tmp_path / "there"))
    assert len(load_sets("cifar10").train) == 10
    monkeypatch.delenv("KILLICK_DATA")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"cifar10 in {tmp_path}/data/cifar-10-batches-py"):
        load_sets("cifar10")


def test_missing_cifar_is_told_with_the_ways_out(tmp_path):
    ways = r"--data.root FOLDER; .*--data.download; .*\) .*--data pack:FILE.npz\)"
    with pytest.raises(DataError, match=rf"{tmp_path}/cifar-100-python: no such .*{ways}"):
        load_sets("cifar100", root=str(tmp_path))


def test_damaged_cifar_is_told(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_text("not a batch")
    with pytest.raises(DataError, match="cifar-10-batches-py: damaged or missing files"):
        load_sets("cifar10", root=str(tmp_path))


def test_cifar_is_fetched_only_when_asked(tmp_path, monkeypatch):
    asked = []

    def fail(url, *_, **__):
        asked.append(url)
        raise OSError("the network is down")

    monkeypatch.setattr(cifar, "download_and_extract_archive", fail)
    with pytest.raises(DataError, match="no such folder"):
        load_sets("cifar10", root=str(tmp_path))
    assert not asked
    with pytest.raises(DataError, match="the download failed: the network is down"):
        load_sets("cifar10", root=str(tmp_path), download=True)


def test_names_with_paths_reach_their_readers(tmp_path):
    for part in ("train", "val"):
        (tmp_path / part / "cat").mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(tmp_path / part / "cat" / "a.png")
    assert len(load_sets(f"imagefolder:{tmp_path}").test) == 1
    assert len(load_sets(f"imagenet:{tmp_path}").test) == 1
    with pytest.raises(DataError, match="no pack at nowhere.npz"):
        load_sets("pack:nowhere.npz#test")


def test_a_source_of_the_users_own_is_loaded():
    digits = load_sets("digits")

    def load(argument, options):
        assert (argument, options.root) == ("someone/pets:small", "there")
        return Sets(digits.train, digits.test)

    DATA_SOURCES.register("mine", DataSource("mine", load, "mine", "NAME"))
    try:
        found = load_sets("mine:someone/pets:small", root="there")
        assert found.train is digits.train
        with pytest.raises(OptionError, match="mine:NAME"):
            load_sets("mine")
    finally:
        DATA_SOURCES.remove("mine")


def test_every_source_says_how_it_is_written():
    written = [source.written for _, source in DATA_SOURCES.items()]
    assert {"shapes", "cifar10", "imagefolder:PATH", "pack:FILE.npz", "hf:NAME"} < set(written)
    assert all(source.description for _, source in DATA_SOURCES.items())


def test_images_of_a_folder_have_no_classes(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    for name in ("images", "images"):
        whole = load_whole(f"{name}:{tmp_path}")
        assert (len(whole), whole.class_names) == (1, ("unknown",))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("imagefolder", "imagefolder:PATH"),
        ("imagenet:", "imagenet:PATH"),
        ("pack", "pack:FILE.npz"),
        ("hf:", "hf:NAME"),
        ("shapes:3", "shapes"),
    ],
)
def test_a_kind_without_its_path_is_told_how_to_be_written(name, written):
    with pytest.raises(OptionError, match=f"'{written}', found '{name}'"):
        load_sets(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cifar", "cifar10"),
        ("shape", "shapes"),
        ("imagefolders:here", "imagefolder"),
    ],
)
def test_unknown_names_are_refused_and_the_nearest_offered(name, meant):
    with pytest.raises(DataError, match=rf"'{name}' \(did you mean {meant}\?\)"):
        load_sets(name)


def test_a_path_by_itself_is_read_by_its_kind(tmp_path):
    with pytest.raises(DataError, match="no class folders"):
        load_sets(str(tmp_path))
    with pytest.raises(DataError, match="no pack at some/cats.npz"):
        load_sets("some/cats.npz")


def test_a_name_like_no_other_gets_no_guess():
    with pytest.raises(DataError, match=r"no folder and no data source 'xyzzy'\."):
        load_sets("xyzzy")
