"""Runs that are stopped, killed, damaged or spoilt: nothing is lost, and the end is the same."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import EVERYTHING, assert_same, losses_of, small, train_and_stop, weights_of

from kedge.cli import main
from kedge.errors import CheckpointError, DivergedError
from kedge.training import train
from kedge.training.checkpoint import BEFORE, LAST, load_checkpoint
from kedge.training.records import Metrics, read_metrics


@pytest.mark.parametrize(
    "changes",
    [{}, EVERYTHING, {"protocol__references": "batch", "augment__policy": "trivialaugment"}],
    ids=["plain", "everything", "streamed"],
)
@pytest.mark.parametrize("stop_after", [2, 4, 7])
def test_a_run_that_was_cut_anywhere_ends_up_bit_identical(
    pictures, tmp_path, monkeypatch, changes, stop_after
):
    recipe = small(pictures, data__validation=4, data__workers=0, **changes)
    train(recipe, tmp_path / "whole", quiet=True)
    train_and_stop(recipe, tmp_path / "cut", stop_after, monkeypatch)
    outcome = train(None, tmp_path / "cut", resume=True, quiet=True)
    assert outcome.finished
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "cut")
    whole, cut = (read_metrics(tmp_path / run / "metrics.jsonl") for run in ("whole", "cut"))
    for a, b in zip(whole, cut, strict=True):
        assert {**a, "images_per_second": 0} == {**b, "images_per_second": 0}


def started(words: list[str], log: Path) -> subprocess.Popen:
    with open(log, "a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "kedge", "train", *words],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def test_a_killed_process_goes_on_to_the_same_bits(pictures, tmp_path):
    words = ["--data.name", f"imagefolder:{pictures}", "--data.size", "16", "--epochs", "8"]
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
    assert 0 < load_checkpoint(cut)[0]["step"] < 24
    assert main(["train", "--resume", str(cut), "--quiet"]) == 0
    assert_same(weights_of(tmp_path / "whole"), weights_of(cut))


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    pictures, tmp_path, monkeypatch, capsys
):
    recipe = small(pictures, checkpoint_minutes=0)
    train(recipe, tmp_path / "whole", quiet=True)
    run = tmp_path / "run"
    train_and_stop(recipe, run, 6, monkeypatch)
    data = bytearray((run / LAST).read_bytes())
    data[len(data) // 2] ^= 255
    (run / LAST).write_bytes(data)
    train(None, run, resume=True)
    assert "checkpoint.pt is damaged" in (told := capsys.readouterr().out)
    assert "going on from checkpoint-before.pt, step 6" in told or "step 5" in told
    assert_same(weights_of(tmp_path / "whole"), weights_of(run))


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "other"])
def test_every_damage_to_a_checkpoint_is_seen(pictures, tmp_path, monkeypatch, damage):
    recipe, run = small(pictures), tmp_path / "run"
    train_and_stop(recipe, run, 2, monkeypatch)
    whole = (run / LAST).read_bytes()
    if damage == "other":
        torch.save({"some": "thing"}, run / LAST)
    else:
        (run / LAST).write_bytes({"truncated": whole[:-100], "empty": b"", "text": b"hi"}[damage])
    with pytest.raises(CheckpointError, match=r"cannot go on in .*checkpoint.pt.*no checkpoint-be"):
        train(None, run, resume=True, quiet=True)


def test_a_checkpoint_is_safe_to_load(pictures, tmp_path, monkeypatch):
    train_and_stop(small(pictures, **EVERYTHING), tmp_path, 2, monkeypatch)
    state = torch.load(tmp_path / LAST, weights_only=True)
    assert state["step"] == 2
    assert state["recipe"]["seed"] == 0


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_checkpoint(pictures, tmp_path):
    recipe = small(pictures, optimiser__lr=1e18, checkpoint_minutes=0, log_every=3)
    with pytest.raises(
        DivergedError,
        match=r"NaN or infinite at step \d+ \(epoch 1\), at learning rate .*Try a lower",
    ):
        train(recipe, tmp_path / "run", quiet=True)
    state, _ = load_checkpoint(tmp_path / "run")
    assert state["step"] >= 1
    tensors = [t for t in state["model"].values() if t.is_floating_point()]
    assert all(bool(t.isfinite().all()) for t in tensors)
    assert not (tmp_path / "run" / "model").exists()


def test_the_first_bad_step_is_named_though_one_looks_later(pictures, tmp_path, monkeypatch):
    from kedge.training import loop

    take = loop.Run.take_step

    def poisoned(run):
        if run.done == 2:
            with torch.no_grad():
                next(run.model.parameters()).fill_(math.nan)
        take(run)

    monkeypatch.setattr(loop.Run, "take_step", poisoned)
    with pytest.raises(DivergedError, match=r"at step 3 \(epoch 1\), at learning rate 0.0"):
        train(small(pictures, log_every=4), tmp_path / "run", quiet=True)


def test_a_full_disk_is_told_and_training_goes_on(pictures, tmp_path, monkeypatch, capsys):
    from kedge.training import checkpoint

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    saved = checkpoint.torch.save
    recipe, run = small(pictures, checkpoint_minutes=0), tmp_path / "run"
    train_and_stop(recipe, run, 3, monkeypatch)
    before = (run / LAST).read_bytes()
    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(CheckpointError, match="No space left on device.*are as they were"):
        train(None, run, resume=True)
    assert "Training goes on, and the next checkpoint will be tried" in capsys.readouterr().out
    assert (run / LAST).read_bytes() == before
    assert not list(run.glob(".*"))
    monkeypatch.setattr(checkpoint.torch, "save", saved)
    assert train(None, run, resume=True, quiet=True).finished


def test_metrics_wait_for_room_on_the_disk(tmp_path):
    with Metrics(tmp_path) as metrics:
        metrics.write("train", 1, loss=1.0)
        real, metrics._path = metrics._path, Path("/dev/full")
        metrics.write("train", 2, loss=2.0)
        metrics._path = real
        metrics.write("train", 3, loss=3.0)
    assert [entry["loss"] for entry in read_metrics(real)] == [1.0, 2.0, 3.0]


def test_a_run_folder_is_not_overwritten(pictures, tmp_path):
    train(small(pictures, epochs=1), tmp_path / "run", quiet=True)
    with pytest.raises(CheckpointError, match=r"holds a finished run. Choose another folder"):
        train(small(pictures, epochs=1), tmp_path / "run", quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="expected a folder, found a file"):
        train(small(pictures), tmp_path / "file", quiet=True)
    with pytest.raises(CheckpointError, match="cannot go on in .*no checkpoint.pt"):
        train(None, tmp_path / "none", resume=True, quiet=True)
