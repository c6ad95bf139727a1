"""`killick evaluate --inference transductive`: the bank of a run, its rows and its report."""

import csv

import pytest
import torch
from runs import small
from safetensors.torch import load_file

import killick
from killick.cli import main
from killick.data.batches import read_all
from killick.data.preprocessing import PlainView
from killick.data.sources import load_sets
from killick.errors import OptionError
from killick.evaluation import evaluator
from killick.evaluation.residual_banks import FILE
from killick.results.rows import read_rows
from killick.training import train


@pytest.fixture
def run(image_folder, tmp_path):
    folder = tmp_path / "mine"
    train(small(image_folder, epochs=2, protocol__stored=6), folder, quiet=True)
    return folder


def test_rows_are_those_of_transductive_prediction_with_the_bank_of_the_run(
    run, image_folder, tmp_path, monkeypatch
):
    words = ["evaluate", str(run), "--inference", "transductive", "--suite", "clean,ood"]
    assert main([*words, "--synthetic", "noise", "--quiet"]) == 0
    (row,) = [
        r for r in read_rows(run) if (r["metric"], r["model"]) == ("top1", "mine-transductive")
    ]
    assert (row["inference"], row["k"], row["std"]) == ("transductive", 6, "")
    model = killick.load(run).eval()
    model.set_residuals(load_file(run / FILE)["residuals"])
    test = load_sets(f"imagefolder:{image_folder}").test
    images = torch.cat(list(read_all(test, PlainView(16))))
    found = killick.predict(model, images, "transductive")
    assert row["value"] == pytest.approx((found.labels == test.labels).double().mean().item())

    def refuse(*given):
        raise AssertionError("the bank is there already")

    monkeypatch.setattr(evaluator, "load_train", refuse)
    assert main([*words, "--synthetic", "noise", "--again", "--quiet"]) == 0
    other = [*words, "--synthetic", "noise", "--resize", "24", "--again", "--quiet"]
    with pytest.raises(AssertionError, match="the bank is there"):  # but of other pixels
        main(other)
    assert main(["evaluate", str(run), "--suite", "clean", "--quiet"]) == 0
    assert main(["report", str(run), "--output", str(tmp_path / "page"), "--quiet"]) == 0
    with open(tmp_path / "page" / "summary.csv", newline="") as file:
        arms = {
            line["arm"]: line for line in csv.DictReader(file) if line["measure"] == "clean_top1"
        }
    assert arms.keys() == {"masked-label", "mine-transductive"}
    assert float(arms["mine-transductive"]["mean"]) == row["value"]


def test_models_that_cannot_are_refused(run, image_folder):
    data = f"imagefolder:{image_folder}"
    anchored = killick.load(run).eval()
    with pytest.raises(OptionError, match="has no bank of training residuals"):
        killick.evaluate(anchored, data, ("clean",), inference="transductive")
    assert len(anchored.residuals) == 0
    anchored.set_residuals(torch.zeros(4, 3, 16, 16))
    rows = killick.evaluate(anchored, data, ("clean",), inference="transductive", references=2)
    assert {row["k"] for row in rows} == {2}
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 4))
    net = killick.standard(net, ((0.5,) * 3, (0.5,) * 3), image_shape=(3, 16, 16)).eval()
    with pytest.raises(OptionError, match="requires an anchored model"):
        killick.evaluate(net, data, ("clean",), inference="transductive")
    with pytest.raises(OptionError, match="inference"):
        killick.evaluate(anchored, data, ("clean",), inference="best")
