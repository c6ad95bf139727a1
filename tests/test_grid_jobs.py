import json
from pathlib import Path

import pytest
import torch
from grids import SHOWN, cells_of, write_recipe

from killick.errors import OptionError, RecipeError
from killick.experiments.arms import parse_arms
from killick.experiments.jobs import Job, make_jobs
from killick.training.initial_weights import make_model
from killick.training.optimizers import learning_rate

ARMS = ("standard", "anchored", "masked-uniform", "masked-label", "finetuned")


@pytest.fixture
def recipe(pictures, tmp_path) -> Path:
    return write_recipe(pictures, tmp_path)


def test_every_arm_and_seed_is_a_cell_with_a_folder_of_its_own(recipe, tmp_path):
    cells = cells_of(recipe, tmp_path, *ARMS, seeds=(0, 3))
    assert [(cell.arm, cell.seed) for cell in cells] == [(a, s) for s in (0, 3) for a in ARMS]
    assert len({cell.folder for cell in cells}) == 10
    assert all(phase.recipe.seed == cell.seed for cell in cells for phase in cell.phases)


def test_arms_differ_in_what_they_say_and_in_nothing_else(recipe, tmp_path):
    standard, masked = cells_of(recipe, tmp_path, "standard", "masked-label")
    ours, theirs = standard.to_json(), masked.to_json()
    assert ours["phases"][0]["recipe"]["protocol"].pop("name") == "standard"
    assert theirs["phases"][0]["recipe"]["protocol"].pop("name") == "masked"
    assert ours["phases"][0]["recipe"] == theirs["phases"][0]["recipe"]


def test_arms_begin_with_the_same_weights_where_shapes_allow(recipe, tmp_path):
    mean = ((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    names = ("a", "b", "c", "d")
    states = {}
    for cell in cells_of(recipe, tmp_path, "standard", "anchored", "masked-uniform", seeds=(4,)):
        model = make_model(cell.phases[0].recipe, mean, names, cell.seed).model
        states[cell.arm] = dict(model.net.named_parameters())
    shared = 0
    for name, weight in states["standard"].items():
        assert torch.equal(states["anchored"][name], states["masked-uniform"][name])
        if states["anchored"][name].shape == weight.shape:
            assert torch.equal(states["anchored"][name], weight)
            shared += 1
    assert shared == len(states["standard"]) - 1  # all but the first layer


def test_a_finetuned_arm_has_the_budget_of_the_others_and_one_schedule(recipe, tmp_path):
    whole, parts = cells_of(recipe, tmp_path, "masked-label", "finetuned", epochs=10)
    first, second = parts.phases
    assert first.recipe.protocol.name == "standard"
    assert second.recipe.protocol.name == "masked"
    assert first.recipe.epochs + second.recipe.epochs == whole.phases[0].recipe.epochs == 10
    assert second.start == str(first.folder)
    settings = whole.phases[0].recipe
    expected = [learning_rate(s, 40, settings.optimizer.lr, settings.schedule) for s in range(40)]
    found = [
        learning_rate(step, 20, phase.recipe.optimizer.lr, phase.recipe.schedule)
        for phase in parts.phases
        for step in range(20)
    ]
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_share_of_the_epochs_is_rounded_and_never_none_or_all(recipe, tmp_path):
    for share, epochs in ((0.1, (1, 2)), (0.9, (2, 1)), (0.34, (1, 2))):
        (cell,) = cells_of(recipe, tmp_path, f"finetuned:first={share}")
        assert tuple(phase.recipe.epochs for phase in cell.phases) == epochs


def test_a_folder_is_known_by_what_decides_the_weights(recipe, tmp_path):
    (one,) = cells_of(recipe, tmp_path, "masked-label")
    (longer,) = cells_of(recipe, tmp_path, "masked-label", epochs=9)
    (told,) = cells_of(recipe, tmp_path, "masked-label", log_every=9, checkpoint_minutes=1.0)
    (asked,) = cells_of(recipe, tmp_path, "masked-label", shown={**SHOWN, "limit": 5})
    assert one.folder != longer.folder
    assert one.folder == told.folder == asked.folder
    assert one.asked == told.asked != asked.asked


def test_a_setting_that_came_later_leaves_the_folders_that_are_there_where_they_are(tmp_path):
    (cell,) = make_jobs("shapes-compare", {}, parse_arms(("masked-label",)), (0,), tmp_path, {})
    assert cell.folder.name == "masked-label-seed0-93fac7"  # as before there was protocol.stored_as
    before = {
        "protocol.stored_as": "images",
        "protocol.alpha_end": None,
        "protocol.batchnorm": "settled",
    }
    (said,) = make_jobs("shapes-compare", before, parse_arms(("masked-label",)), (0,), tmp_path, {})
    assert said.folder == cell.folder


def test_another_value_of_a_setting_that_came_later_is_another_folder(tmp_path):
    said = ["stored_as=mean", "alpha_end=0.0", "alpha_end=0.25", "alpha_end=1.0"]
    said += ["batchnorm=running", "batchnorm=running,protocol.alpha_end=1.0"]
    arms = [f"arm{i}:protocol=masked,target=label,protocol.{each}" for i, each in enumerate(said)]
    cells = make_jobs("shapes-compare", {}, parse_arms(["masked-label", *arms]), (0,), tmp_path, {})
    digests = [cell.folder.name.rpartition("-")[2] for cell in cells]
    assert digests[0] == "93fac7"
    assert len(set(digests)) == 7


def test_an_arm_that_is_renamed_is_found_again(recipe, tmp_path):
    (one,) = cells_of(recipe, tmp_path, "masked-label")
    one.folder.mkdir()
    (renamed,) = cells_of(recipe, tmp_path, "mine:protocol=masked,target=label")
    assert renamed.folder == one.folder
    assert renamed.arm == "mine"


def test_a_cell_travels_as_json(recipe, tmp_path):
    for cell in cells_of(recipe, tmp_path, *ARMS):
        again = Job.from_json(json.loads(json.dumps(cell.to_json())))
        assert again == cell
        assert again.asked == cell.asked


def test_another_network_under_the_same_path_is_another_cell(recipe, tmp_path):
    net = tmp_path / "net.pt"
    folders = []
    for content in (b"one", b"two"):
        net.write_bytes(content)
        folders.append(cells_of(recipe, tmp_path, f"tuned:from={net}")[0].folder)
    assert folders[0] != folders[1]


def test_what_cannot_be_compared_is_refused_before_anything_runs(recipe, tmp_path):
    with pytest.raises(OptionError, match="found none at"):
        cells_of(recipe, tmp_path, f"tuned:from={tmp_path / 'nothing'}")
    with pytest.raises(OptionError, match="at least 2 epochs"):
        cells_of(recipe, tmp_path, "finetuned", epochs=1)
    with pytest.raises(OptionError, match="a whole schedule"):
        cells_of(recipe, tmp_path, "finetuned", **{"schedule.end": 0.5})
    with pytest.raises(OptionError, match="different seeds"):
        make_jobs(recipe, {}, parse_arms(["standard"]), (1, 1), tmp_path, {})
    with pytest.raises(RecipeError, match="alpha"):
        cells_of(recipe, tmp_path, "x:alpha=2")


def test_two_arms_that_are_the_same_are_refused(recipe, tmp_path):
    with pytest.raises(OptionError, match="found standard and twin with the same settings"):
        cells_of(recipe, tmp_path, "standard", "twin:protocol=standard")
