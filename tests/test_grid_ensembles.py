"""Arms made of trained runs: ensembles, MC dropout and test-time augmentation."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from grids import jobs_of, write_recipe

import killick
from killick.errors import OptionError
from killick.experiments.arms import ARMS, parse_arm
from killick.experiments.job_runner import run_job
from killick.experiments.jobs import Job
from killick.results.rows import read_rows
from killick.results.run_folder import read_job
from killick.training.recipe_files import load_recipe
from killick.training.training_data import sets_of

EVALUATION = {"suites": ["clean", "calibration", "multiplicity"], "references": 2, "workers": 0}


def test_an_ensemble_is_made_of_the_runs_of_the_other_parts():
    arm = parse_arm("ensemble+sam+masked-label:members=5,rho=0.1")
    assert arm.members == 5
    assert arm.trained == "sam+masked-label"
    assert arm.settings == {
        **ARMS["masked-label"].settings,
        "components": [{"name": "sam", "rho": 0.1}],
    }
    assert parse_arm("ensemble").trained == "standard"
    drawn = parse_arm("dropout+mc-dropout:draws=7,rate=0.2")
    assert drawn.evaluation == {"inference": "mc-dropout", "draws": 7}
    assert drawn.settings["components"] == [{"name": "dropout", "rate": 0.2}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ensemble:members=1", "at least 2, found '1'"),
        ("ensemble:members=some", "at least 2"),
        ("mc-dropout:draws=0", "at least 2"),
        ("mc-dropout+tta", "exclude each other"),
        ("ensembel+sam", "did you mean 'ensemble'"),
    ],
)
def test_a_mistake_is_one_line(text, says):
    with pytest.raises(OptionError, match=says):
        parse_arm(text)


def test_members_share_their_images_and_no_two_ensembles_a_member(image_folder, tmp_path):
    recipe = write_recipe(image_folder, tmp_path, data__validation=4)
    jobs = jobs_of(recipe, tmp_path, "standard", "ensemble:members=3", seeds=(0, 1))
    plain, first, other, second = jobs
    assert (plain.arm, first.arm, second.seed) == ("standard", "ensemble", 1)
    assert first.members[0] == str(plain.folder)
    assert second.members[0] == str(other.folder)
    assert len({*first.members, *second.members}) == 6
    for job in (first, second):
        sets = [sets_of(phase.recipe) for phase in job.phases]
        assert len({phase.recipe.seed for phase in job.phases}) == 3
        for each in sets[1:]:
            assert torch.equal(each.train.rows, sets[0].train.rows)
            assert torch.equal(each.validation.rows, sets[0].validation.rows)
        assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    one, two = (sets_of(job.phases[0].recipe).train.rows for job in (first, second))
    assert not torch.equal(one, two)


@pytest.fixture(scope="module")
def finished(image_folder, tmp_path_factory) -> tuple[Path, list[Job]]:
    """A run with dropout, alone and as what is made of it."""
    output = tmp_path_factory.mktemp("made")
    recipe = write_recipe(image_folder, output, epochs=1, data__validation=4)
    arms = ("dropout", "ensemble+dropout:members=2", "dropout+mc-dropout:draws=3", "dropout+tta")
    jobs = jobs_of(recipe, output, *arms, evaluation=EVALUATION)
    for job in jobs:
        assert run_job(job, threads=1)["status"] == "finished", read_job(job.folder)
        assert job.finished
    return output, jobs


def test_what_is_made_of_runs_trains_them_once(finished):
    output, jobs = finished
    runs = {path.parent for path in output.glob("*/recipe.yaml")}
    assert runs == {*map(Path, jobs[1].members)}
    assert jobs[2].run == jobs[3].run == str(jobs[0].folder)
    assert read_job(jobs[0].folder)["finished"]
    assert read_job(Path(jobs[1].members[1])) == {"finished": False}


def test_an_ensemble_is_evaluated_on_what_its_members_never_saw(finished):
    _, (plain, job, *_) = finished
    members = [killick.load(folder).eval() for folder in job.members]
    model = killick.load(job.folder).eval()
    images = torch.randint(256, (5, *model.image_shape)).byte()
    expected = torch.stack([member(images).softmax(1) for member in members]).mean(0)
    assert torch.allclose(model(images).softmax(1), expected, atol=1e-6)
    alone, both = (read_rows(each.folder) for each in (plain, job))
    fitted = {row["fitted_on"] for row in both if row["scaling"]}
    assert fitted == {row["fitted_on"] for row in alone if row["scaling"]} != set()
    assert json.loads(both[0]["components"]).keys() == {"dropout", "ensemble"}
    recipes = [load_recipe(Path(folder) / "recipe.yaml") for folder in job.members]
    assert recipes[0].seed == 0 == recipes[1].data.seed != recipes[1].seed


def test_rows_have_the_costs(finished):
    costs = {
        job.arm: {
            (row["inference"], row["training_cost"], row["inference_cost"])
            for row in read_rows(job.folder)
            if row["images"]
        }
        for job in finished[1]
    }
    assert costs == {
        "dropout": {("single", 1, 1)},
        "ensemble+dropout": {("single", 2, 2)},
        "dropout+mc-dropout": {("mc-dropout", 1, 3)},
        "dropout+tta": {("tta", 1, 6)},
    }


def test_multiplicity_is_there_for_what_has_several_predictions(finished):
    found = {
        job.arm: {row["metric"] for row in read_rows(job.folder) if row["suite"] == "multiplicity"}
        for job in finished[1]
    }
    both = {"ambiguity", "discrepancy"}
    assert list(found.values()) == [set(), both, both, both]


def test_an_interrupted_ensemble_is_resumed_by_the_same_job(finished, tmp_path):
    _, (_, job, *_) = finished
    shutil.rmtree(job.folder / "model")
    (job.folder / "job.json").unlink()
    before = {
        folder: (Path(folder) / "model/config.json").stat().st_mtime_ns for folder in job.members
    }
    assert run_job(job, threads=1)["status"] == "finished"
    assert (job.folder / "model/config.json").exists()
    for folder, then in before.items():
        assert (Path(folder) / "model/config.json").stat().st_mtime_ns == then
