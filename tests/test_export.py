"""`killick.export`: the file is the model, and says all there is to know about itself."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from runs import small

import killick
from killick.cli import main
from killick.data.sources import load_sets
from killick.deploy import exporter as exporting
from killick.deploy import parity as comparing
from killick.deploy.export_sets import read_some
from killick.deploy.exporter import export
from killick.deploy.parity import make_examples
from killick.errors import DataError, InstallError, OptionError, OutputError, StorageError
from killick.storage.export_metadata import PRECISIONS, read_metadata
from killick.storage.exported_file import is_export, open_export
from killick.training import train
from killick.training.recipe_files import make_recipe
from killick.training.training_data import sets_of

pytestmark = pytest.mark.usefixtures("one_registry")


@pytest.fixture(scope="module")
def shapes_run(tmp_path_factory):
    """A run on embedded shapes that has learned something, with validation images."""
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    changes = {
        "data__name": "shapes",
        "data__size": 32,
        "data__limit": 600,
        "data__validation": 200,
        "network__arguments": {"width": 8, "stride": 2},
        "protocol__stored": 4,
        "protocol__alpha": 0.1,
        "batch": 25,
        "epochs": 14,
        "augment__crop": "none",
        "optimizer__lr": 0.05,
    }
    train(small(Path("nowhere"), **changes), folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def model(shapes_run):
    return killick.load(shapes_run)


@pytest.fixture(scope="module")
def some_images():
    return load_sets("shapes").test.images()[:100]


@pytest.fixture(scope="module")
def validation(model):
    return sets_of(make_recipe(model.provenance["recipe"])).validation


@pytest.fixture(scope="module")
def exports(shapes_run, tmp_path_factory):
    """Exports of the run, each made once."""
    place, made = tmp_path_factory.mktemp("exports"), {}

    def get(format="onnx", precision="float32", k=1):
        key = f"{format}-{precision}-{k}"
        if key not in made:
            made[key] = export(
                shapes_run, place / key, format=format, precision=precision, k=k, limit=300
            )
        return made[key]

    return get


KINDS = [
    ("onnx", "float32", 3),
    ("onnx", "int8", 1),
    ("torch", "float32", 1),
    pytest.param(("onnx", "float16", 1), marks=pytest.mark.slow),
    pytest.param(("onnx", "bfloat16", 1), marks=pytest.mark.slow),
    pytest.param(("torch", "float32", 3), marks=pytest.mark.slow),
    pytest.param(("torch", "bfloat16", 1), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("format", "k"), [("onnx", 3), ("torch", 1)])
@pytest.mark.parametrize("n", [1, 64])
def test_the_file_computes_what_killick_predict_does(exports, model, some_images, format, k, n):
    exported = exports(format, "float32", k)
    x = some_images[:n]
    found = exported(x)
    said = killick.predict(model, x, "marginal", k) if k > 1 else killick.predict(model, x)
    assert torch.allclose(found["logits"], said.logits, atol=1e-4)
    assert torch.allclose(found["probabilities"], said.probs, atol=1e-5)
    assert torch.allclose(found["energy"], said.energy, atol=1e-4)
    assert ("std" in found) == (k > 1)
    if k > 1:
        assert torch.allclose(found["std"], said.std, atol=1e-5)
    assert found["in_distribution"].dtype == torch.bool
    assert found["in_distribution"].shape == (n,)
    threshold = np.float32(exported.threshold.energy)
    assert found["in_distribution"].tolist() == (found["energy"].numpy() <= threshold).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_is_measured_against_the_model(exports, model, kind):
    exported = exports(*kind)
    about, figures = exported.about, exported.about.measured["images"]
    assert (about.file_format, about.precision, about.k) == kind
    # The oracle: labels and images of the test set by hand.
    images, labels = read_some(model, load_sets("shapes").test, 300)
    said = killick.predict(model, images, "marginal", kind[2]).logits.argmax(1)
    found = exported(images)["logits"].argmax(1)
    assert figures["count"] == 300
    assert figures["accuracy"] == pytest.approx(float((found == labels).float().mean()))
    assert figures["model_accuracy"] == pytest.approx(float((said == labels).float().mean()))
    assert figures["same_label"] == pytest.approx(float((found == said).float().mean()))
    assert figures["model_accuracy"] > 0.3, "a model that has learned nothing tests nothing"
    least = {"float32": 1.0, "float16": 0.98, "bfloat16": 0.96, "int8": 0.9}[kind[1]]
    assert figures["same_label"] >= least
    most = {"float32": 1e-5, "float16": 0.01, "bfloat16": 0.05, "int8": 0.2}[kind[1]]
    assert 0 < figures["largest_probability_difference"] < most
    if kind[1] != "float32":
        assert figures["largest_probability_difference"] > 1e-5


@pytest.mark.slow
def test_fewer_bits_are_fewer_bytes(exports):
    sizes = {p: exports("onnx", p).path.stat().st_size for p in PRECISIONS}
    assert sizes["float16"] < 0.7 * sizes["float32"]
    assert sizes["bfloat16"] < 0.8 * sizes["float32"]
    assert sizes["int8"] < sizes["bfloat16"] * 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_the_threshold_accepts_its_share_of_validation_images_in_every_precision(
    exports, validation, kind
):
    exported = exports(*kind)
    threshold = exported.threshold
    assert (threshold.acceptance, threshold.k) == (0.95, kind[2])
    assert threshold.fitted_on == "shapes, validation (200)"
    images = validation.images()
    energies = exported(images)["energy"]
    assert float((energies <= threshold.energy).float().mean()) == pytest.approx(0.95)
    assert float(exported(images)["in_distribution"].float().mean()) == pytest.approx(0.95)


def test_the_file_says_what_it_is(exports, model):
    about = exports("onnx", "float32", 3).about
    assert about.class_names == model.class_names
    assert about.image_shape == (3, 32, 32)
    assert about.takes == "uint8"
    assert about.name == "shapes"
    assert about.network == "killick:resnet_small"
    assert about.weights == killick.storage.weights.digest_weights(model)
    assert "3 references" in about.references
    assert "training images" in about.references
    folder = exports("onnx", "float32", 3).path.parent
    assert read_metadata((folder / "model.json").read_text(), "model.json") == about
    graph = onnx.load(folder / "model.onnx")
    assert graph.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    onnx.checker.check_model(graph)


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_tells_where_it_was_made(exports, kind):
    folder = exports(*kind).path.parent
    here = [
        os.fspath(Path(killick.__file__).parent),
        "site-packages",
        "torch/nn/modules",
        os.getcwd(),
    ]
    for file in folder.iterdir():
        content = file.read_bytes()
        for word in [*here, "stack_trace", "nn_module_stack"]:
            assert word.encode() not in content, (file.name, word)


@pytest.mark.slow
def test_the_first_sum_is_led_back_to_the_blocks_of_onnxruntime(tmp_path):
    net = killick.nets.create("killick:resnet_small", num_classes=3, width=16)
    model = killick.standard(net, ((0.5,) * 3, (0.2,) * 3), image_shape=(3, 16, 16)).eval()
    model = killick.anchor(model).eval()
    model.set_references(torch.randint(256, (1, 3, 16, 16)).to(torch.uint8))
    exported = export(model, tmp_path / "out")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(exported.path, options, providers=["CPUExecutionProvider"])
    ops = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert "MaxPool" in ops
    if "ReorderInput" in ops:  # not every processor has blocks
        assert ops.count("ReorderInput") == 1, ops
        assert ops.count("Add") == 1, ops


def test_int8_products_are_in_int8(exports):
    graph = onnx.load(exports("onnx", "int8").path)
    weights = [t for t in graph.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    assert len(weights) >= 5
    # Seven bits, so that processors without VNNI do not overflow.
    assert max(int(np.abs(onnx.numpy_helper.to_array(t)).max()) for t in weights) <= 64


def run_check(folder: Path) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "check.py"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "kind", [("onnx", "float32", 3), ("onnx", "int8", 1), ("torch", "float32", 1)]
)
def test_the_check_passes_beside_the_file(exports, kind, tmp_path):
    folder = shutil.copytree(exports(*kind).path.parent, tmp_path / "elsewhere")
    done = run_check(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 examples give what they gave" in done.stdout


@pytest.mark.parametrize("output", ["logits", "in_distribution"])
def test_the_check_fails_when_any_output_is_another(exports, output, tmp_path):
    folder = shutil.copytree(exports("onnx", "float32", 3).path.parent, tmp_path / "elsewhere")
    with np.load(folder / "examples.npz") as file:
        kept = dict(file)
    if output == "in_distribution":
        threshold = json.loads((folder / "model.json").read_text())["threshold"]["energy"]
        far = np.abs(kept["energy"] - threshold)
        kept[output][far.argmax()] ^= True
    else:
        kept[output].flat[3] += 0.01
    np.savez(folder / "examples.npz", **kept)
    done = run_check(folder)
    assert done.returncode == 1
    assert f"NOT THE SAME: {output}" in done.stdout


@pytest.mark.parametrize("name", ["model.onnx", "model.json", "examples.npz", "onnxruntime.py"])
def test_what_the_check_cannot_read_or_import_is_one_line(exports, name, tmp_path):
    folder = shutil.copytree(exports().path.parent, tmp_path / "elsewhere")
    broken = "raise ImportError('not installed')" if name == "onnxruntime.py" else "no such thing"
    (folder / name).write_text(broken)
    done = run_check(folder)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("cannot check: ")


def test_the_check_fails_for_another_network(exports, tmp_path):
    folder = shutil.copytree(exports().path.parent, tmp_path / "elsewhere")
    shutil.copy(exports("onnx", "int8").path, folder / "model.onnx")
    done = run_check(folder)
    assert done.returncode == 1
    assert "NOT THE SAME" in done.stdout


def test_examples_are_images_of_nothing_and_always_the_same():
    images = make_examples((3, 32, 32), "uint8")
    assert images.shape == (8, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert torch.equal(images, make_examples((3, 32, 32), "uint8"))
    assert len({image.numpy().tobytes() for image in images}) == 8
    assert make_examples((5,), "float32").shape == (8, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_threshold_in_the_file_is_that_of_its_metadata(exports, kind):
    exported = exports(*kind)
    stored = np.float32(exported.threshold.energy)
    if kind[0] == "onnx":
        graph = onnx.load(exported.path).graph
        (kept,) = [t for t in graph.initializer if t.name == "threshold"]
        assert onnx.numpy_helper.to_array(kept) == stored
    else:
        assert torch.export.load(exported.path).state_dict["threshold"].numpy() == stored


def test_exporting_twice_gives_the_same_bytes_and_replaces_the_folder(
    shapes_run, tmp_path, one_registry
):
    for place in ("a", "b", "b"):
        one_registry.cache_clear()
        export(shapes_run, tmp_path / place, name="same", limit=20)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_stored_threshold_is_kept_and_another_share_is_fitted(model, some_images, tmp_path):
    own = copy.deepcopy(model)
    stored = killick.fit_threshold(own, some_images, 0.5, fitted_on="mine")
    kept = export(own, tmp_path / "kept", limit=50)
    assert kept.threshold == stored
    assert float(kept(some_images)["in_distribution"].float().mean()) == pytest.approx(
        0.5, abs=0.02
    )
    fitted = export(own, tmp_path / "fitted", acceptance=0.8, limit=50)
    assert fitted.threshold.acceptance == 0.8
    assert fitted.threshold.energy != stored.energy
    # For two references that which is stored does not hold.
    other = export(own, tmp_path / "other", k=2, limit=50)
    assert (other.threshold.k, other.threshold.acceptance) == (2, 0.5)


def test_without_images_there_is_no_verdict_and_that_is_said(model, tmp_path):
    told: list[str] = []
    bare = copy.deepcopy(model)
    bare.provenance = {}
    exported = export(bare, tmp_path / "bare", format="torch", say=told.append)
    assert exported.about.outputs == ("logits", "probabilities", "energy")
    assert exported.threshold is None
    assert "images" not in exported.about.measured
    assert any("No threshold" in line for line in told)
    assert any("accuracy was not measured" in line for line in told)
    with pytest.raises(OptionError, match="90%"):
        export(bare, tmp_path / "more", acceptance=0.9)
    with pytest.raises(DataError, match="to calibrate int8 with"):
        export(bare, tmp_path / "more", precision="int8")
    with pytest.raises(DataError, match="to make mean references of"):
        export(bare, tmp_path / "more", references="mean")
    assert [p.name for p in tmp_path.iterdir()] == ["bare"]


def test_data_that_is_gone_does_not_stop_an_export(model, tmp_path):
    told: list[str] = []
    moved = copy.deepcopy(model)
    moved.provenance["recipe"]["data"]["name"] = f"imagefolder:{tmp_path / 'gone'}"
    export(moved, tmp_path / "moved", format="torch", say=told.append)
    assert any("cannot be read" in line and "gone" in line for line in told)


def test_given_images_are_used_instead_of_the_models_own(model, some_images, tmp_path):
    sets = load_sets("shapes")
    labels = sets.test.labels[:100]
    exported = export(
        model,
        tmp_path / "given",
        data=(some_images, labels),
        validation=some_images[:40],
        limit=500,
    )
    assert exported.about.measured["images"]["count"] == 100
    assert exported.threshold.fitted_on == "validation (40)"
    energies = exported(some_images[:40])["energy"]
    assert float((energies <= exported.threshold.energy).float().mean()) == pytest.approx(0.95)


def test_validation_images_are_never_those_it_is_measured_on(shapes_run, tmp_path):
    with pytest.raises(DataError, match="tested on"):
        export(shapes_run, tmp_path / "out", validation="shapes")
    # With data alone the threshold is fitted on what the run set aside.
    exported = export(shapes_run, tmp_path / "out", data="shapes", format="torch", limit=50)
    assert exported.threshold.fitted_on == "shapes, validation (50)"


@pytest.mark.slow
def test_the_share_that_was_chosen_holds_for_other_references_and_precisions(model, tmp_path):
    own = copy.deepcopy(model)
    stored = killick.fit_threshold(own, load_sets("shapes").test.images()[:50], 0.8)
    for number, options in enumerate(({"references": "mean"}, {"precision": "float16"})):
        exported = export(own, tmp_path / str(number), format="torch", limit=50, **options)
        assert exported.threshold.acceptance == 0.8
        assert exported.threshold.energy != stored.energy
        assert exported.threshold.fitted_on == "shapes, validation (50)"


def test_a_policy_in_somebodys_words_promises_nothing(model, tmp_path):
    own = copy.deepcopy(model)
    own.set_references(own.references, policy="mean-centred training images")
    exported = export(own, tmp_path / "out", format="torch", limit=20)
    assert "usually training images" in exported.about.references


def test_a_strangers_recipe_fetches_nothing_and_other_classes_are_not_used(model, tmp_path):
    told: list[str] = []
    own = copy.deepcopy(model)
    own.provenance["recipe"]["data"].update(name="cifar10", download=True, root=str(tmp_path / "x"))
    export(own, tmp_path / "a", format="torch", say=told.append)
    assert not (tmp_path / "x").exists()
    assert any("cannot be read" in line for line in told)
    told.clear()
    own.provenance["recipe"]["data"].update(name="digits", root=None)
    exported = export(own, tmp_path / "b", format="torch", say=told.append)
    assert any("digits has other classes" in line for line in told)
    assert exported.threshold is None


@pytest.mark.slow
def test_images_of_other_classes_have_no_accuracy(model, tmp_path):
    exported = export(model, tmp_path / "out", data="digits", format="torch", limit=50)
    assert "accuracy" not in exported.about.measured["images"]
    names = tuple(reversed(model.class_names))
    images = load_sets("shapes").test
    turned = type(images).of("turned", images.images(), 9 - images.labels, names)
    again = export(model, tmp_path / "again", data=turned, format="torch", limit=300)
    whole = export(model, tmp_path / "whole", data="shapes", format="torch", limit=300)
    accuracies = [e.about.measured["images"]["accuracy"] for e in (again, whole)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.06)
    assert accuracies[0] > 0.3


@pytest.mark.parametrize("kind", ["mean", pytest.param("synthetic", marks=pytest.mark.slow)])
def test_references_that_are_nobodys_images_have_their_cost_measured(
    shapes_run, model, kind, tmp_path
):
    exported = export(shapes_run, tmp_path / kind, references=kind, limit=300)
    assert "no training image is in the file" in exported.about.references
    figures = exported.about.measured["images"]
    # Compared with the model as it was, from its stored reference.
    images, labels = read_some(model, load_sets("shapes").test, 300)
    said = killick.predict(model, images).logits.argmax(1)
    assert figures["model_accuracy"] == pytest.approx(float((said == labels).float().mean()))
    assert figures["same_label"] < 1
    # And with what the references make of the model, it is the same.
    assert exported.about.measured["examples"]["probabilities"] < 1e-4


def test_a_standard_model_and_floats_and_vectors_can_be_exported(tmp_path):
    torch.manual_seed(0)
    net = killick.nets.create("killick:resnet_small", num_classes=3)
    standard = killick.standard(net, ((0.5,) * 3, (0.2,) * 3), image_shape=(3, 16, 16)).eval()
    exported = export(standard, tmp_path / "standard")
    assert (exported.about.k, exported.about.references) == (0, "none: a standard model")
    x = make_examples((3, 16, 16), "uint8")
    with torch.no_grad():
        assert torch.allclose(exported(x)["logits"], standard(x), atol=1e-5)
    floats = killick.anchor(net, example=torch.rand(2, 3, 16, 16)).eval()
    floats.set_references(torch.rand(2, 3, 16, 16))
    exported = export(floats, tmp_path / "floats", k=2)
    x = torch.randn(3, 3, 16, 16)
    assert exported.about.takes == "float32"
    assert torch.allclose(
        exported(x)["logits"], killick.predict(floats, x, "marginal", 2).logits, atol=1e-5
    )
    vectors = killick.anchor(torch.nn.Linear(5, 3)).eval().set_references(torch.randn(1, 5))
    exported = export(vectors, tmp_path / "vectors")
    x = torch.randn(9, 5)
    with torch.no_grad():
        assert torch.allclose(exported(x)["logits"], vectors(x), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"format": "onx"}, OptionError, "did you mean 'onnx'"),
        ({"precision": "fp16"}, OptionError, "'float16'"),
        ({"references": "none"}, OptionError, "'stored', 'mean', 'synthetic'"),
        ({"format": "torch", "precision": "int8"}, OptionError, "int8 requires"),
        ({"k": 0}, OptionError, "k must be at least 1"),
        ({"k": 99}, killick.errors.ReferencesError, "99"),
        ({"acceptance": 1.5}, OptionError, "between 0 and 1"),
        ({"k": 2, "references": "mean"}, OptionError, "k of 1"),
        ({"data": "imagefolder:/gone"}, DataError, "gone"),
        ({"limit": 0}, OptionError, "at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(shapes_run, tmp_path, options, error, words):
    with pytest.raises(error, match=words) as told:
        export(shapes_run, tmp_path / "out", **options)
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


def test_a_standard_model_has_no_references_to_choose(tmp_path):
    net = killick.nets.create("killick:resnet_small", num_classes=3)
    model = killick.standard(net, ((0.5,) * 3, (0.2,) * 3), image_shape=(3, 16, 16)).eval()
    for options in ({"k": 2}, {"references": "mean"}):
        with pytest.raises(OptionError, match="no references"):
            export(model, tmp_path / "out", **options)


def test_a_folder_with_something_else_is_refused(shapes_run, exports, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years")
    (tmp_path / "file").write_text("years")
    (tmp_path / "alike").mkdir()
    for name in ("model.json", "check.py"):
        (tmp_path / "alike" / name).write_text("{}")
    shutil.copytree(exports().path.parent, tmp_path / "with-labels")
    (tmp_path / "with-labels" / "labels.csv").write_text("years")
    for name in ("thesis", "file", "alike", "with-labels"):
        with pytest.raises(StorageError, match="expected a new folder"):
            export(shapes_run, tmp_path / name)
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == "years"
    assert (tmp_path / "with-labels" / "labels.csv").read_text() == "years"


def test_an_export_goes_where_a_link_leads_and_the_link_stays(shapes_run, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    export(shapes_run, tmp_path / "link", format="torch", limit=20)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "model.pt2").is_file()


@pytest.mark.parametrize("moment", ["examples", "place"])
def test_a_full_disk_leaves_the_old_export_whole(shapes_run, tmp_path, monkeypatch, moment):
    export(shapes_run, tmp_path / "out", format="torch", limit=20)
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    rename = os.rename

    def full(*places, **kwargs):
        if moment == "place" and os.path.basename(places[0]) != "new":
            return rename(*places)
        raise OSError(28, "No space left on device")

    if moment == "examples":
        monkeypatch.setattr(exporting.shutil, "copyfile", full)
    else:
        monkeypatch.setattr(os, "rename", full)
    with pytest.raises(StorageError, match="No space left on device"):
        export(shapes_run, tmp_path / "out", format="torch", limit=20, k=2)
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_file_that_is_not_the_model_is_never_written(model, tmp_path, monkeypatch):
    told = comparing.model_outputs

    def wrong(*args):
        said = told(*args)
        return {**said, "logits": said["logits"] + 0.01}

    monkeypatch.setattr(exporting, "model_outputs", wrong)
    with pytest.raises(OutputError, match="logits of the file"):
        export(model, tmp_path / "out", limit=20)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["probabilities", "energy", "std"])
def test_every_output_must_be_the_models(model, tmp_path, monkeypatch, output):
    told = comparing.model_outputs

    def wrong(*args):
        said = told(*args)
        return {**said, output: said[output] + 0.01}

    monkeypatch.setattr(exporting, "model_outputs", wrong)
    with pytest.raises(OutputError, match=f"{output} of the file"):
        export(model, tmp_path / "out", format="torch", k=2, limit=20)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_files_of_fewer_bits_must_be_the_model_too(model, tmp_path, monkeypatch, precision):
    told = comparing.model_outputs
    monkeypatch.setattr(
        exporting, "model_outputs", lambda *args: {k: v.flip(-1) for k, v in told(*args).items()}
    )
    with pytest.raises(OutputError, match="logits of the file"):
        export(model, tmp_path / "out", precision=precision, limit=20)
    assert not list(tmp_path.iterdir())


class Mixing(torch.nn.Module):
    """What it says of an image depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 3)

    def forward(self, x):
        y = self.first(x)
        return y - y.mean(0, keepdim=True)


def test_a_network_that_mixes_the_images_of_a_batch_is_refused(tmp_path):
    model = killick.standard(Mixing().eval(), image_shape=(4,)).eval()
    with pytest.raises(OutputError, match="mixes the images of a batch"):
        export(model, tmp_path / "out", format="torch")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_float16_that_overflows_is_refused(model, tmp_path):
    huge = copy.deepcopy(model)
    with torch.no_grad():
        last = [p for p in huge.net.parameters() if p.ndim == 2][-1]
        last.mul_(1e7)
    with pytest.raises(OutputError, match="Use bfloat16"):
        export(huge, tmp_path / "out", precision="float16", limit=20)


def test_files_of_torch_are_only_loaded_on_trust(exports):
    path = exports("torch").path
    with pytest.raises(OptionError, match="can run code.*--trust"):
        open_export(path)
    assert open_export(path, trust=True).about == exports("torch").about


def test_what_is_no_export_is_told(exports, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(exports().path.read_bytes()[:1000])
    (tmp_path / "broken.pt2").write_bytes(exports("torch").path.read_bytes()[:1000])
    (tmp_path / "empty.onnx").write_bytes(b"")
    foreign = onnx.load(exports().path)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    foreign.metadata_props.add(key="killick", value='{"format": "killick-export", "version": 9}')
    onnx.save(foreign, tmp_path / "newer.onnx")
    del foreign.metadata_props[:]
    foreign.metadata_props.add(key="killick", value="[1, 2")
    onnx.save(foreign, tmp_path / "damaged.onnx")
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "nothing").mkdir()
    words = {
        "broken.onnx": "onnxruntime refuses it",
        "empty.onnx": "onnxruntime refuses it",
        "broken.pt2": "not a .pt2 file",
        "foreign.onnx": "metadata",
        "newer.onnx": "version",
        "damaged.onnx": "metadata",
        "note.txt": ".onnx or .pt2",
        "nothing": "found nothing there",
        "missing.onnx": "found nothing there",
    }
    for name, word in words.items():
        with pytest.raises(StorageError, match=word) as told:
            open_export(tmp_path / name, trust=True)
        assert "\n" not in str(told.value)
        assert name in str(told.value)


def test_images_of_another_kind_are_refused(exports):
    with pytest.raises(killick.errors.ShapeError, match="expected uint8 images of shape"):
        exports()(torch.rand(2, 3, 32, 32))
    with pytest.raises(
        killick.errors.ShapeError, match=r"found torch.uint8 of shape \(2, 3, 16, 16\)"
    ):
        exports()(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))


def test_exports_are_told_from_other_paths(exports, shapes_run, tmp_path):
    assert is_export(exports().path)
    assert is_export(exports().path.parent)
    assert is_export(exports("torch").path.parent)
    assert not is_export(shapes_run)
    assert not is_export(shapes_run / "model")
    assert not is_export(tmp_path)


@pytest.mark.slow
def test_the_references_decide_the_size_of_a_network_of_ones_own(tmp_path):
    net = killick.nets.create("timm:resnet18", num_classes=3).eval()
    model = killick.anchor(net, normalize=((0.5,) * 3, (0.2,) * 3)).eval()
    assert model.image_shape == (3, 224, 224)
    x = torch.randint(256, (4, 3, 64, 64)).to(torch.uint8)
    model.set_references(x[:1])
    exported = export(killick.load(killick.save(model, tmp_path / "saved")), tmp_path / "out")
    assert exported.about.image_shape == (3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(exported(x)["logits"], model(x), atol=1e-4)


@pytest.mark.slow
def test_int8_is_calibrated_on_validation_images_where_there_is_no_training_set(
    model, some_images, tmp_path
):
    bare = copy.deepcopy(model)
    bare.provenance = {}
    with pytest.raises(DataError, match="to calibrate int8"):
        export(bare, tmp_path / "out", precision="int8", data=some_images[50:])
    exported = export(bare, tmp_path / "out", precision="int8", validation=some_images)
    assert exported.threshold.fitted_on == "validation (100)"


def test_the_check_asks_one_by_one_too(exports, tmp_path):
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        make("Cast", ["images"], ["floats"], to=onnx.TensorProto.FLOAT),
        make("Flatten", ["floats"], ["flat"]),
        make("ReduceMean", ["flat", "first"], ["mean"]),  # over the batch
        make("Sub", ["flat", "mean"], ["logits"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "mixing",
        [value("images", onnx.TensorProto.UINT8, ["batch", 3, 2, 2])],
        [value("logits", onnx.TensorProto.FLOAT, ["batch", 12])],
        [onnx.numpy_helper.from_array(np.array([0]), "first")],
    )
    network = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    network.ir_version = 8
    onnx.save(network, tmp_path / "model.onnx")
    images = np.random.default_rng(0).integers(256, size=(4, 3, 2, 2), dtype=np.uint8)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    logits = session.run(None, {"images": images})[0]
    np.savez(tmp_path / "examples.npz", images=images, logits=logits, tolerance=1e-4)
    about = {"name": "mixing", "precision": "float32", "outputs": ["logits"], "threshold": None}
    (tmp_path / "model.json").write_text(json.dumps(about))
    shutil.copy(exports().path.parent / "check.py", tmp_path)
    done = run_check(tmp_path)
    assert done.returncode == 1
    assert "in batches of 1," in done.stdout


def test_a_missing_library_is_named(shapes_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InstallError, match=r"need onnxscript.*killick\[export\]"):
        export(shapes_run, tmp_path / "out", limit=20)


def test_the_command_tells_what_was_made(shapes_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(shapes_run), "--limit", "50", "--references", "2"]) == 0
    told = capsys.readouterr().out
    for word in (
        "exports/shapes-onnx-k2/model.onnx  float32",
        "uint8 (any number, 3, 32, 32)",
        "logits, probabilities, energy, std, in_distribution",
        "training images",
        "accepts 95% of shapes, validation (50)",
        "100.0% of 50 images of shapes, test get the model's label",
        "python exports/shapes-onnx-k2/check.py",
    ):
        assert word in told, word
    assert main(["export", str(shapes_run), "--limit", "50", "--references", "2", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["export", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_onnx_files_start_no_more_than_a_plain_session(exports):
    session = onnxruntime.InferenceSession(exports().path, providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == list(exports().about.outputs)
