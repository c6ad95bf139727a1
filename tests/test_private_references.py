"""References that are nobody's: made of statistics, stored, trained with, saved."""

import copy
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from runs import assert_same, losses_of, train_and_stop, weights_of
from torch import Tensor, nn

import killick
from killick import ReferencePool
from killick.core.image_model import Threshold
from killick.core.synthetic_references import (
    FEWEST,
    make_references,
    replace_references,
)
from killick.deploy.exporter import describe_references
from killick.deploy.publisher import publish
from killick.errors import DtypeError, KillickError, OptionError, ReferencesError
from killick.storage.saving import NOTE, PRIVATE_NOTES, note_on_references
from killick.training import make_recipe, train
from killick.training.checkpoint import load_checkpoint, save_checkpoint
from killick.training.recipe_files import to_yaml
from killick.training.training_data import sets_of

NORMALISE = ((0.5,) * 3, (0.25,) * 3)


def make_images(n: int = 150, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, 8, 8), generator=generator).to(torch.uint8)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def small_model(stored: int = 4) -> killick.Anchored:
    model = killick.anchor(small_net(), normalize=NORMALISE, example=torch.rand(2, 3, 8, 8)).eval()
    if stored:
        model.set_references(make_images(stored, seed=1), policy="random")
    return model


def test_the_mean_takes_the_place_of_all_references():
    model, images = small_model(), make_images()
    replace_references(model, "mean", images)
    expected = images.double().mean(0).round()
    assert model.references.dtype == torch.uint8
    assert torch.equal(model.references.double(), expected[None])
    assert model.reference_policy == "mean of 150 training images"
    assert model(make_images(3)).shape == (3, 5)


@pytest.mark.parametrize(
    ("stored", "k", "made"), [(4, None, 4), (0, None, 1), (4, 2, 2), (4, 9, 9)]
)
def test_there_are_as_many_synthetic_references_as_asked_for_or_as_were_stored(stored, k, made):
    model, images = small_model(stored), make_images()
    replace_references(model, "synthetic", images, k=k, seed=3)
    assert torch.equal(model.references, ReferencePool(images).synthetic(made, seed=3))
    count = "1 image" if made == 1 else f"{made} images"
    assert model.reference_policy == (
        f"synthetic, {count} with the spectrum of 150 training images"
    )


def test_large_numbers_are_easy_to_read_and_vectors_have_words_of_their_own():
    vectors = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
    assert make_references("mean", vectors)[1] == "mean of 2,000 training images"
    made, policy = make_references("synthetic", vectors)
    assert made.shape == (1, 3)
    assert policy == "synthetic, 1 image with the moments of 2,000 training images"


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
def test_what_was_made_with_the_old_references_goes_with_them(kind):
    model = small_model()
    model.threshold = Threshold(-1.0, 0.95, 1, "validation")
    model.set_residuals(torch.randn(7, 3, 8, 8))
    replace_references(model, kind, make_images())
    assert model.threshold is None
    assert len(model.residuals) == 0
    assert not any(name == "residuals" and len(value) for name, value in model.named_buffers())


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
def test_replaced_references_are_saved_and_none_of_the_old_ones(kind, tmp_path):
    model, old = small_model(), small_model().references
    model.set_residuals(torch.randn(7, 3, 8, 8))
    replace_references(model, kind, make_images(), k=1)
    killick.save(model, tmp_path / "model")
    again = killick.load(tmp_path / "model", net=small_net())
    assert torch.equal(again.references, model.references)
    assert again.reference_policy == model.reference_policy
    assert len(again.residuals) == 0
    stored = b"".join(path.read_bytes() for path in (tmp_path / "model").glob("*.safetensors"))
    for image in (*old, *make_images()):
        assert image.numpy().tobytes() not in stored


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
@pytest.mark.parametrize("n", [1, FEWEST - 1])
def test_few_images_are_refused_and_the_model_stays_as_it_was(kind, n):
    model = small_model()
    model.threshold = Threshold(-1.0, 0.95, 1, "validation")
    before = model.references.clone()
    with pytest.raises(ReferencesError, match=f"at least {FEWEST} different .* found {n}. Give"):
        replace_references(model, kind, make_images(n))
    assert torch.equal(model.references, before)
    assert model.reference_policy == "random"
    assert model.threshold is not None
    replace_references(model, kind, make_images(FEWEST))


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
def test_few_images_are_few_however_often_they_come(kind):
    with pytest.raises(ReferencesError, match="different training images .* found 3"):
        replace_references(small_model(), kind, make_images(3).repeat(100, 1, 1, 1))


def test_images_in_another_memory_layout_are_the_same_images():
    images = make_images().float().to(memory_format=torch.channels_last)
    made, _ = make_references("mean", images)
    assert torch.allclose(made, images.mean(0), atol=1e-3)


def test_the_model_inside_a_wrapper_is_the_one_that_changes():
    model = small_model()
    replace_references(nn.DataParallel(model), "mean", make_images())
    assert len(model.references) == 1


def test_the_mean_is_one_image():
    replace_references(small_model(), "mean", make_images(), k=1)
    with pytest.raises(OptionError, match="k of 1 with the mean, which is one image, found 5"):
        replace_references(small_model(), "mean", make_images(), k=5)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"kind": "synthetics"}, OptionError, "did you mean 'synthetic'"),
        (
            {"images": make_images().float()},
            DtypeError,
            "the training images of dtype torch.float32",
        ),
        ({"images": make_images().numpy()}, DtypeError, "the training images as a torch.Tensor"),
        ({"images": make_images()[:, :2]}, KillickError, "the training images of shape"),
        ({"kind": "synthetic", "k": 0}, OptionError, "k of at least 1 image to make, found 0"),
        ({"model": nn.Linear(3, 3)}, OptionError, "expected an anchored model, found Linear"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(change, error, words):
    options = {"model": small_model(), "kind": "mean", "images": make_images(), **change}
    with pytest.raises(error, match=re.escape(words)) as found:
        replace_references(options["model"], options["kind"], options["images"], k=options.get("k"))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("policy", ["mean of two photos", "synthetic, seed 0"])
def test_words_of_a_policy_never_make_references_private(policy, tmp_path):
    model = small_model().set_references(make_images(2), policy=policy)
    assert model.reference_kind == "images"
    killick.save(model, tmp_path / "model")
    note = json.loads((tmp_path / "model" / "config.json").read_text())["references"]["note"]
    assert note == NOTE
    publish(model, tmp_path / "card")
    assert NOTE in (tmp_path / "card" / "README.md").read_text()
    assert "no training image is in the file" not in describe_references(model, 1)


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
def test_the_kind_of_references_is_kept_until_others_come(kind, tmp_path):
    model = small_model()
    replace_references(model, kind, make_images())
    killick.save(model, tmp_path / "model")
    again = killick.load(tmp_path / "model", net=small_net())
    assert model.reference_kind == again.reference_kind == kind
    assert copy.deepcopy(again).reference_kind == kind
    assert note_on_references(again) == PRIVATE_NOTES[kind]
    assert "no training image is in the file" in describe_references(again, 1)
    again.load_state_dict(model.state_dict())
    assert again.reference_kind == kind
    again.load_state_dict(small_model().state_dict())
    assert again.reference_kind == "images"
    model.set_references(make_images(1))
    assert model.reference_kind == "images"


def test_a_config_with_an_unknown_kind_of_references_is_refused(tmp_path):
    killick.save(small_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["references"]["kind"] = "nothing"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(killick.errors.StorageError, match="references"):
        killick.load(tmp_path, net=small_net())


SIZE = 16


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> str:
    """120 images to train on and 40 to test on, of 4 classes that differ in colour."""
    file = tmp_path_factory.mktemp("data") / "images.npz"
    generator = torch.Generator().manual_seed(0)
    arrays: dict[str, np.ndarray] = {"class_names": np.array(["red", "green", "blue", "grey"])}
    for split, count in (("train", 120), ("test", 40)):
        labels = torch.arange(count) % 4
        images = torch.randint(40, 160, (count, SIZE, SIZE, 3), generator=generator)
        images[torch.arange(count), :, :, labels % 3] += 60
        encoded = []
        for image in images.to(torch.uint8):
            buffer = io.BytesIO()
            Image.fromarray(image.numpy()).save(buffer, "PNG")
            encoded.append(buffer.getvalue())
        arrays[f"{split}_bytes"] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, encoded)])
        arrays[f"{split}_labels"] = labels.numpy()
    np.savez(file, **arrays)
    return f"pack:{file}"


def recipe(pack: str, stored_as: str | None = None, **changes):
    values = {
        "network": "killick:resnet_small",
        "data": {"name": pack, "size": SIZE, "validation": 0},
        "protocol": {"name": "masked", "target": "label", "alpha": 0.5, "stored": 3},
        "optimizer": {"lr": 0.02},
        "epochs": 1,
        "batch": 40,
        "log_every": 1,
    }
    if stored_as is not None:
        values["protocol"]["stored_as"] = stored_as
    for name, value in changes.items():
        group, _, key = name.partition("__")
        if key:
            values.setdefault(group, {})[key] = value
        else:
            values[name] = value
    return make_recipe(values)


def training_images(plan) -> Tensor:
    return sets_of(plan).train.images()


def holds_any(tensor: Tensor, images: Tensor) -> bool:
    """Whether any of `images` is among those of `tensor`."""
    if tensor.shape[-3:] != images.shape[-3:]:
        return False
    rows = tensor.reshape(-1, images[0].numel()).float()
    nearest = torch.cdist(rows, images.flatten(1).float(), p=1).min()  # p=1: exact
    return bool(nearest < 1)


@pytest.fixture(scope="module")
def runs(pack, tmp_path_factory):
    """A run for each kind of reference, and its folder."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = {"": None, "images": "images", "mean": "mean", "synthetic": "synthetic"}
    return {
        name: (
            train(recipe(pack, kind, average__decay=0.9), folder / f"run{name}", quiet=True),
            folder,
        )
        for name, kind in kinds.items()
    }


def test_images_are_stored_by_default_as_ever(pack, runs):
    silent, said = runs[""][0], runs["images"][0]
    assert_same(weights_of(silent.folder), weights_of(said.folder))
    assert silent.model.reference_policy == "random by class, clean"
    assert len(silent.model.references) == 3
    images = training_images(recipe(pack))
    assert all(holds_any(reference[None], images) for reference in silent.model.references)


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
def test_a_run_keeps_what_its_recipe_says_in_the_place_of_images(pack, kind, runs):
    outcome, images = runs[kind][0], training_images(recipe(pack))
    pool = ReferencePool(images)
    expected = pool.mean() if kind == "mean" else pool.synthetic(3, seed=0)
    words = "mean of 120 training images"
    if kind == "synthetic":
        words = "synthetic, 3 images with the spectrum of 120 training images"
    for model in (outcome.model, killick.load(outcome.folder)):
        assert torch.equal(model.references, expected)
        assert model.reference_policy == words
        assert model.reference_kind == kind
    assert {row["reference_policy"] for row in outcome.rows} == {words}


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
def test_other_references_change_nothing_of_the_training(kind, runs):
    ours, theirs = (runs[name][0].folder for name in (kind, "images"))
    assert losses_of(ours) == losses_of(theirs)
    trained, other = weights_of(ours), weights_of(theirs)
    del trained["references"], other["references"]
    assert_same(trained, other)


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
def test_files_of_a_run_hold_no_training_image_as_a_reference(pack, kind, runs):
    folder, images = runs[kind][0].folder, training_images(recipe(pack))
    for value in killick.load(folder).state_dict().values():
        assert not holds_any(value, images)
    state, _ = load_checkpoint(folder)
    for weights in (state["model"], state["components"]["weight_average"]["model"]):
        assert len(weights["references"]) == (1 if kind == "mean" else 3)
        for value in weights.values():
            assert not holds_any(value, images)
    with_images, _ = load_checkpoint(runs["images"][0].folder)
    assert holds_any(with_images["model"]["references"], images)  # what is looked for is found


@pytest.mark.parametrize("kind", ["mean", "synthetic"])
def test_a_run_is_judged_from_the_references_it_keeps(pack, kind, runs):
    outcome = runs[kind][0]
    test = sets_of(recipe(pack)).test
    answers = killick.load(outcome.folder)(test.images()).argmax(1)
    accuracy = (answers == test.labels).double().mean().item()
    (found,) = [row["value"] for row in outcome.rows if row["metric"] == "top1"]
    assert found == pytest.approx(accuracy, abs=1e-9)


def test_rows_name_the_references_that_were_asked_not_those_of_the_training(pack, runs):
    model = killick.load(runs["images"][0].folder)
    replace_references(model, "mean", training_images(recipe(pack)))
    rows = killick.evaluate(model, suites=("clean",), quiet=True)
    assert {row["reference_policy"] for row in rows} == {"mean of 120 training images"}


def test_a_run_that_is_gone_on_with_ends_where_it_would_have(pack, runs, tmp_path, monkeypatch):
    plan = recipe(pack, "synthetic", average__decay=0.9)
    train_and_stop(plan, tmp_path / "run", 2, monkeypatch)
    outcome = train(None, tmp_path / "run", resume=True, quiet=True)
    assert_same(weights_of(tmp_path / "run"), weights_of(runs["synthetic"][0].folder))
    assert outcome.model.reference_kind == "synthetic"


def test_a_run_from_before_the_setting_goes_on(pack, runs, tmp_path, monkeypatch):
    plan = recipe(pack, average__decay=0.9)
    folder = tmp_path / "run"
    train_and_stop(plan, folder, 2, monkeypatch)
    state, _ = load_checkpoint(folder)
    del state["recipe"]["protocol"]["stored_as"], state["format"], state["version"]
    save_checkpoint(folder, state)
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("  stored_as: images\n", ""))
    assert "stored_as" not in (folder / "recipe.yaml").read_text()
    train(None, folder, resume=True, quiet=True)
    assert_same(weights_of(folder), weights_of(runs["images"][0].folder))


def test_a_run_that_starts_from_a_model_takes_none_of_its_images_along(pack, runs, tmp_path):
    model = killick.load(runs["images"][0].folder)
    model.set_residuals(torch.randn(5, 3, SIZE, SIZE))
    model.threshold = Threshold(-1.0, 0.95, 1, "validation")
    killick.save(model, tmp_path / "start")
    outcome = train(recipe(pack, "mean"), tmp_path / "run", start=tmp_path / "start", quiet=True)
    assert outcome.model.threshold is None
    saved = weights_of(tmp_path / "run")
    assert len(saved["residuals"]) == 0
    assert torch.equal(saved["references"], ReferencePool(training_images(recipe(pack))).mean())


def test_a_set_that_streams_gives_its_statistics_as_evaluation_shows_it(
    pack, tmp_path, monkeypatch
):
    monkeypatch.setattr("killick.protocols.references.reference_sampler.STATISTICS_IMAGES", 110)
    plan = recipe(
        pack, "mean", data__resident="never", data__workers=0, protocol__references="batch"
    )
    outcome = train(plan, tmp_path / "run", quiet=True)
    assert outcome.model.reference_policy == "mean of 110 training images"
    whole = ReferencePool(training_images(plan)).mean()
    assert (outcome.model.references.double() - whole.double()).abs().max() < 5


def test_a_resized_set_gives_its_statistics_as_evaluation_shows_it(pack, tmp_path):
    plan = recipe(pack, "mean", data__resize=20, data__workers=0)
    outcome = train(plan, tmp_path / "run", quiet=True)
    middle = torch.nn.functional.interpolate(
        training_images(plan).float(), (20, 20), mode="bilinear", antialias=True
    )[:, :, 2:18, 2:18].mean(0)
    assert (outcome.model.references.float() - middle).abs().max() < 1.5


def test_too_few_training_images_are_refused_before_anything_is_written(pack, tmp_path):
    with pytest.raises(ReferencesError, match="at least 100 different .* found 80"):
        train(recipe(pack, "mean", data__limit=80), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_synthetic_references_follow_the_seed_of_the_run(pack, tmp_path):
    outcome = train(recipe(pack, "synthetic", seed=5), tmp_path / "run", quiet=True)
    expected = ReferencePool(training_images(recipe(pack))).synthetic(3, seed=5)
    assert torch.equal(outcome.model.references, expected)


def test_the_setting_is_written_down_and_checked(pack):
    assert "stored_as: synthetic" in to_yaml(recipe(pack, "synthetic"))
    with pytest.raises(KillickError, match="protocol.stored_as: expected one of images, mean"):
        recipe(pack, "median")
