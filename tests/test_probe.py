"""`killick probe`: a linear probe on the features of any model."""

import json

import pytest
import torch
from runs import small

import killick
from killick.cli import main
from killick.results.rows import read_rows
from killick.studies.adaptation.own_backbone import probe_model
from killick.training import train


@pytest.fixture(scope="module")
def runs(image_folder, tmp_path_factory):
    """An anchored and a standard run on images that their colour tells apart."""
    folder = tmp_path_factory.mktemp("probed")
    train(small(image_folder, epochs=1), folder / "anchored", quiet=True)
    train(
        small(image_folder, epochs=1, protocol={"name": "standard"}), folder / "plain", quiet=True
    )
    return folder


def test_a_probe_learns_what_the_features_tell_apart(runs, image_folder, tmp_path, capsys):
    words = ["--data", f"imagefolder:{image_folder}", "--epochs", "60", "--batch-size", "8"]
    for name, k in (("anchored", 1), ("plain", "")):
        output = tmp_path / name
        assert main(["probe", str(runs / name), *words, "--output", str(output)]) == 0
        assert "top-1 %" in capsys.readouterr().out
        rows = read_rows(output)
        (top1,) = [r for r in rows if (r["metric"], r["inference"]) == ("top1", "single")]
        assert (top1["model"], top1["k"]) == (f"{name}-probe", k)
        assert top1["value"] == 1.0
        about = json.loads(top1["components"])["probe"]
        assert (about["alpha"], about["target"]) == (0.4 if k else 0.0, "label")
        assert {r["inference"] for r in rows} == ({"single", "marginal"} if k else {"single"})


def test_the_same_call_gives_the_same_rows_and_options_count(runs, image_folder):
    data = f"imagefolder:{image_folder}"
    options = {"epochs": 2, "rates": (3.0,), "limit": 8}
    first, again, other = (
        probe_model(str(runs / "anchored"), data, **options, **more)
        for more in ({}, {}, {"alpha": 1.0, "target": "uniform"})
    )
    assert first == again
    assert {row["limit"] for row in first} == {8}
    assert [row["value"] for row in first] != [row["value"] for row in other]


def test_a_network_by_name_can_be_probed(image_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.save(killick.nets.create("timm:resnet10t", num_classes=1000).state_dict(), "net.pth")
    words = ["probe", "timm:resnet10t", "--checkpoint", "net.pth", "--epochs", "1", "--quiet"]
    assert main([*words, "--data", f"imagefolder:{image_folder}"]) == 0
    (folder,) = (tmp_path / "probes").iterdir()
    assert {row["model"] for row in read_rows(folder)} == {"timm:resnet10t-probe"}


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--alpha", "2"], "--alpha must be between"),
        (["--epochs", "0"], "--epochs must be"),
        (["--target", "mean"], "--target"),
        (["--data", "images:IMAGES"], "training and a test set"),
    ],
)
def test_mistakes_are_one_line(runs, image_folder, capsys, words, match):
    data = f"imagefolder:{image_folder}"
    words = [word.replace("IMAGES", str(image_folder)) for word in words]
    assert main(["probe", str(runs / "anchored"), "--data", data, *words]) == 2
    told = capsys.readouterr().err
    assert match in told
    assert told.count("\n") == 1
