"""`killick evaluate` and `killick corrupt`: what they write and print, and how they fail."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import small

import killick
from killick.cli import main
from killick.results.rows import read_rows
from killick.training import train


@pytest.fixture(scope="module")
def trained(image_folder, tmp_path_factory):
    """A small anchored run with validation images."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(small(image_folder, data__validation=4, epochs=2), folder, quiet=True)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy, so that tests do not see each other's rows."""
    import shutil

    return shutil.copytree(trained, tmp_path / "small")


def test_a_run_is_evaluated_on_its_own_data_into_its_own_folder(run, capsys):
    words = ["--corruptions", "fog,contrast", "--synthetic", "noise,blobs"]
    assert main(["evaluate", str(run), *words]) == 0
    told = capsys.readouterr().out
    for word in ("top-1 %", "smooth ECE", "scaled", "AUROC %", "blobs", "2 chosen", "±"):
        assert word in told, word
    assert "4 validation images" in " ".join(told.split())
    rows = read_rows(run)
    assert {row["model"] for row in rows} == {"small"}
    assert {row["protocol"] for row in rows} == {"masked"}
    assert {row["target"] for row in rows} == {"label"}
    assert {row["suite"] for row in rows} == {"clean", "corruptions", "ood"}
    assert {row["scaling"] for row in rows} == {"", "temperature"}
    assert {(row["inference"], row["k"]) for row in rows} == {("single", 1), ("marginal", 2)}
    before = len(rows)
    assert main(["evaluate", str(run), *words, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert len(read_rows(run)) == before


@pytest.mark.parametrize(("asked", "told"), [(5, False), (6, True)])
def test_more_references_than_are_stored_are_told(run, capsys, asked, told):
    words = ["evaluate", str(run), "--suite", "clean", "--references", str(asked)]
    assert main(words) == 0
    said = f"the 2 stored references, not {asked}"
    assert (said in capsys.readouterr().out) == told


def test_the_test_accuracy_of_training_is_measured_again_alike(run):
    (before,) = [row for row in read_rows(run) if row["metric"] == "top1"]
    assert main(["evaluate", str(run), "--suite", "clean", "--quiet"]) == 0
    after = [r for r in read_rows(run) if r["metric"] == "top1" and r["inference"] == "single"]
    assert len(after) == 1
    assert after[0]["value"] == pytest.approx(before["value"])
    assert after[0]["std"] != ""


def test_a_shifted_or_ood_set_implies_its_suite(run, image_folder):
    words = ["--shift", f"other=imagefolder:{image_folder}", "--ood", f"x=images:{image_folder}"]
    assert main(["evaluate", str(run), "--suite", "clean", *words, "--quiet"]) == 0
    found = {(row["suite"], row["set"]) for row in read_rows(run)}
    assert {("shift", "other"), ("ood", "x")} < found


def test_several_models_get_one_report_of_this_evaluation(
    run, image_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    net = killick.nets.create("timm:resnet10t", num_classes=4)
    torch.save(net.state_dict(), "net.pth")
    assert main(["evaluate", str(run), "--suite", "clean,ood", "--quiet"]) == 0  # has more rows
    words = ["evaluate", str(run), "timm:resnet10t", "--checkpoint", "net.pth", "--size", "16"]
    words += ["--data", f"imagefolder:{image_folder}", "--suite", "clean", "--limit", "8"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "report is in report/report.html" in told
    with open("report/summary.csv", newline="") as file:
        found = {row["arm"]: row for row in csv.DictReader(file) if row["measure"] == "clean_top1"}
    assert found.keys() == {"timm:resnet10t", "masked-label"}
    for folder, arm in (
        (run, "masked-label"),
        ("evaluations/timm-resnet10t-net", "timm:resnet10t"),
    ):
        rows = [r for r in read_rows(Path(folder)) if (r["metric"], r["limit"]) == ("top1", 8)]
        assert float(found[arm]["mean"]) == rows[0]["value"]
    capsys.readouterr()
    for bad in (["--name", "x"], [str(run / "model")], ["timm:resnet18"]):
        assert main([*words, *bad]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_all_suites_run(run, image_folder, capsys):
    words = ["--suite", "all", "--shift", f"same=imagefolder:{image_folder}", "--limit", "8"]
    words += ["--ood", f"others=images:{image_folder}", "--severities", "1,5", "--references", "2"]
    assert main(["evaluate", str(run), *words]) == 0
    rows = read_rows(run)
    assert {r["suite"] for r in rows} == {
        *("clean", "corruptions", "cbar", "ood", "shift", "references", "occlusion"),
        *("adversarial", "multiplicity"),
    }
    assert {r["mean_of"] for r in rows if r["suite"] == "cbar"} == {"", "cbar-cifar"}
    assert {"disagreement", "conformal_raps_size"} <= {r["metric"] for r in rows}
    frost = next(r for r in rows if r["corruption"] == "frost")
    assert (frost["source"], frost["frost"]) == ("generated", "procedural")


def test_the_threshold_is_kept_in_the_model(run, image_folder, capsys):
    assert killick.load(run).threshold is None
    words = ["--suite", "ood", "--synthetic", "noise", "--accept", "0.75", "--store-threshold"]
    words += ["--ood", f"others=images:{image_folder}"]
    assert main(["evaluate", str(run), *words]) == 0
    assert "is stored in" in capsys.readouterr().out
    model = killick.load(run)
    assert model.threshold.acceptance == 0.75
    assert "validation (4, " in model.threshold.fitted_on
    rows = [r for r in read_rows(run) if (r["metric"], r["set"]) == ("accepted", "others")]
    assert model.threshold.refused == {"others": 1 - rows[-1]["value"]}  # without synthetic sets
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    assert killick.predict(model, images).in_distribution.shape == (2,)
    # Measured again with a threshold inside, the rows are of the same weights.
    assert main(["evaluate", str(run), *words, "--quiet"]) == 0


def test_a_network_by_name_is_evaluated_with_its_weights(
    image_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    net = killick.nets.create("timm:resnet18", num_classes=4)
    torch.save(net.state_dict(), "net.pth")
    words = ["timm:resnet18", "--checkpoint", "net.pth", "--data", f"imagefolder:{image_folder}"]
    assert main(["evaluate", *words, "--size", "32", "--suite", "clean"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "images of 32 px, bicubic, normalized by mean (0.485," in told
    rows = read_rows(tmp_path / "evaluations" / "timm-resnet18-net")
    other = killick.nets.create("timm:resnet18", num_classes=4)
    torch.save(other.state_dict(), "other.pth")
    again = [*words[:2], "other.pth", *words[3:], "--size", "32", "--suite", "clean", "--quiet"]
    assert main(["evaluate", *again]) == 0  # which takes no row of the first away
    assert read_rows(tmp_path / "evaluations" / "timm-resnet18-net") == rows
    assert len(read_rows(tmp_path / "evaluations" / "timm-resnet18-other")) == len(rows)
    assert {row["network"] for row in rows} == {"timm:resnet18"}
    assert {row["protocol"] for row in rows} == {"standard"}
    assert main(["evaluate", "timm:resnet18", "--data", f"imagefolder:{image_folder}"]) == 2
    assert "--checkpoint FILE" in capsys.readouterr().err
    assert main(["evaluate", "net.pth", "--data", f"imagefolder:{image_folder}"]) == 2
    assert "timm:NAME --checkpoint net.pth" in capsys.readouterr().err


def test_a_set_written_by_corrupt_scores_as_the_one_made_on_the_fly(run, tmp_path, capsys):
    """The same blocks, the same generators, the same pixels."""
    folder = tmp_path / "digits-c"
    words = ["--data", "digits", "--limit", "260", "--corruptions", "fog,spatter"]
    assert main(["corrupt", *words, "--output", str(folder)]) == 0
    assert "2 corruptions of 260 images" in capsys.readouterr().out
    array = np.load(folder / "fog.npy")
    assert (array.shape, array.dtype) == ((1300, 32, 32, 3), np.uint8)
    assert np.load(folder / "labels.npy").shape == (1300,)
    model = killick.standard(
        killick.nets.create("killick:resnet_small", num_classes=10).eval(),
        ((0.5,) * 3, (0.5,) * 3),
        image_shape=(3, 32, 32),
    )
    options = {"corruptions": ("fog", "spatter"), "limit": 260, "quiet": True}
    made = killick.evaluate(model, "digits", ("corruptions",), **options)
    read = killick.evaluate(
        model, "digits", ("corruptions",), corruption_files=str(folder), **options
    )
    for metric in ("nll", "top1"):
        a, b = ([r["value"] for r in rows if r["metric"] == metric] for rows in (made, read))
        assert a == pytest.approx(b, abs=1e-6)


def test_corrupt_does_not_mix_or_overwrite(image_folder, tmp_path, capsys):
    words = ["corrupt", "--data", "digits", "--corruptions", "contrast"]
    assert main([*words, "--limit", "10", "--output", str(tmp_path / "c"), "--quiet"]) == 0
    assert main([*words, "--limit", "20", "--output", str(tmp_path / "c"), "--quiet"]) == 2
    assert "has corruptions of other images" in capsys.readouterr().err
    assert np.load(tmp_path / "c" / "labels.npy").shape == (50,)
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        Image.new("RGB", (40, 30), (100, 120, 140)).save(tmp_path / kind / "1.png")
    both = [str(tmp_path / kind / "1.png") for kind in ("a", "b")]
    words = [
        "--corruptions",
        "gaussian_noise",
        "--severities",
        "5",
        "--output",
        str(tmp_path / "o"),
    ]
    assert main(["corrupt", *both, *words]) == 0
    made = [np.array(Image.open(file)) for file in sorted((tmp_path / "o").iterdir())]
    assert len(made) == 2
    assert not np.array_equal(*made)  # each its own noise
    assert main(["corrupt", both[0], "--sheet", both[0]]) == 2
    assert "another file for the sheet" in capsys.readouterr().err


def test_a_folder_is_evaluated_whole_by_whom_it_did_not_train(
    run, image_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(image_folder.parent)
    words = ["--suite", "clean", "--quiet"]
    same = f"imagefolder:./{image_folder.name}"  # the same data, written otherwise
    assert main(["evaluate", str(run), "--data", same, *words]) == 0
    (mine,) = {row["count"] for row in read_rows(run) if row["data"] == same}
    assert mine == 4
    torch.save(killick.nets.create("timm:resnet18", num_classes=4).state_dict(), tmp_path / "n.pth")
    other = ["timm:resnet18", "--checkpoint", str(tmp_path / "n.pth"), "--size", "32"]
    words += ["--data", f"imagefolder:{image_folder}", "--output", str(tmp_path / "out")]
    assert main(["evaluate", *other, *words]) == 0
    assert {row["count"] for row in read_rows(tmp_path / "out")} == {20}


def test_corrupt_keeps_what_is_there(tmp_path, capsys):
    words = ["--data", "digits", "--limit", "10", "--corruptions", "contrast"]
    assert main(["corrupt", *words, "--output", str(tmp_path), "--quiet"]) == 0
    stamp = (tmp_path / "contrast.npy").stat().st_mtime_ns
    assert main(["corrupt", *words, "--output", str(tmp_path)]) == 0
    assert "exists, and is kept" in capsys.readouterr().out
    assert (tmp_path / "contrast.npy").stat().st_mtime_ns == stamp


def test_a_contact_sheet_shows_every_corruption(tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    assert main(["corrupt", "--data", "digits", "--sheet", str(sheet), "--severities", "1,5"]) == 0
    assert "29 corruptions at 2 severities" in capsys.readouterr().out
    with Image.open(sheet) as page:
        assert page.height > 29 * 90
        assert page.width > 3 * 3 * 90


def test_images_are_corrupted_one_by_one(image_folder, tmp_path, capsys):
    words = [str(image_folder / "class0"), "--corruptions", "fog,cbar", "--severities", "2"]
    assert main(["corrupt", *words, "--output", str(tmp_path / "out")]) == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert len(names) == 5 * 11
    with Image.open(tmp_path / "out" / "0-fog-2.png") as made:
        assert made.size == (40, 36)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["evaluate", "RUN", "--suite", "clean,corruption"], "did you mean 'corruptions'"),
        (
            ["evaluate", "RUN", "--suite", "corruptions", "--corruptions", "fogs"],
            "did you mean 'fog'",
        ),
        (["evaluate", "RUN", "--suite", "corruptions", "--severities", "6"], "1 to 5, found 6"),
        (["evaluate", "RUN", "--data", "digits"], "classes of digits"),
        (["evaluate", "RUN", "--mean", "0,0,0"], "--mean and --std require"),
        (["evaluate", "RUN", "--mean", "0,0,0", "--std", "1,1,1"], "has its own"),
        (["evaluate", "RUN", "--severities", "1-5"], "--severities: takes"),
        (["corrupt", "--output", "zz"], "--output requires images"),
        (["evaluate", "RUN", "--ood", "x=images:gone"], "gone"),
        (["evaluate", "RUN", "--ood", "noise=digits"], "--ood noise"),
        (["evaluate", "RUN", "--class-map", "gone.json"], "--class-map gone.json"),
        (
            ["evaluate", "RUN", "--suite", "clean,shift", "--shift", "a=images:."],
            "have no classes",
        ),
        (["evaluate", "RUN", "--unknown"], "--unknown"),
        (["evaluate", "nowhere"], "nowhere"),
        (["evaluate", "timm:resnet18", "--store-threshold"], "--store-threshold requires"),
        (["corrupt"], "requires --sheet"),
        (["corrupt", "--sheet", "x.gif"], "must end in .png"),
        (["corrupt", "gone.jpg", "--sheet", "x.png"], "gone.jpg"),
        (
            ["corrupt", "--data", "digits", "--corruptions", "perlin_noise", "--sheet", "x.png"],
            "table",
        ),
        (["corrupt", "--data", "digits", "--severities", "1,9", "--sheet", "x.png"], "found 9"),
        (["corrupt", "a.png", "--data", "digits", "--sheet", "x.png"], "exclude each other"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run, tmp_path, monkeypatch, capsys, words, match):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")
    assert main([str(run) if word == "RUN" else word for word in words]) == 2
    told = capsys.readouterr().err
    assert match in told
    assert told.count("\n") == 1
    assert not list(tmp_path.glob("x.*"))
