"""Class folders of image files: how they are found, labelled and cut, and what is refused."""

import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from killick.data.image_set import ImageSet
from killick.data.sources.imagefolder import load_folder, load_imagenet
from killick.errors import DataError


def put(file: Path, shade: int = 0, size: tuple[int, int] = (4, 4)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade, shade)).save(file)
    return file


def fill(folder: Path, **counts: int) -> Path:
    """Class folders with so many images, named by their numbers."""
    for kind, count in counts.items():
        for number in range(count):
            put(folder / kind / f"{number:02}.png", shade=number)
    return folder


def files_of(images: ImageSet) -> list[str]:
    """The paths, within the class folders, in the order of the set."""
    reader = images.source
    return [os.path.relpath(reader.path(int(row)), reader.folder) for row in images.rows]


def refused(folder: Path, *patterns: str, load=load_folder) -> None:
    pattern = ".*".join(patterns).replace("HERE", re.escape(str(folder)))
    with pytest.raises(DataError, match=pattern):
        load(str(folder))


def test_train_and_test_folders_are_read(tmp_path):
    fill(tmp_path / "train", cat=3, dog=2)
    fill(tmp_path / "test", cat=1, dog=1)
    sets = load_folder(str(tmp_path))
    assert files_of(sets.train) == [
        f"{name}.png" for name in ("cat/00", "cat/01", "cat/02", "dog/00", "dog/01")
    ]
    assert sets.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert sets.test.labels.tolist() == [0, 1]
    assert sets.train.class_names == sets.test.class_names == ("cat", "dog")
    assert sets.train.name == sets.test.name == tmp_path.name


def test_images_are_decoded_when_read_each_of_its_size(tmp_path):
    put(tmp_path / "train" / "a" / "1.png", 10, (4, 6))
    put(tmp_path / "train" / "b" / "2.jpg", 20, (8, 5))
    train = load_folder(str(tmp_path)).train
    assert not train.in_memory
    assert train.read(0).shape == (3, 6, 4)
    assert torch.equal(train.read(1), torch.full((3, 5, 8), 20, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (["val", "test"], "test"),
        (["validation", "val", "valid"], "val"),
        (["validation", "valid"], "valid"),
        (["validation"], "validation"),
    ],
)
def test_the_first_known_test_folder_is_taken(tmp_path, there, chosen):
    for name in ("train", "other", *there):
        fill(tmp_path / name, cat=1)
    assert Path(load_folder(str(tmp_path)).test.source.folder).name == chosen


def test_without_a_test_folder_there_is_no_test_set(tmp_path):
    fill(tmp_path / "train", cat=9, dog=9)
    assert load_folder(str(tmp_path)).test is None


def test_a_fifth_is_cut_off_where_there_is_no_train_folder(tmp_path):
    sets = load_folder(str(fill(tmp_path, cat=10, dog=5, eel=20)))
    assert sets.test.labels.bincount().tolist() == [2, 1, 4]
    assert sets.train.labels.bincount().tolist() == [8, 4, 16]
    assert set(files_of(sets.train)) & set(files_of(sets.test)) == set()
    assert len(files_of(sets.train) + files_of(sets.test)) == 35


def test_the_same_fifth_is_cut_off_every_time_and_anywhere(tmp_path):
    first = load_folder(str(fill(tmp_path / "one", cat=10, dog=15)))
    second = load_folder(str(fill(tmp_path / "two", dog=15, cat=10)))
    assert files_of(first.test) == files_of(second.test)


def test_a_class_of_one_image_stays_in_training(tmp_path):
    sets = load_folder(str(fill(tmp_path, cat=12, dog=1, eel=1)))
    assert sets.train.labels.unique().tolist() == [0, 1, 2]
    assert sets.test.labels.unique().tolist() == [0]
    assert sets.test.class_names == ("cat", "dog", "eel")


def test_one_image_of_each_class_leaves_nothing_to_test_on(tmp_path):
    sets = load_folder(str(fill(tmp_path, a=1, b=1, c=1, d=1, e=1)))
    assert len(sets.train) == 5
    assert sets.test is None


def test_files_are_found_at_any_depth_by_their_extension_in_order(tmp_path):
    extensions = "jpg JPEG png bmp gif webp tif TIFF ppm"
    for number, extension in enumerate(extensions.split()):
        put(tmp_path / "train" / "cat" / f"deep{9 - number}" / f"x.{extension}")
    Image.new("L", (2, 2)).save(tmp_path / "train" / "cat" / "gray.pgm")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    train = load_folder(str(tmp_path)).train
    assert len(train) == 10
    assert files_of(train) == sorted(files_of(train))
    assert all(train.read(number).shape[0] == 3 for number in range(10))


def test_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    fill(tmp_path / "train", dog=3, cat=3)
    fill(tmp_path / "train" / "cat", deeper=2)
    expected = files_of(load_folder(str(tmp_path)).train)
    listdir, walk = os.listdir, os.walk
    monkeypatch.setattr(os, "listdir", lambda place: listdir(place)[::-1])
    monkeypatch.setattr(
        os, "walk", lambda *a, **k: ((p, d, sorted(f)[::-1]) for p, d, f in walk(*a, **k))
    )
    assert files_of(load_folder(str(tmp_path)).train) == expected


def test_hidden_files_and_folders_are_passed_over(tmp_path):
    fill(tmp_path / "train", cat=2)
    put(tmp_path / "train" / "cat" / "._00.png")
    put(tmp_path / "train" / "cat" / ".thumbnails" / "00.png")
    put(tmp_path / "train" / ".cache" / "00.png")
    put(tmp_path / "train" / ".loose.png")
    train = load_folder(str(tmp_path)).train
    assert train.class_names == ("cat",)
    assert files_of(train) == ["cat/00.png", "cat/01.png"]


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("cat/up", "set/train"),
        ("cat/deep/one.png", "set/train/dog/00.png"),
        ("cat/private.png", "elsewhere/00.png"),
        ("bird", "elsewhere"),
        ("cat/gone.png", "nowhere"),
    ],
)
def test_a_link_that_leaves_or_re_enters_the_folder_is_refused(tmp_path, link, target):
    """One that leads up would give every image of the other classes the label of this one."""
    fill(tmp_path / "set" / "train", cat=2, dog=2)
    put(tmp_path / "elsewhere" / "00.png")
    place = tmp_path / "set" / "train" / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(tmp_path / target)
    with pytest.raises(DataError, match=f"{place} -> {tmp_path / target} is a link"):
        load_folder(str(tmp_path / "set"))
    place.unlink()
    (tmp_path / "short").symlink_to(tmp_path / "set")  # the folder itself is the user's word
    assert len(load_folder(str(tmp_path / "short")).train) == 4


def test_a_class_folder_whose_name_is_not_utf8_is_refused(tmp_path):
    fill(tmp_path / "train", cat=1)
    os.rename(tmp_path / "train" / "cat", os.fsencode(tmp_path / "train") + b"/k\xe4fer")
    with pytest.raises(DataError, match=r"k\\udce4fer is not UTF-8") as told:
        load_folder(str(tmp_path))
    assert str(told.value).encode()


def test_a_home_folder_may_be_written_short(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(tmp_path / "photos" / "train", cat=1)
    assert len(load_folder("~/photos").train) == 1


def test_names_beyond_ascii_are_read(tmp_path):
    put(tmp_path / "train" / "Käfer" / "grün 1.png", 9)
    train = load_folder(str(tmp_path)).train
    assert train.class_names == ("Käfer",)
    assert int(train.read(0).max()) == 9


def test_readers_survive_pickling_small(tmp_path):
    fill(tmp_path / "train", cat=3)
    train = load_folder(str(tmp_path)).train
    copy = pickle.loads(pickle.dumps(train))
    assert torch.equal(copy.read(2), train.read(2))
    assert len(pickle.dumps(train.source)) < 1000


def test_a_damaged_file_is_named(tmp_path):
    fill(tmp_path / "train", cat=1)
    file = tmp_path / "train" / "cat" / "00.png"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match=f"cannot read {re.escape(str(file))}: "):
        load_folder(str(tmp_path)).train.read(0)


def test_a_class_may_be_missing_in_the_test_set(tmp_path):
    fill(tmp_path / "train", cat=1, dog=1, eel=1)
    fill(tmp_path / "test", eel=2)
    test = load_folder(str(tmp_path)).test
    assert test.labels.tolist() == [2, 2]
    assert test.class_names == ("cat", "dog", "eel")


def test_a_class_only_in_the_test_set_is_refused(tmp_path):
    fill(tmp_path / "train", cat=1)
    fill(tmp_path / "test", cat=1, zebra=1)
    refused(tmp_path, "HERE/test .*'zebra'")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    refused(tmp_path / "gone", "HERE is not there")
    refused(put(tmp_path / "a.png"), "HERE is a file")


def test_an_empty_class_folder_is_refused(tmp_path):
    fill(tmp_path, cat=3)
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "notes.txt").touch()
    refused(tmp_path, "HERE/dog", r"\.jpg ")


def test_images_without_class_folders_are_refused(tmp_path):
    put(tmp_path / "b.png")
    put(tmp_path / "a.png")
    refused(tmp_path, "HERE has 2 images .*'a.png'")


def test_images_beside_class_folders_are_refused(tmp_path):
    fill(tmp_path / "train", cat=1)
    put(tmp_path / "train" / "stray.png")
    refused(tmp_path, "HERE/train has 1 ", "HERE/train/CLASS/stray.png")


def test_a_folder_without_folders_is_refused(tmp_path):
    refused(tmp_path, "no class folders in HERE", "HERE/CLASS/FILE.jpg")


def test_test_folders_without_training_are_not_taken_for_classes(tmp_path):
    fill(tmp_path / "test", cat=1)
    fill(tmp_path / "val", cat=1)
    refused(tmp_path, "HERE has 'test', 'val' but no folder 'train'", "imagefolder:HERE/test")


def test_a_folder_that_may_not_be_listed_is_refused(tmp_path, monkeypatch):
    fill(tmp_path, cat=1)
    scan = os.scandir
    for forbidden in (tmp_path / "cat", tmp_path):

        def forbid(path, forbidden=forbidden):
            if Path(path) == forbidden:
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        monkeypatch.setattr(os, "scandir", forbid)
        refused(tmp_path, f"cannot list {forbidden}: Permission denied")


def test_imagenet_is_read_from_train_and_val(tmp_path):
    fill(tmp_path / "train", n01440764=2, n01443537=1)
    fill(tmp_path / "val", n01443537=1, n01440764=1)
    fill(tmp_path / "test", n01440764=1)
    sets = load_imagenet(str(tmp_path))
    assert sets.train.labels.tolist() == [0, 0, 1]
    assert sets.test.labels.tolist() == [0, 1]
    assert Path(sets.test.source.folder).name == "val"


def test_a_flat_validation_folder_is_refused(tmp_path):
    fill(tmp_path / "train", n01440764=1)
    put(tmp_path / "val" / "ILSVRC2012_val_00000001.png")
    refused(
        tmp_path,
        "HERE/val has 1 .*'ILSVRC2012_val_00000001.png'",
        load=load_imagenet,
    )


def test_imagenet_without_one_of_its_folders_is_refused(tmp_path):
    fill(tmp_path / "train", n01440764=1)
    refused(tmp_path, "HERE has no 'val'", load=load_imagenet)
