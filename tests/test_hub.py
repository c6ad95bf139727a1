"""Sets of the datasets library, saved to disk: columns, splits, rows, and what is refused."""

import io
import logging
import pickle
import re
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from killick.data.sources.hf import load_hub
from killick.errors import DataError, InstallError

KINDS = datasets.ClassLabel(names=["cat", "dog"])
LABELLED = {"idx": datasets.Value("int64"), "image": datasets.Image(), "kind": KINDS}


def encode(shade: int, height: int = 4) -> dict[str, bytes | None]:
    stream = io.BytesIO()
    Image.new("L", (3, height), shade).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def make(labels: list, features: dict = LABELLED, shade: int = 0) -> datasets.Dataset:
    """Images of a shade one higher each, under those labels."""
    image, label = list(features)[-2:]
    columns = {image: [encode(shade + i) for i in range(len(labels))], label: labels}
    if "idx" in features:
        columns["idx"] = list(range(len(labels)))
    ordered = {name: columns[name] for name in features}
    return datasets.Dataset.from_dict(ordered, features=datasets.Features(features))


def save(folder: Path, **splits: datasets.Dataset) -> str:
    datasets.DatasetDict(splits).save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def test_a_saved_set_is_read_row_by_row(tmp_path):
    name = save(tmp_path, train=make([0, 1, 1]), test=make([1, 0], shade=50))
    sets = load_hub(name)
    assert not sets.train.in_memory
    assert torch.equal(sets.train.read(2), torch.full((3, 4, 3), 2, dtype=torch.uint8))
    assert int(sets.test.read(1).max()) == 51
    assert sets.train.labels.tolist() == [0, 1, 1]
    assert sets.test.labels.tolist() == [1, 0]
    assert sets.train.class_names == sets.test.class_names == ("cat", "dog")


def test_the_first_columns_of_their_kind_are_taken(tmp_path):
    features = LABELLED | {
        "image_2": datasets.Image(),
        "kind_2": datasets.ClassLabel(names=["x"]),
    }
    rows = {
        "idx": [0],
        "image": [encode(9)],
        "kind": [1],
        "image_2": [encode(7)],
        "kind_2": [0],
    }
    both = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    train = load_hub(save(tmp_path, train=both)).train
    assert int(train.read(0).max()) == 9
    assert train.labels.tolist() == [1]


@pytest.mark.parametrize("column", ["label", "labels"])
def test_whole_numbers_called_label_are_their_own_names(tmp_path, column):
    features = {"image": datasets.Image(), column: datasets.Value("uint8")}
    name = save(tmp_path, train=make([0, 2], features), test=make([3], features))
    sets = load_hub(name)
    assert sets.train.class_names == sets.test.class_names == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    "there",
    [["val", "valid", "validation", "test"], ["val", "valid", "validation"], ["val", "valid"]],
)
def test_the_first_known_test_split_is_taken(tmp_path, there):
    splits = {split: make([0], shade=10 * i) for i, split in enumerate(there)}
    sets = load_hub(save(tmp_path, train=make([1]), **splits))
    assert int(sets.test.read(0).max()) == 10 * (len(there) - 1)  # here the last


def test_test_splits_without_labels_are_passed_over(tmp_path, caplog):
    name = save(tmp_path, train=make([1]), test=make([-1, -1]), validation=make([0], shade=8))
    with caplog.at_level(logging.INFO, "killick"):
        assert int(load_hub(name).test.read(0).max()) == 8
    assert "no labels for its split 'test'" in caplog.text
    name = save(tmp_path / "more", train=make([1]), test=make([None, 0]))
    assert load_hub(name).test is None


def test_either_split_may_be_missing(tmp_path):
    assert load_hub(save(tmp_path / "a", train=make([0]))).test is None
    assert load_hub(save(tmp_path / "b", test=make([0]))).train is None


def test_a_set_without_splits_is_trained_on(tmp_path):
    make([0, 1]).save_to_disk(str(tmp_path / "alone"))
    sets = load_hub(str(tmp_path / "alone"))
    assert len(sets.train) == 2
    assert sets.test is None


def test_images_that_lie_in_files_are_read(tmp_path):
    Image.new("L", (3, 3), 5).save(tmp_path / "a.png")
    features = datasets.Features({"image": datasets.Image(decode=False), "label": KINDS})
    rows = {"image": [{"bytes": None, "path": str(tmp_path / "a.png")}] * 2, "label": [0, 1]}
    name = save(tmp_path, train=datasets.Dataset.from_dict(rows, features=features))
    train = load_hub(name).train
    assert int(train.read(1).max()) == 5


def test_readers_survive_pickling(tmp_path):
    train = load_hub(save(tmp_path, train=make([0, 1]))).train
    assert torch.equal(pickle.loads(pickle.dumps(train)).read(1), train.read(1))


def test_rows_beyond_the_end_are_not_there(tmp_path):
    train = load_hub(save(tmp_path, train=make([0, 1]))).train
    assert len(list(train.source)) == 2


def test_damaged_and_missing_images_are_named(tmp_path):
    rows = {"image": [{"bytes": b"damaged", "path": None}, None], "label": [0, 1]}
    features = datasets.Features({"image": datasets.Image(), "label": KINDS})
    name = save(tmp_path, train=datasets.Dataset.from_dict(rows, features=features))
    train = load_hub(name).train
    with pytest.raises(DataError, match="cannot read image 0 of 'train' of hf:"):
        train.read(0)
    with pytest.raises(DataError, match="image 1 of 'train' of hf:"):
        train.read(1)


@pytest.mark.parametrize(
    ("features", "listed"),
    [
        (
            {"image": datasets.Image(), "text": datasets.Value("string")},
            "image, text",
        ),
        ({"image": datasets.Image(), "label": datasets.Value("float32")}, "image, label"),
        ({"image": datasets.Image(), "size": datasets.Value("int64")}, "image, size"),
        (
            {"pixels": datasets.Value("int8"), "kind": KINDS},
            "pixels, kind",
        ),
    ],
)
def test_sets_without_images_or_labels_are_refused_with_their_columns(
    monkeypatch, features, listed
):
    empty = datasets.Dataset.from_dict(
        {key: [] for key in features}, features=datasets.Features(features)
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"train": empty})
    with pytest.raises(DataError, match=f"'train' of hf:pets .*{listed}"):
        load_hub("pets")


def test_unknown_splits_are_refused_by_name(tmp_path):
    name = save(tmp_path, easy=make([0]), hard=make([0]))
    with pytest.raises(DataError, match=f"hf:{re.escape(name)} .*'easy', 'hard'"):
        load_hub(name)


def test_an_empty_set_is_refused(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"train": make([])})
    with pytest.raises(DataError, match="found 0 images"):
        load_hub("pets")


def test_labels_beyond_the_names_are_refused(tmp_path):
    features = {"image": datasets.Image(), "label": datasets.Value("int64")}
    with pytest.raises(DataError, match="found -1 to 1"):
        load_hub(save(tmp_path, train=make([-1, 1], features)))


def test_other_names_are_asked_of_the_hub(monkeypatch):
    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name: asked.append(name) or {"train": make([0, 1])}
    )
    assert len(load_hub("someone/pets").train) == 2
    assert asked == ["someone/pets"]


def test_what_the_hub_says_is_told(monkeypatch):
    def fail(name):
        raise ConnectionError("no route to the hub.\nA long story.")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match="cannot load hf:pets: no route to the hub. Check the name"):
        load_hub("pets")


def test_without_the_library_the_way_to_install_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InstallError, match=r"hf:pets .* pip install -e '\.\[hf\]'"):
        load_hub("pets")


def test_images_are_decoded_as_everywhere_else(tmp_path):
    clear = io.BytesIO()
    Image.fromarray(np.zeros((2, 2, 4), np.uint8)).save(clear, "PNG")
    features = datasets.Features({"image": datasets.Image(), "label": KINDS})
    rows = {"image": [{"bytes": clear.getvalue(), "path": None}], "label": [0]}
    name = save(tmp_path, train=datasets.Dataset.from_dict(rows, features=features))
    assert int(load_hub(name).train.read(0).min()) == 255  # transparent, so white
