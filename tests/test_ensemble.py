"""Ensembles: the mean of the members' probabilities, as an ordinary model."""

import pytest
import torch

import killick
from killick.cli import main
from killick.deploy.ensemble_builder import make_ensemble
from killick.deploy.exporter import describe_references
from killick.deploy.publisher import publish
from killick.errors import OptionError, StorageError
from killick.results.rows import read_rows
from killick.storage.saving import FOLDED_NOTE, note_on_references

IMAGES = torch.randint(256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
NAMES = ("a", "b", "c", "d")


def member(seed, name="killick:resnet_small", anchored=False, classes=4, mean=0.5):
    torch.manual_seed(seed)
    net = killick.nets.create(name, num_classes=classes)
    model = killick.standard(net, ((mean,) * 3, (0.25,) * 3), image_shape=(3, 32, 32))
    model.class_names = NAMES[:classes]
    if anchored:
        model = killick.anchor(model, init="random")
        model.set_references(IMAGES[:2].flip(3))
    for norm in model.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return model.eval()


def members():
    return [
        member(0),
        member(1, anchored=True, mean=0.3),
        member(2, "timm:test_resnet"),
        member(3, "killick:wrn40_2", anchored=True),
    ]


def test_its_probabilities_are_the_mean_of_those_of_its_members(tmp_path):
    models = members()
    expected = torch.stack([model(IMAGES).double().softmax(1) for model in models]).mean(0)
    found = make_ensemble(models, tmp_path / "all")
    assert torch.allclose(found(IMAGES).softmax(1).double(), expected, atol=1e-5)
    energies = torch.stack([model(IMAGES).double().logsumexp(1) for model in models])
    assert torch.allclose(found(IMAGES).double().logsumexp(1), energies.mean(0), atol=1e-4)
    loaded = killick.load(tmp_path / "all").eval()
    assert torch.equal(loaded(IMAGES), found(IMAGES))
    assert loaded.class_names == NAMES


def test_the_command_makes_a_model_that_is_evaluated_and_exported(tmp_path, image_folder, capsys):
    for number, model in enumerate(members()[:2]):
        killick.save(model, tmp_path / f"m{number}")
    folders = [str(tmp_path / f"m{number}") for number in range(2)]
    assert main(["ensemble", *folders, "--output", str(tmp_path / "both")]) == 0
    said = capsys.readouterr().out
    assert "2 members" in said
    assert "--data.seed 0" in said
    assert main(["ensemble", *folders, "--output", str(tmp_path / "both")]) == 2
    data = ["--data", str(image_folder), "--suite", "clean", "--quiet"]
    words = ["evaluate", str(tmp_path / "both"), *data, "--output", str(tmp_path / "rows")]
    assert main(words) == 2  # other classes
    capsys.readouterr()
    model = killick.load(tmp_path / "both").eval()
    labels = torch.arange(6) % 4
    rows = killick.evaluate(model, (IMAGES, labels), ("clean",), folder=tmp_path / "rows")
    top1 = next(row["value"] for row in rows if row["metric"] == "top1")
    assert top1 == (model(IMAGES).argmax(1) == labels).double().mean().item()
    assert read_rows(tmp_path / "rows")
    export = ["export", str(tmp_path / "both"), "--output", str(tmp_path / "file"), "--quiet"]
    assert main(export) == 0, capsys.readouterr().err
    exported = killick.evaluate(str(tmp_path / "file"), (IMAGES, labels), ("clean",))
    assert next(row["value"] for row in exported if row["metric"] == "top1") == top1


def test_a_file_or_card_says_that_references_are_folded_into_members(tmp_path):
    private = member(1, anchored=True)
    private.reference_kind = "mean"
    for kind, models in {
        "images": [member(0), member(1, anchored=True)],
        "mean": [member(0), private],
        "none": [member(0), member(1)],
    }.items():
        make_ensemble(models, tmp_path / kind)
        outer = make_ensemble([killick.load(tmp_path / kind), member(5)])
        for found in (killick.load(tmp_path / kind), outer):
            assert (note_on_references(found) == FOLDED_NOTE) == (kind == "images")
            assert (describe_references(found, 1) == FOLDED_NOTE) == (kind == "images")
    older = killick.load(tmp_path / "images")
    del older.provenance["folded_references"]
    assert note_on_references(older) == FOLDED_NOTE
    card = (publish(tmp_path / "images", tmp_path / "hub").folder / "README.md").read_text()
    assert FOLDED_NOTE in card


def test_what_does_not_fit_is_one_line(tmp_path):
    first = member(0)
    plain = killick.standard(torch.nn.Flatten(), ((0,) * 3, (1,) * 3), image_shape=(3, 32, 32))
    plain.class_names = NAMES
    small = killick.standard(
        killick.nets.create("killick:resnet_small", num_classes=4),
        ((0,) * 3, (1,) * 3),
        image_shape=(3, 16, 16),
    )
    small.class_names = NAMES
    for others, says in (
        ([], "at least two"),
        ([member(1, classes=3)], "differ in their classes"),
        ([small], "differ in their image shape"),
        ([plain], "not made by name"),
        ([member(1), first], "are the same"),
    ):
        with pytest.raises(OptionError, match=says):
            make_ensemble([first, *others])
    (tmp_path / "there").mkdir()
    with pytest.raises(StorageError, match="it exists"):
        make_ensemble([first, first], tmp_path / "there")
