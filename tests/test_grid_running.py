import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from grids import SHOWN, cells_of, results_of, write_recipe
from runs import assert_same, weights_of

from killick.errors import KillickError
from killick.experiments import job_runner as running
from killick.experiments import local_jobs as engines
from killick.experiments.job_runner import PROBLEM, PROGRESS, run_job
from killick.experiments.jobs import Job
from killick.experiments.local_jobs import LocalJobs
from killick.results.run_folder import find_runs, read_job
from killick.training import loop


@pytest.fixture
def recipe(pictures, tmp_path) -> Path:
    return write_recipe(pictures, tmp_path, epochs=2)


def local(cells: list[Job], folder: Path, jobs: int = 2) -> LocalJobs:
    return LocalJobs(
        cells, jobs=jobs, threads=1, devices=["cpu"], command=["killick"], logs=folder / "logs"
    )


def collect_all(engine: LocalJobs, count: int) -> dict[str, dict]:
    ended = {}
    until = time.monotonic() + 240
    while len(ended) < count:
        assert time.monotonic() < until, ended
        ended |= {cell.title: result for cell, result in engine.collect(0.2)}
    return ended


def test_a_cell_is_trained_evaluated_and_known_as_finished(recipe, tmp_path):
    (cell,) = cells_of(recipe, tmp_path, "finetuned", seeds=(2,))
    assert not cell.finished
    assert run_job(cell, threads=1, command=["killick", "compare"])["status"] == "finished"
    assert cell.finished
    assert not (cell.folder / PROGRESS).exists()
    (run,) = find_runs([tmp_path])
    assert run.job["arm"] == "finetuned"
    assert run.job["seed"] == 2
    assert run.job["command"] == ["killick", "compare"]
    assert {row["suite"] for row in run.rows} == {"clean", "corruptions"}
    assert {row["start"] for row in run.rows} == {str(cell.folder / "first")}
    assert len(run.answers) == 2


def test_a_finished_cell_is_never_run_again(recipe, tmp_path, monkeypatch):
    (cell,) = cells_of(recipe, tmp_path, "standard")
    run_job(cell, threads=1)

    def refuse(*values, **more):
        raise AssertionError("run again")

    monkeypatch.setattr(running, "train", refuse)
    monkeypatch.setattr(running, "evaluate", refuse)
    assert run_job(cell, threads=1) == {"status": "finished", "seconds": 0.0}


def test_other_questions_to_a_trained_cell_train_nothing(recipe, tmp_path, monkeypatch):
    (cell,) = cells_of(recipe, tmp_path, "anchored")
    run_job(cell, threads=1)
    before = weights_of(cell.folder)
    (asked,) = cells_of(recipe, tmp_path, "anchored", shown={**SHOWN, "severities": [3, 5]})
    assert not asked.finished
    monkeypatch.setattr(running, "train", None)
    assert run_job(asked, threads=1)["status"] == "finished"
    assert_same(before, weights_of(cell.folder))
    (run,) = find_runs([tmp_path])
    assert {row["severity"] for row in run.rows if row["corruption"] == "fog"} == {3, 5}


def test_an_interrupted_cell_goes_on_and_ends_as_one_that_was_not(recipe, tmp_path, monkeypatch):
    (cell,) = cells_of(recipe, tmp_path / "a", "finetuned")
    (straight,) = cells_of(recipe, tmp_path / "b", "finetuned")
    take = loop.Run.take_step

    def interrupted(run):
        take(run)
        if run.done == 3 and run.recipe.protocol.name == "masked":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.Run, "take_step", interrupted)
    assert run_job(cell, threads=1) == {"status": "interrupted"}
    assert not cell.finished
    monkeypatch.setattr(loop.Run, "take_step", take)
    assert run_job(cell, threads=1)["status"] == "finished"
    run_job(straight, threads=1)
    assert_same(weights_of(cell.folder), weights_of(straight.folder))


def test_an_interrupt_while_evaluating_is_one_too(recipe, tmp_path, monkeypatch):
    (cell,) = cells_of(recipe, tmp_path, "standard")

    def interrupt(*values, **more):
        raise KeyboardInterrupt

    evaluate = running.evaluate
    monkeypatch.setattr(running, "evaluate", interrupt)
    assert run_job(cell, threads=1) == {"status": "interrupted"}
    monkeypatch.setattr(running, "evaluate", evaluate)
    monkeypatch.setattr(running, "train", None)  # it is trained
    assert run_job(cell, threads=1)["status"] == "finished"


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KillickError("expected this, found that."), "expected this, found that."),
        (MemoryError(), "MemoryError: "),
        (ZeroDivisionError("by\nzero"), "ZeroDivisionError: by"),
        (OSError(28, "No space left on device", "x.pt"), "x.pt: No space left on device."),
    ],
)
def test_what_goes_wrong_is_a_line_and_a_file(recipe, tmp_path, monkeypatch, raised, told):
    (cell,) = cells_of(recipe, tmp_path, "standard")

    def fail(*values, **more):
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(running, "train", fail)
        assert run_job(cell, threads=1) == {"status": "failed", "problem": told}
    assert (cell.folder / PROBLEM).read_text().strip()
    assert read_job(cell.folder)["finished"] is False
    assert run_job(cell, threads=1)["status"] == "finished"
    assert not (cell.folder / PROBLEM).exists()


def test_cells_side_by_side_are_as_one_after_another_and_a_failure_stops_no_other(recipe, tmp_path):
    arms = ("standard", "bad:protocol=masked,target=label,lr=1e20", "masked-label")
    cells = cells_of(recipe, tmp_path / "jobs", *arms)
    ended = collect_all(local(cells, tmp_path), 3)
    assert ended["standard, seed 0"]["status"] == "finished"
    assert ended["masked-label, seed 0"]["status"] == "finished"
    assert "NaN" in ended["bad, seed 0"]["problem"]
    alone = cells_of(recipe, tmp_path / "alone", "standard", "masked-label")
    for cell in alone:
        run_job(cell, threads=1)
    assert results_of([cells[0], cells[2]]) == results_of(alone)


def _wait_for(condition, seconds=120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_process_that_dies_takes_one_cell_along_and_is_replaced(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path, epochs=2)
    long, short = cells_of(recipe, tmp_path, "long:epochs=100000,protocol=standard", "standard")
    engine = local([long, short], tmp_path, jobs=1)
    note = long.folder / PROGRESS
    _wait_for(note.exists)
    os.kill(json.loads(note.read_text())["process"], signal.SIGKILL)
    ended = collect_all(engine, 2)
    assert ended[long.title]["status"] == "failed"
    assert "SIGKILL" in ended[long.title]["problem"]
    assert ended[short.title]["status"] == "finished"


def test_stopping_saves_what_runs_and_begins_nothing_more(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path, epochs=2)
    long, waiting = cells_of(recipe, tmp_path, "long:epochs=100000,protocol=standard", "standard")
    engine = local([long, waiting], tmp_path, jobs=1)
    _wait_for(lambda: (long.folder / "metrics.jsonl").exists())
    engine.stop()
    assert [(cell.title, r["status"]) for cell, r in engine.collect(0)] == [
        (long.title, "interrupted")
    ]
    assert (long.folder / "checkpoint-before.pt").exists()  # the first one, before the last
    assert not waiting.folder.exists()


def test_a_process_whose_parent_is_gone_saves_and_ends(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path, epochs=2)
    (long,) = cells_of(recipe, tmp_path, "long:epochs=100000,protocol=standard")
    process = subprocess.Popen(
        [sys.executable, "-m", "killick.experiments.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    task = {"cell": long.to_json(), "threads": 1, "device": "cpu", "command": []}
    process.stdin.write(json.dumps(task) + "\n")
    process.stdin.flush()
    _wait_for(lambda: (long.folder / "metrics.jsonl").exists())
    process.stdin.close()
    assert json.loads(process.stdout.readline()) == {"status": "interrupted"}
    assert process.wait(60) == 0
    process.stdout.close()


def test_a_process_that_reads_pictures_with_workers_does_not_wait_for_ever(pictures, tmp_path):
    """Forked processes must not inherit a lock of standard input that a thread holds."""
    recipe = write_recipe(pictures, tmp_path, epochs=1)
    shown = {**SHOWN, "workers": 1}
    settings = {"data.workers": 1, "data.resident": "never"}
    cells = cells_of(recipe, tmp_path, "standard", shown=shown, **settings)
    assert collect_all(local(cells, tmp_path), 1)[cells[0].title]["status"] == "finished"


def test_how_a_process_died_is_told():
    log = Path("logs/process-0.txt")
    assert "SIGSEGV" in engines._death(-signal.SIGSEGV, log)
    assert "fewer --jobs" in engines._death(-signal.SIGKILL, log)
    assert "exit code 3" in engines._death(3, log)


def test_a_process_that_cannot_be_started_is_told_and_nothing_waits(recipe, tmp_path):
    cells = cells_of(recipe, tmp_path, "standard")
    (tmp_path / "logs").touch()  # no folder can be made there
    ended = collect_all(local(cells, tmp_path), 1)
    assert "cannot start a process" in ended["standard, seed 0"]["problem"]


def test_a_finished_cell_stays_finished_while_it_is_asked_more(recipe, tmp_path, monkeypatch):
    (cell,) = cells_of(recipe, tmp_path, "standard")
    run_job(cell, threads=1)
    (asked,) = cells_of(recipe, tmp_path, "standard", shown={**SHOWN, "severities": [5]})

    def interrupt(*values, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "evaluate", interrupt)
    assert run_job(asked, threads=1) == {"status": "interrupted"}
    assert cell.finished
    assert not asked.finished


def test_a_renamed_cell_says_so_in_its_folder(recipe, tmp_path):
    (cell,) = cells_of(recipe, tmp_path, "standard")
    run_job(cell, threads=1)
    (renamed,) = cells_of(recipe, tmp_path, "mine:protocol=standard")
    running.rename_job(renamed)
    (run,) = find_runs([tmp_path])
    assert run.job["arm"] == "mine"
    assert renamed.finished


def test_what_goes_on_sees_the_samples_in_another_order(recipe, tmp_path, monkeypatch):
    from killick.data.batches import Resident, Streamed

    seen = []
    for kind in (Resident, Streamed):
        begin = kind.begin

        def noted(batches, epoch, step, begin=begin):
            seen.append(epoch)
            begin(batches, epoch, step)

        monkeypatch.setattr(kind, "begin", noted)
    (cell,) = cells_of(recipe, tmp_path, "finetuned", epochs=4)
    run_job(cell, threads=1)
    assert seen == [0, 1, 2, 3]
