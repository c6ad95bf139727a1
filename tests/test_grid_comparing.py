import json
import os
import signal
import subprocess
import sys
import time

import pytest
from grids import SHOWN, HereJobs, cells_of, write_recipe
from rich.console import Console

from killick.cli import main
from killick.cli.job_options import tell_failed
from killick.errors import OptionError
from killick.experiments import experiment as comparing
from killick.experiments import scheduler as working
from killick.experiments.job_progress import Watch
from killick.experiments.job_runner import PROGRESS, run_job
from killick.experiments.scheduler import work
from killick.grid import compare


@pytest.fixture(scope="module")
def compared(pictures, tmp_path_factory):
    """A comparison of two arms and a bad one, and what it said."""
    folder = tmp_path_factory.mktemp("compared")
    recipe = write_recipe(pictures, folder, epochs=2)
    found = compare(
        recipe,
        arms=["standard", "masked-label", "bad:protocol=masked,target=label,lr=1e20"],
        seeds=(0,),
        output=folder / "out",
        evaluation=SHOWN,
        jobs=2,
        command=["killick", "compare", "--recipe", "small.yaml"],
        quiet=True,
    )
    return recipe, folder / "out", found


def test_a_comparison_leaves_a_report_and_says_what_failed(compared):
    _, output, found = compared
    assert found.report == output / "report.html"
    assert [line.split(":")[0] for line in found.failed] == ["bad, seed 0"]
    page = found.report.read_text()
    assert "bad, seed 0" in page
    assert "NaN" in page
    assert "killick compare --recipe small.yaml" in page
    assert (output / "summary.csv").read_text().startswith("arm,measure,seed 0")
    assert not (output / "logs").exists()


def test_a_second_call_runs_what_is_new_alone(compared, monkeypatch):
    recipe, output, _ = compared
    ran = []

    def noted(cells, **options):
        ran.extend(cell.title for cell in cells)
        return HereJobs(cells, **options)

    monkeypatch.setattr(working, "LocalJobs", noted)
    again = compare(
        recipe, arms=["standard", "masked-label"], seeds=(0,), output=output, evaluation=SHOWN
    )
    assert ran == []
    assert again.failed == []
    assert "bad, seed 0" not in again.report.read_text()
    compare(
        recipe,
        arms=["standard", "anchored"],
        seeds=(0,),
        output=output,
        evaluation=SHOWN,
        quiet=True,
    )
    assert ran == ["anchored, seed 0"]


def test_the_report_is_rebuilt_from_the_folder_alone(compared, tmp_path, capsys):
    _, output, _ = compared
    assert main(["report", str(output), "--output", str(tmp_path)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert "masked" in (tmp_path / "report.html").read_text()


def test_what_cannot_be_compared_is_refused_before_anything_is_made(tmp_path):
    for options, told in (
        ({"engine": "slurm"}, "the engine"),
        ({"jobs": 0}, "at least 1 job"),
        ({"cpus": 2}, "--cpus with --engine ray, found it without"),
        ({"gpus": 0.5}, "--gpus with --engine ray, found it without"),
        ({"address": "auto"}, "--address with --engine ray, found it without"),
        ({"baseline": "other"}, "the baseline"),
        ({"seeds": ()}, "at least one seed"),
    ):
        with pytest.raises(OptionError, match=told):
            compare(output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="found a file"):
        compare(output=tmp_path / "file")


def test_without_any_finished_cell_there_is_no_report(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(working, "LocalJobs", HereJobs)
    recipe = write_recipe(pictures, tmp_path)
    code = main(
        [
            *("compare", "--recipe", str(recipe), "--arm", "bad:protocol=standard,lr=1e20"),
            *("--seeds", "0", "--output", str(tmp_path / "out"), "--suite", "clean"),
        ]
    )
    told = capsys.readouterr()
    assert code == 1
    assert "killick: failed: bad, seed 0: the loss" in told.err
    assert not (tmp_path / "out" / "report.html").exists()


def test_failures_that_are_alike_are_told_once(capsys):
    tell_failed([*(f"a, seed {n}: no: luck." for n in range(5)), "b, seed 0: another."])
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "killick: failed: a, seed 0; a, seed 1; a, seed 2 and 2 more: no: luck.",
        "killick: failed: b, seed 0: another.",
    ]


def test_a_dry_run_shows_the_cells_and_makes_nothing(pictures, tmp_path, capsys):
    recipe = write_recipe(pictures, tmp_path, epochs=3)
    words = ["compare", "--recipe", str(recipe), "--output", str(tmp_path / "out"), "--dry-run"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert sum(line.startswith("new") for line in lines) == 10
    assert "2 + 1 epochs" in next(line for line in lines if "finetuned" in line)
    assert "10 jobs, 10 to run" in lines[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--seeds", "a"], "--seeds"),
        (["--seed", "1"], "--seeds"),
        (["--arm", "nothing"], "--arm"),
        (["--severities", "x"], "--severities"),
        (["--recipe", "nothing"], "the recipe"),
        (["--epochz", "3"], "epochs"),
        (["--ood", "x"], "NAME=DATA"),
        (["--corruptions", "fgo"], "fog"),
        (["--suite", "nope"], "a suite"),
        (["--limit", "0"], "limit"),
        (["--references", "0"], "reference"),
        (["--data", "imagefolder:nowhere"], "nowhere"),
        (["--ood", "x=pictures:nowhere"], "nowhere"),
        (["--corruptions", "fgo", "--dry-run"], "fog"),
        (["--baseline", "nope", "--dry-run"], "the baseline"),
        (["--jobs", "0", "--dry-run"], "at least 1 job"),
        (["--cpus", "4", "--dry-run"], "--engine ray"),
        (["--arm", "x:batchnorm=running"], "(did you mean protocol.batchnorm?)"),
        (["--arm", "x:alpha_end=2", "--dry-run"], "alpha_end"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_code_2(words, told, tmp_path, capsys):
    try:
        code = main(["compare", "--output", str(tmp_path / "out"), *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert told in lines[-1]
    assert not (tmp_path / "out").exists()


def test_ctrl_c_saves_the_cells_and_tells_how_to_go_on(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path)
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
        until = time.monotonic() + 120
        while not list((tmp_path / "out").glob("long-*/metrics.jsonl")):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()  # else it goes on for hours where this fails
    assert process.returncode == 130
    assert "Go on with: killick compare" in errors
    assert "being saved" in output
    assert list((tmp_path / "out").glob("long-*/checkpoint-before.pt"))


def _note(cell, **values):
    cell.folder.mkdir(parents=True, exist_ok=True)
    note = {"stage": "training", "number": 0, "stages": 2, "done": 1, "total": 4, "text": ""}
    (cell.folder / PROGRESS).write_text(json.dumps({**note, **values}))


def test_one_display_shows_the_grid_and_the_time_left(pictures, tmp_path, monkeypatch):
    recipe = write_recipe(pictures, tmp_path)
    cells = cells_of(recipe, tmp_path, "standard", "anchored", "masked-label")
    now = [100.0]
    monkeypatch.setattr("killick.experiments.job_progress.time.monotonic", lambda: now[0])
    console = Console(width=100, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file, Watch(cells, jobs=1, console=console) as watch:
        _note(cells[0], done=0)
        watch.look()
        now[0] += 10
        _note(cells[0], done=4)  # trained: half of the cell
        watch.look()
        # 10 s for half a cell of three: 10 + 20 + 20 are left
        assert watch._left == pytest.approx(50)
        now[0] += 10
        watch.end(cells[0], {"status": "finished", "seconds": 24.0})  # 4 of them unseen
        watch.look()
        assert watch._left == pytest.approx(48)
        _note(cells[1], number=1, stage="evaluating", done=2)
        watch.look()
        assert watch._left == pytest.approx(24 * (1 - 0.75) + 24)
        watch.end(cells[1], {"status": "failed", "problem": "no luck."})
        watch.end(cells[2], {"status": "failed", "problem": "no luck."})
    text = console.export_text()
    assert "1/3 standard, seed 0: done (24 s)" in text
    assert "2/3 anchored, seed 0: failed: no luck." in text
    assert f"3/3 {cells[2].title}: failed: as anchored, seed 0" in text


def test_a_piped_display_is_plain_lines(pictures, tmp_path, capsys):
    recipe = write_recipe(pictures, tmp_path)
    (cell,) = cells_of(recipe, tmp_path, "standard")
    with Watch([cell], jobs=1) as watch:
        run_job(cell, threads=1)
        watch.look()
        watch.end(cell, {"status": "finished"})
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1/1 standard, seed 0: clean ")
    assert "\x1b" not in line


def test_another_network_does_not_get_the_arguments_of_the_default_one(tmp_path, monkeypatch):
    from killick.training.initial_weights import create_net
    from killick.training.recipe_files import load_recipe

    asked = {}

    def note(recipe, settings, **options):
        asked.update(recipe=recipe, settings=settings)
        return comparing.Compared(None, [])

    monkeypatch.setattr(comparing, "compare", note)
    for network in ("timm:resnet18", "killick:resnet18"):
        assert main(["compare", "--network", network, "--output", str(tmp_path)]) == 0
        recipe = load_recipe(asked["recipe"], asked["settings"])
        assert recipe.network.name == network
        create_net(recipe, 3)  # refused before, with a stride that it does not know
    main(["compare", "--output", str(tmp_path)])
    assert load_recipe(asked["recipe"], asked["settings"]).network.arguments == {"stride": 2}


def test_a_cell_knows_the_command_also_where_another_program_gave_it(tmp_path, monkeypatch):
    asked = {}

    def note(recipe, **options):
        asked.update(options)
        return comparing.Compared(None, [])

    monkeypatch.setattr(comparing, "compare", note)
    monkeypatch.setattr("sys.argv", ["script.py", "--something", "else"])
    words = ["compare", "--seeds", "3", "--output", str(tmp_path)]
    assert main(words) == 0
    assert asked["command"] == ["killick", *words]


@pytest.mark.parametrize(
    ("finished", "jobs", "threads"), [(0, None, 2), (3, None, 2), (3, 2, 4), (0, 8, 2), (3, 8, 2)]
)
def test_what_is_left_has_the_threads_that_all_cells_would_have(
    pictures, tmp_path, monkeypatch, finished, jobs, threads
):
    recipe = write_recipe(pictures, tmp_path)
    cells = cells_of(recipe, tmp_path, "standard", "anchored", "masked-label", "masked-uniform")
    for cell in cells[:finished]:
        cell.folder.mkdir(parents=True)
        done = {"arm": cell.arm, "finished": True, "asked": cell.asked}
        (cell.folder / "job.json").write_text(json.dumps(done))
    asked = {}

    def note(todo, **given):
        asked.update(given, count=len(todo))
        raise OptionError("enough.")

    monkeypatch.setattr("killick.experiments.scheduler.LocalJobs", note)
    monkeypatch.setattr("killick.experiments.scheduler.count_cores", lambda: 8)
    with pytest.raises(OptionError, match="enough"):
        work(cells, tmp_path / "out", jobs=jobs, device="cpu", quiet=True)
    assert (asked["count"], asked["threads"]) == (4 - finished, threads)
    assert asked["jobs"] == min(jobs or 8, 4 - finished)
