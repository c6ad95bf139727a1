"""Damaged files are read or refused in one line: a few hundred of each kind, and all that broke."""

import io
import json
import os
import pickle
import random
import struct
import time
import zipfile
from collections import Counter

import fuzz
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import killick
from killick.errors import CheckpointError, DataError, RecipeError, StorageError
from killick.results.run_folder import read_run
from killick.storage.weights import read_weights
from killick.training import load_recipe
from killick.training.checkpoint import load_checkpoint, save_checkpoint
from killick.training.recipe_files import read_setting

COUNTS = {"images": 500, "configs": 250, "checkpoints": 250}


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_cases_of_a_fixed_seed_are_read_or_refused(target):
    tally = fuzz.Tally(Counter(), [])
    number = 0
    while number < COUNTS[target]:
        number = fuzz.run_batch(target, 1000, number, COUNTS[target] - number, tally)
    assert not tally.broken
    assert tally.outcomes["read"] > COUNTS[target] // 20  # not all damage is fatal
    assert tally.outcomes.total() == COUNTS[target]


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_cases_that_hypothesis_looks_for_are_read_or_refused(target, tmp_path_factory):
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def look(chance):
        fuzz.judge(fuzz.TARGETS[target](chance), tmp_path_factory.mktemp("case"))

    look()


def test_children_find_all_seeds_made():
    cached = [thing for thing in vars(fuzz).values() if hasattr(thing, "cache_clear")]
    assert len(cached) >= 6
    for make in cached:
        make.cache_clear()

    def look(folder):
        missing = [make.__name__ for make in cached if not make.cache_info().currsize]
        assert not missing, missing

    tally = fuzz.Tally(Counter(), [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fuzz.TARGETS, "own", lambda chance: fuzz.Case({"a": b"b"}, look))
        fuzz.run_batch("own", 0, 0, 1, tally)
    assert tally.outcomes == {"read": 1}, tally.broken


def test_a_case_is_made_again_from_its_number():
    for target in fuzz.TARGETS:
        assert fuzz.make_case(target, 3, 4).files == fuzz.make_case(target, 3, 4).files
        assert fuzz.make_case(target, 3, 4).files != fuzz.make_case(target, 3, 5).files


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda folder: None, None),
        (lambda folder: 1 / 0, "ZeroDivisionError"),
        (lambda folder: os.kill(os.getpid(), 9), "died of SIGKILL"),
        (lambda folder: bytearray(2**33), "MemoryError"),
        (lambda folder: time.sleep(60), "too little time"),
        (lambda folder: _raise(DataError(f"{folder} has\ntwo lines")), "not fit to be shown"),
        (lambda folder: _raise(DataError("no name")), "not fit to be shown"),
        (lambda folder: _raise(DataError(f"{folder}" + "x" * 600)), "not fit to be shown"),
        (lambda folder: _raise(DataError(f"{folder} is damaged.")), None),
    ],
)
def test_the_harness_notices_all_that_it_looks_for(monkeypatch, act, told):
    monkeypatch.setitem(fuzz.TARGETS, "own", lambda chance: fuzz.Case({"a": b"b"}, act))
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    tally = fuzz.Tally(Counter(), [])
    assert fuzz.run_batch("own", 0, 7, 1, tally) == 8
    assert tally.outcomes.total() == (told is None)
    assert [number for number, _ in tally.broken] == ([] if told is None else [7])
    assert told is None or told in tally.broken[0][1]


def _raise(error):
    raise error


def test_mutations_change_something():
    chance, data = random.Random(0), bytes(range(200))
    assert sum(fuzz.mutate(data, chance) != data for _ in range(100)) > 90
    tree = {"a": {"b": [1, 2, {"c": "d"}]}, "e": None}
    before = json.dumps(tree)
    assert sum(repr(fuzz.mutate_tree(tree, chance)) != repr(tree) for _ in range(100)) > 80
    assert json.dumps(tree) == before


# What was found. Recipes.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("epochs: 2001-99-99", r"not YAML \(month must be in 1\.\.12\)"),
        ("epochs: !!int ''", r"not YAML \(string index out of range\)"),
        ("epochs: !!float x", "not YAML"),
        ("epochs: " + "9" * 5000, "not YAML"),
        ("epochs: -0x" + "f" * 5000, "epochs: expected at least 1, found a number of very many"),
        ("optimizer: {lr: 1" + "0" * 400 + "}", "optimizer.lr: expected a number, found 1000"),
        ("base: /dev/zero", "no base '/dev/zero': .* not a plain file"),
        ("base: .", "no base '.': .*Is a directory"),
        ("base: " + "x" * 5000, "no base 'xxx.*File name too long"),
        ('base: "\\0.yaml"', "no base .*null byte"),
        ("base: digits", "no base 'digits': expected the recipe to be one of"),
        ("base: it.yaml", "it is its own base"),
        ("network: {arguments: &a {b: *a}}", "network.arguments: expected no more than names"),
        ("network: {arguments: {a: 2001-01-01}}", "network.arguments: expected no more than"),
        ('"a\\nb": 1', r"a\\nb: no such setting"),
        ("? " + "é" * 3000 + "\n: 1", "no such setting"),
        ("batch: [" + "a, " * 500 + "a]", "batch: expected a whole number, found .*\\.\\.\\."),
        ("\n".join(f"a{i}: 1" for i in range(300)), "300 mistakes: "),
        ("about: |\n  " + "x" * 2**17, "exceed the limit of 131072"),
        ("[" * 50_000, "not YAML"),
    ],
)
def test_recipes_that_broke_the_reader_are_refused(tmp_path, text, told):
    path = tmp_path / "it.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=told) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600 or "mistakes" in str(caught.value)


def test_names_that_stand_for_billions_are_told_shortly(tmp_path):
    nine = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(12)]
    lines = [*nine, "network: {arguments: {a: *a11}}", "epochs: *a11"]
    (tmp_path / "it.yaml").write_text("\n".join(lines))
    with pytest.raises(RecipeError, match="network.arguments: expected no more than names"):
        load_recipe(tmp_path / "it.yaml")


def test_a_setting_that_is_no_date_is_a_text():
    assert read_setting("epochs", "2001-99-99") == "2001-99-99"


def test_none_is_a_value_where_a_setting_may_have_none():
    for dotted in ("protocol.alpha_end", "optimizer.clip", "data.mean", "data.root"):
        assert read_setting(dotted, "none") is None
        assert read_setting(dotted, "null") is None
    assert read_setting("augment.policy", "none") == "none"


# Run folders.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.json", "[" * 100_000),
        ("environment.json", "[" * 100_000),
        ("metrics.jsonl", "[" * 100_000),
        ("recipe.yaml", "epochs: !!int ''"),
        ("recipe.yaml", "schedule: [1]"),
        ("recipe.yaml", "schedule: {begin: x, end: [1]}"),
        ("recipe.yaml", "schedule: {begin: 0.5}\nepochs: x"),
        ("recipe.yaml", "schedule: {begin: 0.5, end: .nan}\nepochs: .inf"),
    ],
)
def test_a_damaged_file_of_a_run_is_passed_over(tmp_path, name, text):
    for file, content in fuzz._run_files().items():
        (tmp_path / file).write_bytes(content)
    whole = read_run(tmp_path)
    (tmp_path / name).write_text(text)
    run = read_run(tmp_path)
    assert run.rows == whole.rows
    assert run.epochs_before == 0


# Saved models.


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "é" * 2000},
        {"version": ["a"] * 500},
        {"version": 2, "made_with": "x" * 5000},
        {"image_shape": ["a"] * 500},
        {"normalize": {"mean": "é" * 2000}},
        {"class_names": "é" * 2000, "weights": "y" * 2000},
        {"threshold": {"energy": "low", "acceptance": 0.9, "k": 1, "fitted_on": "x"}},
        {"threshold": {"energy": float("nan"), "acceptance": 0.9, "k": 1, "fitted_on": "x"}},
        {"threshold": {"energy": 1, "acceptance": 0.9, "k": 1, "fitted_on": "x", "more": 1}},
        {"threshold": [1]},
        {"architecture": {"name": "é" * 2000, "arguments": {}}},
        {"architecture": {"name": "\ud800", "arguments": {}}},
        {"architecture": {"name": "killick:resnet_small", "arguments": {"width": "é" * 2000}}},
        {"architecture": {"name": "killick:resnet_small", "arguments": {"name": 3}}},
    ],
)
def test_configurations_that_broke_the_reader_are_refused_shortly(tmp_path, changes):
    files = dict(fuzz.saved_models()[0])
    files["config.json"] = json.dumps({**json.loads(files["config.json"]), **changes}).encode()
    with pytest.raises(StorageError):
        fuzz._load(_written(tmp_path, files))
    assert fuzz.judge(fuzz.Case(files, fuzz._load), tmp_path) == "StorageError"


def test_a_header_that_lies_is_refused_shortly(tmp_path):
    header = {"a": {"dtype": "é" * 2000, "shape": [1], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(4)
    files = dict(fuzz.saved_models()[0])
    config = json.loads(files["config.json"])
    files[config["weights"]] = data
    with pytest.raises(StorageError, match="is truncated or damaged"):
        killick.load(_written(tmp_path, files))
    assert fuzz.judge(fuzz.Case(files, fuzz._load), tmp_path) == "StorageError"


def _written(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


# Checkpoints and weights.


@pytest.mark.parametrize(
    "changes",
    [
        {"version": torch.zeros(3)},
        {"version": "x" * 5000},
        {"version": True},
        {"format": torch.zeros(3)},
        {"step": "seven"},
        {"step": None},
        {"step": 10**30},
        {"recipe": None},
        {"network": "timm:resnet18"},
        {"model": {"weight": 3}},
        {"components": []},
    ],
)
def test_states_that_broke_the_reader_are_refused(tmp_path, changes):
    whole = {
        "step": 3,
        "way": "resident",
        "unread": ([], 0),
        "recipe": {},
        "model": {},
        "optimizer": {},
        "protocol": {},
        "components": {},
    }
    state = {"format": "killick-checkpoint", "version": 2, **whole, **changes}
    (tmp_path / "checkpoint.pt").write_bytes(fuzz._saved(state))
    with pytest.raises(CheckpointError, match="not a checkpoint of Killick|is damaged"):
        load_checkpoint(tmp_path)
    (tmp_path / "other").mkdir()
    save_checkpoint(tmp_path / "other", whole)
    (tmp_path / "other" / "checkpoint.pt").rename(tmp_path / "checkpoint-before.pt")
    found, problem = load_checkpoint(tmp_path)
    assert found["step"] == 3
    assert "checkpoint-before.pt, step 3" in problem


@pytest.mark.parametrize("read", [load_checkpoint, lambda folder: read_weights(folder / "w.pt")])
def test_an_archive_that_unpacks_to_very_much_is_refused(tmp_path, read):
    name = "checkpoint.pt" if read is load_checkpoint else "w.pt"
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": 1}, protocol=2))
        archive.writestr("archive/data/0", bytes(2**25))
    began = time.perf_counter()
    with pytest.raises(CheckpointError, match=r"unpacks to|\(CheckpointError\)"):
        read(tmp_path)
    assert time.perf_counter() - began < 5


def test_a_pipe_in_the_place_of_a_checkpoint_is_refused(tmp_path):
    os.mkfifo(tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="checkpoint.pt: it is not a plain file"):
        load_checkpoint(tmp_path)


def test_weights_without_names_are_refused(tmp_path):
    torch.save({1: torch.zeros(2)}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="expected a state_dict in it"):
        read_weights(tmp_path / "w.pt")


def test_torchs_warnings_about_odd_files_are_not_shown(tmp_path):
    data = fuzz._saved({"a": torch.zeros(2)})
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            new.writestr(member, b"\x80\x71" + content[2:] if "pkl" in member else content)
    (tmp_path / "w.pt").write_bytes(stream.getvalue())
    read_weights(tmp_path / "w.pt")  # a warning would be an error here
