"""Training that starts from pretrained weights by name, or from bare weights; one preprocessing."""

import json

import pytest
import timm
import torch
from hub_cache import use_caches
from test_pretrained import fill_hf, fill_hf_hub, fill_timm

import killick
from killick.cli import main
from killick.core.inspection import logits_of
from killick.data.preprocessing import view_for
from killick.evaluation.other_networks import open_model
from killick.experiments.arms import parse_arms
from killick.experiments.jobs import make_jobs
from killick.results.rows import read_rows
from killick.training import recipe_of, train
from killick.training.initial_weights import add_preprocessing
from killick.training.recipe_files import load_recipe

SHORT = ["--epochs", "1", "--batch", "4", "--data.workers", "0", "--data.validation", "4"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return use_caches(monkeypatch, tmp_path / "caches")


def view_of(run):
    data = recipe_of(run).data
    return data.size, data.resize, data.interpolation, data.squash, data.mean, data.std


@pytest.mark.parametrize(
    ("words", "plain"),
    [
        (["--network", "hf-hub:me/net"], "timm:test_vit"),
        (["--network", "hf:me/vit"], "hf:vit"),
        (
            ["--network", "timm:test_resnet", "--pretrained", "--data.size", "24"],
            "timm:test_resnet",
        ),
        (["--network", "timm:test_resnet.r160_in1k", "--data.size", "24"], "timm:test_resnet"),
    ],
)
def test_training_starts_from_weights_by_name(
    cache, tmp_path, monkeypatch, image_folder, capsys, words, plain
):
    for fill in (fill_timm, fill_hf, fill_hf_hub):
        fill(cache)
    run, data = tmp_path / "run", f"imagefolder:{image_folder}"
    assert main(["train", *words, "--data", data, *SHORT, "--output", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "pretrained weights" in shown
    assert "before the first step: accuracy" in shown
    kept = words[1] == "hf-hub:me/net"  # its classes are those of the data
    assert ("a fresh last layer for 4 classes" in shown) == (not kept)
    assert ("may have seen" in shown) == kept
    recipe = recipe_of(run)
    assert recipe.network.name == plain
    expected = open_model(words[1], pretrained=True)
    if "--data.size" not in words:
        view = view_for(expected)
        assert view_of(run)[:4] == (view.size, view.resize, view.interpolation, view.squash)
    assert tuple(recipe.data.mean) == expected.normalize.mean
    assert read_rows(run)[0]["start"] == recipe.network.pretrained
    use_caches(monkeypatch, tmp_path / "empty")
    model = killick.load(run)
    assert isinstance(model, killick.Anchored)
    assert view_for(model).described == view_for(expected).described or "--data.size" in words


def test_training_begins_with_exactly_the_predictions_of_the_weights(cache, tmp_path, image_folder):
    net, _ = fill_hf_hub(cache)
    overrides = {
        "network.name": "hf-hub:me/net",
        "data.name": f"imagefolder:{image_folder}",
        "optimizer.lr": 1e-12,
        "optimizer.weight_decay": 0,
        "schedule.warmup": 0,
        "epochs": 1,
        "data.validation": 0,
    }
    recipe = load_recipe("finetune", add_preprocessing("finetune", overrides, None))
    model = train(recipe, tmp_path / "run", quiet=True).model
    x = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(model(x), net(model.normalize(x)), rtol=1e-3, atol=1e-4)


def test_a_pretrained_run_resumes_without_the_weights_and_is_the_same(
    cache, tmp_path, monkeypatch, image_folder
):
    fill_hf(cache)
    overrides = {
        "network.name": "hf:me/vit",
        "data.name": f"imagefolder:{image_folder}",
        "data.validation": 0,
        "batch": 4,
        "epochs": 2,
    }
    recipe = load_recipe("finetune", add_preprocessing("finetune", overrides, None))
    whole = train(recipe, tmp_path / "whole", quiet=True)
    from killick.training import step_loop

    def stop(interrupted, processes):
        steps["done"] += 1
        return steps["done"] == 3

    steps = {"done": 0}
    with monkeypatch.context() as patch:
        patch.setattr(step_loop, "_any_process", stop)
        assert not train(recipe, tmp_path / "cut", quiet=True).finished
    use_caches(monkeypatch, tmp_path / "empty")
    again = train(None, tmp_path / "cut", resume=True, quiet=True)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    both = [
        json.loads((tmp_path / run / "model" / "config.json").read_text())
        for run in ("whole", "cut")
    ]
    assert both[0]["architecture"] == both[1]["architecture"]
    assert both[0]["provenance"]["recipe"] == both[1]["provenance"]["recipe"]


def test_bare_weights_are_shown_the_same_pixels_by_train_and_evaluate(
    tmp_path, image_folder, capsys
):
    torch.manual_seed(0)
    net = killick.nets.create("timm:test_byobnet", num_classes=4)
    torch.save(net.state_dict(), tmp_path / "net.pth")
    data, file = f"imagefolder:{image_folder}", str(tmp_path / "net.pth")
    run = tmp_path / "run"
    words = ["--network", "timm:test_byobnet", "--data", data, "--output", str(run), *SHORT]
    assert main(["train", "--from", file, *words]) == 0
    shown = capsys.readouterr().out
    assert "does not say which images it was trained on" in shown
    expected = open_model("timm:test_byobnet", checkpoint=tmp_path / "net.pth")
    model = killick.load(run)
    assert view_for(model).described == view_for(expected).described
    assert view_for(model).described == "160 of 168 px, bicubic"  # timm's, not 32 px
    assert model.normalize.mean == expected.normalize.mean
    assert main(["evaluate", str(run), "--suite", "clean"]) == 0
    assert "may have been trained on before this run" in " ".join(capsys.readouterr().out.split())
    free = [*words[:4], "--output", str(tmp_path / "free"), *SHORT[:-1], "0"]
    assert main(["train", "--from", file, *free]) == 0
    assert "does not say which images" not in capsys.readouterr().out


def test_a_run_on_other_data_keeps_the_preprocessing_of_its_network(tmp_path):
    small = {"data.limit": 40, "data.validation": 0, "epochs": 1, "batch": 20}
    own = {"data.size": 24, "data.interpolation": "bicubic", "protocol.name": "standard"}
    train(load_recipe("shapes-small", {**small, **own}), tmp_path / "run", quiet=True)
    mean = list(killick.load(tmp_path / "run").normalize.mean)
    found = add_preprocessing("finetune", {"data.name": "digits"}, tmp_path / "run")
    assert (found["data.size"], found["data.interpolation"]) == (24, "bicubic")
    assert found["data.mean"] == mean
    given = {"data.size": 16, "data.mean": [0.5] * 3, "data.std": [0.5] * 3}
    found = add_preprocessing("finetune", given, tmp_path / "run")
    assert (found["data.size"], found["data.mean"]) == (16, [0.5] * 3)


def test_arms_of_a_comparison_take_weights_and_their_preprocessing(cache, tmp_path):
    fill_timm(cache)
    arms = parse_arms(["standard", "finetuned", "scratch:protocol=standard,pretrained=none"])
    settings = {"network.name": "timm:test_resnet", "network.pretrained": "default"}
    jobs = make_jobs("finetune", settings, arms, [0], tmp_path, {})
    expected = timm.data.resolve_data_config(
        pretrained_cfg=timm.get_pretrained_cfg("test_resnet").to_dict()
    )
    sizes = [job.phases[0].recipe.data.size for job in jobs]
    assert sizes == [expected["input_size"][1]] * 2 + [32]
    assert jobs[0].phases[0].recipe.data.interpolation == expected["interpolation"]


def test_pretrained_weights_and_a_start_exclude_each_other(tmp_path, capsys):
    (tmp_path / "net.pth").touch()
    words = ["--from", str(tmp_path / "net.pth"), "--network", "timm:resnet18", "--pretrained"]
    assert main(["train", *words, "--data", "shapes"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_dropout_rate_can_be_given_with_pretrained_weights(cache, tmp_path, image_folder):
    net, _ = fill_hf_hub(cache)
    run = tmp_path / "run"
    words = ["--network", "hf-hub:me/net", "--network.arguments", "{drop_rate: 0.5}"]
    words += ["--data", f"imagefolder:{image_folder}", *SHORT, "--lr", "1e-12", "--quiet"]
    assert main(["train", *words, "--output", str(run)]) == 0
    model = killick.load(run)
    assert model.net.head_drop.p == 0.5
    x = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(model(x), logits_of(net(model.normalize(x))), rtol=1e-3, atol=1e-4)
