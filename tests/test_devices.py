"""Which device and how many threads work runs on."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
from runs import small

from killick.cli import main
from killick.errors import OptionError
from killick.experiments import scheduler
from killick.experiments.execution import Execution
from killick.metrics import input_checks, smooth_ece
from killick.runtime import devices
from killick.runtime.processes import Processes, joined
from killick.training import make_recipe, train
from killick.training.run_state import choose_arithmetic

CPU, CUDA, MPS = (torch.device(name) for name in ("cpu", "cuda:0", "mps"))


@pytest.fixture
def apple(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


@pytest.mark.usefixtures("apple")
def test_an_apple_gpu_is_used_where_it_is_named_and_there():
    assert devices.choose_device("mps") == MPS
    assert devices.choose_device("auto").type in ("cpu", "cuda")
    with joined("mps") as processes:
        assert processes.device == MPS


def test_an_apple_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(OptionError, match="Apple GPU"):
        devices.choose_device("mps")
    with pytest.raises(OptionError, match="such as auto"):
        devices.choose_device("xla")


@pytest.mark.usefixtures("apple")
def test_an_apple_gpu_takes_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="one process"), joined("mps"):
        pass


@pytest.mark.parametrize(
    ("device", "count", "asked", "expected"),
    [
        (CPU, 1, {}, ("float32", "eager")),
        (CPU, 1, {"precision": "bfloat16", "execution": "captured"}, ("bfloat16", "compiled")),
        (CUDA, 1, {}, ("bfloat16", "auto")),
        (CUDA, 1, {"execution": "captured"}, ("bfloat16", "captured")),
        (CUDA, 2, {}, ("bfloat16", "uncaptured")),
        (CUDA, 2, {"execution": "captured"}, ("bfloat16", "compiled")),
        (MPS, 1, {}, ("float32", "eager")),
        (MPS, 1, {"precision": "bfloat16", "execution": "captured"}, ("float32", "eager")),
    ],
)
def test_arithmetic_is_what_the_device_has(device, count, asked, expected):
    recipe = make_recipe({"protocol": "standard", **asked})
    *found, note = choose_arithmetic(recipe, Processes(0, count, device))
    assert tuple(found) == expected
    assert (note is not None) == (device != CUDA and bool(asked))
    assert "\n" not in (note or "")


def test_sums_are_taken_where_there_is_float64(monkeypatch):
    assert [devices.precise_device(each) for each in (CPU, CUDA, MPS)] == [CPU, CUDA, CPU]
    asked = []
    monkeypatch.setattr(input_checks, "precise_device", lambda d: asked.append(d) or d)
    smooth_ece(torch.tensor([0.5, 0.6]), torch.tensor([True, False]))
    assert asked == [CPU]


def test_cores_that_others_use_are_not_free(monkeypatch, tmp_path):
    """Over the moment, core 0 was busy and core 1 idle for 18 of 20 ticks; core 2 is not ours."""
    before = (
        "cpu  0 0 0 0\ncpu0 10 0 0 100 5 0 0 0 0 0\ncpu1 0 0 0 50 0 0 0 0\ncpu2 0 0 0 9 0 0 0 0\n"
    )
    after = (
        "cpu  0 0 0 0\ncpu0 30 0 0 100 5 0 0 0 0 0\ncpu1 2 0 0 66 2 0 0 0\ncpu2 0 0 0 99 0 0 0 0\n"
    )
    texts = iter([before, after])
    monkeypatch.setattr(devices, "_STATISTICS", SimpleNamespace(read_text=lambda: next(texts)))
    monkeypatch.setattr(devices, "_SECONDS", 0)
    monkeypatch.setattr(devices, "_own_cores", lambda: {0, 1})
    assert devices._measure_idle() == pytest.approx(0.9)


@pytest.mark.parametrize(("idle", "free"), [(7.8, 8), (7.4, 7), (0.2, 1), (-3.0, 1), (99.0, 8)])
def test_at_least_one_and_at_most_all_cores_are_free(monkeypatch, idle, free):
    monkeypatch.setattr(devices, "_own_cores", lambda: set(range(8)))
    monkeypatch.setattr(devices, "_measure_idle", lambda: idle)
    assert devices.count_free_cores() == free


def test_threads_are_as_many_as_free_cores_unless_the_user_says_otherwise(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(devices, "count_free_cores", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    devices.set_threads()
    devices.set_threads(5)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    devices.set_threads()
    assert chosen == [3, 5]
    with pytest.raises(OptionError, match="at least 1, found 0"):
        devices.set_threads(0)


@pytest.mark.parametrize(("stored", "words", "expected"), [(2, [], 2), (2, ["--threads", "1"], 1)])
def test_a_run_is_resumed_with_the_threads_it_began_with(
    image_folder, tmp_path, monkeypatch, stored, words, expected
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    folder = tmp_path / "run"
    train(small(image_folder, epochs=1), folder, quiet=True)
    environment = folder / "environment.json"
    known = json.loads(environment.read_text())
    assert known["threads"] == torch.get_num_threads()
    environment.write_text(json.dumps({**known, "threads": stored}))
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    assert main(["train", "--resume", str(folder), "--quiet", *words]) == 0
    assert chosen == [expected]


def test_the_number_of_threads_is_printed(image_folder, tmp_path, capsys):
    train(small(image_folder, epochs=1), tmp_path / "run")
    assert "on cpu, 1 thread\n" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run"), "--suite", "clean"]) == 0
    assert "on cpu, 1 thread\n" in capsys.readouterr().out


@pytest.mark.parametrize(("jobs", "at_once"), [(None, 3), (6, 6)])
def test_as_many_jobs_run_as_cores_are_free_with_the_threads_of_all(monkeypatch, jobs, at_once):
    made = {}
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(scheduler, "LocalJobs", lambda todo, **options: made.update(options))
    monkeypatch.setattr(scheduler, "count_cores", lambda: 12)
    monkeypatch.setattr(scheduler, "count_free_cores", lambda: 7)
    scheduler._make_engine([], 6, Execution(jobs=jobs, device="cpu"))
    assert (made["at_once"], made["threads"]) == (at_once, 2)
