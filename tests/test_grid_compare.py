"""`killick compare` and `killick.grid.compare`: reports, resuming, parts, mistakes."""

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from grids import EVALUATION, HereJobs, jobs_of, results_of, wait_for, write_recipe
from PIL import Image
from rich.console import Console

from killick.cli import main
from killick.cli.job_options import print_outcome
from killick.errors import DataError, OptionError
from killick.experiments import experiment, scheduler
from killick.experiments.arms import ARMS
from killick.experiments.execution import Execution
from killick.experiments.job_runner import PROGRESS
from killick.experiments.local_jobs import LOG
from killick.experiments.scheduler import Failure, JobsDisplay, check_data, run_jobs
from killick.grid import compare
from killick.play.playground import find_models
from killick.results.rows import read_rows, write_rows


@pytest.fixture(scope="module")
def compared(image_folder, tmp_path_factory):
    """A comparison of two arms and a bad one."""
    folder = tmp_path_factory.mktemp("compared")
    recipe = write_recipe(image_folder, folder, epochs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "LocalJobs", HereJobs)
        found = compare(
            recipe,
            arms=["standard", "masked-label", "bad:protocol=masked,target=label,lr=1e20"],
            seeds=(0,),
            output=folder / "out",
            evaluation=EVALUATION,
            command=["killick", "compare", "--recipe", "small.yaml"],
            quiet=True,
        )
    return recipe, folder / "out", found


def test_a_comparison_leaves_a_report_with_what_failed(compared):
    _, output, found = compared
    assert found.report == output / "report.html"
    assert [failure.title for failure in found.failed] == ["bad, seed 0"]
    page = found.report.read_text()
    assert "bad, seed 0" in page
    assert "NaN" in page
    assert "killick compare --recipe small.yaml" in page
    assert (output / "summary.csv").read_text().startswith("arm,measure,seed 0")


def test_a_second_call_runs_only_what_is_new(compared, monkeypatch):
    recipe, output, _ = compared
    ran = []
    (job,) = output.glob("standard-*")
    traces = [job / name for name in (PROGRESS, LOG)]
    for trace in traces:
        trace.touch()  # by a process that was killed after its job had ended

    def noted(jobs, **options):
        ran.extend(job.title for job in jobs)
        return HereJobs(jobs, **options)

    monkeypatch.setattr(scheduler, "LocalJobs", noted)
    options = {"seeds": (0,), "output": output, "evaluation": EVALUATION, "quiet": True}
    again = compare(recipe, arms=["standard", "masked-label"], **options)
    assert ran == []
    assert again.failed == []
    assert not any(trace.exists() for trace in traces)
    assert "bad, seed 0" not in again.report.read_text()
    compare(recipe, arms=["standard", "anchored"], **options)
    assert ran == ["anchored, seed 0"]


def test_the_command_ends_with_what_can_be_done_next(compared, monkeypatch, capsys):
    recipe, output, _ = compared
    monkeypatch.setattr(scheduler, "LocalJobs", HereJobs)
    words = ["compare", "--recipe", str(recipe), "--arm", "standard", "--arm", "masked-label"]
    words += ["--seeds", "0", "--suite", "clean", "--output", str(output)]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"killick play {output}")
    assert len(find_models([str(output)])) > 1


def test_the_report_is_rebuilt_from_the_folder_alone(compared, tmp_path):
    _, output, _ = compared
    assert main(["report", str(output), "--output", str(tmp_path)]) == 0
    assert "masked" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_parts_in_two_processes_give_the_rows_of_the_whole(image_folder, tmp_path):
    """As the tasks of a Slurm array; the last one writes the report."""
    recipe = write_recipe(image_folder, tmp_path, epochs=1)
    words = [sys.executable, "-m", "killick", "compare", "--recipe", str(recipe), "--seeds", "0"]
    words += ["--arm", "standard", "--arm", "masked-label", "--references", "2"]
    words += ["--suite", "clean,corruptions", "--corruptions", "fog", "--severities", "3"]
    subprocess.run([*words, "--output", str(tmp_path / "whole")], check=True)
    words += ["--output", str(tmp_path / "parts")]
    parts = [subprocess.Popen([*words, "--part", f"{number}/2"]) for number in (1, 2)]
    assert [part.wait() for part in parts] == [0, 0]
    assert (tmp_path / "parts" / "report.html").exists()
    whole, found = (
        results_of(jobs_of(recipe, tmp_path / name, "standard", "masked-label"))
        for name in ("whole", "parts")
    )
    assert whole == found


def test_a_part_alone_runs_its_jobs_and_writes_no_report(compared, tmp_path, monkeypatch):
    recipe, whole, _ = compared
    monkeypatch.setattr(scheduler, "LocalJobs", HereJobs)
    output = tmp_path / "out"
    (other,) = jobs_of(recipe, whole, "masked-label")
    options = {"seeds": (0,), "output": output, "evaluation": EVALUATION, "quiet": True}
    options |= {"arms": ["masked-label", "standard"]}
    first = compare(recipe, part=(2, 2), **options)
    assert [job.finished for job in first.jobs] == [False, True]
    assert first.report is None
    shutil.copytree(other.folder, output / other.folder.name)  # the other part finishes
    assert compare(recipe, part=(1, 2), **options).report == output / "report.html"


def test_what_cannot_be_compared_is_refused_before_anything_is_written(tmp_path):
    for options, match in (
        ({"engine": "slurm"}, "the engine"),
        ({"jobs": 0}, "--jobs"),
        ({"cpus": 2}, "--cpus requires --engine ray"),
        ({"gpus": 0.5}, "--gpus requires --engine ray"),
        ({"address": "auto"}, "--address requires --engine ray"),
        ({"baseline": "other"}, "the baseline"),
        ({"seeds": ()}, "one at least"),
        ({"part": (0, 2)}, "--part"),
        ({"part": (3, 2)}, "--part"),
    ):
        with pytest.raises(OptionError, match=match):
            compare(output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="found a file"):
        compare(output=tmp_path / "file")


def test_without_any_finished_job_there_is_no_report(image_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scheduler, "LocalJobs", HereJobs)
    recipe = write_recipe(image_folder, tmp_path)
    words = ["compare", "--recipe", str(recipe), "--arm", "bad:protocol=standard,lr=1e20"]
    words += ["--seeds", "0", "--output", str(tmp_path / "out"), "--suite", "clean"]
    assert main(words) == 1
    assert "bad, seed 0" in capsys.readouterr().err
    assert not (tmp_path / "out" / "report.html").exists()


def test_failures_with_one_problem_are_one_line(capsys):
    failed = [*(Failure(f"a, seed {n}", "no: luck.") for n in range(5)), Failure("b", "x")]
    options = argparse.Namespace(quiet=True, part=None)
    assert print_outcome(experiment.ComparisonResult(None, [], failed), Path(), options) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "a, seed 2 and 2 more: no: luck." in lines[0]


def test_a_dry_run_lists_the_jobs_and_writes_nothing(image_folder, tmp_path, capsys):
    recipe = write_recipe(image_folder, tmp_path, epochs=3)
    words = ["compare", "--recipe", str(recipe), "--output", str(tmp_path / "out"), "--dry-run"]
    words += [word for arm in ARMS if "tuning" not in arm for word in ("--arm", arm)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("new") for line in lines) == 10
    assert "2 + 1 epochs" in next(line for line in lines if "finetuned" in line)
    assert main([*words, "--part", "3/8"]) == 0
    assert sum(line.startswith("new") for line in capsys.readouterr().out.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("severities", [9, (1, 9)])
def test_a_severity_that_is_none_is_refused_before_training(tmp_path, severities):
    with pytest.raises(OptionError, match="severity from 1 to 5, found 9"):
        compare("shapes-small", evaluation={"severities": severities}, output=tmp_path / "out")


def test_without_arguments_three_arms_with_five_seeds_are_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--dry-run"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 15
    assert sum("48 + 12 epochs" in line for line in lines) == 5
    assert "comparisons/small-shapes" in last


def test_trained_weights_by_name_are_tuned_as_train_does(capsys):
    # The data are not there: what is compared is said before they are read.
    words = ["compare", "--data", "imagefolder:nothing", "--dry-run", "--network"]
    assert main([*words, "timm:test_resnet.r160_in1k"]) == 2
    assert "finetune" in capsys.readouterr().out
    assert main([*words, "timm:test_resnet"]) == 2
    assert "32 px" in capsys.readouterr().out


def test_other_data_get_the_recipe_and_seeds_that_they_had(image_folder, tmp_path, capsys):
    words = ["compare", "--data", f"imagefolder:{image_folder}", "--output", str(tmp_path / "out")]
    assert main([*words, "--dry-run"]) == 0
    first, *lines, _ = capsys.readouterr().out.splitlines()
    assert "small-shapes, killick:resnet_small on images of 32 px" in first
    assert len(lines) == 6
    assert sum("48 + 12 epochs" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--seeds", "a"], "--seeds"),
        (["--seed", "1"], "--seeds"),
        (["--arm", "nothing"], "nothing"),
        (["--severities", "x"], "--severities"),
        (["--recipe", "nothing"], "the recipe"),
        (["--epochz", "3"], "epochs"),
        (["--ood", "x"], "NAME=DATA"),
        (["--corruptions", "fgo"], "fog"),
        (["--suite", "nope"], "a suite"),
        (["--limit", "0"], "limit"),
        (["--references", "0"], "reference"),
        (["--data", "imagefolder:nowhere"], "nowhere"),
        (["--ood", "x=images:nowhere"], "nowhere"),
        (["--corruptions", "fgo", "--dry-run"], "fog"),
        (["--baseline", "nope", "--dry-run"], "the baseline"),
        (["--jobs", "0", "--dry-run"], "--jobs"),
        (["--part", "3"], "--part"),
        (["--part", "3/2"], "--part"),
        (["--cpus", "4", "--dry-run"], "--engine ray"),
        (["--arm", "x:batchnorm=running"], "(did you mean protocol.batchnorm?)"),
        (["--arm", "x:alpha_end=2", "--dry-run"], "alpha_end"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_code_2(words, match, tmp_path, capsys):
    try:
        code = main(["compare", "--output", str(tmp_path / "out"), *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert match in lines[-1]
    assert not (tmp_path / "out").exists()


def test_a_shifted_set_of_other_classes_is_refused_before_training(image_folder, tmp_path):
    recipe, odd = write_recipe(image_folder, tmp_path), tmp_path / "odd"
    for name in ("class2", "zebra"):
        shutil.copytree(image_folder / "class1", odd / name)
    evaluation = {**EVALUATION, "shift": {"odd": f"imagefolder:{odd}"}}
    with pytest.raises(DataError, match="classes of odd, such as 'zebra'"):
        compare(recipe, seeds=(0,), output=tmp_path / "out", evaluation=evaluation, quiet=True)
    assert not (tmp_path / "out").exists()
    (odd / "zebra").rename(odd / "class0")  # some of the model's
    jobs = jobs_of(recipe, tmp_path / "out", "standard", evaluation=evaluation)
    check_data(jobs)


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (["a/1.png", "b/1.png"], "no test set"),
        (["1.png", "2.png"], "2 images outside of class folders"),
        (["a/1.png", "a/2.png"], "only one class"),
        ([], "no class folders"),
        (None, "no folder and no data source"),
    ],
)
def test_data_that_no_job_can_use_are_refused_before_any_begins(
    images, match, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for place in map(Path, images or ()):
        (Path("photos") / place).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save("photos" / place)
    if images == []:
        Path("photos").mkdir()
    monkeypatch.setattr(scheduler, "LocalJobs", None)  # nothing runs
    assert main(["compare", "--data", "photos", "--output", "out"]) == 2
    assert match in capsys.readouterr().err
    assert not Path("out").exists()


def test_ood_images_that_are_not_there_are_found_before_training(image_folder, tmp_path):
    recipe = write_recipe(image_folder, tmp_path)
    (tmp_path / "empty").mkdir()
    evaluation = {**EVALUATION, "ood": {"far": f"images:{tmp_path / 'empty'}"}}
    with pytest.raises(DataError, match="no images in"):
        compare(recipe, seeds=(0,), output=tmp_path / "out", evaluation=evaluation, quiet=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ctrl_c_saves_the_jobs_and_prints_how_to_resume(image_folder, tmp_path):
    recipe = write_recipe(image_folder, tmp_path)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "killick", "compare", "--recipe", str(recipe)),
            *("--arm", "long:protocol=standard,epochs=100000", "--arm", "standard"),
            *("--seeds", "0", "--jobs", "1", "--output", str(tmp_path / "out")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell has what it starts in the background ignore Ctrl-C: these tests may be there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: list((tmp_path / "out").glob("long-*/metrics.jsonl")))
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()  # else it goes on for hours where this fails
    assert process.returncode == 130
    assert "Resume with: killick compare" in errors
    assert "interrupted" in output
    assert list((tmp_path / "out").glob("long-*/checkpoint-before.pt"))


def test_the_display_shows_each_running_job_and_how_jobs_ended(image_folder, tmp_path):
    recipe = write_recipe(image_folder, tmp_path)
    jobs = jobs_of(recipe, tmp_path, "standard", "anchored")
    console = Console(width=100, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file, JobsDisplay(jobs, console=console) as display:
        jobs[0].folder.mkdir(parents=True)
        note = {"stage": "training", "fraction": 0.25, "text": "loss 1.5"}
        (jobs[0].folder / PROGRESS).write_text(json.dumps(note))
        display.refresh()
        shown = {task.description: task.completed for task in display._bar.tasks}
        assert shown == {"jobs": 0.25, jobs[0].title: 0.25}
        display.end(jobs[0], {"status": "failed", "problem": "no luck."})
        display.refresh()
        assert [task.completed for task in display._bar.tasks] == [1.0]
        display.end(jobs[1], {"status": "failed", "problem": "no luck."})
    text = console.export_text()
    assert "1/2 standard, seed 0: failed: no luck." in text
    assert text.count("no luck.") == 1


def test_a_piped_display_is_plain_lines(compared, capsys):
    recipe, output, _ = compared
    (job,) = jobs_of(recipe, output, "standard")
    with JobsDisplay([job]) as display:
        display.refresh()
        display.end(job, {"status": "finished", "seconds": 3.2})
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1/1 standard, seed 0: clean accuracy ")
    assert "\x1b" not in line


def test_another_network_does_not_get_the_arguments_of_the_default_one(tmp_path, monkeypatch):
    from killick.training.initial_weights import create_net
    from killick.training.recipe_files import load_recipe

    asked = {}

    def note(recipe, settings, **options):
        asked.update(recipe=recipe, settings=settings)
        return experiment.ComparisonResult(None, [])

    monkeypatch.setattr(experiment, "compare", note)
    for network in ("timm:resnet18", "killick:resnet18"):
        assert main(["compare", "--network", network, "--output", str(tmp_path)]) == 0
        recipe = load_recipe(asked["recipe"], asked["settings"])
        assert recipe.network.name == network
        create_net(recipe, 3)  # refused before, with a stride that it does not know
    main(["compare", "--output", str(tmp_path)])
    assert load_recipe(asked["recipe"], asked["settings"]).network.arguments == {"stride": 2}


def test_a_job_records_the_command_also_when_another_program_gave_it(tmp_path, monkeypatch):
    asked = {}

    def note(recipe, **options):
        asked.update(options)
        return experiment.ComparisonResult(None, [])

    monkeypatch.setattr(experiment, "compare", note)
    monkeypatch.setattr("sys.argv", ["script.py", "--something", "else"])
    words = ["compare", "--seeds", "3", "--output", str(tmp_path)]
    assert main(words) == 0
    assert asked["command"] == ["killick", *words]


@pytest.mark.parametrize(
    ("finished", "at_once", "own", "threads"),
    [
        (0, None, None, 2),
        (3, None, None, 2),
        (3, 2, None, 4),
        (0, 8, None, 2),
        (3, 8, None, 2),
        (0, 1, 3, 3),  # OMP_NUM_THREADS
    ],
)
def test_a_resumed_job_has_the_threads_it_would_have_beside_all_others(
    image_folder, tmp_path, monkeypatch, finished, at_once, own, threads
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", str(own))
        monkeypatch.setattr(scheduler.torch, "get_num_threads", lambda: own)
    recipe = write_recipe(image_folder, tmp_path)
    jobs = jobs_of(recipe, tmp_path, "standard", "anchored", "masked-label", "masked-uniform")
    for job in jobs[:finished]:
        job.folder.mkdir(parents=True)
        done = {"arm": job.arm, "finished": True, "evaluation_digest": job.evaluation_digest}
        (job.folder / "job.json").write_text(json.dumps(done))
    given = {}

    def note(todo, **options):
        given.update(options, count=len(todo))
        raise OptionError("enough.")

    monkeypatch.setattr(scheduler, "LocalJobs", note)
    monkeypatch.setattr(scheduler, "count_cores", lambda: 8)
    execution = Execution(jobs=at_once, device="cpu", quiet=True)
    with pytest.raises(OptionError, match="enough"):
        run_jobs(jobs, tmp_path / "out", execution)
    assert (given["count"], given["threads"]) == (4 - finished, threads)


def test_progress_and_table_show_the_images_that_were_asked_for(
    compared, tmp_path, monkeypatch, capsys
):
    recipe, output, _ = compared
    monkeypatch.setattr(scheduler, "LocalJobs", HereJobs)
    copied = shutil.copytree(output, tmp_path / "out")
    words = ["compare", "--recipe", str(recipe), "--seeds", "0", "--arm", "standard"]
    words += ["--suite", "clean", "--output", str(copied)]
    (job,) = jobs_of(recipe, copied, "standard")
    rows = read_rows(job.folder)
    write_rows(job.folder, [{**row, "value": 0.777} for row in rows])  # of all images
    for limit in (6, 4):
        assert main([*words, "--limit", str(limit)]) == 0
        told = capsys.readouterr().out
        (row,) = [
            row
            for row in read_rows(job.folder)
            if (row["limit"], row["metric"]) == (limit, "top1") and row["suite"] == "clean"
        ]
        shown = f"{100 * row['value']:.1f}"
        assert f"clean accuracy {shown} %" in told
        assert re.search(rf"^standard +{shown}$", told, re.MULTILINE)


def test_finished_runs_are_arms(compared, image_folder, tmp_path, monkeypatch):
    recipe, output, _ = compared
    monkeypatch.setattr(scheduler, "LocalJobs", HereJobs)
    (job,) = jobs_of(recipe, output, "masked-label")
    run = shutil.copytree(job.folder, tmp_path / "mine-seed0")
    before = sorted((run).rglob("*"))
    options = {"output": tmp_path / "out", "evaluation": EVALUATION, "quiet": True}
    arms = ["standard", f"mine:run={tmp_path}/mine-seed{{seed}}"]
    found = compare(recipe, arms=arms, seeds=(0,), **options)
    assert found.failed == []
    assert [each.title for each in found.jobs] == ["standard, seed 0", "mine, seed 0"]
    ours, theirs = (
        {(r["metric"], r["suite"], r["inference"], r["corruption"]): r["value"] for r in rows}
        for rows in (read_rows(found.jobs[1].folder), read_rows(job.folder))
    )
    assert ours == theirs
    with open(tmp_path / "out" / "summary.csv") as file:
        assert {row["arm"] for row in csv.DictReader(file)} == {"standard", "mine"}
    assert sorted(run.rglob("*")) == before  # the run itself is left alone
    alone = compare(recipe, arms=[f"mine:run={run}"], seeds=(3,), **options)
    assert [each.title for each in alone.jobs] == ["mine, seed 0"]
    for bad in ("mine:run=nowhere", f"mine:run={run},lr=1", f"standard:run={run}"):
        with pytest.raises(OptionError):
            compare(recipe, arms=[bad], seeds=(0,), **options)
