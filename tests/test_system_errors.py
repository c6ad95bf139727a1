"""One line and exit code 2 where the system says no: names, permissions, full disks, signals."""

import os
import signal
import subprocess
import sys
import time

import pytest
from permissions import run_bound
from runs import make_image_folder

from killick.cli import main

LONG = "x" * 300


def refused(capsys, *words) -> str:
    assert main([str(word) for word in words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("killick: ")
    assert told.count("\n") == 1
    return told


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", LONG],
        ["train", "--output", LONG, "--epochs", "1"],
        ["train", "--resume", LONG],
        ["train", "--recipe", LONG + ".yaml"],
        ["report", LONG],
        ["predict", LONG, "image.png"],
        ["export", LONG],
        ["check", f"imagefolder:{LONG}"],
        ["check", f"pack:{LONG}"],
        ["corrupt", LONG],
        ["publish", LONG],
    ],
    ids=lambda words: " ".join(words)[:16],
)
def test_a_name_of_300_characters_is_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    refused(capsys, *words)
    assert not list(tmp_path.iterdir())


def run(words, **options) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "killick", *map(str, words)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, **options)


def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = run(["list", "corruptions"], stdout=full)
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr
    assert done.returncode == 2


def test_names_can_be_printed_in_a_locale_without_them(tmp_path):
    images = make_image_folder(tmp_path)
    os.rename(images / "class0" / "0.png", os.fsencode(images) + b"/class0/k\xe4fer.png")
    (images / "class0" / os.fsdecode(b"k\xe4fer.png")).write_bytes(b"damaged")
    os.rename(images / "class1", images / "Käfer")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    words = ["check", f"imagefolder:{images}", "--workers", "0"]
    done = run(words, env=environment, stdout=subprocess.PIPE)
    assert done.returncode == 1, done.stderr
    assert "fer.png: not an image" in done.stdout


@pytest.mark.parametrize("command", ["evaluate", "report", "predict", "resume", "train", "export"])
def test_no_permission_is_not_called_damaged(command, tmp_path):
    place = tmp_path / "closed"
    (place / "model").mkdir(parents=True)
    for name in ("rows.jsonl", "checkpoint.pt", "model/config.json"):
        (place / name).write_text("{}")
    (tmp_path / "image.png").write_bytes(b"")
    words = {
        "evaluate": ["evaluate", place],
        "report": ["report", place],
        "predict": ["predict", place, tmp_path / "image.png"],
        "resume": ["train", "--resume", place],
        "train": ["train", "--output", place / "new", "--epochs", "1"],
        "export": ["export", place],
    }[command]
    place.chmod(0o555 if command == "train" else 0o000)
    code, told = run_bound(lambda: main([str(word) for word in words]))
    place.chmod(0o755)
    assert "Permission denied" in told
    assert "damaged" not in told
    assert (code, told.count("\n")) == (2, 1)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_saves_the_run(image_folder, tmp_path, number):
    words = ["train", "--recipe", "shapes-small", "--data", f"imagefolder:{image_folder}"]
    words += [
        "--data.validation",
        "4",
        "--data.size",
        "16",
        "--batch",
        "4",
        "--epochs",
        "100000",
        "--checkpoint-minutes",
        "60",
        "--log-every",
        "1",
    ]
    command = [sys.executable, "-m", "killick", *words, "--output", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    metrics, until = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    told = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert "saved. Resume with" in told
