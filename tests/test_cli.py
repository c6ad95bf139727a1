"""The command line: what it prints, and how it fails."""

import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

import killick
from killick.cli import main
from killick.cli.train import parse_overrides
from killick.errors import OptionError
from killick.training.recipe_files import settings, shipped


def test_help_names_every_command_recipe_and_setting(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert {"train", "list"} <= set(capsys.readouterr().out.split())
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    told = capsys.readouterr().out
    for name in [*shipped(), *settings()]:
        assert name in told, name


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"killick {killick.__version__}\n"


def test_list_names_recipes_data_and_networks(capsys):
    assert main(["list"]) == 0
    told = capsys.readouterr().out
    for name in [*shipped(), "imagefolder:PATH", "killick:wrn40_2", "timm:NAME"]:
        assert name in told
    assert main(["list", "data"]) == 0
    assert "killick:wrn40_2" not in capsys.readouterr().out


def test_print_recipe_shows_the_resolved_one(capsys):
    words = [
        "--recipe",
        "cifar10-resnet18",
        "--epochs",
        "60",
        "--lr=0.05",
        "--protocol",
        "standard",
    ]
    assert main(["train", *words, "--data", "pack:x.npz", "--print-recipe"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["epochs"] == 60
    assert values["optimizer"]["lr"] == 0.05
    assert values["protocol"]["name"] == "standard"
    assert values["data"]["name"] == "pack:x.npz"
    assert values["schedule"]["milestones"] == [0.3, 0.6, 0.8]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--epochz", "3"], "epochz: no such setting (did you mean epochs?)"),
        (["--print-recip"], "found --print-recip (did you mean --print-recipe?)"),
        (["--optimizer.lr"], "expected a value after --optimizer.lr"),
        (["--lr"], "expected a value after --lr"),
        (["--dry-run"], "no such option: --dry-run. killick train --help lists all settings"),
        (["epochs", "3"], "expected a setting such as --epochs 10, found 'epochs'"),
        (["--recipe", "cifar"], "expected the recipe to be one of"),
        (["--data", "shape"], "did you mean"),
        (["--network", "resnet18"], "expected a network as 'library:name'"),
        (["--network", "timm:resnet1"], "did you mean"),
        (["--device", "gpu7"], "expected a device such as auto"),
        (["--data", "imagefolder:/nowhere"], "/nowhere"),
        (["--resume", "/nowhere"], "cannot go on in /nowhere"),
        (["--resume", "x", "--epochs", "3"], "expected --resume alone, found --epochs"),
        (["--from", "/nowhere.pt"], "cannot start from /nowhere.pt"),
        (["--recipe", "finetune"], "expected --from, a trained network"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KILLICK_CACHE", str(tmp_path))
    assert main(["train", *words]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("killick: ")
    assert err.count("\n") == 1
    assert told in err


def test_settings_have_short_names_and_yaml_values():
    assert parse_overrides(["--target", "uniform", "--data.mean", "[1, 2, 3]", "--x=-1"]) == {
        "protocol.target": "uniform",
        "data.mean": [1, 2, 3],
        "x": -1,
    }
    assert parse_overrides(["--data.limit", "null", "--checkpoint-minutes", "0"]) == {
        "data.limit": None,
        "checkpoint_minutes": 0,
    }
    with pytest.raises(OptionError, match="no such option: --b"):
        parse_overrides(["--a", "1", "--b"])


def test_a_bug_keeps_its_traceback(monkeypatch):
    from killick.cli import train as training

    def broken(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(training, "run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["train"])


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "killick", "list", "recipes"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "cifar10-resnet18" in done.stdout


def test_piped_output_is_plain_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KILLICK_CACHE", str(tmp_path / "cache"))
    words = ["--data", "digits", "--data.limit", "64", "--data.validation", "32", "--epochs", "2"]
    assert main(["train", *words, "--output", str(tmp_path / "run"), "--batch", "32"]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert (
        "digits: 64 samples of 10 classes to train on (data.limit), 32 to validate, 360 to test"
        in told
    )
    assert "step 4/4 epoch 2/2 loss " in told
    assert "images/s" in told
    assert "test accuracy" in told


def test_a_run_is_named_after_what_it_is(tmp_path, monkeypatch, capsys, pictures):
    monkeypatch.chdir(tmp_path)
    words = ["--data", f"imagefolder:{pictures}", "--data.size", "16", "--epochs", "1"]
    assert main(["train", *words, "--quiet"]) == 0  # neither limit nor validation of shapes' own
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("shapes-small-pictures")
    assert run.name.endswith("-masked-label-seed0")
    assert main(["train", *words, "--quiet"]) == 2
    assert "holds a finished run" in capsys.readouterr().err


def test_no_command_shows_help(capsys):
    assert main([]) == 0
    assert "train" in capsys.readouterr().out


def test_a_text_is_taken_as_it_is():
    found = parse_overrides(["--data", "imagefolder:/a b #2: c", "--data.root", "none"])
    assert found == {"data.name": "imagefolder:/a b #2: c", "data.root": None}


def test_a_setting_below_a_setting_is_refused(capsys):
    assert main(["train", "--epochs.foo", "3", "--print-recipe"]) == 2
    assert "no such setting: epochs.foo" in capsys.readouterr().err


def test_a_termination_is_told_and_ended_as_ctrl_c_is(monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)

    def wait(options, rest):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        raise AssertionError("not interrupted")

    monkeypatch.setattr("killick.cli.listing.run", wait)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "killick: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before
