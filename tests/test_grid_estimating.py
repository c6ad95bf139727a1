import json
from dataclasses import dataclass, field, replace

import pytest
import torch
from grids import SHOWN, cells_of, write_recipe
from hypothesis import given
from hypothesis import strategies as st
from runs import small

from killick.errors import DataError
from killick.experiments import estimating, timing
from killick.experiments.arms import KNOWN
from killick.experiments.estimating import (
    Estimate,
    Sizes,
    count_steps,
    describe,
    estimate,
    schedule,
)
from killick.experiments.jobs import make_cells
from killick.experiments.timing import Stopwatch
from killick.results.run_folder import CELL

STEP, READ, FOG, ASKED = 1.0, 0.01, 0.5, {"standard": 0.02, "anchored": 0.03, "masked": 0.03}
START = estimating._BEGINNING


@dataclass
class Told:
    """Times that are given; notes what it is asked."""

    asked: list[str] = field(default_factory=list)

    def step(self, recipe, classes):
        assert classes == 4
        self.asked.append("step")
        return STEP

    def forward(self, recipe, classes):
        assert classes == 4
        self.asked.append("forward")
        return ASKED[recipe.protocol.name]

    def read(self, recipe):
        self.asked.append("read")
        return READ

    def corruptions(self, names, size):
        assert size == 16
        self.asked.append("corruptions")
        return dict.fromkeys(names, FOG)


@pytest.fixture(autouse=True)
def _one_core(monkeypatch):
    monkeypatch.setattr(estimating, "count_cores", lambda: 1)


def at_once(cells, jobs=1, **options) -> Estimate:
    return estimate(cells, jobs=jobs, device="cpu", timing=Told(), **options)


def trained(cell):
    """16 pictures in batches of 4 for 3 epochs, read once, and judged on 4."""
    return 12 * STEP + 16 * READ + 4 * ASKED[cell.phases[-1].recipe.protocol.name]


def evaluated(cell, references):
    """4 pictures, clean and in fog, which is made of each; read once."""
    asking = 2 * 4 * references * ASKED[cell.phases[-1].recipe.protocol.name]
    return estimating._BESIDE * asking + 4 * FOG + 4 * READ


def finish(cell, **seconds):
    """Leave a folder as a finished cell does."""
    cell.folder.mkdir(parents=True)
    about = {"arm": cell.arm, "finished": True, "asked": cell.asked, "seconds": seconds}
    (cell.folder / CELL).write_text(json.dumps(about))


def trained_already(folder):
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")


def test_a_cell_takes_its_steps_its_pictures_and_its_corruptions(pictures, tmp_path):
    standard, anchored = cells_of(
        write_recipe(pictures, tmp_path), tmp_path, "standard", "anchored"
    )
    found = at_once([standard, anchored])
    first = trained(standard) + evaluated(standard, 1)
    second = trained(anchored) + evaluated(anchored, 2)
    assert found.seconds == pytest.approx({standard.folder: first, anchored.folder: second})
    assert found.total == pytest.approx(first + second + START)
    assert found.found.endswith("timed on this machine, 1 thread for each cell")


def test_what_suites_ask_for_is_counted(pictures, tmp_path):
    shown = {
        **SHOWN,
        "suites": ["clean", "corruptions", "ood", "shift"],
        "severities": [1, 5],
        "corruptions": ["fog", "snow", "contrast"],
        "synthetic": ["noise", "blobs"],
        "shift": {"others": f"imagefolder:{pictures}"},
        "references": 9,  # more than the two that are stored
    }
    recipe = write_recipe(pictures, tmp_path)
    (cell,) = cells_of(recipe, tmp_path, "anchored", shown=shown)
    pictures_shown = 4 + 4 * 3 * 2 + 2 * 4 + 20
    expected = estimating._BESIDE * pictures_shown * 2 * ASKED["anchored"]
    expected += 4 * 3 * 2 * FOG + (4 + 2 * 4 + 20) * READ
    assert at_once([cell]).seconds[cell.folder] == pytest.approx(trained(cell) + expected)


def test_a_limit_and_corrupted_files_cost_less(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path)
    whole, limited, files = (
        cells_of(recipe, tmp_path, "standard", shown={**SHOWN, **more})[0]
        for more in ({}, {"limit": 2}, {"corruption_files": "somewhere"})
    )
    cost = {
        name: at_once([cell]).seconds[cell.folder] - trained(cell)
        for name, cell in {"whole": whole, "limited": limited, "files": files}.items()
    }
    assert cost["whole"] == pytest.approx(2 * cost["limited"])
    assert cost["whole"] - cost["files"] == pytest.approx(4 * FOG)


def test_validation_and_streaming_cost_time_in_training(pictures, tmp_path):
    settings = {"data.validation": 4, "validate_every": 2, "data.resident": "never"}
    recipe = write_recipe(pictures, tmp_path)
    (cell,) = cells_of(recipe, tmp_path, "standard", shown=SHOWN, **settings)
    found = at_once([cell]).seconds[cell.folder]
    steps = 3 * (12 // 4)
    judged = 2 * 4 + 4  # after two epochs and at the end; then the test set
    training = steps * (STEP + 4 * READ) + judged * ASKED["standard"]
    fitting = 4 * (estimating._BESIDE * ASKED["standard"] + READ)  # of temperatures
    assert found == pytest.approx(training + evaluated(cell, 1) + fitting)


def test_pictures_that_are_measured_on_are_counted(pictures, tmp_path):
    (cell,) = cells_of(write_recipe(pictures, tmp_path), tmp_path, "anchored")
    more = at_once([cell], passes=1000).total - at_once([cell]).total
    assert more == pytest.approx(1000 * ASKED["anchored"])


def test_cells_of_one_kind_are_timed_once(pictures, tmp_path):
    told = Told()
    cells = cells_of(
        write_recipe(pictures, tmp_path),
        tmp_path,
        *("masked-label", "masked-uniform", "standard"),
        seeds=(0, 1, 2),
    )
    estimate(cells, jobs=1, device="cpu", timing=told)
    assert sorted(told.asked) == ["corruptions", "forward", "forward", "read", "step", "step"]


def test_phases_are_counted_each_unless_they_are_trained(pictures, tmp_path):
    (cell,) = cells_of(write_recipe(pictures, tmp_path), tmp_path, "finetuned")
    first, second = cell.phases
    assert {first.recipe.epochs, second.recipe.epochs} == {1, 2}
    standard = 4 * first.recipe.epochs * STEP + 16 * READ + 4 * ASKED["standard"]
    tuned = 4 * second.recipe.epochs * STEP + 16 * READ + 4 * ASKED["masked"]
    found = at_once([cell]).seconds[cell.folder]
    assert found == pytest.approx(standard + tuned + evaluated(cell, 2))
    trained_already(first.folder)
    assert at_once([cell]).seconds[cell.folder] == pytest.approx(tuned + evaluated(cell, 2))


def test_a_run_that_several_cells_start_from_is_counted_once(pictures, tmp_path):
    base = KNOWN["standard"]
    arms = [base] + [
        replace(base, name=f"tuned{rate}", settings={**base.settings, "optimiser.lr": rate})
        for rate in (0.1, 0.01)
    ]
    arms = [arms[0], *(replace(arm, after=base) for arm in arms[1:])]
    cells = make_cells(write_recipe(pictures, tmp_path), {}, arms, (0,), tmp_path, SHOWN)
    each = trained(cells[0]) + evaluated(cells[0], 1)
    assert list(at_once(cells).seconds.values()) == pytest.approx([each] * 3)
    alone = at_once(cells[1:])  # without its own cell the first that starts from it trains it
    assert list(alone.seconds.values()) == pytest.approx([each + trained(cells[0]), each])


def test_finished_cells_tell_better_than_timings(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path)
    cells = cells_of(recipe, tmp_path, "standard", "anchored", seeds=(0, 1))
    (longer,) = cells_of(recipe, tmp_path, "standard", epochs=6)
    finish(cells[0], train=24.0, evaluate=7.0)
    found = at_once([*cells, longer])
    assert set(found.seconds) == {cells[1].folder, cells[2].folder, cells[3].folder, longer.folder}
    assert found.seconds[cells[2].folder] == pytest.approx(24 + 7)
    assert found.seconds[longer.folder] == pytest.approx(48 + 7)
    assert found.seconds[cells[1].folder] == pytest.approx(
        trained(cells[1]) + evaluated(cells[1], 2)
    )
    assert "and from 1 finished cell" in found.found


def test_finished_cells_that_were_asked_other_things_tell_of_training_alone(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path)
    first, second = cells_of(recipe, tmp_path, "standard", seeds=(0, 1))
    more = replace(second, evaluation={**SHOWN, "severities": [1]})
    finish(first, train=24.0, evaluate=7.0)
    assert at_once([first, more]).seconds[more.folder] == pytest.approx(24 + evaluated(more, 1))


def test_nothing_is_timed_when_all_is_finished(pictures, tmp_path):
    (cell,) = cells_of(write_recipe(pictures, tmp_path), tmp_path, "standard")
    finish(cell)
    told = Told()
    found = estimate([cell], jobs=2, device="cpu", timing=told)
    assert (found.seconds, found.total, told.asked) == ({}, 0.0, [])


def test_threads_share_the_reading_and_jobs_the_cells(pictures, tmp_path, monkeypatch):
    cells = cells_of(write_recipe(pictures, tmp_path), tmp_path, "standard", seeds=(0, 1, 2))
    alone = at_once(cells).seconds[cells[0].folder]
    assert at_once(cells, jobs=2).total == pytest.approx(2 * alone + START)
    monkeypatch.setattr(estimating, "count_cores", lambda: 8)
    faster = at_once(cells, jobs=2).seconds[cells[0].folder]
    assert alone - faster == pytest.approx(0.75 * (16 + 4) * READ)


def test_a_gpu_compiles_reads_meanwhile_and_promises_a_bound(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(estimating, "choose_device", lambda name: torch.device("cuda", 0))
    (cell,) = cells_of(write_recipe(pictures, tmp_path), tmp_path, "standard")
    found = at_once([cell])
    expected = trained(cell) - 16 * READ + evaluated(cell, 1) + estimating._COMPILING
    assert found.seconds[cell.folder] == pytest.approx(expected)
    assert "at most" in found.found


def test_an_estimate_fetches_nothing(tmp_path):
    settings = {"data.name": "cifar10", "data.root": str(tmp_path), "data.download": True}
    (cell,) = make_cells("cifar10-resnet18", settings, [KNOWN["standard"]], (0,), tmp_path, SHOWN)
    with pytest.raises(DataError, match="expected cifar10 in .* found no such folder"):
        at_once([cell])


def test_data_that_are_not_there_are_told(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path)
    (cell,) = cells_of(recipe, tmp_path, "standard", **{"data.name": "imagefolder:/not/there"})
    with pytest.raises(DataError, match="not/there"):
        at_once([cell])


@given(st.lists(st.floats(0, 1000), max_size=12), st.integers(1, 4))
def test_a_schedule_is_what_a_queue_does(seconds, jobs):
    free = [0.0] * jobs
    for each in seconds:
        first = free.index(min(free))
        free[first] += each
    assert schedule(seconds, jobs) == pytest.approx(max(free))


def test_steps_leave_out_the_rest_of_an_epoch(pictures):
    recipe = small(pictures, epochs=5, batch=4)
    assert count_steps(recipe, Sizes(11, 0, 4, 4, True)) == 10
    assert count_steps(recipe, Sizes(3, 0, 4, 4, True)) == 5


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3, "a few seconds"),
        (44, "about 40 seconds"),
        (95, "about 2 minutes"),
        (370, "about 6 minutes"),
        (5300, "about 88 minutes"),
        (5400, "about 1.5 hours"),
        (8 * 3600, "about 8 hours"),
        (20.4 * 3600, "about 20 hours"),
        (60 * 3600, "about 2 days"),
    ],
)
def test_times_are_told_no_more_exactly_than_they_are_known(seconds, words):
    assert describe(seconds) == words


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(timing, "_SECONDS", 0.0)
    return Stopwatch(torch.device("cpu"), 1)


@pytest.mark.parametrize(
    ("protocol", "references"),
    [("standard", "clean"), ("anchored", "batch"), ("masked", "augmented")],
)
def test_steps_passes_and_reading_are_timed_and_torch_is_left_as_it_was(
    pictures, quick, protocol, references, monkeypatch
):
    recipe = small(
        pictures,
        protocol__name=protocol,
        protocol__references=references,
        augment__mixup=0.2,
        data__label_noise=0.1,
    )
    quick, threads = replace(quick, threads=3), []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    before, state = torch.get_num_threads(), torch.get_rng_state()
    assert 0 < quick.step(recipe, 4) < 10
    assert 0 < quick.forward(recipe, 4) < 1
    assert 0 < quick.read(recipe) < 1
    assert threads == [3, before] * 3
    assert torch.equal(torch.get_rng_state(), state)


def test_a_large_batch_is_timed_in_part_and_counted_whole(pictures, quick, monkeypatch):
    monkeypatch.setattr(timing, "_PIXELS", {"cpu": 4 * 16**2})
    shown, asked = [], []

    def spend(self, act):
        before = len(shown)
        act()
        asked.append(len(shown) - before)
        return 2.0

    take = timing.Run.take_step
    monkeypatch.setattr(Stopwatch, "_median", spend)
    monkeypatch.setattr(
        timing.Run, "take_step", lambda run: (shown.append(run.recipe.batch), take(run))
    )
    assert quick.step(small(pictures, batch=16), 4) == pytest.approx(8.0)
    assert (shown, asked) == ([4], [1])
    assert quick.forward(small(pictures), 4) == pytest.approx(0.5)


def test_corruptions_that_there_is_no_time_for_are_guessed_from_the_others(quick, monkeypatch):
    monkeypatch.setattr(timing, "_SECONDS_OF_CORRUPTIONS", -1.0)
    found = quick.corruptions(["contrast", "fog", "snow"], 16)
    assert list(found) == ["contrast", "fog", "snow"]
    assert found["contrast"] == found["fog"] == found["snow"] > 0
    assert quick.corruptions([], 16) == {}


def test_the_median_of_several_repetitions_is_taken_after_two_that_warm_up(monkeypatch):
    times = iter([100.0, 100.0, 1.0, 9.0, 2.0])
    clock, done = [0.0], []

    def act():
        clock[0] += next(times)
        done.append(1)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(timing, "_SECONDS", 11.0)
    assert Stopwatch(torch.device("cpu"), 1)._median(act) == 2.0
    assert len(done) == 5


def test_the_time_of_several_runs_together_tells_nothing_of_a_step(pictures, tmp_path):
    recipe = write_recipe(pictures, tmp_path)
    both, alone = cells_of(recipe, tmp_path, "finetuned", "standard")
    finish(both, train=99.0, evaluate=7.0)
    expected = trained(alone) + evaluated(alone, 1)
    assert at_once([both, alone]).seconds[alone.folder] == pytest.approx(expected)
