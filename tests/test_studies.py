"""Studies: what all of them share, and that each runs from one end to the other."""

import csv
import json
import re
import shutil
from dataclasses import dataclass, fields

import pytest
import torch

import killick
from killick.cli import main
from killick.errors import OptionError
from killick.experiments.arms import Arm
from killick.results.rows import read_rows
from killick.settings import read_options, setting
from killick.studies import NAMES, find_study
from killick.studies.equality import compare_with_paper
from killick.studies.running import plan_cells, run_study
from killick.studies.study import SIZES, cross, make_plan, plain
from killick.studies.trained import corrupt_all, open_trained
from killick.training.recipe_files import SHORT, load_recipe, settings

pytestmark = pytest.mark.usefixtures("few_shapes")

MINE = ("reference-size", "alpha", "augmentation", "generalization")


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


@pytest.mark.parametrize("name", NAMES)
def test_every_study_has_all_sizes_and_can_be_planned_at_each(name, tmp_path):
    study = find_study(name)
    assert study.name == name
    assert set(study.sizes) == set(SIZES)
    assert study.title.endswith("?")
    for size in SIZES:
        plan = make_plan(study, size)
        assert len(plan.seeds) >= 1
        for arm in plan.arms:
            load_recipe(plan.recipe, {**plan.settings, **arm.settings})
    for size in ("small", "smoke"):  # on data that everyone has
        cells = plan_cells(make_plan(study, size), tmp_path)
        for phase in (phase for cell in cells for phase in cell.phases):
            assert phase.recipe.data.name in ("shapes", "digits")


@pytest.mark.parametrize("name", MINE)
def test_a_study_runs_from_one_end_to_the_other(name, ran, capsys):
    output = ran(name)
    page = (output / "report.html").read_text()
    study = find_study(name)
    assert study.title in page
    assert "What was not as in the paper" in page
    about = json.loads((output / "study.json").read_text())
    assert about["study"] == name
    assert about["says"] in page.replace("&#39;", "'").replace("\u00a0", " ")
    figures = {path.name for path in (output / "figures").iterdir()}
    assert any(figure.startswith("study") and figure.endswith(".svg") for figure in figures)
    with open(output / "study.csv") as file:
        rows = list(csv.DictReader(file))
    plan = make_plan(study, "smoke")
    assert {row["arm"] for row in rows} == {arm.name for arm in plan.arms}
    assert {"clean_top1", "corrupted_top1"} <= {row["metric"] for row in rows}
    for row in rows:  # what is written there is what the cells' own rows say
        if row["metric"] == "clean_top1":
            (cell,) = output.glob(f"{row['arm']}-seed{row['seed']}-*")
            (own,) = [
                r["value"]
                for r in read_rows(cell)
                if (r["suite"], r["metric"], r["inference"], r["set"])
                == ("clean", "top1", "single", "shapes")
                and r["limit"] == 60
            ]
            assert float(row["value"]) == pytest.approx(own)


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


def test_a_dry_run_shows_cells_and_time_and_makes_nothing(tmp_path, capsys):
    words = ["study", "alpha", "--size", "smoke", "--dry-run", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "masked-uniform-alpha1, seed 0" in told
    assert "3 jobs, 3 to run" in told
    assert not (tmp_path / "out").exists()


def test_that_few_pictures_are_looked_at_is_told_unless_asked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["study", "alpha", "--dry-run"]
    for more, told in (([], True), (["--limit", "50"], False), (["--size", "paper"], False)):
        assert main([*words, *more]) == 0
        shown = capsys.readouterr().out
        line = "size small: models are evaluated on at most 400 pictures of each set"
        assert (line in shown) == told
        assert ("models are evaluated on" in shown) == told


def test_reference_sets_are_nested_balanced_and_hold_what_is_stored(ran):
    from killick.protocols.references.reference_sampler import _choose
    from killick.training.training_data import sets_of

    output = ran("reference-size")
    (cell,) = output.glob("masked-label-references5-*")
    trained = open_trained(cell, "cpu")
    assert trained.recipe.protocol.reference_set == 5
    train = sets_of(trained.recipe).train
    small, large = (_choose(train, size, trained.recipe.seed) for size in (5, 50))
    assert set(small.tolist()) <= set(large.tolist())
    assert len(set(train.labels[small].tolist())) == 5
    assert set(train.labels[large].bincount().tolist()) == {5}
    stored = trained.model.references
    assert len(stored) == 5  # none from outside of the set
    of_the_set = {bytes(image.numpy().tobytes()) for image in trained.show(train.part(small))}
    assert {bytes(image.numpy().tobytes()) for image in stored} == of_the_set


def test_pictures_of_a_cell_are_those_that_it_is_evaluated_on(ran):
    output = ran("alpha")
    (cell,) = output.glob("masked-label-alpha1-*")
    trained = open_trained(cell, "cpu")
    images, labels = trained.test(limit=60)
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
    for each in corrupt_all(images, ["fog", "contrast"], [2, 5]):
        with torch.no_grad():
            share = (trained.model(each.images).argmax(1) == labels).double().mean()
        assert float(share) == pytest.approx(found[each.name, each.severity])


@pytest.mark.parametrize(
    ("uniform", "label", "holds"), [(0.1, 0.8, True), (0.4, 0.8, False), (0.1, 0.12, None)]
)
def test_the_check_of_alpha_tells_whether_the_right_target_ran(ran, uniform, label, holds):
    from dataclasses import replace

    from killick.report.statistics import Estimate
    from killick.results.run_folder import read_run
    from killick.studies.results import make_results

    output = ran("alpha")
    runs = [read_run(path) for path in sorted(output.glob("*-seed0-*"))]
    results = make_results(make_plan(find_study("alpha"), "smoke"), runs)
    table = {arm: dict(numbers) for arm, numbers in results.scene.table.items()}
    for protocol, value in (("masked-uniform", uniform), ("masked-label", label)):
        name = results.arm(protocol=protocol, alpha=1.0)
        table[name]["clean_top1"] = Estimate({0: value}, value, None, None)
    results = replace(results, scene=replace(results.scene, table=table))
    (check,) = find_study("alpha").show(results).checks
    assert check.holds is holds
    assert "sits at chance, 10.0 %" in check.what


def test_both_targets_share_the_arm_without_masking(ran):
    with open(ran("alpha") / "figures" / "study-alpha-clean-table.csv") as file:
        rows = {row["alpha"]: row for row in csv.DictReader(file)}
    assert rows["0"]["masked-uniform"] == rows["0"]["masked-label"] != "–"
    assert rows["1"]["masked-uniform"] != "–"


def test_a_study_shows_the_evaluation_that_is_asked_for(tmp_path, here):
    words = ["study", "alpha", "--size", "smoke", "--alphas", "0,1", "--targets", "label"]
    words += ["--output", str(tmp_path), "--quiet"]
    found = {}
    for limit in ("60", "90", "60"):
        assert main([*words, "--limit", limit]) == 0
        with open(tmp_path / "study.csv") as file:
            rows = [row for row in csv.DictReader(file) if row["metric"] == "clean_top1"]
        for row in rows:
            (cell,) = tmp_path.glob(f"{row['arm']}-seed0-*")
            (own,) = [
                each["value"]
                for each in read_rows(cell)
                if (each["suite"], each["metric"], each["inference"]) == ("clean", "top1", "single")
                and each["limit"] == int(limit)
            ]
            assert float(row["value"]) == pytest.approx(own)
        found.setdefault(limit, []).append((tmp_path / "study.csv").read_text())
    assert found["60"][0] == found["60"][1]


def test_what_is_measured_otherwise_does_not_harm_what_was(tmp_path, here):
    words = ["study", "label-noise", "--size", "smoke", "--output", str(tmp_path), "--quiet"]
    assert main(words) == 0
    before = (tmp_path / "study.csv").read_text()
    cell = next(tmp_path.glob("standard-noise20-*"))
    from killick.results.measurements import Measured

    Measured(cell, {"measure": "another", "k": 3}).add({"metric": "half done", "value": 1.0})
    assert main(words) == 0
    assert (tmp_path / "study.csv").read_text() == before


def test_the_papers_settings_stay_with_data_from_elsewhere():
    study = find_study("alpha")
    plan = make_plan(study, "paper", settings={"data.name": "pack:cifar100.npz"})
    assert (
        load_recipe(plan.recipe, {**plan.settings, "protocol.target": "label"}).data.validation == 0
    )


def test_sizes_that_the_paper_lacks_get_none_of_its_values():
    from killick.studies import reference_size

    values = reference_size._published(reference_size.CIFAR10)
    assert values["masked-label", "all"] == 80.8
    assert ("masked-label", None) not in values
    assert ("masked-label", 20) not in values


def test_what_was_changed_goes_to_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
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
        told = capsys.readouterr().out
        places.add(re.search(r"report: (\S+)", told)[1])
    assert "studies/alpha-smoke/report.html" in places
    assert len(places) == 4  # more seeds are more of the same


def test_the_page_of_a_study_is_not_replaced_by_a_plain_report(ran, capsys):
    output = ran("alpha")
    before = (output / "report.html").read_text()
    assert main(["report", str(output)]) == 2
    assert "holds the page of a study" in capsys.readouterr().err
    assert (output / "report.html").read_text() == before


def test_what_differs_from_the_paper_is_told_and_what_does_not_is_too():
    plan = make_plan(find_study("alpha"), "small")
    found = compare_with_paper(plan)
    different = {name: (here, there) for name, here, there in found.different}
    assert different["data.name"] == ("shapes", "cifar100")
    assert different["epochs"] == ("30", "200")
    assert different["evaluation limit"] == ("400", "as usual")
    assert different["corrupted pictures"] == ("made by Killick", "published files")
    assert different["number of seeds"] == ("2", "3")
    assert {"option alphas", "option targets", "arms", "optimizer.momentum"} <= set(found.equal)
    files = {"corruption_files": "CIFAR-100-C"}
    same = compare_with_paper(make_plan(find_study("alpha"), "paper", evaluation=files))
    assert same.different == ()
    longer = make_plan(
        find_study("alpha"), "paper", settings={"epochs": 60}, seeds=(0,), evaluation=files
    )
    assert compare_with_paper(longer).different == (
        ("epochs", "60", "200"),
        ("number of seeds", "1", "3"),
    )


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
        for each in plan.treatments
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


def test_a_smaller_budget_holds_for_every_network():
    study = find_study("generalization")
    plan = make_plan(study, "smoke", settings={"epochs": 3})
    for each in plan.treatments:
        assert load_recipe(plan.recipe, {**plan.settings, **each.arm.settings}).epochs == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["alpah"], "expected NAME, found alpah (did you mean alpha?)"),
        (["alpha", "--size", "tiny"], "--size: expected small, smoke or paper, found 'tiny'"),
        (["alpha", "--alphas", "often"], "alphas: expected numbers such as [0.3, 0.6], found"),
        (["alpha", "--targets", "lable"], "expected a protocol to be one of"),
        (["alpha", "--alphas", "0.5,0.5"], "found masked-label-alpha0.5 twice"),
        (["alpha", "--alphas", "1.5"], "protocol.alpha: expected at most 1"),
        (["alpha", "--seed", "1"], "expected --seeds 0,1,... for a study, found --seed."),
        (["alpha", "--jobs", "0"], "expected at least 1 job, found 0."),
        (["alpha", "--levels", "0,1"], "no such option of killick study alpha: --levels."),
        (["label-noise", "--levels", ""], "expected something to train in the study label-noise"),
        (["reference-size", "--protocols", "standard"], "found standard, which has none."),
        (["reference-size", "--protocol.references", "batch"], "expected references: clean or"),
        (["alpha", "--output", "/proc/none"], "expected a folder to write to, found none at"),
        (["augmentation", "--policies", "mixup"], "expected a policy to be one of"),
        (["generalization", "--networks", "resnet50"], "expected a network as library:name"),
        (["reference-size", "--data", "imagefolder:nowhere"], "expected data at nowhere"),
        (["--epochs", "3"], "expected NAME, found 3. See killick study --help."),
        (["--epochs=3"], "expected an option of killick study, found --epochs"),
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


@pytest.mark.parametrize("name", NAMES)
def test_no_option_of_a_study_hides_a_setting_of_the_recipe(name):
    own = {each.name for each in fields(find_study(name).options)}
    assert own.isdisjoint({*settings(), *SHORT})


def test_every_study_takes_folders_laid_out_as_imagenet(tmp_path, pictures, here):
    for part in ("train", "val"):
        shutil.copytree(pictures, tmp_path / "imagenet" / part)
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
    told = json.loads((output / "study.json").read_text())
    different = {name for name, *_ in told["not as in the paper"]}
    assert "data.name" not in different
    assert "network.name" in different


def test_data_that_no_cell_could_be_tested_on_are_told_before_training(tmp_path, pictures, capsys):
    shutil.copytree(pictures, tmp_path / "trained" / "train")
    shutil.copytree(pictures / "class0", tmp_path / "single" / "class0")
    for name, told in (("trained", "expected pictures to test on"), ("single", "2 classes")):
        words = ["study", "alpha", "--size", "smoke", "--data", f"imagefolder:{tmp_path / name}"]
        assert main([*words, "--output", str(tmp_path / "out")]) == 2
        assert told in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_without_a_name_all_studies_are_listed(capsys):
    assert main(["study"]) == 0
    told = capsys.readouterr().out
    for name in NAMES:
        assert f"\n  {name}" in told


@dataclass(frozen=True)
class Options:
    count: int = setting(3, "how many", least=1)
    shares: list[float] = setting([0.5], "which")
    names: list[str] = setting([], "whose")
    numbers: list[int] = setting([1], "which")
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
    for name, value, told in (
        ("count", "0", "at least 1"),
        ("count", "many", "a whole number"),
        ("numbers", "1.5", "whole numbers such as"),
        ("shares", "much", "numbers such as"),
        ("names", [1], "names such as"),
        ("cuont", "1", "did you mean count"),
    ):
        with pytest.raises(OptionError, match=told):
            read_options(Options, {name: value}, "it")


def test_protocols_are_crossed_with_levels_under_names_that_folders_can_have():
    made = cross("noise", {0.1: {"data.label_noise": 0.1}, "a/b": {}}, ["standard", "masked-label"])
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
        plain(["standrad"])


def test_arms_that_start_from_another_share_its_run(tmp_path, monkeypatch):
    from killick.experiments import job_runner as running
    from killick.experiments.jobs import Job, make_jobs

    base = Arm("base", {"protocol.name": "standard", "epochs": 1})
    tuned = [
        Arm(f"tuned{lr}", {"protocol.target": "label", "epochs": 1, "optimizer.lr": lr}, after=base)
        for lr in (0.01, 0.02)
    ]
    settings = {"data.limit": 64, "data.validation": 0}
    shown = {"suites": ["clean"], "limit": 20}
    cells = make_jobs("shapes-small", settings, [*tuned, base], [0], tmp_path, shown)
    assert [len(cell.phases) for cell in cells] == [2, 2, 1]
    assert len({cell.phases[0].folder for cell in cells}) == 1
    assert len({cell.folder for cell in cells}) == 3
    assert Job.from_json(json.loads(json.dumps(cells[0].to_json()))) == cells[0]
    trained = []
    train = running.train

    def noted(recipe, folder, **options):
        trained.append(folder)
        return train(recipe, folder, **options)

    monkeypatch.setattr(running, "train", noted)
    for cell in cells:
        assert running.run_job(cell, device="cpu")["status"] == "finished"
    assert trained == [cells[2].folder, cells[0].folder, cells[1].folder]
    model = killick.load(cells[0].folder / "model")
    assert isinstance(model, killick.Anchored)
    other = make_jobs("shapes-small", {**settings, "batch": 16}, tuned, [0], tmp_path, shown)
    assert other[0].folder != cells[0].folder  # another base is another cell


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
    from killick.experiments.scheduler import Worked
    from killick.studies import running

    worked = running.work

    def interrupted(cells, output, **options):
        worked(cells[:1], output, **options)
        return Worked([], ["x: not finished"], True)

    output = tmp_path / "out"
    plan = make_plan(find_study("alpha"), "smoke")
    monkeypatch.setattr(running, "work", interrupted)
    found = run_study(plan, output, quiet=True)
    assert found.interrupted
    assert found.report is not None
    assert "x: not finished" in found.report.read_text()
    monkeypatch.setattr(running, "work", worked)
    found = run_study(plan, output, quiet=True)
    assert not found.interrupted
    assert "not finished" not in found.report.read_text()
