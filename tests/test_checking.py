"""`kedge check`: all that is wrong with a data set, and lists of what is left out of it."""

import os
import shutil

import pytest
import torch
from PIL import Image
from runs import make_pictures

from kedge.cli import main
from kedge.data.checking import check_set
from kedge.data.folders import load_folder
from kedge.data.images import ImageSet
from kedge.data.sources import load_sets, load_whole
from kedge.errors import DataError


@pytest.fixture
def folder(tmp_path):
    """Pictures of four classes to train and to test on, nothing wrong with them."""
    top = tmp_path / "photos"
    for part in ("train", "test"):
        (top / part).mkdir(parents=True)
        make_pictures(top / part)
    for number, file in enumerate(files(top, "test")):
        change(file, number)
    return top


def change(file, number):
    """Other pixels than before, and than those of other numbers."""
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    picture.putpixel((0, 0), (number, 3, 200 - number))
    picture.putpixel((1, 0), (255 - number, number, 7))
    picture.save(file)


def files(folder, part="train"):
    return sorted((folder / part).rglob("*.png"))


def check(capsys, *words):
    code = main(["check", *map(str, words)])
    return code, capsys.readouterr().out


def test_a_set_with_nothing_wrong(folder, capsys):
    code, told = check(capsys, f"imagefolder:{folder}", "--workers", 0)
    assert code == 0
    lines = told.splitlines()
    size = "36 x 40 to 40 x 40 pixels (height x width)"
    assert lines == [
        f"train: 20 pictures of 4 classes, 5 of each; {size}",
        f"test: 20 pictures of 4 classes, 5 of each; {size}",
        "every picture can be read",
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_all_broken_pictures_are_told_listed_and_left_out(folder, capsys, workers, tmp_path):
    names = [files(folder)[1], files(folder)[7], files(folder, "test")[2]]
    names[0].write_bytes(names[0].read_bytes()[:60])
    names[1].write_bytes(b"no picture")
    names[2].write_bytes(b"")
    found = tmp_path / "broken.txt"
    words = [f"imagefolder:{folder}", "--workers", workers, "--list", found]
    code, told = check(capsys, *words)
    assert code == 1
    assert "3 pictures cannot be read:" in told
    assert all(f"  cannot read {name}: " in told for name in names)
    assert "Replace it" not in told
    assert found.read_text().splitlines() == [str(name) for name in names]
    data = f"imagefolder:{folder}#without={found}"
    assert f"leave them out: --data '{data}'" in told
    assert check(capsys, data, "--workers", 0)[0] == 0
    sets = load_sets(data)
    assert (len(sets.train), len(sets.test)) == (18, 19)
    left = {sets.train.source.path(row) for row in sets.train.rows.tolist()}
    assert left == {str(name) for name in files(folder)} - {str(name) for name in names}
    for images in (sets.train, sets.test):  # labels are those of the folders
        for number, label in enumerate(images.labels.tolist()):
            path = images.source.path(int(images.rows[number]))
            assert path.split(os.sep)[-2] == images.class_names[label]


def test_a_list_grows(folder, capsys, tmp_path):
    first, second = files(folder)[0], files(folder)[-1]
    found, more = tmp_path / "broken.txt", tmp_path / "more.txt"
    first.write_bytes(b"")
    check(capsys, f"imagefolder:{folder}", "--workers", 0, "--list", found)
    second.write_bytes(b"")
    data = f"imagefolder:{folder}#without={found}"
    code, told = check(capsys, data, "--workers", 0, "--list", more)
    assert code == 1
    assert "1 picture cannot be read:" in told
    assert more.read_text().splitlines() == [str(first), str(second)]
    assert f"--data 'imagefolder:{folder}#without={more}'" in told


def test_a_run_says_how_to_find_the_others_and_trains_without_them(folder, capsys, tmp_path):
    for file in files(folder)[:2]:
        file.write_bytes(b"")
    found = tmp_path / "broken.txt"
    words = ["train", "--network", "kedge:resnet_small", "--epochs", "1", "--quiet"]
    words += ["--data.validation", "0", "--device", "cpu", "--output", str(tmp_path / "run")]
    assert main([*words, "--data", f"imagefolder:{folder}"]) == 2
    told = capsys.readouterr().err
    assert f"cannot read {folder}" in told
    assert "Replace it or leave it out. All that are broken: kedge check DATA." in told
    assert check(capsys, f"imagefolder:{folder}", "--list", found, "--workers", 0)[0] == 1
    assert main([*words, "--data", f"imagefolder:{folder}#without={found}"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--suite", "clean", "--quiet"]) == 0


def test_pictures_of_test_that_are_trained_on_are_told(folder, capsys):
    shutil.rmtree(folder / "test")
    shutil.copytree(folder / "train", folder / "test")
    for number, file in enumerate(files(folder, "test")[2:]):
        change(file, number)
    code, told = check(capsys, f"imagefolder:{folder}", "--workers", 0)
    assert code == 0
    assert "2 pictures of test are trained on too:" in told
    for test, train in zip(files(folder, "test")[:2], files(folder)[:2], strict=True):
        assert f"  {test} is {train}" in told


def test_a_picture_of_two_classes_is_told():
    pictures = torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8)
    pictures[4] = pictures[1]
    pictures[5] = pictures[2]
    labels = torch.tensor([0, 0, 0, 1, 1, 0])
    checked = check_set(ImageSet.of("mine", pictures, labels, ["a", "b"]))
    assert checked.contradictions() == [("mine[1]", "mine[4]")]
    assert checked.sizes == {(4, 4): 6}
    assert checked.by_class == {"a": 4, "b": 2}
    assert checked.broken == []


def test_one_class_alone_is_nothing_to_train_on(folder, capsys, tmp_path):
    for kind in range(1, 4):
        shutil.rmtree(folder / "train" / f"class{kind}")
    words = [
        "train",
        "--data",
        f"imagefolder:{folder / 'train'}",
        "--output",
        str(tmp_path / "run"),
    ]
    assert main([*words, "--quiet"]) == 2
    told = capsys.readouterr().err
    assert "expected at least 2 classes to tell apart in imagefolder:" in told
    assert "found only 'class0'" in told


def test_pictures_of_other_shapes_are_not_the_same():
    grey = torch.full((1, 3, 2, 8), 7, dtype=torch.uint8)
    digests = [
        check_set(ImageSet.of("mine", pictures, torch.tensor([0]), ["a"])).digests[0]
        for pictures in (grey, grey.reshape(1, 3, 4, 4), grey.reshape(1, 3, 8, 2))
    ]
    assert len(set(digests)) == 3


def test_every_picture_is_counted_once(folder):
    told = []
    images = load_whole(f"pictures:{folder}")
    check_set(images, tick=told.append)
    assert told == [1, 40]


def test_many_problems_are_cut_short(folder, capsys):
    for file in files(folder)[:13]:
        file.write_bytes(b"")
    code, told = check(capsys, f"pictures:{folder}", "--workers", 0)
    assert code == 1
    assert told.startswith("pictures: 40 pictures; ")
    assert told.count("cannot read ") == 10
    assert "  and 3 more" in told


@pytest.mark.parametrize(
    ("kind", "count"), [("imagefolder:{}", 40), ("pictures:{}", 40), ("imagefolder:{}/train", 20)]
)
def test_every_kind_of_folder_takes_a_list(folder, tmp_path, kind, count):
    listed = tmp_path / "list.txt"
    listed.write_text(f"# mine\n\n{files(folder)[3]}\r\n")
    data = f"{kind.format(folder)}#without={listed}"
    kept = [part for part in [load_whole(data)] if part is not None]
    if kind == "imagefolder:{}":
        kept = [load_sets(data).train, load_sets(data).test]
    assert sum(map(len, kept)) == count - 1


def test_a_list_may_name_pictures_from_the_folder_on(folder, tmp_path, monkeypatch):
    name = files(folder)[3].relative_to(folder)
    (tmp_path / "list.txt").write_text(f"{name}\n./{files(folder)[4].relative_to(folder)}\n")
    monkeypatch.chdir(tmp_path)
    sets = load_folder("photos#without=list.txt")
    assert len(sets.train) == 18


def test_imagenet_takes_a_list(folder, tmp_path):
    (folder / "test").rename(folder / "val")
    (tmp_path / "list.txt").write_text(f"{files(folder, 'val')[0]}\n")
    sets = load_sets(f"imagenet:{folder}#without={tmp_path / 'list.txt'}")
    assert (len(sets.train), len(sets.test)) == (20, 19)


def test_a_folder_may_have_a_sharp_in_its_name(tmp_path):
    (tmp_path / "a#b").mkdir()
    make_pictures(tmp_path / "a#b")
    assert len(load_whole(f"imagefolder:{tmp_path / 'a#b'}")) == 20


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "expected a list of pictures to leave out at .*No such file.*kedge check DATA"),
        ("elsewhere/a.png\n", "to list pictures of .*photos, found none of them among its 1 lines"),
        ("CLASS", "leaves out all of .*class0. Remove the folder"),
    ],
)
def test_lists_that_make_no_sense_are_refused(folder, tmp_path, text, told):
    listed = tmp_path / "list.txt"
    if text == "CLASS":
        text = "\n".join(str(file) for file in files(folder) if file.parent.name == "class0")
    if text is not None:
        listed.write_text(text)
    with pytest.raises(DataError, match=told) as problem:
        load_sets(f"imagefolder:{folder}#without={listed}")
    assert "\n" not in str(problem.value)


def test_a_list_that_is_empty_leaves_out_nothing(folder, tmp_path):
    (tmp_path / "list.txt").write_text("")
    assert len(load_sets(f"imagefolder:{folder}#without={tmp_path / 'list.txt'}").train) == 20


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "-1"], "expected --workers of at least 0, found -1"),
        (["--list", "/nowhere/list.txt"], "cannot write /nowhere/list.txt: No such file"),
    ],
)
def test_mistakes_are_told(folder, capsys, words, told):
    assert main(["check", f"imagefolder:{folder}", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_list_is_of_files(capsys, tmp_path, few_shapes):
    assert main(["check", "digits", "--list", str(tmp_path / "list.txt")]) == 2
    told = capsys.readouterr()
    assert "expected a folder of pictures for --list, found digits" in told.err
    assert not (tmp_path / "list.txt").exists()
    assert check(capsys, "digits", "--quiet") == (0, "")
