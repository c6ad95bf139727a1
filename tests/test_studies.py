"""Studies: what all of them share, and that each runs from one end to the other."""

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields

import pytest
import torch

from killick.cli import main
from killick.errors import OptionError
from killick.experiments.arms import Arm
from killick.results.rows import read_rows
from killick.settings import read_options, setting
from killick.studies import find_study, study_names
from killick.studies.study import (
    SIZES,
    STUDIES,
    Study,
    cross_arms,
    make_plan,
)
from killick.studies.study_runner import plan_jobs, run_study
from killick.studies.trained_job import corrupt_images, open_job
from killick.training.recipe_files import SHORT, load_recipe, settings

pytestmark = pytest.mark.usefixtures("few_shapes")
NAMES = study_names()


def own_modules() -> list[str]:
    return [f"killick.studies.{name.replace('-', '_')}" for name in NAMES]


def test_studies_are_named_without_importing_any_and_read_without_torch():
    code = (
        "import sys, killick.studies as s; names = s.study_names();"
        f"loaded = [m for m in {own_modules()!r} if m in sys.modules];"
        "[s.find_study(name) for name in names]; print(loaded, 'torch' in sys.modules, *names)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False", *NAMES]
    assert "alpha" in NAMES
    assert "study" not in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_study_can_be_planned_at_each_size(name, tmp_path):
    study = find_study(name)
    assert study.name == name
    assert study.title.endswith("?")
    for size in SIZES:
        plan = make_plan(study, size)
        for arm in plan.arms:
            load_recipe(plan.recipe, {**plan.settings, **arm.settings})
    for size in ("small", "smoke"):  # on data that everyone has
        jobs = plan_jobs(make_plan(study, size), tmp_path)
        names = {phase.recipe.data.name for job in jobs for phase in job.phases}
        assert names <= {"shapes", "small-shapes", "digits"}


def test_a_registered_study_is_found_listed_and_described(capsys):
    mine = Study(
        "mine",
        "",
        "Does it?",
        "one arm",
        lambda options, settings: cross_arms("x", {1: {}}, ["standard"]),
        None,
    )
    STUDIES.register("mine", mine)
    try:
        assert find_study("mine") is mine
        assert main(["study"]) == 0
        assert "mine" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["study", "mine", "--help"])
        assert "Does it?" in capsys.readouterr().out
    finally:
        STUDIES.remove("mine")
    assert "mine" not in study_names()


@pytest.fixture(scope="module")
def ran(tmp_path_factory, here, few_shapes):
    """Some studies, run once: name to output folder."""
    folder = tmp_path_factory.mktemp("studies")
    found = {}

    def run(name: str):
        if name not in found:
            output = folder / name
            assert main(["study", name, "--size", "smoke", "--output", str(output)]) == 0
            found[name] = output
        return found[name]

    return run


@pytest.mark.parametrize(
    "name",
    [
        "alpha",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("augmentation", "generalization", "label-noise", "reference-size")
        ),
    ],
)
def test_a_study_runs_from_training_to_the_report(name, ran):
    output = ran(name)
    study = find_study(name)
    about = json.loads((output / "study.json").read_text())
    assert about["study"] == name
    page = (output / "report.html").read_text()
    assert study.title in page
    figures = {path.name for path in (output / "figures").iterdir()}
    assert any(figure.startswith("study") and figure.endswith(".svg") for figure in figures)
    with open(output / "study.csv") as file:
        rows = list(csv.DictReader(file))
    plan = make_plan(study, "smoke")
    assert {row["arm"] for row in rows} == {arm.name for arm in plan.arms}
    assert {"clean_top1", "corrupted_top1"} <= {row["metric"] for row in rows}
    for row in rows:  # the same as in the rows of the jobs
        if row["metric"] == "clean_top1":
            (folder,) = output.glob(f"{row['arm']}-seed{row['seed']}-*")
            assert float(row["value"]) == pytest.approx(clean_top1(folder, 60))


def clean_top1(folder, limit: int) -> float:
    wanted = ("clean", "top1", "single", limit)
    (value,) = [
        row["value"]
        for row in read_rows(folder)
        if (row["suite"], row["metric"], row["inference"], row["limit"]) == wanted
    ]
    return value


def test_a_second_run_trains_nothing_and_shows_the_same(ran, capsys):
    output = ran("alpha")
    before = (output / "study.csv").read_text()
    times = {path: path.stat().st_mtime_ns for path in output.glob("*/model/*")}
    assert times
    capsys.readouterr()
    assert main(["study", "alpha", "--size", "smoke", "--output", str(output)]) == 0
    assert "to train" not in capsys.readouterr().out
    assert (output / "study.csv").read_text() == before
    assert {path: path.stat().st_mtime_ns for path in output.glob("*/model/*")} == times


@pytest.mark.slow
def test_reference_sets_are_nested_balanced_and_hold_what_is_stored(ran):
    from killick.protocols.references.reference_sampler import _choose
    from killick.training.training_data import sets_of

    output = ran("reference-size")
    (cell,) = output.glob("masked-label-references5-*")
    trained = open_job(cell, "cpu")
    assert trained.recipe.protocol.reference_set == 5
    train = sets_of(trained.recipe).train
    small, large = (_choose(train, size, trained.recipe.seed) for size in (5, 50))
    assert set(small.tolist()) <= set(large.tolist())
    assert len(set(train.labels[small].tolist())) == 5
    assert set(train.labels[large].bincount().tolist()) == {5}
    stored = trained.model.references
    assert len(stored) == 5  # none from outside of the set
    of_the_set = {
        bytes(image.numpy().tobytes()) for image in trained.load_images(train.part(small))
    }
    assert {bytes(image.numpy().tobytes()) for image in stored} == of_the_set


def test_images_of_a_cell_are_those_that_it_is_evaluated_on(ran):
    output = ran("alpha")
    (cell,) = output.glob("masked-label-alpha1-*")
    trained = open_job(cell, "cpu")
    images, labels = trained.load_test(limit=60)
    rows = read_rows(cell)
    with torch.no_grad():
        clean = (trained.model(images).argmax(1) == labels).double().mean()
    found = {
        (row["corruption"], row["severity"]): row["value"]
        for row in rows
        if (row["metric"], row["inference"], row["limit"]) == ("top1", "single", 60)
        and row["suite"] in ("clean", "corruptions")
    }
    assert float(clean) == pytest.approx(found["", ""])
    for name, severity in (("fog", 2), ("contrast", 5)):
        with torch.no_grad():
            predicted = trained.model(corrupt_images(images, name, severity)).argmax(1)
        share = (predicted == labels).double().mean()
        assert float(share) == pytest.approx(found[name, severity])


def test_both_targets_share_the_arm_without_masking(ran):
    with open(ran("alpha") / "figures" / "study-alpha-clean_top1-table.csv") as file:
        rows = {row["alpha"]: row for row in csv.DictReader(file)}
    assert rows["0"]["masked-uniform"] == rows["0"]["masked-label"] != "–"
    assert rows["1"]["masked-uniform"] != "–"


@pytest.mark.slow
def test_a_study_reports_the_planned_evaluation_alone(ran, tmp_path):
    words = ["study", "alpha", "--size", "smoke", "--output", str(tmp_path), "--quiet"]
    shutil.copytree(ran("alpha"), tmp_path, dirs_exist_ok=True)
    found = {}
    for limit in ("90", "60"):
        assert main([*words, "--limit", limit]) == 0
        with open(tmp_path / "study.csv") as file:
            rows = [row for row in csv.DictReader(file) if row["metric"] == "clean_top1"]
        for row in rows:
            (folder,) = tmp_path.glob(f"{row['arm']}-seed0-*")
            assert float(row["value"]) == pytest.approx(clean_top1(folder, int(limit)))
        found[limit] = (tmp_path / "study.csv").read_text()
    assert found["60"] == (ran("alpha") / "study.csv").read_text() != found["90"]


def test_the_papers_settings_stay_with_data_from_elsewhere():
    study = find_study("alpha")
    plan = make_plan(study, "paper", settings={"data.name": "pack:cifar100.npz"})
    assert (
        load_recipe(plan.recipe, {**plan.settings, "protocol.target": "label"}).data.validation == 0
    )


def test_a_dry_run_lists_jobs_and_what_was_changed_has_its_own_folder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    places = set()
    for more in (
        [],
        ["--alphas", "0,0.5"],
        ["--limit", "30"],
        ["--epochs", "2"],
        ["--seeds", "0,1"],
    ):
        assert main(["study", "alpha", "--size", "smoke", "--dry-run", *more]) == 0
        printed = capsys.readouterr().out
        assert "anchored-alpha0, seed 0" in printed
        places.add(re.search(r"(\S+report.html)", printed)[1])
    assert "studies/alpha-smoke/report.html" in places
    assert len(places) == 4  # more seeds are more of the same
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_a_study_is_not_replaced_by_a_plain_report(ran, capsys):
    output = ran("alpha")
    before = (output / "report.html").read_text()
    assert main(["report", str(output)]) == 2
    assert "of a study" in capsys.readouterr().err
    assert (output / "report.html").read_text() == before


@pytest.mark.slow
def test_settings_options_and_evaluation_can_be_changed_on_the_command_line(tmp_path, capsys, here):
    words = ["study", "alpha", "--size", "smoke", "--alphas", "0,0.5", "--targets", "label"]
    words += ["--epochs", "2", "--seeds", "3", "--corruptions", "snow", "--severities", "5"]
    assert main([*words, "--output", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    folders = {path.name.rpartition("-")[0] for path in tmp_path.glob("*-seed*")}
    assert folders == {"anchored-alpha0-seed3", "masked-label-alpha0.5-seed3"}
    rows = [row for path in tmp_path.glob("*-seed*") for row in read_rows(path)]
    assert {row["epochs"] for row in rows} == {2}
    corrupted = {(r["corruption"], r["severity"]) for r in rows if r["suite"] == "corruptions"}
    assert ("snow", 5) in corrupted
    assert "fog" not in {name for name, _ in corrupted}


def test_other_data_do_not_get_the_numbers_of_the_embedded_ones():
    plan = make_plan(find_study("alpha"), "smoke", settings={"data.name": "digits"})
    assert plan.settings["data.limit"] is None
    assert plan.settings["data.validation"] == 0.1
    assert plan.settings["epochs"] == 1
    own = make_plan(find_study("alpha"), "smoke", settings={"data.name": "shapes"})
    assert own.settings["data.limit"] == 100
    other = make_plan(find_study("alpha"), "smoke", recipe="digits-small")
    assert dict(other.settings) == {}


def test_networks_can_be_recipes_and_keep_their_own_budget():
    study = find_study("generalization")
    options = {"networks": ["imagenet-swinv2-t", "imagenet-vit-b16", "timm:resnet50"]}
    plan = make_plan(study, "paper", recipe="imagenet-swinv2-t", options=options)
    recipes = {
        each.factors["network"]: load_recipe(plan.recipe, {**plan.settings, **each.arm.settings})
        for each in plan.study_arms
        if each.factors["protocol"] == "masked-label"
    }
    assert recipes["imagenet-vit-b16"].optimizer.lr == 3e-3
    assert recipes["imagenet-vit-b16"].data.size == 224
    assert recipes["imagenet-swinv2-t"].data.size == 256
    assert recipes["resnet50"].network.name == "timm:resnet50"
    assert {recipe.data.name for recipe in recipes.values()} == {"imagenet:imagenet"}
    for name in ("imagenet-swinv2-t", "imagenet-vit-b16"):
        own = load_recipe(name)
        assert recipes[name].network == own.network
        assert recipes[name].augment == own.augment
        assert recipes[name].schedule == own.schedule
        assert recipes[name].protocol == own.protocol
        assert recipes[name].data.repeats == own.data.repeats
        assert recipes[name].optimizer == own.optimizer


@pytest.mark.parametrize("study", ["generalization", "safety"])
def test_epochs_of_imagenet_are_those_of_table_5(study):
    options = {"networks": ["imagenet-swinv2-t", "imagenet-vit-b16"]}
    plan = make_plan(
        find_study(study),
        "paper",
        recipe="imagenet-swinv2-t",
        options=options if study == "generalization" else {},
    )
    for each in plan.study_arms:
        recipe = load_recipe(plan.recipe, {**plan.settings, **each.arm.settings})
        standard = each.factors["protocol"] == "standard"
        assert recipe.epochs == (300 if standard else 330)
        # Torchvision's script rescales its decay of 0.99998 by batch and epochs.
        wanted = 1 - 2e-5 * recipe.batch * recipe.average.every / recipe.epochs
        assert recipe.average.decay == pytest.approx(wanted, abs=1e-4)
    shorter = make_plan(
        find_study(study), "paper", recipe="imagenet-swinv2-t", settings={"epochs": 7}
    )
    for each in shorter.study_arms:
        assert load_recipe(shorter.recipe, {**shorter.settings, **each.arm.settings}).epochs == 7


def test_a_smaller_budget_holds_for_every_network():
    study = find_study("generalization")
    plan = make_plan(study, "smoke", settings={"epochs": 3})
    for each in plan.study_arms:
        assert load_recipe(plan.recipe, {**plan.settings, **each.arm.settings}).epochs == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["alpah"], "did you mean"),
        (["alpha", "--size", "tiny"], "tiny"),
        (["alpha", "--alphas", "often"], "often"),
        (["alpha", "--targets", "lable"], "masked-lable"),
        (["alpha", "--alphas", "0.5,0.5"], "different names"),
        (["alpha", "--alphas", "1.5"], "1.5"),
        (["alpha", "--seed", "1"], "--seeds 0,1,..., not --seed"),
        (["alpha", "--jobs", "0"], "job"),
        (["alpha", "--levels", "0,1"], "levels: no such setting"),
        (["label-noise", "--levels", ""], "--levels needs at least one value"),
        (["alpha", "--targets", ""], "--targets needs at least one value"),
        (["landscape", "--points", "50"], "must be odd, found 50"),
        (["inference", "--k", "60"], "at most --candidates 50, found 60"),
        (["inference", "--data.limit", "40"], "at most 40, found 50"),
        (["inference", "--protocol.reference_set", "20"], "at most 20, found 50"),
        (["adaptation", "--alphas", ""], "--alphas needs at least one value"),
        (["adaptation", "--targets", "none"], "--targets or --domains"),
        (["adaptation", "--domains", "nowhere"], "nowhere"),
        (["reference-size", "--protocols", "standard"], "standard"),
        (["reference-size", "--protocol.references", "batch"], "references"),
        (["alpha", "--output", "/proc/none"], "/proc/none"),
        (["augmentation", "--policies", "mixup"], "mixup"),
        (["generalization", "--networks", "resnet50"], "library:name"),
        (["reference-size", "--data", "imagefolder:nowhere"], "nowhere"),
        (["federated", "--methods", "spectral,dittto"], "dittto"),
        (["federated", "--clients", "500"], "500 clients"),
        (["--epochs", "3"], "3"),
        (["--epochs=3"], "--epochs"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_trained(
    words, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["study", *words]) == 2
    out, err = capsys.readouterr()
    assert told in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", study_names())
def test_no_option_of_a_study_hides_a_setting_of_the_recipe(name):
    own = {each.name for each in fields(find_study(name).options)}
    assert own.isdisjoint({*settings(), *SHORT})


@pytest.mark.slow
def test_every_study_takes_folders_laid_out_as_imagenet(tmp_path, image_folder, here):
    for part in ("train", "val"):
        shutil.copytree(image_folder, tmp_path / "imagenet" / part)
    data = ["--data", f"imagenet:{tmp_path / 'imagenet'}", "--data.size", "16"]
    small = ["--limit", "8", "--corruptions", "fog", "--severities", "3", "--data.validation", "0"]
    for name, own in {
        "generalization": ["--networks", "killick:resnet_small", "--suite", "clean,corruptions"],
        "safety": ["--suite", "clean,corruptions,calibration,ood"],
    }.items():
        words = ["study", name, "--size", "smoke", *data, *small, *own, "--batch", "4"]
        output = tmp_path / name
        assert main([*words, "--protocols", "standard,masked-label", "--output", str(output)]) == 0
        page = (output / "report.html").read_text()
        assert "imagenet:" in page


@pytest.mark.slow
def test_a_study_takes_cifar_100_in_its_own_files(tmp_path, monkeypatch, here):
    from test_sources import write_cifar
    from torchvision.datasets import cifar

    write_cifar(tmp_path, cifar.CIFAR100, "fine_labels", monkeypatch)
    words = [
        "study",
        "label-noise",
        "--size",
        "smoke",
        "--recipe",
        "cifar100-resnet18",
        "--data.root",
    ]
    words += [str(tmp_path), "--network", "killick:resnet_small", "--epochs", "1", "--batch", "4"]
    words += ["--corruptions", "fog", "--severities", "3", "--levels", "0,0.2", "--seeds", "0"]
    output = tmp_path / "out"
    assert main([*words, "--protocols", "standard,masked-label", "--output", str(output)]) == 0


def test_without_a_name_all_studies_are_listed(capsys):
    assert main(["study"]) == 0
    told = capsys.readouterr().out
    for name in study_names():
        assert f"\n  {name}" in told


@dataclass(frozen=True)
class Options:
    count: int = setting(3, "how many", least=1)
    shares: list[float] = setting([0.5], "which")
    names: list[str] = setting([], "whose")
    numbers: list[int] = setting([1], "which", most=5)
    limit: int | None = setting(None, "at most")
    exact: bool = setting(False, "whether")


def test_options_are_read_from_texts_and_from_values():
    found = read_options(
        Options,
        {"count": "5", "shares": "0.1,1e-2", "names": "a, b", "numbers": "1,2", "limit": "none"},
        "it",
    )
    assert found == Options(5, [0.1, 0.01], ["a", "b"], [1, 2], None)
    assert read_options(Options, {"exact": "true", "names": ["c"]}, "it").exact is True
    entries = read_options(Options, {"names": "iid, dirichlet:p=0.7,alpha=10, x=1"}, "it").names
    assert entries == ["iid", "dirichlet:p=0.7,alpha=10,x=1"]
    for name, value, told in (
        ("count", "0", "at least 1"),
        ("count", "many", "a whole number"),
        ("numbers", "1.5", "whole numbers such as"),
        ("numbers", "1,7", "at most 5"),
        ("shares", "much", "numbers such as"),
        ("names", [1], "names such as"),
        ("cuont", "1", "did you mean count"),
    ):
        with pytest.raises(OptionError, match=told):
            read_options(Options, {name: value}, "it")


def test_protocols_are_crossed_with_levels_under_names_that_folders_can_have():
    made = cross_arms(
        "noise", {0.1: {"data.label_noise": 0.1}, "a/b": {}}, ["standard", "masked-label"]
    )
    assert [each.arm.name for each in made] == [
        "standard-noise0.1",
        "masked-label-noise0.1",
        "standard-noisea_b",
        "masked-label-noisea_b",
    ]
    assert made[1].arm.settings["protocol.target"] == "label"
    assert made[1].arm.settings["data.label_noise"] == 0.1
    assert made[1].factors == {"protocol": "masked-label", "noise": 0.1}
    with pytest.raises(OptionError, match="did you mean"):
        cross_arms("x", {1: {}}, ["standrad"])


def test_a_failing_measure_is_told_and_the_cell_is_not_finished(tmp_path):
    from killick.experiments.job_runner import run_job
    from killick.experiments.jobs import make_jobs

    cells = make_jobs(
        "shapes-small",
        {"data.limit": 64, "data.validation": 0, "epochs": 1},
        [Arm("standard", {"protocol.name": "standard"})],
        [0],
        tmp_path,
        {"suites": ["clean"], "limit": 20},
        measure="test_studies:broken",
        options={"x": 1},
    )
    result = run_job(cells[0], device="cpu")
    assert result["status"] == "failed"
    assert "nothing to measure" in result["problem"]
    assert not cells[0].finished


def broken(folder, options, kept, *, device, show):
    assert options == {"x": 1}
    assert (folder / "model").is_dir()
    raise OptionError("nothing to measure")


def test_an_interrupted_study_shows_what_there_is_and_goes_on(tmp_path, monkeypatch, here):
    from killick.experiments import scheduler as running

    worked = running.run_jobs

    def interrupted(cells, output, execution):
        outcome = worked(cells[:1], output, execution)
        return running.JobsOutcome(outcome.finished, [], ["x"], True)

    output = tmp_path / "out"
    plan = make_plan(find_study("alpha"), "smoke")
    monkeypatch.setattr(running, "run_jobs", interrupted)
    found = run_study(plan, output, quiet=True)
    assert found.interrupted
    assert found.report is not None
    assert "x: not finished" in found.report.read_text()
    monkeypatch.setattr(running, "run_jobs", worked)
    found = run_study(plan, output, quiet=True)
    assert not found.interrupted
    assert "not finished" not in found.report.read_text()
