"""`killick check`: all that is wrong with a data set, and lists of what is left out of it."""

import io
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from runs import make_image_folder

from killick.cli import main
from killick.cli.check import HEAD as FIRST_LINE
from killick.data.image_set import ImageSet
from killick.data.integrity import check_set
from killick.data.sources import load_sets, load_whole
from killick.data.sources.imagefolder import load_folder
from killick.data.training_sets import fingerprint
from killick.errors import DataError
from killick.results.rows import read_rows


@pytest.fixture
def folder(tmp_path):
    """Images of four classes to train and to test on, nothing wrong with them."""
    top = tmp_path / "photos"
    for part in ("train", "test"):
        (top / part).mkdir(parents=True)
        make_image_folder(top / part)
    for number, file in enumerate(files(top, "test")):
        change(file, number)
    return top


def change(file, number):
    """Other pixels than before, and than those of other numbers."""
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    image.putpixel((0, 0), (number, 3, 200 - number))
    image.putpixel((1, 0), (255 - number, number, 7))
    image.save(file)


def files(folder, part="train"):
    return sorted((folder / part).rglob("*.png"))


HEAD = FIRST_LINE.decode().strip()


def check(capsys, *words):
    code = main(["check", *map(str, words)])
    return code, capsys.readouterr().out


def test_a_set_with_nothing_wrong(folder, capsys):
    code, told = check(capsys, f"imagefolder:{folder}", "--workers", 0)
    assert code == 0
    assert "cannot" not in told
    assert len(told.splitlines()) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_all_broken_images_are_told_listed_and_left_out(folder, capsys, workers, tmp_path):
    names = [files(folder)[1], files(folder)[7], files(folder, "test")[2]]
    names[0].write_bytes(names[0].read_bytes()[:60])
    names[1].write_bytes(b"no image")
    names[2].write_bytes(b"")
    found = tmp_path / "broken.txt"
    words = [f"imagefolder:{folder}", "--workers", workers, "--list", found]
    code, told = check(capsys, *words)
    assert code == 1
    assert told.count("cannot read ") == 3
    assert all(f"  cannot read {name}: " in told for name in names)
    assert "Replace it" not in told
    assert found.read_text().splitlines() == [HEAD, *map(str, names)]
    data = f"imagefolder:{folder}#without={found}"
    assert f"leave them out: '{data}'" in told
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
    assert more.read_text().splitlines() == [HEAD, str(first), str(second)]
    assert f"leave them out: 'imagefolder:{folder}#without={more}'" in told
    assert check(capsys, data, "--workers", 0, "--list", found)[0] == 1  # in its place
    assert found.read_text() == more.read_text()


def test_a_run_says_how_to_find_the_others_and_trains_without_them(folder, capsys, tmp_path):
    for file in files(folder)[:2]:
        file.write_bytes(b"")
    found = tmp_path / "broken.txt"
    words = ["train", "--network", "killick:resnet_small", "--epochs", "1", "--quiet"]
    words += ["--data.validation", "0", "--device", "cpu", "--output", str(tmp_path / "run")]
    assert main([*words, "--data", f"imagefolder:{folder}"]) == 2
    told = capsys.readouterr().err
    assert f"cannot read {folder}" in told
    assert "killick check DATA" in told
    assert check(capsys, f"imagefolder:{folder}", "--list", found, "--workers", 0)[0] == 1
    assert main([*words, "--data", f"imagefolder:{folder}#without={found}"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--suite", "clean", "--quiet"]) == 0


def test_images_of_test_that_are_trained_on_are_told(folder, capsys):
    shutil.rmtree(folder / "test")
    shutil.copytree(folder / "train", folder / "test")
    for number, file in enumerate(files(folder, "test")[2:]):
        change(file, number)
    code, told = check(capsys, f"imagefolder:{folder}", "--workers", 0)
    assert code == 0
    assert told.count(" is ") == 2
    for test, train in zip(files(folder, "test")[:2], files(folder)[:2], strict=True):
        assert f"  {test} is {train}" in told


def test_an_image_of_two_classes_is_told():
    images = torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8)
    images[4] = images[1]
    images[5] = images[2]
    labels = torch.tensor([0, 0, 0, 1, 1, 0])
    checked = check_set(ImageSet.of("mine", images, labels, ["a", "b"]))
    assert checked.contradictions() == [("mine[1]", "mine[4]")]
    assert checked.sizes == {(4, 4): 6}
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
    assert "'class0'" in told
    assert main(["check", f"imagefolder:{folder / 'train'}"]) == 1
    assert "train has only one class" in capsys.readouterr().out


def test_copies_in_test_are_found():
    images = torch.randint(0, 256, (3, 3, 4, 4), dtype=torch.uint8)
    train = ImageSet.of("train", images[[0, 0, 1]], torch.tensor([1, 0, 1]), ["a", "b"])
    test = ImageSet.of("test", images[[0, 1, 2]], torch.tensor([0, 0, 0]), ["a", "b"])
    assert check_set(test).shared(check_set(train)) == [
        ("test[0]", "train[0]"),
        ("test[1]", "train[2]"),
    ]


def test_images_of_other_shapes_are_not_the_same():
    grey = torch.full((1, 3, 2, 8), 7, dtype=torch.uint8)
    digests = [
        check_set(ImageSet.of("mine", images, torch.tensor([0]), ["a"])).digests[0]
        for images in (grey, grey.reshape(1, 3, 4, 4), grey.reshape(1, 3, 8, 2))
    ]
    assert len(set(digests)) == 3


def test_every_image_is_counted_once(folder):
    told = []
    images = load_whole(f"images:{folder}")
    check_set(images, tick=told.append)
    assert told == [40]


def test_many_problems_are_cut_short(folder, capsys):
    for file in files(folder)[:13]:
        file.write_bytes(b"")
    code, told = check(capsys, f"images:{folder}", "--workers", 0)
    assert code == 1
    assert told.count("cannot read ") == 10
    assert "  and 3 more" in told


@pytest.mark.parametrize(
    ("kind", "count"), [("imagefolder:{}", 40), ("images:{}", 40), ("imagefolder:{}/train", 20)]
)
def test_every_kind_of_folder_takes_a_list(folder, tmp_path, kind, count):
    listed = tmp_path / "list.txt"
    listed.write_text(f"# mine\n\n{files(folder)[3]}\r\n")
    data = f"{kind.format(folder)}#without={listed}"
    kept = [part for part in [load_whole(data)] if part is not None]
    if kind == "imagefolder:{}":
        kept = [load_sets(data).train, load_sets(data).test]
    assert sum(map(len, kept)) == count - 1


def test_a_list_may_name_images_from_the_folder_on(folder, tmp_path, monkeypatch):
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
    make_image_folder(tmp_path / "a#b")
    assert len(load_whole(f"imagefolder:{tmp_path / 'a#b'}")) == 20


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file.*killick check DATA"),
        ("elsewhere/a.png\n", "photos.* 1 lines"),
        ("CLASS", "leaves out all .*'class0'"),
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


@pytest.mark.parametrize("text", ["", "\n \n", "# nothing yet\n"])
def test_a_list_that_is_empty_leaves_out_nothing(folder, tmp_path, text):
    (tmp_path / "list.txt").write_text(text)
    assert len(load_sets(f"imagefolder:{folder}#without={tmp_path / 'list.txt'}").train) == 20


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--list", "/nowhere/list.txt"], "/nowhere"),
        (["--list", "/dev/null"], "/dev/null"),
    ],
)
def test_mistakes_are_told(folder, capsys, words, told):
    assert main(["check", f"imagefolder:{folder}", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_list_is_of_files(capsys, tmp_path, few_shapes):
    assert main(["check", "digits", "--list", str(tmp_path / "list.txt")]) == 2
    assert "--list" in capsys.readouterr().err
    assert not (tmp_path / "list.txt").exists()
    assert check(capsys, "digits", "--quiet", "--workers", 0) == (0, "")


@pytest.mark.parametrize("kind", ["an image", "a list of one's own", "a link to one's own"])
def test_nothing_else_is_overwritten(folder, tmp_path, capsys, kind):
    place = real = files(folder)[0] if kind == "an image" else tmp_path / "own.txt"
    if kind != "an image":
        real.write_text(f"# mine\n{files(folder)[1]}\n")
    if kind.startswith("a link"):
        place = tmp_path / "link.txt"
        place.symlink_to(real)
    before = real.read_bytes()
    assert main(["check", f"imagefolder:{folder}", "--list", str(place)]) == 2
    assert str(place) in capsys.readouterr().err
    assert real.read_bytes() == before


def test_a_list_behind_a_link_is_renewed_there(folder, tmp_path, capsys):
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    files(folder)[0].write_bytes(b"")
    assert (
        check(capsys, f"imagefolder:{folder}", "--workers", 0, "--list", tmp_path / "link.txt")[0]
        == 1
    )
    assert (tmp_path / "real.txt").read_text().splitlines() == [HEAD, str(files(folder)[0])]
    assert (tmp_path / "link.txt").is_symlink()


@pytest.mark.slow
def test_the_list_is_written_before_anything_is_told(folder, tmp_path):
    files(folder)[0].write_bytes(b"")
    command = [sys.executable, "-m", "killick", "check", f"imagefolder:{folder}", "--workers", "0"]
    process = subprocess.Popen(
        [*command, "--list", str(tmp_path / "list.txt")], stdout=subprocess.PIPE
    )
    process.stdout.close()  # nobody reads
    assert process.wait(60) == 141
    assert (tmp_path / "list.txt").read_text().splitlines() == [HEAD, str(files(folder)[0])]


def test_names_are_told_so_that_no_terminal_is_harmed(folder, capsys):
    names = [f"{kind}/\x1b[31mü\udcff.png" for kind in ("class0", "class1")]
    for name in names:
        shutil.copy(files(folder)[0], folder / "train" / name)
    code, told = check(capsys, f"imagefolder:{folder}", "--workers", 0)
    assert code == 1  # one image in two classes
    assert "in train as different classes, " in told
    assert r"class1/\x1b[31mü\udcff.png" in told
    assert "\x1b" not in told


def test_lines_that_name_nothing_and_a_mark_of_windows_do_no_harm(folder, tmp_path):
    name = str(files(folder)[0].relative_to(folder))
    (tmp_path / "list.txt").write_text(f"\ufeff{name}\n", encoding="utf-8")
    data = f"imagefolder:{folder}#without={tmp_path / 'list.txt'}"
    assert len(load_sets(data).train) == 19
    (tmp_path / "list.txt").write_text(f"{name}\ntrain/class0/typo.png\n")
    assert len(load_sets(data).train) == 19


def test_leaving_out_more_moves_nothing_between_training_and_testing(folder, tmp_path):
    top = folder / "train"  # Killick cuts the test set by itself
    whole = load_sets(f"imagefolder:{top}")
    listed = tmp_path / "list.txt"
    before = [names_of(part) for part in (whole.train, whole.test)]
    for count in (1, 3, 5):
        gone = [files(folder)[4 * number] for number in range(count)]
        listed.write_text("\n".join(map(str, gone)))
        sets = load_sets(f"imagefolder:{top}#without={listed}")
        for part, then in zip((sets.train, sets.test), before, strict=True):
            assert names_of(part) == [name for name in then if name not in map(str, gone)]


def names_of(images):
    return [images.source.path(row) for row in images.rows.tolist()]


def test_of_what_is_tested_on_a_class_may_be_missing_but_not_everything(folder, tmp_path):
    listed = tmp_path / "list.txt"
    gone = [file for file in files(folder, "test") if file.parent.name == "class2"]
    listed.write_text("\n".join(map(str, gone)))
    assert len(load_sets(f"imagefolder:{folder}#without={listed}").test) == 15
    listed.write_text("\n".join(map(str, files(folder, "test"))))
    with pytest.raises(DataError, match="leaves out all"):
        load_sets(f"imagefolder:{folder}#without={listed}")


def test_a_run_whose_data_changed_is_not_tested_in_silence(folder, tmp_path, capsys, caplog):
    listed, top = tmp_path / "list.txt", folder / "train"
    listed.write_text(f"{files(folder)[0]}\n")
    data = f"imagefolder:{top}#without={listed}"
    words = ["train", "--network", "killick:resnet_small", "--epochs", "1", "--quiet", "--device"]
    words += ["cpu", "--data.validation", "0", "--output", str(tmp_path / "run"), "--data", data]
    assert main(words) == 0, capsys.readouterr().err

    def warned() -> bool:
        caplog.clear()
        assert main(["evaluate", str(tmp_path / "run"), "--suite", "clean", "--quiet"]) == 0
        return "(15 training samples" in caplog.text

    assert not warned()
    listed.write_text(f"{files(folder)[1]}\n")
    assert warned()
    listed.write_text(f"{files(folder)[0]}\n")
    shutil.copy(files(folder)[2], files(folder)[2].with_name("another.png"))
    assert warned()
    same = ["evaluate", str(tmp_path / "run"), "--data", f"imagefolder:{top}", "--quiet"]
    assert main([*same, "--suite", "clean", "--output", str(tmp_path / "rows")]) == 0
    counts = {row["count"] for row in read_rows(tmp_path / "rows")}
    assert max(counts) < 6  # never what it was trained on, though the list is not named


def test_a_run_goes_on_with_the_same_files_alone(folder, tmp_path):
    first = fingerprint(load_sets(f"imagefolder:{folder}").train)
    moved = folder.rename(tmp_path / "moved")
    assert fingerprint(load_sets(f"imagefolder:{moved}").train) == first
    shutil.copy(files(moved)[-1], files(moved)[-1].with_name("z-a-longer-name.png"))
    train = load_sets(f"imagefolder:{moved}").train
    assert fingerprint(train.part(torch.arange(20))) == first  # the others' names do not count
    files(moved)[-1].unlink()
    files(moved)[0].rename(files(moved)[0].with_name("0-other.png"))
    assert fingerprint(load_sets(f"imagefolder:{moved}").train) != first


def test_all_broken_images_of_a_pack_are_found(tmp_path, capsys):
    streams = []
    for number in range(6):
        stream = io.BytesIO()
        Image.new("RGB", (4, 4), (number, 0, 0)).save(stream, "PNG")
        streams.append(stream.getvalue() if number % 3 else b"no")
    arrays = {"class_names": np.array(["a", "b"])}
    for split in ("train", "test"):
        arrays[f"{split}_bytes"] = np.frombuffer(b"".join(streams), np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, streams)])
        arrays[f"{split}_labels"] = np.arange(6) % 2
    np.savez(tmp_path / "p.npz", **arrays)
    code, told = check(capsys, f"pack:{tmp_path / 'p.npz'}", "--workers", 0)
    assert code == 1
    assert told.count("cannot read ") == 4
    assert "image 3 of 'test' in" in told
