"""Jobs: what decides their folders, and how one runs, fails and is resumed."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from grids import EVALUATION, jobs_of, write_recipe
from runs import assert_same, weights_of

import killick
from killick.errors import KillickError, OptionError, RecipeError
from killick.experiments import job_runner
from killick.experiments.arms import ARMS, parse_arms
from killick.experiments.job_runner import PROBLEM, PROGRESS, rename_job, run_job
from killick.experiments.jobs import Job, make_jobs
from killick.results.rows import read_rows
from killick.results.run_folder import find_runs, read_job
from killick.training.initial_weights import make_model
from killick.training.optimizers import learning_rate
from killick.training.run_state import TrainingRun


@pytest.fixture
def recipe(image_folder, tmp_path) -> Path:
    return write_recipe(image_folder, tmp_path, epochs=2)


@pytest.fixture(scope="module")
def finished(image_folder, tmp_path_factory) -> tuple[Path, Path, Job]:
    """A finished standard job; tests leave it finished."""
    folder = tmp_path_factory.mktemp("finished")
    recipe = write_recipe(image_folder, folder, epochs=2)
    (job,) = jobs_of(recipe, folder, "standard")
    assert run_job(job, threads=1, command=["killick", "compare"])["status"] == "finished"
    return recipe, folder, job


def refuse(*values, **more):
    raise AssertionError("run again")


def interrupt(*values, **more):
    raise KeyboardInterrupt


def test_every_arm_and_seed_is_a_job_with_its_own_folder(recipe, tmp_path):
    jobs = jobs_of(recipe, tmp_path, *ARMS, seeds=(0, 3))
    assert [(job.arm, job.seed) for job in jobs] == [(a, s) for s in (0, 3) for a in ARMS]
    assert len({job.folder for job in jobs}) == 2 * len(ARMS)
    assert all(phase.recipe.seed == job.seed for job in jobs for phase in job.phases)
    for job in jobs:
        again = Job.from_json(json.loads(json.dumps(job.to_json())))
        assert again == job
        assert again.evaluation_digest == job.evaluation_digest


def test_arms_differ_only_in_their_settings(recipe, tmp_path):
    standard, masked = (
        job.to_json()["phases"][0]["recipe"]
        for job in jobs_of(recipe, tmp_path, "standard", "masked-label")
    )
    assert standard.pop("protocol")["name"] == "standard"
    assert masked.pop("protocol")["name"] == "masked"
    assert standard == masked


def test_arms_begin_with_the_same_weights_where_shapes_allow(recipe, tmp_path):
    mean = ((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    names = ("a", "b", "c", "d")
    states = {}
    for job in jobs_of(recipe, tmp_path, "standard", "anchored", "masked-uniform", seeds=(4,)):
        model = make_model(job.phases[0].recipe, mean, names, job.seed)[0]
        states[job.arm] = dict(model.net.named_parameters())
    shared = 0
    for name, weight in states["standard"].items():
        assert torch.equal(states["anchored"][name], states["masked-uniform"][name])
        if states["anchored"][name].shape == weight.shape:
            assert torch.equal(states["anchored"][name], weight)
            shared += 1
    assert shared == len(states["standard"]) - 1  # all but the first layer


@pytest.mark.parametrize(
    ("arm", "protocol"), [("masked-tuning", "masked"), ("standard-tuning", "standard")]
)
def test_tuning_starts_from_the_finished_standard_network(recipe, tmp_path, arm, protocol):
    standard, tuned = jobs_of(recipe, tmp_path, "standard", arm, epochs=10)
    first, second = tuned.phases
    assert first == standard.phases[-1]
    assert second.start == str(standard.folder)
    assert (first.recipe.epochs, second.recipe.epochs) == (10, 2)
    assert second.recipe.optimizer.lr == pytest.approx(first.recipe.optimizer.lr / 5)
    assert second.recipe.protocol.name == protocol
    assert second.folder == tuned.folder != standard.folder


def test_a_finetuned_arm_has_the_budget_of_the_others_and_one_schedule(recipe, tmp_path):
    whole, parts = jobs_of(recipe, tmp_path, "masked-label", "finetuned", epochs=10)
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
        (job,) = jobs_of(recipe, tmp_path, f"finetuned:first={share}", epochs=3)
        assert tuple(phase.recipe.epochs for phase in job.phases) == epochs


def test_a_folder_is_named_by_what_decides_the_weights(recipe, tmp_path):
    (one,) = jobs_of(recipe, tmp_path, "masked-label")
    (longer,) = jobs_of(recipe, tmp_path, "masked-label", epochs=9)
    (logged,) = jobs_of(recipe, tmp_path, "masked-label", log_every=9, checkpoint_minutes=1.0)
    (limited,) = jobs_of(recipe, tmp_path, "masked-label", evaluation={**EVALUATION, "limit": 5})
    assert one.folder != longer.folder
    assert one.folder == logged.folder == limited.folder
    assert one.evaluation_digest == logged.evaluation_digest != limited.evaluation_digest
    one.folder.mkdir()
    (renamed,) = jobs_of(recipe, tmp_path, "mine:protocol=masked,target=label")
    assert (renamed.folder, renamed.arm) == (one.folder, "mine")


def test_another_network_at_the_same_path_is_another_job(recipe, tmp_path):
    net = tmp_path / "net.pt"
    folders = []
    for content in (b"one", b"two"):
        net.write_bytes(content)
        folders.append(jobs_of(recipe, tmp_path, f"tuned:from={net}")[0].folder)
    assert folders[0] != folders[1]


def test_what_cannot_be_compared_is_refused_before_anything_runs(recipe, tmp_path):
    with pytest.raises(OptionError, match="no trained network at"):
        jobs_of(recipe, tmp_path, f"tuned:from={tmp_path / 'nothing'}")
    with pytest.raises(OptionError, match="at least 2"):
        jobs_of(recipe, tmp_path, "finetuned", epochs=1)
    with pytest.raises(OptionError, match="whole schedule"):
        jobs_of(recipe, tmp_path, "finetuned", **{"schedule.end": 0.5})
    with pytest.raises(OptionError, match="seeds must differ"):
        make_jobs(recipe, {}, parse_arms(["standard"]), (1, 1), tmp_path, {})
    with pytest.raises(RecipeError, match="alpha"):
        jobs_of(recipe, tmp_path, "x:alpha=2")
    with pytest.raises(RecipeError, match="alpa: no such setting"):
        jobs_of(recipe, tmp_path, "x:alpa=0.5")
    with pytest.raises(OptionError, match="standard and twin"):
        jobs_of(recipe, tmp_path, "standard", "twin:protocol=standard")


def test_a_job_is_trained_evaluated_and_finished(recipe, tmp_path, monkeypatch):
    from killick.data.batches import Resident, Streamed

    seen = []
    for kind in (Resident, Streamed):
        begin = kind.begin

        def noted(batches, epoch, step, begin=begin):
            seen.append(epoch)
            begin(batches, epoch, step)

        monkeypatch.setattr(kind, "begin", noted)
    (job,) = jobs_of(recipe, tmp_path, "finetuned", seeds=(2,))
    assert not job.finished
    assert run_job(job, threads=1, command=["killick", "compare"])["status"] == "finished"
    assert job.finished
    assert seen == [0, 1]  # the second phase sees the samples in another order
    assert not (job.folder / PROGRESS).exists()
    (run,) = find_runs([tmp_path])
    assert run.job["arm"] == "finetuned"
    assert run.job["seed"] == 2
    assert run.job["command"] == ["killick", "compare"]
    assert {row["suite"] for row in run.rows} == {"clean", "corruptions"}
    assert {row["start"] for row in run.rows} == {str(job.folder / "first")}


@pytest.mark.parametrize("held_out", [4, 0])
def test_a_job_stores_the_threshold_that_was_fitted_on_validation_images(
    image_folder, tmp_path, held_out
):
    recipe = write_recipe(image_folder, tmp_path, epochs=1, data__validation=held_out)
    (job,) = jobs_of(recipe, tmp_path, "masked-label")
    assert run_job(job, threads=1)["status"] == "finished"
    stored = killick.load(job.folder).threshold
    (row,) = (row for row in read_rows(job.folder) if row["metric"] == "threshold")
    assert (stored is not None) == bool(held_out)
    if stored is not None:
        assert (stored.energy, stored.acceptance) == (row["value"], 0.95)
        assert "validation (4, " in stored.fitted_on
    evaluated = killick.evaluate(
        job.folder, **job.evaluation, seed=1
    )  # the weights are the same ones
    assert {each["weights"] for each in evaluated} == {row["weights"]}


def test_a_finished_job_is_never_run_again(finished, monkeypatch):
    _, _, job = finished
    monkeypatch.setattr(job_runner, "train", refuse)
    monkeypatch.setattr(job_runner, "evaluate", refuse)
    assert run_job(job, threads=1)["status"] == "finished"


def test_more_evaluation_trains_nothing_and_leaves_the_job_finished(finished, monkeypatch):
    recipe, folder, job = finished
    before = weights_of(job.folder)
    (more,) = jobs_of(recipe, folder, "standard", evaluation={**EVALUATION, "severities": [3, 5]})
    assert more.folder == job.folder
    assert not more.finished
    with monkeypatch.context() as patch:
        patch.setattr(job_runner, "evaluate", interrupt)
        assert run_job(more, threads=1) == {"status": "interrupted"}
    assert job.finished
    monkeypatch.setattr(job_runner, "train", refuse)
    assert run_job(more, threads=1)["status"] == "finished"
    assert_same(before, weights_of(job.folder))
    (run,) = find_runs([folder])
    assert {row["severity"] for row in run.rows if row["corruption"] == "fog"} == {3, 5}
    assert run_job(job, threads=1)["status"] == "finished"  # as it was, for other tests


def test_a_renamed_arm_is_recorded_in_its_folder(finished):
    recipe, folder, job = finished
    (renamed,) = jobs_of(recipe, folder, "mine:protocol=standard")
    rename_job(renamed)
    assert read_job(job.folder)["arm"] == "mine"
    assert renamed.finished


def test_an_interrupted_job_ends_as_one_that_was_not(recipe, tmp_path, monkeypatch):
    (job,) = jobs_of(recipe, tmp_path / "a", "finetuned")
    (straight,) = jobs_of(recipe, tmp_path / "b", "finetuned")
    take = TrainingRun.take_step

    def interrupted(run):
        take(run)
        if run.done == 3 and run.recipe.protocol.name == "masked":
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "take_step", interrupted)
        assert run_job(job, threads=1) == {"status": "interrupted"}
    assert not job.finished
    with monkeypatch.context() as patch:
        patch.setattr(job_runner, "evaluate", interrupt)
        assert run_job(job, threads=1) == {"status": "interrupted"}
    with monkeypatch.context() as patch:
        patch.setattr(job_runner, "train", refuse)  # it is trained
        assert run_job(job, threads=1)["status"] == "finished"
    run_job(straight, threads=1)
    assert_same(weights_of(job.folder), weights_of(straight.folder))


@pytest.mark.parametrize(
    ("raised", "problem"),
    [
        (KillickError("expected this, found that."), "expected this, found that."),
        (MemoryError(), "MemoryError: MemoryError"),
        (ZeroDivisionError("by\nzero"), "ZeroDivisionError: by"),
        (OSError(28, "No space left on device", "x.pt"), "x.pt: No space left on device."),
    ],
)
def test_an_error_is_a_line_and_a_file(recipe, tmp_path, monkeypatch, raised, problem):
    (job,) = jobs_of(recipe, tmp_path, "standard")

    def fail(*values, **more):
        raise raised

    monkeypatch.setattr(job_runner, "train", fail)
    assert run_job(job, threads=1) == {"status": "failed", "problem": problem}
    assert (job.folder / PROBLEM).read_text().strip()
    assert read_job(job.folder)["finished"] is False
