"""From the model's classes to a set's."""

import json

import pytest
import torch

from killick.data.image_set import ImageSet
from killick.errors import DataError, OutputError
from killick.evaluation.class_mapping import Alignment, read_class_map

OURS = ("n01", "n02", "n03", "n04", "n05")
LOGITS = torch.tensor([[0.1, 0.7, -1.0, 2.0, 0.3], [1.0, 0.0, 0.5, -2.0, 0.2]])


def test_equal_classes_change_nothing():
    assert torch.equal(Alignment("a", OURS, OURS, 5).apply(LOGITS), LOGITS)
    assert torch.equal(Alignment("a", tuple("abcde"), None, 5).apply(LOGITS), LOGITS)


def test_classes_in_another_order_are_found_by_name():
    theirs = ("n03", "n01", "n05", "n02", "n04")
    aligned = Alignment("a", theirs, OURS, 5).apply(LOGITS)
    for place, name in enumerate(theirs):
        assert torch.equal(aligned[:, place], LOGITS[:, OURS.index(name)])


def test_of_some_classes_only_their_logits_compete():
    """As ImageNet-R and ImageNet-A, which have 200 of the 1000."""
    aligned = Alignment("r", ("n02", "n05"), OURS, 5).apply(LOGITS)
    assert torch.equal(aligned, LOGITS[:, [1, 4]])
    assert aligned.argmax(1).tolist() == [0, 1]


def test_folders_named_by_number_are_classes_by_number():
    """As ImageNet-V2, whose folders sort as 0, 1, 10, 2."""
    theirs = ("0", "1", "10", "2")
    for ours in (tuple(f"n{c}" for c in range(11)), None):
        aligned = Alignment("v2", theirs, ours, 11)
        assert aligned.apply(torch.arange(11.0)[None]).tolist() == [[0, 1, 10, 2]]
    every = tuple(sorted(str(c) for c in range(12)))
    aligned = Alignment("v2", every, None, 12).apply(torch.arange(12.0)[None])
    assert aligned[0].tolist() == [float(name) for name in every]


def test_a_group_has_the_probability_of_its_members():
    grouped = Alignment("o", ("cat", "van", "odd"), OURS, 5, {"cat": ["n01", "n03"], "van": 3})
    assert grouped.kept == ("cat", "van")
    probs = LOGITS.softmax(1)
    cat, van = (probs[:, 0] + probs[:, 2]), probs[:, 3]
    expected = torch.stack([cat / (cat + van), van / (cat + van)], 1)
    assert torch.allclose(grouped.apply(LOGITS).softmax(1), expected)


def test_images_of_classes_without_a_place_are_left_out():
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 3, 2, 2)
    theirs = ("odd", "cat", "van")
    data = ImageSet.of("o", images.clone(), torch.tensor([0, 1, 2, 0, 2, 1]), theirs)
    kept = Alignment("o", theirs, OURS, 5, {"cat": [0], "van": [3]}).restrict(data)
    assert kept.labels.tolist() == [0, 1, 1, 0]
    assert [int(kept.read(n)[0, 0, 0]) for n in range(4)] == [1, 2, 4, 5]
    assert kept.class_names == ("cat", "van")


@pytest.mark.parametrize(
    ("theirs", "ours", "given", "kind", "match"),
    [
        (("a", "b"), OURS, None, DataError, "2 classes of x, such as 'a'"),
        (("a", "b"), None, None, OutputError, "2 classes.* 5 logits"),
        (("a",), OURS, {"a": ["n99"]}, DataError, r"'a' \['n99'\]"),
        (("a",), OURS, {"a": [7]}, DataError, r"\[7\]"),
        (("a",), OURS, {"a": []}, DataError, r"\[\]"),
        (("a",), OURS, {"b": [1]}, DataError, "no class of x"),
    ],
)
def test_what_cannot_be_aligned_is_told(theirs, ours, given, kind, match):
    with pytest.raises(kind, match=match):
        Alignment("x", theirs, ours, 5, given)


def test_a_class_map_is_read_from_json(tmp_path):
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"cat": [281, 282]}))
    assert read_class_map(file) == {"cat": [281, 282]}
    file.write_text("[1]")
    with pytest.raises(DataError, match="found a list"):
        read_class_map(file)
    with pytest.raises(DataError, match="cannot read the class map .*gone"):
        read_class_map(tmp_path / "gone.json")
