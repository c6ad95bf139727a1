"""Runs grouped into arms: names, the baseline, one evaluation each, and notes."""

from dataclasses import replace

import pytest
from report_runs import ANCHORED, LABEL, STANDARD, UNIFORM, make_run

from killick.cli import main
from killick.cli.summaries import show_comparison
from killick.errors import DataError, OptionError
from killick.report.comparison import make_comparison
from killick.report.evaluations import predictions_of
from killick.report.intervals import Interval
from killick.report.report_data import make_report_data
from killick.report.run_groups import seed_of
from killick.report.statistics import Estimate
from killick.results.run_folder import Run, find_runs, read_run

SMALL = {"corruptions": ("fog",), "severities": (5,), "ood_sets": ()}


def names(comparison):
    return [arm.name for arm in comparison.arms]


def test_runs_become_arms_by_how_they_were_trained_with_the_standard_one_first(tmp_path):
    runs = [
        make_run(tmp_path, "u", UNIFORM, **SMALL),
        make_run(tmp_path, "l1", LABEL, seed=1, **SMALL),
        make_run(tmp_path, "s1", STANDARD, seed=1, **SMALL),
        make_run(tmp_path, "a", ANCHORED, **SMALL),
        make_run(tmp_path, "s0", STANDARD, **SMALL),
        make_run(tmp_path, "l0", LABEL, **SMALL),
    ]
    found = make_comparison(runs)
    assert names(found) == ["standard", "masked-uniform", "masked-label", "anchored"]
    assert found.baseline is found.arms[0]
    assert found.data == "shapes"
    assert [[run.name for run in arm.runs] for arm in found.arms[::2]] == [
        ["s0", "s1"],
        ["l0", "l1"],
    ]
    for fact in ("alpha 0.25", "target label", "reference policy random", "epochs 12"):
        assert fact in found.arms[2].about
    assert found.arms[2].seeds == (0, 1)


def test_arms_are_described_by_what_they_were_trained_on(tmp_path):
    tuned = {**LABEL, "start": "runs/other-seed0", "components": '{"sam": {"rho": 0.1}}'}
    runs = [
        make_run(tmp_path, "s", STANDARD, **SMALL),
        make_run(tmp_path, "t", tuned, **SMALL),
        make_run(tmp_path, "u", {**STANDARD, "protocol": "unheard-of"}, **SMALL),
    ]
    found = {arm.name: arm.description for arm in make_comparison(runs).arms}
    assert found["standard"] == "trained on images alone; 12 epochs"
    assert found["masked-label"] == (
        "a trained network, tuned on pairs [reference, image − reference]; reference masked in"
        " 25 % of the batches, towards the label; with sam; 12 epochs"
    )
    assert sorted(found.values())[0] == ""


def test_the_arm_and_the_seed_of_a_job_count_more_than_rows(tmp_path):
    runs = [
        make_run(
            tmp_path, "x", LABEL, job={"arm": "masked-mine", "seed": 7, "finished": True}, **SMALL
        ),
        make_run(tmp_path, "y", job={"arm": "plain", "seed": 7}, **SMALL),
    ]
    found = make_comparison(runs)
    assert names(found) == ["plain", "masked-mine"]
    assert seed_of(found.arms[1].runs[0]) == 7


def test_a_seed_is_looked_for_in_rows_and_recipe_too():
    assert seed_of(Run("x", None, [{"seed": 3}])) == 3
    assert seed_of(Run("x", None, [{"seed": ""}], recipe={"seed": 4})) == 4
    assert seed_of(Run("x", None, [])) == 0


def test_the_baseline_can_be_named_and_one_arm_has_none(tmp_path):
    runs = [make_run(tmp_path, "s", **SMALL), make_run(tmp_path, "l", LABEL, **SMALL)]
    found = make_comparison(runs, baseline="masked-label")
    assert names(found) == ["masked-label", "standard"]
    assert found.baseline.name == "masked-label"
    for folder in (runs[1].folder.name, str(runs[1].folder)):  # where names of arms are made up
        assert make_comparison(runs, baseline=folder).baseline.name == "masked-label"
    assert make_comparison(runs[:1]).baseline is None
    assert names(make_comparison(runs[:1])) == ["standard"]
    with pytest.raises(OptionError, match=r"'masked-label'.*'masked'"):
        make_comparison(runs, baseline="masked")


def test_without_standard_training_from_scratch_the_first_arm_is_the_baseline(tmp_path):
    tuned = {**STANDARD, "start": "runs/other-seed0"}
    runs = [
        make_run(tmp_path, "l", LABEL, **SMALL),
        make_run(tmp_path, "t", tuned, **SMALL),
    ]
    assert make_comparison(runs).baseline.name == "masked-label"
    runs.append(make_run(tmp_path, "s", **SMALL))
    found = make_comparison(runs)
    assert names(found) == ["standard", "masked-label", "standard-start=other-seed*"]
    assert "start runs/other-seed0" in found.arms[2].about


@pytest.mark.parametrize(
    ("column", "value", "name"),
    [
        ("alpha", 0.5, "masked-label-alpha=0.5"),
        ("scope", "sample", "masked-label-scope=sample"),
        ("epochs", 24, "masked-label-epochs=24"),
        ("network", "killick:resnet18", "masked-label-network=killick:resnet18"),
        ("start", "runs/standard-seed0-abcdef12", "masked-label-start=standard-seed*"),
        ("references", "augmented", "masked-label-references=augmented"),
    ],
)
def test_runs_that_differ_in_more_than_the_seed_are_different_arms(tmp_path, column, value, name):
    one = make_run(tmp_path, "one", LABEL, **SMALL)
    other = make_run(tmp_path, "other", {**LABEL, column: value}, seed=1, **SMALL)
    found = make_comparison([one, other])
    assert names(found)[1] == name
    assert len(found.arms) == 2
    assert names(make_comparison([other])) == ["masked-label"]  # nothing to tell it from


def test_arms_that_differ_in_much_are_named_by_their_folders(tmp_path):
    many = {"alpha": 0.5, "scope": "sample", "epochs": 24}
    one = make_run(tmp_path, "mine-seed0", LABEL, **SMALL)
    other = make_run(tmp_path, "yours-seed0", {**LABEL, **many}, **SMALL)
    assert names(make_comparison([one, other])) == ["mine", "yours"]


def test_starts_and_references_that_differ_by_the_seed_alone_are_one_arm(tmp_path):
    runs = [
        make_run(
            tmp_path,
            f"run{seed}",
            {**LABEL, "start": f"/data/{seed}/standard-seed{seed}-{digest}/"},
            seed=seed,
            **SMALL,
        )
        for seed, digest in enumerate(["0a1b2c3d", "9f8e7d6c"])
    ]
    found = make_comparison(runs)
    assert names(found) == ["masked-label"]
    assert found.arms[0].seeds == (0, 1)


def test_epochs_trained_before_are_in_the_description(tmp_path):
    start = str(tmp_path / "tuned" / "first")
    run = make_run(tmp_path, "tuned", {**LABEL, "start": start, "epochs": 6}, **SMALL)
    (arm,) = make_comparison([run]).arms
    assert not arm.from_scratch
    schedule = {"begin": 0.25, "end": 1.0}
    parts = replace(run, recipe={"schedule": schedule, "epochs": 6})
    (arm,) = make_comparison([parts]).arms
    assert "epochs before 2, epochs 6" in arm.about


def test_recipes_that_differ_make_two_arms_but_not_if_no_number_depends_on_it(tmp_path):
    def recipe(seed, **more):
        data = {"root": f"/disk{seed}", "mean": [0.1 * seed], "limit": 100}
        return {"seed": seed, "data": data, "optimizer": {"lr": 0.1}, **more}

    runs = [
        make_run(tmp_path, "s0", recipe=recipe(0, log_every=5), **SMALL),
        make_run(tmp_path, "s1", seed=1, recipe=recipe(1), **SMALL),
    ]
    assert names(make_comparison(runs)) == ["standard"]
    runs.append(make_run(tmp_path, "s2", seed=2, recipe=recipe(2, optimizer={"lr": 0.2}), **SMALL))
    assert names(make_comparison(runs)) == ["standard-lr=0.1", "standard-lr=0.2"]


def test_models_without_a_seed_are_arms_of_their_own(tmp_path):
    runs = [make_run(tmp_path, name, seed="", **SMALL) for name in ("one", "two")]
    found = make_comparison(runs)
    assert names(found) == ["standard-model=one", "standard-model=two"]
    assert [arm.seeds for arm in found.arms] == [(0,), (0,)]


def test_of_two_runs_of_one_seed_the_last_is_used(tmp_path):
    runs = [make_run(tmp_path, name, LABEL, **SMALL) for name in ("old", "new")]
    found = make_comparison(runs)
    assert [run.name for run in found.arms[0].runs] == ["new"]
    assert [line.split()[0] for line in found.notes] == ["old"]


def test_a_file_with_the_rows_of_several_models_is_several_runs(tmp_path):
    runs = [make_run(tmp_path, "s", **SMALL), make_run(tmp_path, "l", LABEL, **SMALL)]
    text = (tmp_path / "s" / "rows.csv").read_text()
    text += "".join((tmp_path / "l" / "rows.csv").read_text().splitlines(keepends=True)[1:])
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "all.csv").write_text(text)
    found = make_comparison(find_runs([tmp_path / "far" / "all.csv"]))
    assert names(found) == names(make_comparison(runs))
    assert [run.name for arm in found.arms for run in arm.runs] == ["s", "l"]


def test_rows_of_another_model_in_a_folder_do_not_get_its_recipe(tmp_path):
    run = make_run(tmp_path, "s", job={"arm": "mine", "seed": 5}, **SMALL)
    other = make_run(tmp_path, "l", LABEL, **SMALL)
    mixed = Run("s", run.folder, [*other.rows, *run.rows], job=run.job)
    found = make_comparison([mixed])
    assert {arm.name: arm.seeds for arm in found.arms} == {"mine": (5,), "masked-label": (0,)}


def test_runs_without_results_are_left_out_and_listed(tmp_path):
    good = make_run(tmp_path, "good", **SMALL)
    runs = [
        good,
        Run("empty", tmp_path, []),
        make_run(tmp_path, "killed", LABEL, job={"arm": "x", "finished": False}, **SMALL),
        make_run(tmp_path, "far", LABEL, **SMALL, data="digits"),
    ]
    found = make_comparison([*runs, make_run(tmp_path, "other", seed=1, **SMALL)])
    assert [run.name for run in found.arms[0].runs] == ["good", "other"]
    assert [line.split()[0] for line in found.notes] == ["empty", "killed", "far"]
    assert "digits" in found.notes[2]


def test_the_command_prints_what_is_left_out_and_differences_where_there_are_some(tmp_path, capsys):
    for name, columns in (("good", {}), ("far", {"data": "digits"}), ("more", {"seed": 1})):
        make_run(tmp_path / "runs", name, **SMALL, **columns)
    words = ["report", str(tmp_path / "runs"), "--output", str(tmp_path / "page")]
    assert main(words) == 0
    told = capsys.readouterr()
    assert told.err.startswith("killick: far is left out")
    show_comparison(make_report_data(find_runs([tmp_path / "runs"])).table)
    told = capsys.readouterr().out
    assert "±: standard deviation over seeds" in told
    assert "to the baseline" not in told
    make_run(tmp_path / "runs", "label", LABEL, **SMALL)
    show_comparison(make_report_data(find_runs([tmp_path / "runs"])).table)
    assert "; (): to the baseline" in capsys.readouterr().out


def test_the_summary_says_for_each_metric_whether_an_arm_is_better(capsys):
    better, unsure = Interval(0.1, 0.05, 0.15, "t"), Interval(0.1, -0.05, 0.25, "t")
    good = {
        "corrupted_top1": Estimate({0: 0.8}, better),
        "corrupted_smooth_ece": Estimate({0: 0.2}, better),
        "clean_top1": Estimate({0: 0.8}, unsure),
        "synthetic_ood_auroc": Estimate({0: 0.8}, better),
    }
    show_comparison({"standard": {"corrupted_top1": Estimate({0: 0.7}, None)}, "good": good})
    told = capsys.readouterr().out.splitlines()
    verdicts = [line.split()[-1] for line in told if line.startswith("good") and " to " in line]
    assert verdicts == ["better", "worse", "significant"]  # synthetic OOD is in the table alone


def test_a_comparison_of_nothing_is_refused_with_the_reason():
    with pytest.raises(DataError, match="empty is left out"):
        make_comparison([Run("empty", None, [])])
    with pytest.raises(DataError, match="no runs"):
        make_comparison([])


def test_unequal_seeds_are_noted(tmp_path):
    runs = [
        make_run(tmp_path, "s0", **SMALL),
        make_run(tmp_path, "s1", seed=1, **SMALL),
        make_run(tmp_path, "l0", LABEL, **SMALL),
        make_run(tmp_path, "a2", ANCHORED, seed=2, **SMALL),
    ]
    notes = make_comparison(runs).notes
    assert any("Unequal seeds" in note for note in notes)
    assert make_comparison(runs[:2]).notes == ()


def test_of_several_evaluations_the_one_that_all_share_is_used(tmp_path):
    make_run(tmp_path, "s", limit=90, n=90, corruptions=("fog", "snow", "frost"))
    both = make_run(tmp_path, "s", limit=40, corruptions=("fog",), add=True)
    alone = [make_run(tmp_path, f"l{seed}", LABEL, seed=seed) for seed in range(3)]
    found = make_comparison([both, *alone])
    assert {str(row["limit"]) for arm in found.arms for run in arm.runs for row in run.rows} == {
        "40"
    }
    shown = found.arms[0].runs[0]
    assert {each.count for each in predictions_of(shown)} == {40}
    (alone,) = make_comparison([both]).runs.values()
    assert {str(row["limit"]) for row in alone.rows} == {"90"}  # by itself, the larger one


def test_quick_evaluations_during_training_are_not_used(tmp_path):
    quick = {"corruptions": (), "ood_sets": (), "limit": "", "n": 60, "answers": False}
    runs = []
    for name, facts in (("s", STANDARD), ("l", LABEL)):
        make_run(tmp_path, name, facts, **quick)
        runs.append(make_run(tmp_path, name, facts, add=True, **SMALL))
    found = make_comparison(runs)
    assert {str(row["limit"]) for run in found.runs.values() for row in run.rows} == {"40"}
    assert found.notes == ()


def test_test_images_that_differ_are_noted(tmp_path):
    usual = make_run(tmp_path, "s0", **SMALL)
    longer_limit = make_run(tmp_path, "s1", seed=1, limit=99, **SMALL)  # of the same 40 images
    assert make_comparison([usual, longer_limit]).notes == ()
    more = make_run(tmp_path, "more", LABEL, limit=60, n=60, **SMALL)
    others = make_run(tmp_path, "others", LABEL, images_digest="ba9876543210", **SMALL)
    larger = {"images_digest": "ba9876543210", "view": "224 px"}
    resized = make_run(tmp_path, "resized", LABEL, **larger, **SMALL)
    for run, notes in (
        (more, ("more was evaluated on 60 images, s0 on 40.",)),
        (others, ("others was evaluated on other images than s0.",)),
        (resized, ()),
    ):
        assert make_comparison([usual, run]).notes == notes
    rows = [{**row, "table": row["table"] and "imagenet"} for row in resized.rows]
    (note,) = make_comparison([usual, replace(resized, rows=rows)]).notes
    assert "imagenet" in note
    assert "cifar" in note


@pytest.mark.parametrize(("first", "then"), [(7, 3), (3, 7)])
def test_of_several_numbers_of_references_one_is_used_with_its_predictions(tmp_path, first, then):
    make_run(tmp_path, "l", LABEL, k=first, **SMALL)
    both = make_run(tmp_path, "l", LABEL, k=then, add=True, **SMALL)
    other = make_run(tmp_path, "u", UNIFORM, k=3, **SMALL)
    found = make_comparison([both, other])
    run = found.runs["masked-label", 0]
    assert {row["k"] for row in run.rows if row["inference"] == "marginal"} == {3}
    assert [each.about["k"] for each in predictions_of(run)] == [3, 3]


def test_predictions_of_weights_that_are_gone_are_not_used(tmp_path):
    make_run(tmp_path, "s", **SMALL)
    for file in ("rows.jsonl", "rows.csv"):
        text = (tmp_path / "s" / file).read_text()
        (tmp_path / "s" / file).write_text(text.replace("weights of s", "other weights"))
    assert predictions_of(read_run(tmp_path / "s")) == []


def test_runs_of_a_folder_come_in_the_order_in_which_they_began(tmp_path):
    for name, started in (("b", "2026-01-01T10:00:00"), ("a", "2026-01-01T10:00:05")):
        make_run(tmp_path, name, **SMALL)
        (tmp_path / name / "environment.json").write_text(f'{{"started": "{started}"}}')
    assert [run.name for run in find_runs([tmp_path])] == ["b", "a"]


def test_a_given_name_is_kept_and_rows_of_training_are_not_another_arm(tmp_path):
    run = make_run(tmp_path, "seed0", LABEL, recipe={"epochs": 12})
    rows = [{**row, "model": "mine", "name": "mine"} for row in run.rows]
    trained = [{**row, "images": ""} for row in run.rows if row["metric"] == "top1"][:1]
    both = replace(run, rows=trained + rows)
    assert names(make_comparison([both])) == ["mine"]
    other = make_run(tmp_path, "other", STANDARD)
    assert names(make_comparison([both, other])) == ["standard", "mine"]


def test_a_network_of_unknown_history_is_named_by_its_model_and_not_from_scratch(tmp_path):
    unknown = make_run(tmp_path, "timm-net", STANDARD, seed="", epochs="")
    known = make_run(tmp_path, "ours", STANDARD)
    found = make_comparison([unknown, known])
    assert names(found) == ["standard", "timm-net"]
    assert [arm.from_scratch for arm in found.arms] == [True, False]


def test_the_evaluation_that_a_comparison_asked_for_last_is_used(tmp_path):
    asked = {"limit": 20, "evaluation_seed": 0, "precision": "float32"}
    for limit in (40, 20):
        job = {"arm": "a", "seed": 0, "evaluation": asked}
        run = make_run(tmp_path, "a", limit=limit, n=limit, job=job, add=limit == 20)
    (chosen,) = make_comparison([run]).arms[0].runs
    assert {row["limit"] for row in chosen.rows} == {20}
