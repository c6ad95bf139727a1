"""Opening exported files: what a file says of itself is checked before it is believed."""

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import killick
from killick.core.image_model import Threshold
from killick.deploy.deployed_net import OUTPUTS, deploy
from killick.deploy.export_files import TorchFile
from killick.errors import StorageError
from killick.storage.export_metadata import KEY, ExportMetadata, read_metadata
from killick.storage.exported_file import open_export

ABOUT = ExportMetadata(
    name="small",
    file_format="onnx",
    precision="float32",
    network="Sequential",
    image_shape=(3, 4, 4),
    takes="uint8",
    outputs=("logits", "probabilities", "energy"),
    k=0,
    references="none: a standard model",
    class_names=("cat", "dog", "fox", "owl", "yak"),
    resize=None,
    interpolation="bilinear",
    threshold=None,
    weights="0123456789ab",
    measured={"examples": {"count": 2}},
    made_with={"killick": "0"},
)
CUT = {"energy": -1.5, "acceptance": 0.95, "k": 1, "fitted_on": "some"}


def note(**changes) -> str:
    return json.dumps({**json.loads(ABOUT.to_json()), **changes})


def test_what_was_written_is_read_again():
    for about in (
        ABOUT,
        replace(ABOUT, class_names=None, resize=2**14, interpolation="nearest", k=10**4),
        replace(ABOUT, image_shape=(2**26,), takes="float32", precision="int8"),
        replace(ABOUT, image_shape=(1, 2, 3, 4), outputs=OUTPUTS, threshold=Threshold(**CUT)),
        replace(ABOUT, threshold=Threshold(0, 1, 3, ""), outputs=("logits",)),
    ):
        assert read_metadata(about.to_json(), "it") == about


BAD = {
    "name": [None, 3, "half \ud800"],
    "network": [["a"]],
    "references": [{}],
    "weights": [0],
    "file_format": ["tflite", None, ["onnx"], {}],
    "precision": ["float8", 32],
    "takes": ["uint16", "int64", None],
    "image_shape": [
        [],
        [3, 4, 4, 4, 4],
        [3, 0, 4],
        [3, -4, -4],
        [3, 4.0, 4],
        [True, 4, 4],
        ["3", "4", "4"],
        "344",
        None,
        [3, 2**13, 2**13],
        [2**26 + 1],
        [10**400, 1],
    ],
    "outputs": [
        [],
        ["energy"],
        ["probabilities", "logits"],
        ["logits", "energy", "probabilities"],
        ["logits", "logits"],
        ["logits", "heat"],
        ["logits", []],
        "logits",
        None,
    ],
    "k": [-1, 10**4 + 1, True, 1.0, "1", None],
    "class_names": [[], ["one"], ["a", 2], ["a", None], "abcde", {"a": 1}, 5, ["a", "\udfff"]],
    "resize": [0, -5, 2**14 + 1, 10**9, "32", 32.5, True, [32]],
    "interpolation": ["lanczos", "", None, ["bilinear"], {}],
    "threshold": [
        {},
        [],
        1.5,
        "none",
        {**CUT, "energy": float("nan")},
        {**CUT, "energy": float("inf")},
        {**CUT, "energy": "-1"},
        {**CUT, "energy": True},
        {**CUT, "energy": 10**400},
        {**CUT, "acceptance": 1.5},
        {**CUT, "acceptance": None},
        {**CUT, "acceptance": float("nan")},
        {**CUT, "k": 0},
        {**CUT, "k": 1.0},
        {**CUT, "fitted_on": 3},
        {**CUT, "refused": 0.5},
        {**CUT, "refused": {"digits": 1.5}},
        {**CUT, "more": 1},
        {key: value for key, value in CUT.items() if key != "k"},
    ],
    "squash": [None, 1, "yes"],
    "measured": [None, [], "well"],
    "made_with": [None, ["killick"], {"killick": 1}],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in BAD.items() for value in values]
)
def test_a_value_that_cannot_be_is_refused_by_its_name_in_one_line(key, value):
    with pytest.raises(StorageError, match=rf"cannot open it: .* \({key} is ") as told:
        read_metadata(note(**{key: value}), "it")
    assert "\n" not in str(told.value)
    assert len(str(told.value).encode()) < 600


@pytest.mark.parametrize("key", sorted(json.loads(ABOUT.to_json())))
def test_a_value_that_is_missing_is_told(key):
    found = json.loads(ABOUT.to_json())
    del found[key]
    with pytest.raises(StorageError, match="cannot open it: "):
        read_metadata(json.dumps(found), "it")


@pytest.mark.parametrize("text", ["", "3", "[]", "null", '"a"', "{}", "[" * 10**5, note(extra=1)])
def test_a_note_that_is_something_else_is_refused(text):
    with pytest.raises(StorageError, match="cannot open it: "):
        read_metadata(text, "it")


def test_a_format_beyond_all_measure_is_told_briefly():
    with pytest.raises(StorageError, match="cannot open it: .*not 1") as told:
        read_metadata(note(format="a\n" * 10**5, version=list(range(10**5))), "it")
    assert len(str(told.value)) < 600
    assert "\n" not in str(told.value)


def write_onnx(
    path: Path,
    text: str,
    *,
    shape=("n", 3, 4, 4),
    classes: int = 5,
    kind: int = TensorProto.UINT8,
    likely: int | None = None,
    told: int | str | None = None,
) -> Path:
    """A graph that says `text` of itself; its logits are made of the mean colour.

    Args:
        path: Where it is written.
        text: The note.
        shape: Of images.
        classes: Logits.
        kind: Of images.
        likely: Probabilities, if not as many as logits.
        told: The number of logits that the graph states, if it is not the true one.
    """
    draw = torch.Generator().manual_seed(0)

    def weights(name: str, count: int) -> onnx.TensorProto:
        values = torch.randn(shape[1], count, generator=draw).flatten().tolist()
        return helper.make_tensor(name, TensorProto.FLOAT, [shape[1], count], values)

    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], ["logits"]),
        helper.make_node("MatMul", ["means", "others"], ["other logits"]),
        helper.make_node("Softmax", ["other logits"], ["probabilities"], axis=1),
        helper.make_node("ReduceLogSumExp", ["logits", "last"], ["heat"], keepdims=0),
        helper.make_node("Neg", ["heat"], ["energy"]),
    ]
    axes = list(range(2, len(shape)))
    constants = [
        weights("weights", classes),
        weights("others", likely or classes),
        helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes),
        helper.make_tensor("last", TensorProto.INT64, [1], [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", told or classes]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", "m"]),
        helper.make_tensor_value_info("energy", TensorProto.FLOAT, ["n"]),
    ]
    images = helper.make_tensor_value_info("images", kind, shape)
    graph = helper.make_graph(nodes, "small", [images], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model.metadata_props.add(key=KEY, value=text)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("shape", [("n", 3, 4, 4), ("n", 3, "high", "wide"), (None, 3, None, None)])
@pytest.mark.parametrize("told", [5, "classes"])
@pytest.mark.parametrize("names", [True, False])
def test_a_file_that_does_what_it_says_is_opened_and_its_classes_counted(
    tmp_path, shape, told, names
):
    text = note() if names else note(class_names=None)
    exported = open_export(write_onnx(tmp_path / "a.onnx", text, shape=shape, told=told))
    assert exported.classes == 5
    said = exported(torch.full((7, 3, 4, 4), 9, dtype=torch.uint8))
    assert said["logits"].shape == (7, 5)


DOES_NOT_RUN = "does not run on one"
GRAPHS = {
    "another size": ({"image_shape": [3, 8, 8]}, {}, DOES_NOT_RUN),
    "a huge size": ({"image_shape": [3, 4000, 4000]}, {}, DOES_NOT_RUN),
    "fewer axes": ({"image_shape": [3, 4]}, {}, DOES_NOT_RUN),
    "more axes": ({"image_shape": [3, 4, 4, 1]}, {}, DOES_NOT_RUN),
    "floats": ({"takes": "float32"}, {}, DOES_NOT_RUN),
    "bytes": ({}, {"kind": TensorProto.FLOAT}, DOES_NOT_RUN),
    "fewer names": ({"class_names": ["a", "b"]}, {}, "expected 5 class names.*found 2"),
    "more names": ({"class_names": list("abcdef")}, {}, "expected 5 class names.*found 6"),
    "other probabilities": ({}, {"likely": 4}, r"probabilities of shape \(1, 5\).*found \(1, 4\)"),
    "one class": ({"class_names": None}, {"classes": 1}, "expected logits of shape"),
    "a batch of two": ({}, {"shape": (2, 3, 4, 4)}, DOES_NOT_RUN),
    "more outputs": ({"outputs": list(OUTPUTS)}, {}, DOES_NOT_RUN),
    "another format": ({"file_format": "torch"}, {}, DOES_NOT_RUN),
}


@pytest.mark.parametrize("which", GRAPHS)
def test_a_file_that_does_not_do_what_it_says_is_refused_in_one_line(tmp_path, which):
    changes, graph, told = GRAPHS[which]
    path = write_onnx(tmp_path / "lying.onnx", note(**changes), **graph)
    with pytest.raises(StorageError, match=told) as error:
        open_export(path)
    assert "lying.onnx" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = killick.standard(net, ((0.5,) * 3, (0.25,) * 3), image_shape=(3, 4, 4)).eval()
    return TorchFile(deploy(model, 1, has_threshold=False), torch.zeros(3, 4, 4, dtype=torch.uint8))


@pytest.mark.parametrize("names", [ABOUT.class_names, None])
def test_the_classes_of_a_torch_file_are_counted(program, tmp_path, names):
    about = replace(ABOUT, file_format="torch", class_names=names)
    program.write(about, tmp_path / "a.pt2")
    assert open_export(tmp_path / "a.pt2", trust=True).classes == 5


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"class_names": ("a", "b")}, "expected 5 class names.*found 2"),
        ({"image_shape": (3, 8, 8)}, "does not run on one uint8 image"),
        ({"takes": "float32"}, "does not run on one float32 image"),
        ({"outputs": ("logits", "energy")}, "does not run on one"),
        ({"outputs": ("logits", "energy", "in_distribution")}, "expected energy of shape"),
        ({"file_format": "onnx"}, "does not run on one"),
    ],
)
def test_a_torch_file_that_does_not_do_what_it_says_is_refused(program, tmp_path, changes, told):
    about = replace(ABOUT, **{"file_format": "torch", **changes})
    program.write(about, tmp_path / "lying.pt2")
    with pytest.raises(StorageError, match=told) as error:
        open_export(tmp_path / "lying.pt2", trust=True)
    assert "lying.pt2" in str(error.value)
    assert "\n" not in str(error.value)
