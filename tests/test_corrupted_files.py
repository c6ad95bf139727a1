"""Published corrupted sets, as arrays and as folders."""

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import find, make_set, make_standard

import killick
from killick.data.corrupted_files import CorruptedFiles
from killick.errors import DataError

KNOWN = ("fog", "snow")


def write_arrays(folder, data, names=("fog",), long_labels=True):
    """As CIFAR-10-C: severity 1 first."""
    folder.mkdir(exist_ok=True)
    for name in names:
        generator = torch.Generator().manual_seed(0)
        parts = [
            killick.corrupt(data.images(), name, s, table="cifar", generator=generator)
            for s in range(1, 6)
        ]
        np.save(folder / f"{name}.npy", torch.cat(parts).permute(0, 2, 3, 1).numpy())
    labels = data.labels.numpy()
    np.save(folder / "labels.npy", np.tile(labels, 5) if long_labels else labels)
    return folder


@pytest.mark.parametrize("long_labels", [True, False])
def test_arrays_are_read_severity_by_severity(tmp_path, long_labels):
    data = make_set(40)
    files = CorruptedFiles(
        str(write_arrays(tmp_path / "c", data, long_labels=long_labels)), KNOWN, data.class_names
    )
    assert files.names == ("fog",)
    whole = np.load(tmp_path / "c" / "fog.npy")
    for severity in (1, 4):
        part = files.load("fog", severity)
        expected = whole[(severity - 1) * 40 : severity * 40]
        assert np.array_equal(part.images().permute(0, 2, 3, 1).numpy(), expected)
        assert torch.equal(part.labels, data.labels)


@pytest.mark.parametrize(
    "names", [("1", "2", "3", "4", "5"), ("0.70", "1.40", "2.10", "3.50", "10.00")]
)
@pytest.mark.parametrize("group", ["", "weather"])
def test_folders_are_read_in_the_order_of_their_numbers(tmp_path, names, group):
    """C-bar names them by its own numbers, and 10.00 comes after 3.50."""
    for place, name in enumerate(names):
        for kind in ("a", "b"):
            folder = tmp_path / group / "fog" / name / kind
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8), (place, place, place)).save(folder / "x.png")
    files = CorruptedFiles(str(tmp_path), KNOWN, ())
    for severity in range(1, 6):
        part = files.load("fog", severity)
        assert part.class_names == ("a", "b")
        assert int(part.read(1)[0, 0, 0]) == severity - 1


def test_files_score_as_the_images_in_them(tmp_path):
    model, data = make_standard(), make_set(80)
    folder = write_arrays(tmp_path / "c", data)
    rows = killick.evaluate(model, data, ("corruptions",), corruption_files=str(folder), quiet=True)
    for severity in (1, 5):
        part = CorruptedFiles(str(folder), ("fog",), data.class_names).load("fog", severity)
        hits = (model(part.images()).argmax(1) == data.labels).double().mean()
        row = find(rows, "top1", corruption="fog", severity=severity)
        assert row["value"] == pytest.approx(float(hits))
        assert (row["source"], row["table"]) == ("files", "c")
    assert {r["corruption"] for r in rows if not r["mean_of"]} == {"", "fog"}


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (
            np.zeros((40, 16, 16, 3), np.float32),
            r"uint8 images .*found float32 \(40, 16, 16, 3\)",
        ),
        (np.zeros((41, 16, 16, 3), np.uint8), r"found uint8 \(41, 16, 16, 3\)"),
        (np.zeros((40, 3, 16, 16), np.uint8), r"found uint8 \(40, 3, 16, 16\)"),
        (np.zeros((0, 16, 16, 3), np.uint8), r"found uint8 \(0, 16, 16, 3\)"),
        (np.zeros((), np.uint8), r"found uint8 \(\)"),
    ],
)
def test_arrays_of_a_wrong_shape_are_refused_before_anything_is_computed(tmp_path, array, match):
    data = make_set(40)
    write_arrays(tmp_path, data, ("fog", "snow"))
    np.save(tmp_path / "snow.npy", array)
    with pytest.raises(DataError, match=match):
        killick.evaluate(
            make_standard(), data, ("corruptions",), corruption_files=str(tmp_path), quiet=True
        )


def test_what_is_missing_or_damaged_is_told(tmp_path):
    data = make_set(40)
    with pytest.raises(DataError, match="gone"):
        CorruptedFiles(str(tmp_path / "gone"), KNOWN, data.class_names)
    with pytest.raises(DataError, match=r"none of the .*fog.npy"):
        CorruptedFiles(str(tmp_path), KNOWN, data.class_names)
    write_arrays(tmp_path, data)
    np.save(tmp_path / "labels.npy", np.zeros(39, np.int64))
    with pytest.raises(DataError, match=r"40 or 200 .*found int64 \(39,\)"):
        CorruptedFiles(str(tmp_path), KNOWN, data.class_names).load("fog", 1)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(DataError, match="cannot read .*labels.npy"):
        CorruptedFiles(str(tmp_path), KNOWN, data.class_names).load("fog", 1)
    (tmp_path / "fog.npy").write_bytes(b"\x93NUMPY truncated")
    with pytest.raises(DataError, match="cannot read .*fog.npy"):
        CorruptedFiles(str(tmp_path), KNOWN, data.class_names)


def test_a_pickled_array_is_not_run(tmp_path):
    np.save(tmp_path / "fog.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot read .*fog.npy"):
        CorruptedFiles(str(tmp_path), KNOWN, ())
