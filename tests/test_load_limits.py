"""What a small file may cost: refused before anything large is made, in one line."""

import json
import os
import time
import zipfile

import numpy as np
import pytest
import torch
from permissions import run_bound

import killick
from killick.data.sources import load_sets
from killick.errors import FileError, KillickError, OptionError, RecipeError, StorageError
from killick.runtime.plain_files import VARIABLE, allowed_memory, read_plain
from killick.training.recipe_files import make_recipe


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    net = killick.nets.create("timm:vit_tiny_patch16_224", num_classes=3, img_size=32, depth=1)
    return killick.save(killick.standard(net, image_shape=(3, 32, 32)), folder)


@pytest.fixture
def model(saved, tmp_path):
    """A saved model of one's own to damage, and its configuration."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path, json.loads((tmp_path / "config.json").read_text())


def refuse(folder, config, match):
    (folder / "config.json").write_text(json.dumps(config))
    began = time.perf_counter()
    with pytest.raises(StorageError, match=match) as told:
        killick.load(folder)
    assert time.perf_counter() - began < 5
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("depth", 10**7, "the argument 10000000"),
        ("depth", 10**5, "more than"),
        ("embed_dim", 10**5, "more than"),
        ("depth", 10**12, "the argument"),
        ("depth", 2, "the file has no 'net.blocks.1"),
        ("num_classes", 4, "'net.head.*' has the shape"),
    ],
)
def test_a_network_that_is_not_that_of_the_weights_is_refused(model, name, value, match):
    folder, config = model
    config["architecture"]["arguments"][name] = value
    refuse(folder, config, match)


def test_an_image_shape_costs_no_more_than_the_examples_that_are_stored(model):
    folder, config = model
    config["image_shape"] = [3, 4700, 4700]
    refuse(folder, config, "image_shape")


@pytest.mark.parametrize("key", ["weights", "examples", "config.json"])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_only_plain_files_are_read(model, key, kind):
    folder, config = model
    path = folder / config.get(key, key)
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(KillickError, match="plain file|Is a directory|no config.json"):
        killick.load(folder)


def test_a_pack_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("test_bytes.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (2**29,)}
            )
            for _ in range(2**9):
                file.write(bytes(2**20))
        for name, array in (("offsets", [0, 2]), ("labels", [0])):
            with archive.open(f"test_{name}.npy", "w") as file:
                np.save(file, np.array(array))
        with archive.open("class_names.npy", "w") as file:
            np.save(file, np.array(["a"]))
    assert path.stat().st_size < 2**20
    with pytest.raises(FileError, match=f"in memory.*{VARIABLE}="):
        load_sets(f"pack:{path}")
    monkeypatch.setenv(VARIABLE, str(2**30))
    assert len(load_sets(f"pack:{path}").test) == 1


def test_the_limit_is_a_number_of_bytes_and_only_raises(monkeypatch):
    usual = allowed_memory(1000)
    monkeypatch.setenv(VARIABLE, "5")
    assert allowed_memory(1000) == usual
    monkeypatch.setenv(VARIABLE, str(2**40))
    assert allowed_memory(1000) == 2**40
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(OptionError, match="much"):
        allowed_memory(1000)


def test_a_network_of_one_s_own_recipe_has_a_limit_too():
    with pytest.raises(OptionError, match="more than 100,000 modules"), torch.device("meta"):
        killick.nets.create("timm:vit_tiny_patch16_224", depth=10**5)


@pytest.mark.parametrize(("setting", "value"), [("data.workers", 10**5), ("data.repeats", 10**9)])
def test_settings_that_nobody_needs_are_refused(setting, value):
    group, _, name = setting.partition(".")
    with pytest.raises(RecipeError, match=f"{setting}: expected at most"):
        make_recipe({group: {name: value}})


def test_a_file_without_permission_is_not_called_damaged(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("")
    path.chmod(0)

    def read() -> int:
        with pytest.raises(FileError, match="Permission denied"):
            read_plain(path)
        return 0

    assert run_bound(read) == (0, "")
