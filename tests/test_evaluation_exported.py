"""Exported files are evaluated like the models they were made from."""

import csv
from pathlib import Path

import pytest
import torch
from runs import small

import killick
from killick.cli import main
from killick.deploy.exporter import export
from killick.errors import InstallError, OptionError, StorageError
from killick.evaluation import open_classifier as classifiers
from killick.training import train

SUITES = ("clean", "corruptions", "calibration", "ood")
FEW = {"limit": 60, "severities": (3,), "corruptions": ("contrast", "shot_noise"), "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    changes = {
        "data__name": "shapes",
        "data__size": 32,
        "data__limit": 400,
        "data__validation": 0,
        "network__arguments": {"width": 8, "stride": 2},
        "protocol__stored": 4,
        "batch": 25,
        "epochs": 6,
        "augment__crop": "none",
        "optimizer__lr": 0.05,
    }
    train(small(Path("nowhere"), **changes), folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def exports(run, tmp_path_factory):
    place = tmp_path_factory.mktemp("exports")
    made = {}

    def get(**options):
        key = "-".join(map(str, options.values()))
        if key not in made:
            export(run, place / key, limit=50, **options)
            made[key] = place / key
        return made[key]

    return get


def told(rows, inference="single"):
    """Values by what they are of."""
    of = ("suite", "set", "corruption", "severity", "scaling", "score", "metric")
    asked = [row for row in rows if row["inference"] in (inference, "")]
    return {tuple(row[key] for key in of): row["value"] for row in asked}


@pytest.mark.parametrize(("kind", "k"), [("onnx", 1), ("onnx", 3), ("torch", 1)])
def test_an_exported_file_has_the_rows_of_its_model(run, exports, kind, k, one_registry):
    rows = killick.evaluate(
        exports(format=kind, k=k), "shapes", SUITES, trust=kind == "torch", **FEW
    )
    found = told(rows)
    own = killick.evaluate(run, None, SUITES, references=k, **FEW)
    expected = told(own, "single" if k == 1 else "marginal")
    shared = [key for key in expected if key in found]
    assert {key[0] for key in shared} == {"clean", "corruptions", "ood"}
    assert {"top1", "nll", "smooth_ece", "auroc"} <= {key[-1] for key in shared}
    for key in shared:
        assert found[key] == pytest.approx(expected[key], abs=2e-3), key
    (facts,) = {(row["protocol"], row["precision"], row["network"]) for row in rows}
    assert facts == ("exported", "float32", "killick:resnet_small")
    assert {row["model"] for row in rows} == {f"{kind}-{k}"}
    assert {row["k"] for row in rows if row["suite"] == "clean"} <= {"", 1}


def test_an_exported_file_is_occluded_like_its_model_and_cannot_be_attacked(run, exports, capsys):
    file, suites = exports(format="onnx", k=1), ("occlusion", "adversarial")
    found = killick.evaluate(file, "shapes", suites, limit=60, quiet=False)
    assert "adversarial is left out: it requires gradients" in "".join(capsys.readouterr())
    own = killick.evaluate(run, None, ("occlusion",), references=1, limit=60)
    assert told(found) == pytest.approx(told(own), abs=2e-3)
    with pytest.raises(OptionError, match="requires gradients, and an exported file has none"):
        killick.evaluate(file, "shapes", ("adversarial",), limit=60)


def test_precisions_are_told_apart(exports, tmp_path, one_registry):
    weights = set()
    for precision in ("float32", "int8"):
        rows = killick.evaluate(
            exports(format="onnx", precision=precision),
            "shapes",
            ("clean",),
            folder=tmp_path / "rows",
            limit=60,
            quiet=True,
        )
        assert {row["precision"] for row in rows} == {precision}
        weights |= {row["weights"] for row in rows}
    assert len(weights) == 2  # so that rows of one are not taken for the other's
    with open(tmp_path / "rows" / "rows.csv", newline="") as file:
        assert len({row["weights"] for row in csv.DictReader(file)}) == 2


def test_the_command_takes_a_folder_or_its_file_and_reports(exports, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = exports(format="onnx", k=1)
    words = ["--data", "shapes", "--suite", "clean,calibration", "--limit", "60"]
    assert main(["evaluate", str(folder), *words]) == 0
    assert "are in evaluations/onnx-1/rows.csv" in capsys.readouterr().out
    assert main(["evaluate", str(folder / "model.onnx"), *words]) == 0
    assert "are in evaluations/onnx-1/rows.csv" in capsys.readouterr().out
    assert main(["report", "evaluations/onnx-1", "--quiet"]) == 0
    assert "onnx-1" in Path("evaluations/onnx-1/report.html").read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size": 64}, "has its own size.* found 64"),
        ({"resize": 40}, "has its own resize"),
        ({"precision": "bfloat16"}, "has its own precision, found bfloat16"),
        ({"normalize": ((0, 0, 0), (1, 1, 1))}, "has its own normalize"),
        ({"checkpoint": Path("net.pth")}, "has its own checkpoint"),
        ({"data": None}, "does not say what it was trained on"),
    ],
)
def test_what_a_file_has_decided_is_not_asked_for(exports, options, expected):
    asked = {"data": "shapes", "suites": ("clean",), "limit": 20, "quiet": True, **options}
    with pytest.raises(OptionError, match=expected):
        killick.evaluate(exports(format="onnx", k=1), **asked)


def test_files_that_cannot_be_asked_are_refused_by_name(exports, tmp_path, monkeypatch, capsys):
    with pytest.raises(OptionError, match="--trust"):
        killick.evaluate(exports(format="torch", k=1), "shapes", ("clean",), quiet=True)
    with pytest.raises(StorageError, match="found nothing there"):
        killick.evaluate(tmp_path / "gone.onnx", "shapes", ("clean",), quiet=True)
    (tmp_path / "other.onnx").write_bytes(b"no graph")
    with pytest.raises(StorageError, match="onnxruntime refuses it"):
        killick.evaluate(tmp_path / "other.onnx", "shapes", ("clean",), quiet=True)
    folder = exports(format="onnx", k=1)
    assert main(["evaluate", str(folder), "--data", "shapes", "--store-threshold"]) == 2
    assert "requires a Killick folder" in capsys.readouterr().err
    net = killick.nets.create("killick:resnet_small", width=8, num_classes=10).eval()
    floats = killick.anchor(net, example=torch.zeros(1, 3, 32, 32))
    floats.set_references(torch.zeros(1, 3, 32, 32))
    export(floats, tmp_path / "floats")
    with pytest.raises(OptionError, match="takes float32 of shape"):
        killick.evaluate(tmp_path / "floats", "shapes", ("clean",), quiet=True)


def test_a_runtime_without_the_device_asked_for_is_refused(exports, monkeypatch):
    opened = []

    def open_here(path, *, device, trust):
        opened.append(device)
        if device != "cpu":
            raise InstallError("no such runtime.")
        return exported_file(path, device=device, trust=trust)

    exported_file = classifiers.open_export
    monkeypatch.setattr(classifiers, "open_export", open_here)
    monkeypatch.setattr(classifiers, "choose_device", torch.device)
    gpu, folder = torch.device("cuda"), exports(format="onnx", k=1)
    assert classifiers.open_classifier(folder, device=gpu).classes == 10
    assert opened == ["cuda", "cpu"]
    with pytest.raises(InstallError):
        classifiers.open_classifier(folder, device="cuda")
