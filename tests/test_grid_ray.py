"""Cells on Ray: two machines of which one dies, processes that die, and what cannot work."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import assert_same, small, weights_of

from killick.errors import InstallError, OptionError
from killick.experiments import ray_jobs as on_ray
from killick.experiments.arms import parse_arms
from killick.experiments.job_progress import _read_note
from killick.experiments.job_runner import run_job
from killick.experiments.jobs import Job, make_jobs
from killick.experiments.ray_jobs import RayTasks
from killick.results.rows import read_rows
from killick.training.checkpoint import BEFORE, load_checkpoint
from killick.training.recipe_files import to_yaml

ray = on_ray._import_ray()  # as it is imported by those who use it: told to be quiet
SECONDS = 150  # nothing takes so long; a machine of CI may be slow
MACHINE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 * 2**20}
EVALUATION = {"suites": ["clean", "corruptions"], "corruptions": ["fog"], "severities": [3]}


@pytest.fixture(scope="module")
def apart():
    """Ray's files in a folder of this test run: clusters of others are neither found nor hidden."""
    folder = tempfile.mkdtemp(prefix="killick-", dir="/tmp")  # paths of sockets have to be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it leaves a token in the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else all other tests go before
        patch.delenv("RAY_ADDRESS", raising=False)
        if sys.dont_write_bytecode:  # Ray's many processes would take too long to start
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", f"{folder}/bytecode")
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(apart):
    """A machine with one core, to which a test adds another; a lost one is noticed in seconds."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    head = {**MACHINE, "include_dashboard": False, "_system_config": quick}
    made = Cluster()
    added(made, **head)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def joined(cluster):
    """This process is part of the cluster, whose processes then serve one test after another."""
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()


def added(cluster, **options):
    """One more machine; Ray gives up on one that starts slowly, as on a busy computer."""
    for _ in range(2):
        with contextlib.suppress(Exception):
            return cluster.add_node(**options)
    return cluster.add_node(**options)


def tasks(cells, address=None, **options):
    options = {"jobs": None, "cpus": 1, "gpus": 0, "command": ["killick", "compare"], **options}
    return RayTasks(cells, address=address, **options)


def grid(pictures, folder, arms=("masked-label",), seeds=(0,), evaluation=EVALUATION, **changes):
    changes = {"epochs": 10, **changes}
    recipe = folder.with_name("recipe.yaml")
    recipe.write_text(to_yaml(small(pictures, **changes)))
    return make_jobs(recipe, {}, parse_arms(arms), seeds, folder, evaluation)


def wait_for(condition):
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def gather(engine, count):
    """How cells ended, by folder."""
    found = {}

    def all_there():
        found.update({cell.folder: result for cell, result in engine.collect(0.2)})
        return len(found) == count

    wait_for(all_there)
    assert engine.collect(0) == []
    engine.close()
    return found


def is_alive(process):
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def parent_of(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def training_process(cell, other_than=None):
    """Who trains a cell, once it has taken steps."""
    note = _read_note(cell.folder)
    if note.get("stage") != "training" or note["process"] == other_than:
        return None
    return note["process"] if note["done"] else None


def assert_same_results(cells, alone):
    """Rows with all values and digests, weights, and the answers to each image."""
    for a, b in zip(cells, alone, strict=True):
        assert a.folder.name == b.folder.name
        assert a.finished
        assert b.finished
        assert len(read_rows(a.folder)) >= 10
        assert read_rows(a.folder) == read_rows(b.folder)
        assert_same(weights_of(a.folder), weights_of(b.folder))


@pytest.mark.slow  # half a minute on both cores
def test_a_grid_that_loses_a_machine_gives_the_rows_of_one_without_ray(
    cluster, pictures, tmp_path, capfd
):
    assert not ray.is_initialized()
    options = {"arms": ["standard", "masked-label"], "seeds": [0, 1], "checkpoint_minutes": 0}
    cells = grid(pictures, tmp_path / "ray", **options)
    machine = added(cluster, **MACHINE)
    raylet = machine.all_processes["raylet"][0].process.pid
    engine = tasks(cells)  # Ray finds the cluster

    def found_there():
        """A cell in the middle of its training on the new machine."""
        for cell in cells:
            process = _read_note(cell.folder).get("process")
            if process and parent_of(process) == raylet and (cell.folder / BEFORE).exists():
                return cell, process
        return None

    lost, process = wait_for(found_there)
    os.kill(process, signal.SIGSTOP)  # it does not finish before the machine is lost
    cluster.remove_node(machine, allow_graceful=False)
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: not is_alive(process))
    assert 0 < load_checkpoint(lost.folder)[0]["step"] < 40
    assert not (lost.folder / "model").exists()
    results = gather(engine, 4)
    assert [result["status"] for result in results.values()] == ["finished"] * 4
    alone = grid(pictures, tmp_path / "alone", **options)
    assert [run_job(cell, threads=1, device="cpu")["status"] for cell in alone] == ["finished"] * 4
    assert_same_results(cells, alone)
    assert not list((tmp_path / "ray").glob(".shared-*"))
    assert not ray.is_initialized()
    assert capfd.readouterr() == ("", "")


def test_a_cell_that_fails_is_told_once_and_the_others_go_on(
    joined, pictures, tmp_path, monkeypatch
):
    monkeypatch.chdir(pictures.parent)  # not where the cluster was started
    changes = {"data__name": f"imagefolder:{pictures.name}", "epochs": 2}
    arms = ["bad:protocol=standard,lr=1e18", "standard"]
    bad, good = cells = grid(pictures, tmp_path / "grid", arms, **changes)
    results = gather(tasks(cells, joined.address, jobs=1), 2)
    assert results[bad.folder]["status"] == "failed"
    assert "NaN or infinite at step" in results[bad.folder]["problem"]
    assert results[good.folder]["status"] == "finished"
    assert good.finished


def test_a_cell_whose_machine_is_taken_away_gently_is_saved_and_goes_on(joined, pictures, tmp_path):
    options = {"epochs": 100}
    (cell,) = grid(pictures, tmp_path / "grid", **options)
    engine = tasks([cell], joined.address)
    os.kill(wait_for(lambda: training_process(cell)), signal.SIGTERM)
    (result,) = gather(engine, 1).values()
    assert result["status"] == "finished"
    (alone,) = grid(pictures, tmp_path / "alone", **options)
    run_job(alone, threads=1, device="cpu")
    assert_same_results([cell], [alone])


def test_a_machine_that_does_not_see_the_folder_is_told(joined, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "_SECONDS_TO_SEE_MARKER", 0.5)
    (tmp_path / "here").mkdir()
    opened = os.open(tmp_path / "here", os.O_RDONLY)
    (cell,) = grid(pictures, tmp_path / "grid")
    elsewhere = Path(f"/proc/self/fd/{opened}/grid")  # which is something else to other processes
    values = {**cell.to_json(), "folder": str(elsewhere / cell.folder.name)}
    (result,) = gather(tasks([Job.from_json(values)], joined.address), 1).values()
    os.close(opened)
    assert result["status"] == "failed"
    assert f"expected the folder {elsewhere} as it is here, found another or" in result["problem"]
    assert "storage that all machines of the cluster share" in result["problem"]
    assert not list((tmp_path / "here").rglob("*.json"))


def test_a_machine_with_another_killick_is_told(joined, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "__version__", "99.0")
    (result,) = gather(tasks(grid(pictures, tmp_path / "grid"), joined.address), 1).values()
    assert result["status"] == "failed"
    assert "expected killick 99.0 as here, found 0." in result["problem"]


def test_stopping_saves_what_runs_and_does_not_begin_what_waits(joined, pictures, tmp_path):
    options = {"seeds": [0, 1], "epochs": 200}
    running, waiting = cells = grid(pictures, tmp_path / "grid", **options)
    engine = tasks(cells, joined.address)
    wait_for(lambda: training_process(running))
    engine.stop()
    ended = {cell.folder: result["status"] for cell, result in engine.collect(0)}
    assert ended[running.folder] == "interrupted"
    assert ended.get(waiting.folder, "interrupted") == "interrupted"
    assert ray.is_initialized()  # it was not the engine that joined
    assert 0 < load_checkpoint(running.folder)[0]["step"] < 800  # saved because it was asked to
    assert not (running.folder / "model").exists()
    assert not waiting.folder.exists()


def test_a_killed_process_is_tried_again_but_not_for_ever(joined, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "RETRIES", 1)
    (cell,) = grid(pictures, tmp_path / "grid", epochs=4000)
    engine = tasks([cell], joined.address)
    first = wait_for(lambda: training_process(cell))
    os.kill(first, signal.SIGKILL)
    second = wait_for(lambda: training_process(cell, other_than=first))
    os.kill(second, signal.SIGKILL)
    (result,) = gather(engine, 1).values()
    assert result["status"] == "failed"
    assert "its process or machine was lost, and so it was each time" in result["problem"]
    assert "\n" not in result["problem"]


def test_a_machine_without_killick_is_told(tmp_path):
    task = on_ray._make_task(SimpleNamespace(remote=lambda **_: lambda function: function), 1, 0)
    (tmp_path / "task").write_bytes(ray.cloudpickle.dumps(task))
    (tmp_path / "killick.py").write_text("raise ImportError('No module named killick')\n")
    code = f"""
import pickle
task = pickle.loads(open({str(tmp_path / "task")!r}, "rb").read())
print(task({{"version": "0.1.0"}}))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "found none that works (No module named killick). Install it on all" in ran.stdout, ran


ON_ITS_OWN = """
import sys
from killick.experiments.jobs import Job
from killick.experiments.ray_jobs import RayTasks
import json
cells = [Job.from_json(each) for each in json.load(open(sys.argv[1]))]
engine = RayTasks(cells, jobs=1, cpus=1, gpus=None, address=None, command=[])
ended = []
try:
    while len(ended) < len(cells):
        ended += engine.collect(0.5)
except KeyboardInterrupt:
    engine.stop()
    ended += engine.collect(0)
finally:
    engine.close()
print(*[result["status"] for _, result in ended])
"""


@pytest.mark.slow  # half a minute on both cores
def test_without_a_cluster_one_is_started_quietly_and_ctrl_c_saves(apart, pictures, tmp_path):
    cell, waiting = cells = grid(pictures, tmp_path / "grid", seeds=[0, 1], epochs=4000)
    (tmp_path / "cells.json").write_text(json.dumps([each.to_json() for each in cells]))
    for _ in range(3):  # see `added`
        process = subprocess.Popen(
            [sys.executable, "-c", ON_ITS_OWN, str(tmp_path / "cells.json")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "RAY_TMPDIR": f"{apart}/own"},
        )
        worker = wait_for(lambda: training_process(cell) or process.poll())  # noqa: B023
        if process.poll() is None:
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    told, _ = process.communicate(timeout=SECONDS)
    assert told == "interrupted\n"
    assert load_checkpoint(cell.folder)[0]["step"] > 0
    assert not waiting.folder.exists()
    wait_for(lambda: not is_alive(worker))


class FakeRay:
    """Notes how Ray is joined; its tasks end when a test says so."""

    class exceptions:  # noqa: N801, as in Ray
        RayError = ray.exceptions.RayError

    def __init__(self, nodes=({"CPU": 4.0},), runs_here=False, refuses=None):
        self.joined, self.options, self.submitted, self.done = [], {}, [], set()
        self.cancelled = []
        self._nodes, self._runs_here, self._refuses = nodes, runs_here, refuses

    def is_initialized(self):
        return False

    def init(self, address, **options):
        if self._refuses is not None:
            raise self._refuses
        if self._runs_here and "object_store_memory" in options:
            raise ValueError("When connecting to an existing cluster, it must not be provided.")
        assert options["log_to_driver"] is False
        statistics = os.environ.get("RAY_USAGE_STATS_ENABLED")
        self.joined.append((address, "object_store_memory" in options, statistics))

    def shutdown(self):
        self.joined.append("left")

    def nodes(self):
        dead = {"Alive": False, "Resources": {"CPU": 999.0, "GPU": 9.0}}
        return [dead, *({"Alive": True, "Resources": each} for each in self._nodes)]

    def cluster_resources(self):
        return {"CPU": 9.0, "GPU": sum(each.get("GPU", 0) for each in self._nodes)}

    def remote(self, **options):
        self.options = options
        return lambda function: SimpleNamespace(remote=self._submit)

    def _submit(self, asked):
        self.submitted.append(asked)
        return len(self.submitted) - 1

    def wait(self, tasks, num_returns, timeout):
        ready = [task for task in tasks if task in self.done]
        return ready[:num_returns], [task for task in tasks if task not in ready]

    def cancel(self, task, force=False):
        self.cancelled.append((task, force))

    def get(self, task):
        if isinstance(self.done, dict):
            raise self.done[task]
        return {"status": "finished"}


@pytest.fixture
def cell(pictures, tmp_path):
    return grid(pictures, tmp_path / "grid")[0]


def with_fake(monkeypatch, fake, cells, **options):
    monkeypatch.setattr(on_ray, "_import_ray", lambda: fake)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    return tasks(cells, **options)


@pytest.mark.parametrize(
    ("runs_here", "named", "address", "expected"),
    [
        (False, None, None, [(None, True, "0")]),
        (False, None, "local", [("local", True, "0")]),
        (True, None, None, [(None, False, None)]),
        (True, None, "host:6379", [("host:6379", False, None)]),
        (True, "named:6379", None, [("named:6379", False, None)]),
        (True, "named:6379", "host:6379", [("host:6379", False, None)]),
    ],
)
def test_which_cluster_is_joined(monkeypatch, cell, runs_here, named, address, expected):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if named:
        monkeypatch.setenv("RAY_ADDRESS", named)
    fake = FakeRay(runs_here=runs_here)
    engine = with_fake(monkeypatch, fake, [cell], address=address)
    assert fake.joined == expected
    assert list(cell.folder.parent.glob(".shared-*"))
    fake.done = {0}
    assert engine.collect(0) == [(cell, {"status": "finished"})]
    engine.close()
    assert fake.joined == [*expected, "left"]
    assert fake.cancelled == []
    assert not list(cell.folder.parent.glob(".shared-*"))
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


@pytest.mark.parametrize(
    "problem", [ConnectionError("no\nway"), RuntimeError("no."), ValueError("no")]
)
def test_a_cluster_that_cannot_be_joined_is_told(monkeypatch, cell, problem):
    fake = FakeRay(refuses=problem)
    told = (
        r"expected a Ray cluster at h:1, found none to join \(no\)\. Start .* --address local for"
    )
    with pytest.raises(OptionError, match=told):
        with_fake(monkeypatch, fake, [cell], address="h:1")
    with pytest.raises(OptionError, match="expected a Ray cluster on this machine, found"):
        with_fake(monkeypatch, fake, [cell])


def test_no_more_cells_are_handed_out_than_jobs(monkeypatch, pictures, tmp_path):
    cells = grid(pictures, tmp_path / "grid", seeds=range(5))
    fake = FakeRay()
    engine = with_fake(monkeypatch, fake, cells, jobs=2)
    assert len(fake.submitted) == 2
    assert engine.collect(0) == []
    fake.done = {1}
    assert [cell for cell, _ in engine.collect(0)] == [cells[1]]
    assert len(fake.submitted) == 3
    fake.done = {0, 1, 2}
    assert [cell for cell, _ in engine.collect(0)] == [cells[0], cells[2]]
    assert len(fake.submitted) == 5
    assert [Job.from_json(asked["cell"]) for asked in fake.submitted] == cells


def test_what_does_not_end_when_it_is_stopped_is_ended(monkeypatch, pictures, tmp_path):
    cells = grid(pictures, tmp_path / "grid", seeds=range(3))
    fake = FakeRay()
    engine = with_fake(monkeypatch, fake, cells, jobs=2)
    fake.done = {0: ray.exceptions.TaskCancelledError()}
    engine.stop()
    assert fake.cancelled == [(0, False), (1, False), (1, True)]
    assert engine.collect(0) == [(cells[0], {"status": "interrupted"})]
    assert len(fake.submitted) == 2
    assert fake.joined[-1] == "left"


@pytest.mark.parametrize(
    ("gpus", "device", "nodes", "share", "place"),
    [
        (None, "auto", [{"CPU": 4.0}], 0.0, "cpu"),
        (None, "auto", [{"CPU": 4.0}, {"CPU": 4.0, "GPU": 2.0}], 1.0, "cuda"),
        (None, "cpu", [{"CPU": 4.0, "GPU": 2.0}], 0.0, "cpu"),
        (0, "auto", [{"CPU": 4.0, "GPU": 2.0}], 0.0, "cpu"),
        (0.25, "auto", [{"CPU": 4.0, "GPU": 1.0}], 0.25, "cuda"),
        (None, "cuda", [{"CPU": 4.0, "GPU": 1.0}], 1.0, "cuda"),
    ],
)
def test_what_a_cell_gets_of_a_machine(monkeypatch, cell, gpus, device, nodes, share, place):
    fake = FakeRay(nodes)
    with_fake(monkeypatch, fake, [cell], gpus=gpus, device=device, cpus=3)
    assert (fake.options["num_cpus"], fake.options["num_gpus"]) == (3, share)
    assert (fake.submitted[0]["threads"], fake.submitted[0]["device"]) == (3, place)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cpus": 0}, "at least 1 core for a cell, found 0"),
        ({"gpus": 2}, "from 0 to 1 GPU for a cell, which uses one, found 2"),
        ({"gpus": -0.5}, "from 0 to 1 GPU for a cell, which uses one, found -0.5"),
        ({"gpus": 0.5, "device": "cpu"}, "GPUs for cuda and none for cpu, found 0.5 for cpu"),
        ({"gpus": 0, "device": "cuda"}, "GPUs for cuda and none for cpu, found 0 for cuda"),
        ({"device": "cuda:1"}, "the device, of which Ray chooses the number, to be one of 'auto'"),
        (
            {"cpus": 8},
            r"machine with 8 cores and 0 GPUs for a cell, found 4 and 0\. Ask for less",
        ),
        ({"gpus": 0.5}, r"a machine with 1 cores and 0.5 GPUs for a cell, found 4 and 0\."),
    ],
)
def test_what_no_machine_can_give_is_refused(monkeypatch, cell, options, told):
    fake = FakeRay()
    with pytest.raises(OptionError, match=told):
        with_fake(monkeypatch, fake, [cell], **options)
    assert fake.submitted == []
    assert fake.joined[-1:] in ([], ["left"])


def test_a_cluster_may_get_a_large_machine_later(monkeypatch, cell, caplog):
    fake = FakeRay(runs_here=True)
    with_fake(monkeypatch, fake, [cell], cpus=8)
    assert "found 4 and 0; cells wait until the cluster has one." in caplog.text
    assert len(fake.submitted) == 1


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (ray.exceptions.WorkerCrashedError(), "its process or machine was lost, and so it was"),
        (ray.exceptions.NodeDiedError("of old age"), "(NodeDiedError; out of memory?"),
        (ray.exceptions.TaskCancelledError(), "somebody cancelled it in Ray."),
        (
            ray.exceptions.RayTaskError("run", "a\ntrace", InterruptedError("it was stopped")),
            "it was stopped, and so it was each time Ray tried it.",
        ),
        (
            ray.exceptions.RuntimeEnvSetupError("no\nsuch package"),
            "Ray could not run it: RuntimeEnvSetupError: Failed to set up runtime environment",
        ),
    ],
)
def test_why_ray_has_no_result_is_told_in_a_line(monkeypatch, cell, problem, told):
    fake = FakeRay()
    engine = with_fake(monkeypatch, fake, [cell])
    fake.done = {0: problem}
    ((_, result),) = engine.collect(0)
    assert result["status"] == "failed"
    assert told in result["problem"]
    assert "\n" not in result["problem"]


def test_a_folder_that_cannot_be_written_is_told(monkeypatch, pictures, tmp_path):
    (tmp_path / "grid").write_text("a file")
    fake = FakeRay()
    with pytest.raises(OptionError, match=r"cannot write into .*grid: "):
        with_fake(monkeypatch, fake, grid(pictures, tmp_path / "grid"))
    assert fake.joined[-1] == "left"


def test_without_the_library_it_is_told_how_to_get_it(cell, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        InstallError, match=r"expected the library ray .* pip install 'killick\[ray"
    ):
        tasks([cell])
