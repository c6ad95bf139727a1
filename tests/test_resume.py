"""Runs that are stopped, killed, damaged or spoilt: nothing is lost, and the end is the same."""

import functools
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import EVERYTHING, assert_same, losses_of, small, train_and_stop, weights_of

from killick.cli import main
from killick.errors import CheckpointError, DivergedError
from killick.results.run_folder import read_metrics
from killick.training import loop, train
from killick.training.checkpoint import BEFORE, LAST, load_checkpoint
from killick.training.loggers import JsonLogger
from killick.training.output_folder import claimed

MOVING = {  # masked less and less often, and BatchNorm left alone
    "protocol__alpha": 1.0,
    "protocol__alpha_end": 0.0,
    "protocol__batchnorm": "running",
    "average__decay": 0.9,
}
CHANGES = {
    "plain": {},
    "everything": EVERYTHING,
    "streamed": {
        "protocol__references": "batch",
        "augment__policy": "trivialaugment",
        "data__resident": "never",
    },
    "policy": {"augment__policy": "augmix"},
    "resized": {
        "data__name": "shapes",
        "data__limit": 16,
        "data__resident": "always",
        "augment__crop": "resized",
    },
    "resized files": {"data__resident": "always", "augment__crop": "resized"},
    "moving": MOVING,
}


@pytest.fixture(scope="module")
def whole(image_folder, tmp_path_factory):
    """Runs that nobody stopped, each made once: their recipe and folder."""
    place = tmp_path_factory.mktemp("whole")

    @functools.cache
    def get(name: str):
        recipe = small(image_folder, data__validation=4, data__workers=0, **CHANGES[name])
        train(recipe, place / name, quiet=True)
        return recipe, place / name

    return get


FEW = [
    ("plain", 3),
    ("everything", 2),
    ("everything", 7),
    ("streamed", 7),
    ("policy", 7),
    ("moving", 9),
]


@pytest.mark.parametrize(
    ("name", "stop_after"),  # 3 steps an epoch, 9 in all
    [
        pytest.param(name, stop, marks=[] if (name, stop) in FEW else pytest.mark.slow)
        for name in CHANGES
        for stop in (2, 3, 7, 9)
    ],
)
def test_a_run_that_was_cut_anywhere_ends_up_bit_identical(
    whole, tmp_path, monkeypatch, name, stop_after
):
    recipe, folder = whole(name)
    train_and_stop(recipe, tmp_path / "cut", stop_after, monkeypatch)
    outcome = train(None, tmp_path / "cut", resume=True, quiet=True)
    assert outcome.finished
    assert_same(weights_of(folder), weights_of(tmp_path / "cut"))
    assert losses_of(folder) == losses_of(tmp_path / "cut")
    noted, again = (read_metrics(run / "metrics.jsonl") for run in (folder, tmp_path / "cut"))
    for a, b in zip(noted, again, strict=True):
        assert {**a, "images_per_second": 0} == {**b, "images_per_second": 0}


def test_a_run_that_workers_augmented_goes_on_with_workers(image_folder, tmp_path, monkeypatch):
    policy = {"augment__policy": "randaugment", "data__workers": 0, "protocol__reference_set": 8}
    fixed = {"data__mean": [0.5] * 3, "data__std": [0.25] * 3}
    recipe = small(image_folder, **policy, **fixed, data__resident="never")
    train(recipe, tmp_path / "whole", quiet=True)
    cut = tmp_path / "cut"
    train_and_stop(recipe, cut, 5, monkeypatch)
    state = torch.load(cut / LAST, weights_only=True)
    assert state["way"] == "single"
    state["recipe"]["data"]["resident"] = "auto"  # which would be resident now
    torch.save(state, cut / LAST)
    train(None, cut, resume=True, quiet=True)
    assert_same(weights_of(tmp_path / "whole"), weights_of(cut))
    train(small(image_folder, **policy, **fixed), tmp_path / "other", quiet=True)
    assert losses_of(tmp_path / "other") != losses_of(cut)


def started(words: list[str], log: Path) -> subprocess.Popen:
    with open(log, "a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "killick", "train", *words],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def test_a_killed_process_goes_on_to_the_same_bits(image_folder, tmp_path):
    words = ["--data.name", f"imagefolder:{image_folder}", "--data.size", "16", "--epochs", "15"]
    words += ["--batch", "4", "--augment.mixup", "0.3", "--average.decay", "0.9", "--quiet"]
    words += ["--data.validation", "4", "--data.limit", "12", "--checkpoint-minutes", "0"]
    assert main(["train", *words, "--output", str(tmp_path / "whole")]) == 0
    cut, log = tmp_path / "cut", tmp_path / "log"
    process = started([*words, "--output", str(cut)], log)
    deadline = time.monotonic() + 120
    while not (cut / BEFORE).exists() and time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        time.sleep(0.001)
    process.kill()  # in the middle of anything
    process.wait()
    assert not (cut / "model").exists()
    assert 0 < load_checkpoint(cut)[0]["step"] < 45
    assert main(["train", "--resume", str(cut), "--quiet"]) == 0
    assert_same(weights_of(tmp_path / "whole"), weights_of(cut))


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    image_folder, tmp_path, monkeypatch, capsys
):
    recipe = small(image_folder, checkpoint_minutes=0)
    train(recipe, tmp_path / "whole", quiet=True)
    run = tmp_path / "run"
    train_and_stop(recipe, run, 6, monkeypatch)
    data = bytearray((run / LAST).read_bytes())
    data[len(data) // 2] ^= 255
    (run / LAST).write_bytes(data)
    train(None, run, resume=True)
    assert "checkpoint.pt is damaged" in (told := capsys.readouterr().out)
    assert "checkpoint-before.pt, step" in told
    assert_same(weights_of(tmp_path / "whole"), weights_of(run))


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "other"])
def test_every_damage_to_a_checkpoint_is_seen(image_folder, tmp_path, monkeypatch, damage):
    recipe, run = small(image_folder), tmp_path / "run"
    train_and_stop(recipe, run, 2, monkeypatch)
    whole = (run / LAST).read_bytes()
    if damage == "other":
        torch.save({"some": "thing"}, run / LAST)
    else:
        (run / LAST).write_bytes({"truncated": whole[:-100], "empty": b"", "text": b"hi"}[damage])
    (run / BEFORE).unlink()
    with pytest.raises(CheckpointError, match=r"cannot resume .*checkpoint.pt.*no checkpoint-be"):
        train(None, run, resume=True, quiet=True)


def test_a_checkpoint_is_safe_to_load(image_folder, tmp_path, monkeypatch):
    train_and_stop(small(image_folder, **EVERYTHING), tmp_path, 2, monkeypatch)
    state = torch.load(tmp_path / LAST, weights_only=True)
    assert state["step"] == 2
    assert state["recipe"]["seed"] == 0


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_checkpoint(
    image_folder, tmp_path
):
    recipe = small(image_folder, optimizer__lr=1e18, checkpoint_minutes=0, log_every=3)
    with pytest.raises(
        DivergedError,
        match=r"NaN or infinite at step \d+ \(epoch 1\), at learning rate",
    ):
        train(recipe, tmp_path / "run", quiet=True)
    state, _ = load_checkpoint(tmp_path / "run")
    tensors = [t for t in state["model"].values() if t.is_floating_point()]
    assert all(bool(t.isfinite().all()) for t in tensors)
    assert not (tmp_path / "run" / "model").exists()


def test_the_first_bad_step_is_named_though_one_looks_later(image_folder, tmp_path, monkeypatch):
    take = loop.TrainingRun.take_step

    def poisoned(run):
        if run.done == 2:
            with torch.no_grad():
                next(run.model.parameters()).fill_(math.nan)
        take(run)

    monkeypatch.setattr(loop.TrainingRun, "take_step", poisoned)
    with pytest.raises(DivergedError, match=r"at step 3 \(epoch 1\), at learning rate 0.0"):
        train(small(image_folder, log_every=4), tmp_path / "run", quiet=True)


def test_a_full_disk_is_told_and_training_goes_on(image_folder, tmp_path, monkeypatch, capsys):
    from killick.training import checkpoint

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    saved = checkpoint.torch.save
    recipe, run = small(image_folder, checkpoint_minutes=0), tmp_path / "run"
    train_and_stop(recipe, run, 3, monkeypatch)
    before = (run / LAST).read_bytes()
    monkeypatch.setattr(checkpoint.torch, "save", full)
    assert train(None, run, resume=True).finished
    told = capsys.readouterr().out
    assert "No space left on device" in told
    assert (run / LAST).read_bytes() == before
    assert not list(run.glob(".*.part"))
    monkeypatch.setattr(checkpoint.torch, "save", saved)
    assert train(None, run, resume=True, quiet=True).finished


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_metrics_of_a_resumed_run_are_those_of_one_that_was_not_interrupted(
    image_folder, tmp_path, monkeypatch, steps
):
    """Also where it was interrupted between two readings of the loss."""
    recipe = small(image_folder, log_every=3, epochs=2)
    train(recipe, tmp_path / "whole", quiet=True)
    train_and_stop(recipe, tmp_path / "cut", steps, monkeypatch)
    train(None, tmp_path / "cut", resume=True, quiet=True)
    whole, cut = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "cut"))
    for entry in (*whole, *cut):
        entry.pop("images_per_second", None)
    assert len(whole) == 4
    assert cut == whole


def test_metrics_wait_for_room_on_the_disk(tmp_path):
    logger = JsonLogger(tmp_path)
    logger.log("train", 1, {"loss": 1.0})
    real, logger._path = logger._path, Path("/dev/full")
    logger.log("train", 2, {"loss": 2.0})
    logger._path = real
    logger.log("train", 3, {"loss": 3.0})
    assert [entry["loss"] for entry in read_metrics(real)] == [1.0, 2.0, 3.0]


def test_a_run_folder_is_not_overwritten(image_folder, tmp_path):
    train(small(image_folder, epochs=1), tmp_path / "run", quiet=True)
    with pytest.raises(CheckpointError, match=r"holds a run.*choose another folder"):
        train(small(image_folder, epochs=1), tmp_path / "run", quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="it is a file"):
        train(small(image_folder), tmp_path / "file", quiet=True)
    with pytest.raises(CheckpointError, match="cannot resume .*no checkpoint.pt"):
        train(None, tmp_path / "none", resume=True, quiet=True)


@pytest.mark.slow
def test_a_termination_of_the_whole_group_saves_though_workers_are_in_it(image_folder, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    words = ["--data.name", f"imagefolder:{image_folder}", "--data.size", "16", "--epochs", "2000"]
    words += [
        "--batch",
        "4",
        "--data.workers",
        "2",
        "--data.resident",
        "never",
        "--output",
        str(run),
    ]
    words += ["--protocol.references", "batch", "--data.validation", "0", "--checkpoint-minutes"]
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "killick", "train", *words, "0.002"],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    while not (run / BEFORE).exists() and time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 130, log.read_text()
    assert "Traceback" not in log.read_text()
    assert f"killick train --resume {run}" in log.read_text()


def test_an_interruption_after_the_last_step_loses_nothing(image_folder, tmp_path, monkeypatch):
    recipe, run = small(image_folder), tmp_path / "run"

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, run, quiet=True)
    assert load_checkpoint(run)[0]["step"] == 12
    assert train(None, run, resume=True, quiet=True).finished


def test_a_run_can_be_resumed_from_before_its_first_step(image_folder, tmp_path, monkeypatch):
    recipe = small(image_folder)
    train(recipe, tmp_path / "whole", quiet=True)

    def killed(run):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingRun, "take_step", killed)
        with pytest.raises(SystemExit):
            train(recipe, tmp_path / "cut", quiet=True)
    train(None, tmp_path / "cut", resume=True, quiet=True)
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))


def test_weights_that_are_not_finite_replace_no_checkpoint(image_folder, tmp_path, monkeypatch):
    take = loop.TrainingRun.take_step

    def spoilt(run):
        take(run)
        if run.done == 3:
            with torch.no_grad():
                next(run.model.parameters()).fill_(math.nan)

    monkeypatch.setattr(loop.TrainingRun, "take_step", spoilt)
    with pytest.raises(DivergedError, match=r"weights became NaN or infinite at step 3"):
        train(small(image_folder, checkpoint_minutes=0), tmp_path / "run", quiet=True)
    assert load_checkpoint(tmp_path / "run")[0]["step"] == 2


def test_a_run_goes_on_without_what_it_was_started_from(image_folder, tmp_path, monkeypatch):
    source = small(
        image_folder, protocol__name="standard", network__arguments={"width": 8}, epochs=1
    )
    train(source, tmp_path / "source", quiet=True)
    for name in ("whole", "cut"):
        (tmp_path / "copy").mkdir(exist_ok=True)
        shutil.copytree(tmp_path / "source", tmp_path / "copy", dirs_exist_ok=True)
        recipe, start = small(image_folder, epochs=2), tmp_path / "copy"
        if name == "whole":
            train(recipe, tmp_path / name, start=start, quiet=True)
        else:
            train_and_stop(recipe, tmp_path / name, 3, monkeypatch, start=start)
    shutil.rmtree(tmp_path / "copy")
    outcome = train(None, tmp_path / "cut", resume=True, quiet=True)
    assert outcome.finished
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))


def test_data_that_changed_meanwhile_are_refused(image_folder, tmp_path, monkeypatch):
    shutil.copytree(image_folder, tmp_path / "images")
    recipe = small(tmp_path / "images")
    train_and_stop(recipe, tmp_path / "run", 2, monkeypatch)
    for kind in range(4):
        for number in range(5):
            place = tmp_path / "images" / f"class{kind}"
            shutil.copy(place / f"{number}.png", place / f"more{number}.png")
    with pytest.raises(CheckpointError, match=r"data have changed.*: 16 .*, 32 "):
        train(None, tmp_path / "run", resume=True, quiet=True)


def test_a_finished_run_is_left_as_it_is(whole, tmp_path, capsys):
    recipe, folder = whole("plain")
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    assert main(["evaluate", str(run), "--suite", "clean", "--store-threshold", "--quiet"]) == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["train", "--resume", str(run)]) == 0
    told = capsys.readouterr().out
    assert f"killick train --from {run}" in told
    outcome = train(None, run, resume=True, quiet=True)
    assert outcome.finished
    assert {row["metric"] for row in outcome.rows} == {"top1", "nll"}
    assert outcome.model.threshold is not None
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("lost", ["rows", "model"])
def test_a_run_that_lost_what_it_ended_with_makes_it_again(whole, tmp_path, lost):
    recipe, folder = whole("plain")
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    if lost == "rows":
        for path in run.glob("rows.*"):
            path.unlink()
    else:
        next((run / "model").glob("model-*")).write_bytes(b"damaged")
    assert train(None, run, resume=True, quiet=True).finished
    assert_same(weights_of(folder), weights_of(run))
    assert (run / "rows.jsonl").read_text().count("top1") == 1


def test_a_run_does_not_become_part_of_other_things(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "dog").mkdir()
    words = ["train", "--epochs", "1", "--data.limit", "40", "--batch", "20", "--quiet"]
    assert main([*words, "--output", "images"]) == 2
    told = capsys.readouterr().err
    assert "'cat'" in told
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["cat", "dog"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".gitkeep").touch()
    assert main([*words, "--output", "empty", "--data.validation", "0"]) == 0


def test_a_run_folder_is_used_by_one_process_alone(image_folder, tmp_path, capsys):
    run, log = tmp_path / "run", tmp_path / "log"
    words = ["--data.name", f"imagefolder:{image_folder}", "--data.size", "16", "--batch", "4"]
    words += ["--data.validation", "0", "--epochs", "2000", "--quiet", "--output", str(run)]
    process = started(words, log)
    try:
        deadline = time.monotonic() + 120
        while not (run / LAST).exists() and time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)
        assert main(["train", "--resume", str(run)]) == 2
        told = capsys.readouterr().err
        assert str(run) in told
        assert "another process" in told
        recipe = (run / "recipe.yaml").read_text()
        (run / LAST).rename(tmp_path / "aside")  # as if both had begun at once
        assert main(["train", *words, "--seed", "1"]) == 2
        assert "another process" in capsys.readouterr().err
        assert (run / "recipe.yaml").read_text() == recipe
    finally:
        process.kill()  # which frees the folder
        process.wait()
    (tmp_path / "aside").rename(run / LAST)
    assert load_checkpoint(run)[0]["step"] >= 0
    with claimed(run):
        pass
