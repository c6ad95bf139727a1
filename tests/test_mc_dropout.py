"""MC dropout: the mean of predictions with dropout on, of networks and of trained components."""

import pytest
import torch
from runs import small
from torch import nn

import killick
from killick.cli import main
from killick.errors import OptionError
from killick.evaluation.mc_dropout import MCDropout, find_dropout, mean_logits
from killick.experiments.experiment import plan_comparison
from killick.results.rows import read_rows
from killick.training import train

IMAGES = torch.randint(256, (8, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
LABELS = torch.arange(8) % 3


def make_model(rate=0.5):
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Dropout(rate), nn.Linear(64, 3)]
    return killick.standard(nn.Sequential(*layers), ((0,) * 3, (1,) * 3), image_shape=(3, 8, 8))


def nll(model, **options):
    rows = killick.evaluate(model, (IMAGES, LABELS), ("clean",), **options)
    (found,) = [row for row in rows if row["metric"] == "nll" and row["scaling"] == ""]
    return found


def test_the_mean_is_that_of_probabilities():
    logits = torch.randn(5, 4, 3)
    expected = logits.double().softmax(2).mean(0)
    assert torch.allclose(mean_logits(logits)[0].softmax(1).double(), expected, atol=1e-6)


def test_many_draws_approach_the_expected_prediction_and_one_seed_repeats():
    model = make_model().eval()
    with torch.no_grad():
        model.net[3].training = True
        torch.manual_seed(5)
        drawn = torch.stack([model(IMAGES).double().softmax(1) for _ in range(4000)]).mean(0)
        model.net[3].training = False
    expected = -drawn[torch.arange(8), LABELS].log().mean().item()
    found = nll(model, inference="mc-dropout", draws=2000)
    assert found["value"] == pytest.approx(expected, rel=0.01)
    assert found["inference"] == "mc-dropout"
    assert found["model"].endswith("-mc-dropout2000")
    few = [nll(model, inference="mc-dropout", draws=5, seed=s)["value"] for s in (0, 0, 1)]
    assert few[0] == few[1] != few[2]
    assert not any(module.training for module in model.modules())
    assert nll(model)["value"] != pytest.approx(expected, rel=1e-4)  # without it


def test_no_value_depends_on_the_batch_size():
    images = torch.randint(256, (600, 3, 8, 8), generator=torch.Generator().manual_seed(1)).byte()
    data, suites = (images, torch.arange(600) % 3), ("clean", "corruptions", "adversarial")
    found = []
    for batch in (50, 250, 600):
        rows = killick.evaluate(
            *(make_model(), data, suites),
            inference="mc-dropout",
            draws=3,
            batch=batch,
            corruptions=("fog",),
            severities=(3,),
        )
        found.append([row["value"] for row in rows])
    assert found[0] == found[1] == found[2]


def test_dropout_of_the_training_is_on_again(image_folder, tmp_path):
    recipe = small(image_folder, epochs=1, components=[{"name": "dropout", "rate": 0.5}])
    train(recipe, tmp_path / "run", quiet=True)
    words = ["evaluate", str(tmp_path / "run"), "--suite", "clean", "--quiet"]
    assert main([*words, "--inference", "mc-dropout", "--draws", "4"]) == 0
    rows = read_rows(tmp_path / "run")
    assert {row["k"] for row in rows if row["inference"] == "mc-dropout"} == {1}
    model = killick.load(tmp_path / "run").eval()
    images = torch.randint(256, (4, *model.image_shape)).byte()
    before = model(images)
    sampler = MCDropout(model, model.provenance["recipe"], 3, 0)
    assert torch.equal(model(images), before)
    with sampler.drawing():
        assert not torch.equal(model(images), before)
    assert torch.equal(model(images), before)


def test_rates_are_those_of_layers_and_of_both_components():
    listed = [
        {"name": name, "rate": 0.1} for name in ("dropout", "multi_sample_dropout", "dropblock")
    ]
    layers, rates = find_dropout(make_model(), listed)
    assert [layer.p for layer in layers] == [0.5]
    assert rates == [0.1, 0.1]


def test_arms_without_dropout_are_refused_before_training(tmp_path):
    recipe = "shapes-small"
    with pytest.raises(OptionError, match="found neither"):
        plan_comparison(recipe, {}, ["mc-dropout"], [0], tmp_path, {})
    plan_comparison(recipe, {}, ["multi_sample_dropout+mc-dropout"], [0], tmp_path, {})
    dropping = {"network.name": "timm:test_vit", "network.arguments": {"drop_rate": 0.1}}
    plan_comparison(recipe, dropping, ["mc-dropout"], [0], tmp_path, {})


def test_networks_without_dropout_are_refused():
    with pytest.raises(OptionError, match="--regularizer dropout"):
        nll(make_model(rate=0.0), inference="mc-dropout")
    with pytest.raises(OptionError, match="at least 2 draws"):
        nll(make_model(), inference="mc-dropout", draws=1)
