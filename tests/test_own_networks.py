"""Networks of one's own, by name: files and modules that KILLICK_NETWORKS lists."""

import json
import os
import sys

import pytest
import torch

import killick
from killick.cli import main
from killick.errors import OptionError, StorageError
from killick.nets import custom as own_networks
from killick.nets.custom import own_libraries

NETS = """
from dataclasses import dataclass
from functools import partial
from os import system

import torch
from torch import nn

from beside import WIDTH
from killick.nets import network


@dataclass
class Shape:  # dataclasses look for their module
    width: int = WIDTH


class SmallNet(nn.Module):
    def __init__(self, num_classes, width=Shape().width):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 2)
        self.norm = nn.BatchNorm2d(width)
        self.last = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu().mean((2, 3)))


@network
def wide(num_classes):
    return SmallNet(num_classes, width=12)


@network
def broken(num_classes):
    raise RuntimeError("it is\\nbroken")


@network
def no_network(num_classes):
    return num_classes


@network
def without_classes():
    return SmallNet(2)


@network
def _hidden(num_classes):
    return SmallNet(num_classes)


narrow = partial(partial(SmallNet, 2), width=3)
run = partial(system, "false")


def clean(folder):
    import shutil

    shutil.rmtree(folder)
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A file with networks, and what it imports beside it."""
    own_networks._import.cache_clear()
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "nets.py").write_text(NETS)
    (folder / "beside.py").write_text("WIDTH = 6\n")
    monkeypatch.setenv("KILLICK_NETWORKS", str(folder / "nets.py"))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    yield folder / "nets.py"
    own_networks._import.cache_clear()
    sys.modules.pop("killick_networks_nets", None)
    sys.modules.pop("beside", None)


def test_a_class_and_a_function_of_a_file_are_made_by_name(nets):
    path = list(sys.path)
    net = killick.nets.create("nets:SmallNet", num_classes=4)
    assert net.first.out_channels == 6
    assert killick.nets.create("nets:SmallNet", num_classes=4, width=9).first.out_channels == 9
    assert killick.nets.create("nets:wide", num_classes=4).first.out_channels == 12
    assert killick.nets.create("nets:narrow").first.out_channels == 3
    assert type(killick.nets.create("nets:wide", num_classes=4)) is type(net)  # it is run once
    assert sys.path == path
    assert "nets" not in sys.modules  # nobody else's module is replaced


def test_a_model_is_saved_and_loaded_by_name(nets, tmp_path):
    model = killick.anchor(
        killick.nets.create("nets:SmallNet", num_classes=4), example=torch.rand(2, 3, 8, 8)
    )
    model.set_references(torch.rand(1, 3, 8, 8))
    killick.save(model, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architecture"] == {"name": "nets:SmallNet", "arguments": {"num_classes": 4}}
    loaded = killick.load(tmp_path / "model")
    x = torch.rand(3, 3, 8, 8)
    torch.testing.assert_close(
        killick.predict(loaded, x).probs, killick.predict(model.eval(), x).probs
    )


def test_no_code_runs_because_of_a_name_alone(nets, tmp_path, monkeypatch):
    """What a model or a recipe from elsewhere names is made only if it is listed."""
    model = killick.standard(
        killick.nets.create("nets:SmallNet", num_classes=4), image_shape=(3, 8, 8)
    )
    killick.save(model, tmp_path / "model")
    monkeypatch.delenv("KILLICK_NETWORKS")
    own_networks._import.cache_clear()
    nets.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{NETS}")
    monkeypatch.chdir(nets.parent)
    told = "KILLICK_NETWORKS=FILE.py"
    with pytest.raises(StorageError, match=told):
        killick.load(tmp_path / "model")
    for name in ("nets:SmallNet", "nets.py:SmallNet", f"{nets}:SmallNet", "os:system"):
        with pytest.raises(OptionError, match="expected the library to be one of"):
            killick.nets.create(name, num_classes=4)
    assert not (tmp_path / "ran").exists()


def test_a_model_cannot_call_other_functions_of_a_listed_file(nets, tmp_path):
    model = killick.standard(
        killick.nets.create("nets:SmallNet", num_classes=4), image_shape=(3, 8, 8)
    )
    killick.save(model, tmp_path / "model")
    (kept := tmp_path / "kept").mkdir()
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["architecture"] = {"name": "nets:clean", "arguments": {"folder": str(kept)}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(StorageError, match="found 'clean'"):
        killick.load(tmp_path / "model")
    assert kept.is_dir()


def test_another_network_under_the_same_name_is_noticed(nets, tmp_path):
    model = killick.standard(
        killick.nets.create("nets:SmallNet", num_classes=4), image_shape=(3, 8, 8)
    )
    killick.save(model, tmp_path / "model")
    nets.write_text(NETS.replace(".relu()", ".sigmoid()"))
    own_networks._import.cache_clear()
    with pytest.raises(StorageError, match="the network computes something else"):
        killick.load(tmp_path / "model")


def test_a_module_that_python_finds_is_known_by_its_name(nets, tmp_path, monkeypatch):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "more.py").write_text(NETS.replace("from beside import WIDTH", "WIDTH = 5"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KILLICK_NETWORKS", f"mine.more{os.pathsep}{nets}{os.pathsep}")
    assert own_libraries() == {"mine.more": "mine.more", "nets": str(nets)}
    assert killick.nets.create("mine.more:SmallNet", num_classes=2).first.out_channels == 5
    assert killick.nets.create("nets:SmallNet", num_classes=2).first.out_channels == 6
    for name in ("mine", "mine.more"):
        sys.modules.pop(name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "nets:SmalNet",
            r"the network of .*nets.py to be one of 'SmallNet', 'wide', .*mean 'SmallNet'\?",
        ),
        ("nets:_hidden", "the network of .*nets.py to be one of"),
        ("nets:system", "the network of .*nets.py to be one of .* found 'system'"),
        ("nets:run", "the network of .*nets.py to be one of .* found 'run'"),
        ("nets:clean", r"found 'clean'.* decorated with @killick\.nets\.network"),
        ("nets:Shape", "the network of .*nets.py to be one of .* found 'Shape'"),
        ("nts:SmallNet", r"library to be one of .*'nets', found 'nts' \(did you mean 'nets'\?\)"),
        ("nts:SmallNet", r"Networks of your own: KILLICK_NETWORKS=FILE.py"),
        ("nets:broken", "cannot make 'nets:broken' with .*: RuntimeError: it is broken"),
        ("nets:no_network", "'nets:no_network' .*found int"),
        ("nets:without_classes", "cannot make 'nets:without_classes' .*num_classes"),
    ],
)
def test_mistakes_are_told_in_a_line(nets, name, told):
    with pytest.raises(OptionError, match=told) as problem:
        killick.nets.create(name, num_classes=3)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_such", r"ModuleNotFoundError: No module named 'nothing_such' \(line 1\)"),
        ("\n\nx = (", r"SyntaxError: .*line 3"),
        ("def f():\n    raise ValueError('no\\nway.')\nf()", r"ValueError: no way \(line 2\)\."),
        (None, "FileNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_told_with_its_line(nets, text, told):
    if text is None:
        nets.unlink()
    else:
        nets.write_text(text)
    for _ in range(2):  # and is tried again
        with pytest.raises(OptionError, match=rf"{nets} .*{told}") as problem:
            killick.nets.create("nets:SmallNet", num_classes=3)
        assert "\n" not in str(problem.value)
    nets.write_text(NETS)
    killick.nets.create("nets:SmallNet", num_classes=3)


def test_a_file_without_networks_is_told(nets):
    nets.write_text("from os import system\n")
    with pytest.raises(OptionError, match="has no networks"):
        killick.nets.create("nets:system", command="false")


def test_a_package_may_collect_networks_of_its_parts(tmp_path, monkeypatch):
    package = tmp_path / "gathered_networks"
    package.mkdir()
    (package / "part.py").write_text(NETS.replace("from beside import WIDTH", "WIDTH = 5"))
    (package / "__init__.py").write_text("from .part import SmallNet, wide, system")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KILLICK_NETWORKS", "gathered_networks")
    assert killick.nets.create("gathered_networks:wide", num_classes=2).first.out_channels == 12
    assert killick.nets.create("gathered_networks:SmallNet", num_classes=2).first.out_channels == 5
    with pytest.raises(OptionError, match="found 'system'"):
        killick.nets.create("gathered_networks:system", command="false")
    for name in ("gathered_networks", "gathered_networks.part"):
        sys.modules.pop(name)
    own_networks._import.cache_clear()


def test_names_that_are_taken_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("KILLICK_NETWORKS", str(tmp_path / "timm.py"))
    with pytest.raises(OptionError, match="timm.py"):
        own_libraries()
    both = [str(tmp_path / folder / "nets.py") for folder in "ab"]
    monkeypatch.setenv("KILLICK_NETWORKS", os.pathsep.join(both))
    with pytest.raises(OptionError, match="a/nets.py and .*b/nets.py"):
        own_libraries()
    monkeypatch.setenv("KILLICK_NETWORKS", os.pathsep.join([both[0], both[0]]))
    assert own_libraries() == {"nets": both[0]}


def test_from_training_to_evaluation_on_the_command_line(nets, image_folder, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["--network", "nets:SmallNet", "--network.arguments", "{width: 7}", "--data.size", "16"]
    words += ["--data", f"imagefolder:{image_folder}", "--epochs", "1", "--data.validation", "0"]
    assert main(["train", *words, "--device", "cpu", "--quiet", "--output", str(run)]) == 0
    assert (run / "network.py").read_text() == NETS
    assert killick.load(run).net.last.in_features == 7
    assert main(["evaluate", str(run), "--suite", "clean", "--quiet"]) == 0
    assert main(["list", "networks"]) == 0
    assert "nets:NAME" in (told := capsys.readouterr().out)
    assert str(nets) in told
    more = [*words[:-4], "--epochs", "1", "--data.validation", "0", "--from", str(run)]
    again = ["train", *more[4:], "--device", "cpu", "--quiet", "--output", str(tmp_path / "more")]
    assert main(again) == 0, capsys.readouterr().err
    assert killick.load(tmp_path / "more").net.last.in_features == 7


def test_a_run_of_a_file_that_is_gone_is_refused(nets, image_folder, tmp_path, capsys):
    nets.unlink()
    words = ["train", "--network", "nets:SmallNet", "--data", f"imagefolder:{image_folder}"]
    assert main([*words, "--quiet", "--output", str(tmp_path / "run")]) == 2
    assert str(nets) in capsys.readouterr().err


def test_bare_weights_are_evaluated_if_it_is_said_how_images_are_normalized(
    nets, image_folder, tmp_path, capsys
):
    net = killick.nets.create("nets:SmallNet", num_classes=4)
    torch.save(net.state_dict(), tmp_path / "w.pt")
    words = ["evaluate", "nets:SmallNet", "--checkpoint", str(tmp_path / "w.pt"), "--quiet"]
    words += ["--data", f"imagefolder:{image_folder}", "--suite", "clean"]
    words += ["--output", str(tmp_path / "rows")]
    assert main(words) == 2
    assert "SmallNet" in capsys.readouterr().err
    words += ["--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2", "--size", "16"]
    assert main(words) == 0, capsys.readouterr().err
