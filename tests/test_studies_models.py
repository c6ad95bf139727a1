"""Studies of models that are trained already, and the paper's sets that are missing."""

import csv
import shutil
import statistics

import pytest
import torchvision
from hub_cache import put_url, use_caches
from runs import small

import killick
from killick.cli import main
from killick.results.rows import read_rows
from killick.studies import find_study
from killick.studies.paper_tables import read_published
from killick.studies.study import make_plan
from killick.training import train

pytestmark = pytest.mark.usefixtures("here")

NETWORK = "shufflenet_v2_x0_5"
# Of ImageNet; the second set has two of them.
KINDS = ("n01440764", "n01443537", "n01484850", "n01491361")
FEW = ["--corruptions", "fog,sparkles", "--severities", "3,5", "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, image_folder):
    """A masked and a standard run of seconds."""
    folder = tmp_path_factory.mktemp("runs")
    for name, protocol in (("masked", {}), ("plain", {"protocol": {"name": "standard"}})):
        changes = {"epochs": 1, "seed": len(name), **protocol}
        assert train(small(image_folder, **changes), folder / name, device="cpu").finished
    killick.save(killick.load(folder / "plain"), folder / "saved")
    return folder


def table_of(output, name="study-networks-table"):
    with open(output / "figures" / f"{name}.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row[next(iter(row))]: row for row in rows}


def run_study(tmp_path, *words, code=0):
    output = tmp_path / "out"
    assert main(["study", *words, "--output", str(output)]) == code
    return output


def test_runs_and_saved_models_are_evaluated_and_not_trained(trained, tmp_path, image_folder):
    models = [str(trained / name) for name in ("plain", "masked/model", "saved")]
    shift = [
        "--shift",
        f"imagenet-r=imagefolder:{image_folder}",
        "--shift",
        "mine=" + f"imagefolder:{image_folder}",
    ]
    output = run_study(
        tmp_path,
        "generalization",
        "--models",
        *models,
        *shift,
        *FEW,
        "--data",
        f"imagefolder:{image_folder}",
    )
    table = table_of(output)
    assert [*table][:3] == ["plain, standard", "masked, masked-label", "saved, standard"]
    (folder,) = output.glob("masked-seed*")
    assert not (folder / "model").exists()
    rows = [row for row in read_rows(folder) if row["inference"] == "single" and not row["scaling"]]

    def values(metric, **known):
        chosen = [row for row in rows if row["metric"] == metric and not row["mean_of"]]
        return [r["value"] for r in chosen if all(r[k] == v for k, v in known.items())]

    line = table["masked, masked-label"]
    (accuracy,) = values("top1", set="imagenet-r")
    assert line["R"] == line["mine"] == f"{100 * accuracy:.1f}"
    (fog,) = values("top1", corruption="fog", severity=5)
    assert line["c5"] == f"{100 * fog:.1f}"
    errors = [
        value
        for suite in ("corruptions", "cbar", "shift")
        for value in values("smooth_ece", suite=suite)
    ]
    assert len(errors) == 6
    assert line["smooth ECE: mean over sets"] == f"{statistics.fmean(errors):.3f}"
    assert line["smooth ECE: deviation over sets"] == f"{statistics.stdev(errors):.3f}"
    for same in ("clean", "c3", "R"):
        assert table["saved, standard"][same] == table["plain, standard"][same]
    paper = table["SwinV2-T, masked-label"]
    assert (paper["R"], paper["Sketch"], paper["c5"]) == ("41.17", "27.68", "38.58")
    assert paper["smooth ECE: mean over sets"] == "0.117"
    assert list(line)[:5] == ["network, protocol", "source", "clean", "c1", "c2"]
    page = (output / "report.html").read_text()
    assert "minus that of plain" in page
    assert 'id="shifted"' in page


def test_safety_takes_models_too(trained, tmp_path, image_folder):
    words = ["--models", str(trained / "masked"), "--data", f"imagefolder:{image_folder}", *FEW]
    output = run_study(tmp_path, "safety", *words, "--ood", f"dtd=images:{image_folder}")
    table = table_of(output, "study-safety-table")
    (folder,) = output.glob("masked-seed*")
    (area,) = [
        row["value"]
        for row in read_rows(folder)
        if (row["set"], row["metric"], row["score"]) == ("dtd", "auroc", "energy")
    ]
    assert table["masked"]["AUROC, %: Textures"] == f"{100 * area:.1f}"
    assert table["masked"]["AUROC, %: Vision OOD"] == "–"
    assert table["SwinV2-T, standard"]["AUROC, %: Vision OOD"] == "76.54"  # as in table 3
    assert table["SwinV2-S, masked-label"]["AUROC, %: Vision OOD"] == "79.56"
    assert table["SwinV2-T, standard"]["AUROC, %: Textures"] == "76.83"
    assert table["SwinV2-T, standard"]["smooth ECE: deviation over sets"] == "0.034"


def test_released_weights_by_name_with_a_set_of_some_classes(tmp_path, monkeypatch, image_folder):
    cache = use_caches(monkeypatch, tmp_path / "caches")
    net = torchvision.models.get_model(NETWORK)
    put_url(cache, torchvision.models.get_model_weights(NETWORK).DEFAULT.url, net)
    for number, kind in enumerate(KINDS):
        for place in ("val", "some") if number % 2 else ("val",):
            shutil.copytree(image_folder / f"class{number}", tmp_path / place / kind)
    words = ["--models", f"torchvision:{NETWORK}", "--data", f"imagefolder:{tmp_path / 'val'}"]
    words += ["--shift", f"R=imagefolder:{tmp_path / 'some'}", "--suite", "clean", "--limit", "8"]
    output = run_study(tmp_path, "generalization", *words, "--device", "cpu")
    rows = [row for folder in output.glob("*-seed0-*") for row in read_rows(folder)]
    (found,) = [row for row in rows if row["set"] == "R" and row["metric"] == "top1"]
    assert found["model"] == f"torchvision:{NETWORK}"
    line = table_of(output)[f"{NETWORK}, standard"]
    assert line["R"] == f"{100 * found['value']:.1f}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--models", "nowhere"], "no finished run or model at"),
        (["--models", "."], "no finished run or model at"),
        (["--models", "timm:resnet18", "--data", "imagenet:nowhere"], "no data at nowhere"),
        (["--recipe", "imagenet-swinv2-t"], "write --data imagenet:PATH"),
        (["--shift", "R=imagefolder:nowhere"], "write --shift R=imagefolder:PATH"),
        (["--models", "nowhere:net"], "no model at nowhere:net"),
        (["--models", "timm:resnet18"], "timm:resnet18 needs --data"),
        (["--models", "a", "b/a"], "two of the models are named a"),
        (["--models", "a", "--epochs", "3"], "--epochs has no effect"),
        (["--models", "a", "--protocols", "standard"], "--protocols has no effect"),
        (["--models", "a", "--seeds", "0,1"], "--seeds has no effect"),
    ],
)
def test_mistakes_are_one_line(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "generalization", *words]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_the_papers_sets_that_are_missing_are_named(tmp_path):
    def missing(study, size="paper", **options):
        return make_plan(find_study(study), size, **options).missing_sets

    every = missing("safety")
    for name in ("R", "Sketch", "iSUN", "Textures", "Places365", "NINCO"):
        assert name in every
    shift = {"imagenet-r": "x", "ImageNet-Sketch": "y"}
    ood = {name: "x" for name in ("isun", "DTD", "Places365")}
    assert missing("safety", evaluation={"shift": shift, "ood": ood}).endswith(
        "NINCO (--ood NINCO=images:PATH)"
    )
    ood["ninco"] = "x"
    assert missing("safety", evaluation={"shift": shift, "ood": ood}) == ""
    assert missing("safety", "small") == missing("generalization") == ""  # no ImageNet
    assert "R, Sketch" in missing("generalization", recipe="imagenet-swinv2-t")
    models = {"models": ["runs/a"], "settings": {"data.name": "imagenet:here"}}
    assert "Sketch" in missing("generalization", **models)
    folder = {"data.name": f"imagefolder:{tmp_path}"}
    assert missing("safety", settings=folder) == ""
    (tmp_path / "val" / "n15075141").mkdir(parents=True)
    assert "Sketch" in missing("safety", settings=folder)


def test_published_values_are_those_of_table_6():
    """Spot checks of what the means over severities must give."""
    rows = {(row["data"], row["network"], row["protocol"]): row for row in read_published()}
    assert len(rows) == 21
    assert all(bool(row["smooth_ece"]) == (row["data"] == "ImageNet") for row in rows.values())
    best = rows["ImageNet", "SwinV2-B", "masked-label"]
    assert (best["smooth_ece"], best["smooth_ece_std"]) == ("0.124", "0.051")
    ood = [best[name] for name in ("isun", "textures", "places365", "ninco")]
    assert ood == ["87.34", "75.74", "73.66", "74.53"]
    assert rows["ImageNet", "ViT-B/16", "anchored"]["ninco"] == ""
