"""A run that starts from another takes over its data, unless somebody asks for others."""

import sys
from pathlib import Path

import pytest
import torch
import yaml

import killick
from killick.cli import main
from killick.errors import InstallError, OptionError
from killick.training.initial_weights import find_start, inherit, warn_of_seen
from killick.training.recipe_files import load_recipe, make_recipe, read_yaml, to_yaml
from killick.training.training_data import sets_of


@pytest.fixture
def source(tmp_path):
    """The folder of a run, as far as it is looked at."""
    recipe = load_recipe(
        "digits-small", {"data.validation": 0.2, "seed": 3, "network.name": "timm:resnet18"}
    )
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "recipe.yaml").write_text(to_yaml(recipe))
    return tmp_path / "plain"


def test_data_cut_network_and_seed_are_those_of_the_source(source):
    for start in (source, source / "model"):
        taken = inherit(start, {"epochs": 2})
        recipe, theirs = (
            load_recipe("finetune", taken),
            make_recipe(read_yaml(source / "recipe.yaml")),
        )
        assert (recipe.data.name, recipe.network.name, recipe.seed) == (
            "digits",
            "timm:resnet18",
            3,
        )
        assert recipe.epochs == 2
        assert recipe.protocol.name == "masked"  # of the recipe, as all that is not data
        ours, before = sets_of(recipe), sets_of(theirs)
        assert torch.equal(ours.validation.rows, before.validation.rows)
        assert warn_of_seen(recipe, start) is None


def test_what_was_asked_for_holds(source):
    taken = inherit(source, {"data.validation": 0.5, "seed": 4})
    assert (taken["data.validation"], taken["seed"], taken["data.name"]) == (0.5, 4, "digits")
    other = inherit(source, {"data.name": "shapes"})
    assert {"data.validation", "data.size", "seed"} & other.keys() == set()
    assert other["network.name"] == "timm:resnet18"  # the weights are of it all the same


@pytest.mark.parametrize(
    ("changed", "warned"),
    [
        ({"data.validation": 0.1}, True),
        ({"seed": 4}, True),
        ({"data.limit": 100, "data.validation_from": "last"}, True),
        ({"data.validation": 0}, False),
        ({"data.name": "shapes"}, False),
        ({"epochs": 7, "optimizer.lr": 0.5}, False),
    ],
)
def test_images_that_the_source_may_have_seen_are_warned_of(source, changed, warned):
    settings = inherit(source, {}) | changed
    line = warn_of_seen(load_recipe("finetune", settings), source)
    assert (line is not None) == warned


def test_folders_without_a_recipe_give_nothing(tmp_path):
    asked = {"epochs": 1, "data.name": "digits"}
    assert inherit(tmp_path, asked) == asked
    (tmp_path / "recipe.yaml").write_text("{unreadable: [")
    assert inherit(tmp_path, asked) == asked
    with pytest.raises(OptionError, match="does not say which data"):
        inherit(tmp_path, {"epochs": 1})
    # Nobody knows what it was trained on: validation is warned of, unless there is none.
    assert "--data.validation 0" in warn_of_seen(load_recipe("finetune"), tmp_path)
    assert warn_of_seen(load_recipe("finetune", {"data.validation": 0}), tmp_path) is None
    assert warn_of_seen(load_recipe("finetune", {"network.new_head": True}), tmp_path) is None


def test_another_network_and_weights_without_data_are_refused(source, tmp_path):
    with pytest.raises(OptionError, match="network.name timm:vit differs from timm:resnet18"):
        inherit(source, {"network.name": "timm:vit"})
    (tmp_path / "weights.pth").touch()
    with pytest.raises(OptionError, match="does not say which data"):
        inherit(tmp_path / "weights.pth", {"network.name": "timm:resnet18"})
    asked = {"data.name": "digits"}
    assert inherit(tmp_path / "weights.pth", asked) == asked


@pytest.mark.parametrize("given", ["weights/net.pth", "me/net.safetensors", "runs/slip", "/a/b/c"])
def test_slips_in_paths_are_not_asked_for_elsewhere(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # to ask for it would fail
    (tmp_path / "runs").mkdir()
    assert find_start(given) == (tmp_path / given).absolute()
    assert find_start(Path(given)) == (tmp_path / given).absolute()
    with pytest.raises(InstallError, match="loading me/mine"):
        find_start("me/mine")


def test_beside_a_recipe_the_network_alone_is_taken_over(source, tmp_path):
    taken = inherit(source, {"epochs": 1}, data=False)
    assert set(taken) == {"epochs", "network.name", "network.arguments"}
    assert load_recipe("shapes-small", taken).network.name == "timm:resnet18"
    with pytest.raises(OptionError, match="killick:wrn40_2 differs from timm:resnet18"):
        inherit(source, {"network.name": "killick:wrn40_2"}, data=False)
    (tmp_path / "weights.pth").touch()
    assert inherit(tmp_path / "weights.pth", {"epochs": 1}, data=False) == {"epochs": 1}
    with pytest.raises(OptionError, match=r"network.arguments .*16.* differs from \{\}"):
        inherit(source, {"network.arguments": {"width": 16}}, data=False)


def test_a_saved_model_says_itself_what_it_is(tmp_path):
    net = killick.nets.create("killick:resnet_small", width=8, num_classes=3)
    killick.save(killick.standard(net.eval(), image_shape=(3, 32, 32)), tmp_path / "saved")
    expected = {"network.name": "killick:resnet_small", "network.arguments": {"width": 8}}
    asked = {"seed": 1, "data.name": "digits"}
    for data in (True, False):
        assert inherit(tmp_path / "saved", asked, data=data) == expected | asked
    (tmp_path / "run").mkdir()
    (tmp_path / "saved").rename(tmp_path / "run" / "model")
    (tmp_path / "run" / "recipe.yaml").write_text(to_yaml(load_recipe("digits-small")))
    assert inherit(tmp_path / "run", {})["network.arguments"] == {"width": 8}
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1))
    own = torch.nn.Sequential(net, torch.nn.Flatten())
    killick.save(killick.standard(own.eval(), image_shape=(3, 8, 8)), tmp_path / "own")
    assert inherit(tmp_path / "own", {"seed": 1}, data=False) == {"seed": 1}


def test_what_is_recorded_is_the_network_of_the_run_also_beside_a_recipe(tmp_path):
    words = ["train", "--recipe", "shapes-small", "--epochs", "1", "--data.limit", "40"]
    words += ["--batch", "20", "--data.validation", "0"]
    plain, tuned = tmp_path / "plain", tmp_path / "tuned"
    small = ["--network.arguments", "{width: 8}", "--protocol", "standard"]
    assert main([*words, *small, "--output", str(plain)]) == 0
    assert main([*words, "--from", str(plain), "--output", str(tuned)]) == 0
    assert read_yaml(tuned / "recipe.yaml")["network"]["arguments"] == {"width": 8}


def test_killick_train_goes_on_with_the_data_of_the_run(tmp_path, capsys):
    words = ["train", "--data", "digits", "--epochs", "1", "--data.limit", "64"]
    plain, tuned = str(tmp_path / "plain"), tmp_path / "tuned"
    assert main([*words, "--protocol", "standard", "--output", plain]) == 0
    capsys.readouterr()
    assert main(["train", "--from", plain, "--epochs", "1", "--output", str(tuned)]) == 0
    told = capsys.readouterr().out
    assert "digits: 64 training images" in told
    assert "may have been trained on" not in told
    assert "before the first step: accuracy" in told
    assert yaml.safe_load((tuned / "recipe.yaml").read_text())["data"]["name"] == "digits"
    others = ["--epochs", "1", "--data.validation", "0.3", "--output", str(tmp_path / "other")]
    assert main(["train", "--from", plain, *others]) == 0
    assert "may have been trained on" in capsys.readouterr().out
