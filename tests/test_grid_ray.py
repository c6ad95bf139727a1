"""Jobs on Ray: a lost machine, killed processes, and what cannot work."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from grids import collect_all, wait_for
from runs import assert_same, small, weights_of

from killick.errors import InstallError, OptionError
from killick.experiments import ray_jobs
from killick.experiments.arms import parse_arms
from killick.experiments.execution import Execution
from killick.experiments.job_runner import PROGRESS, run_job
from killick.experiments.jobs import Job, make_jobs
from killick.experiments.ray_jobs import RayJobs
from killick.results.rows import read_rows
from killick.training.checkpoint import BEFORE, load_checkpoint
from killick.training.recipe_files import to_yaml

ray = ray_jobs.import_ray()
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file.*/dev/null:ResourceWarning")  # Ray's
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


def ray_engine(todo, address=None, **options):
    options = {"gpus": 0, "command": ["killick"], "address": address, **options}
    return RayJobs(todo, Execution(engine="ray", **options))


def make(image_folder, folder, arms=("masked-label",), seeds=(0,), **changes):
    recipe = folder.with_name("recipe.yaml")
    recipe.write_text(to_yaml(small(image_folder, **{"epochs": 10, **changes})))
    return make_jobs(recipe, {}, parse_arms(arms), seeds, folder, EVALUATION)


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


def training_process(job, other_than=None):
    """The process that trains a job, once it has taken steps."""
    try:
        found = json.loads((job.folder / PROGRESS).read_text())
    except (OSError, ValueError):
        return None
    if found["stage"] != "training" or found["process"] == other_than:
        return None
    return found["process"] if found["fraction"] > 0 else None


def assert_same_results(jobs, alone):
    for a, b in zip(jobs, alone, strict=True):
        assert a.folder.name == b.folder.name
        assert a.finished
        assert b.finished
        assert len(read_rows(a.folder)) >= 10
        assert read_rows(a.folder) == read_rows(b.folder)
        assert_same(weights_of(a.folder), weights_of(b.folder))


@pytest.mark.slow
def test_jobs_of_a_lost_machine_give_the_rows_of_jobs_without_ray(
    cluster, image_folder, tmp_path, capfd
):
    assert not ray.is_initialized()
    options = {"arms": ["standard", "masked-label"], "seeds": [0, 1], "checkpoint_minutes": 0}
    jobs = make(image_folder, tmp_path / "ray", **options)
    (tmp_path / "ray").mkdir()
    machine = added(cluster, **MACHINE)
    raylet = machine.all_processes["raylet"][0].process.pid
    engine = ray_engine(jobs)  # Ray finds the cluster
    engine.collect(0)

    def found_there():
        """A job in the middle of its training on the new machine."""
        for job in jobs:
            process = training_process(job)
            if process and parent_of(process) == raylet and (job.folder / BEFORE).exists():
                return job, process
        return None

    lost, process = wait_for(found_there)
    os.kill(process, signal.SIGSTOP)  # it does not finish before the machine is lost
    cluster.remove_node(machine, allow_graceful=False)
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: not is_alive(process))
    assert 0 < load_checkpoint(lost.folder)[0]["step"] < 40
    assert not (lost.folder / "model").exists()
    results = collect_all(engine, 4)
    assert [result["status"] for result in results.values()] == ["finished"] * 4
    alone = make(image_folder, tmp_path / "alone", **options)
    assert [run_job(job, threads=1, device="cpu")["status"] for job in alone] == ["finished"] * 4
    assert_same_results(jobs, alone)
    assert not ray.is_initialized()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_failed_job_is_not_retried_and_others_go_on(joined, image_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(image_folder.parent)  # not where the cluster was started
    changes = {"data__name": f"imagefolder:{image_folder.name}", "epochs": 2}
    arms = ["bad:protocol=standard,lr=1e18", "standard"]
    (tmp_path / "jobs").mkdir()
    bad, good = jobs = make(image_folder, tmp_path / "jobs", arms, **changes)
    results = collect_all(ray_engine(jobs, joined.address, jobs=1), 2)
    assert results[bad.title]["status"] == "failed"
    assert "NaN" in results[bad.title]["problem"]
    assert results[good.title]["status"] == "finished"
    assert good.finished


@pytest.mark.slow
def test_a_terminated_job_is_saved_and_resumed(joined, image_folder, tmp_path):
    (tmp_path / "jobs").mkdir()
    (job,) = make(image_folder, tmp_path / "jobs", epochs=100)
    engine = ray_engine([job], joined.address)
    engine.collect(0)
    os.kill(wait_for(lambda: training_process(job)), signal.SIGTERM)
    (result,) = collect_all(engine, 1).values()
    assert result["status"] == "finished"
    (alone,) = make(image_folder, tmp_path / "alone", epochs=100)
    run_job(alone, threads=1, device="cpu")
    assert_same_results([job], [alone])


@pytest.mark.slow
def test_a_machine_without_the_folder_or_with_another_version_fails_the_job(
    joined, image_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(ray_jobs, "_SECONDS_TO_SEE_FOLDER", 0.2)
    (job,) = jobs = make(image_folder, tmp_path / "jobs")  # a folder that nobody made
    (result,) = collect_all(ray_engine(jobs, joined.address), 1).values()
    assert result["status"] == "failed"
    assert f"no folder {job.folder.parent}" in result["problem"]
    monkeypatch.setattr(ray_jobs, "__version__", "99.0")
    (result,) = collect_all(ray_engine(jobs, joined.address), 1).values()
    assert result["status"] == "failed"
    assert "install 99.0" in result["problem"]


@pytest.mark.slow
def test_stopping_saves_what_runs_and_starts_nothing_more(joined, image_folder, tmp_path):
    (tmp_path / "jobs").mkdir()
    running, waiting = jobs = make(image_folder, tmp_path / "jobs", seeds=[0, 1], epochs=200)
    engine = ray_engine(jobs, joined.address, jobs=1)
    engine.collect(0)
    wait_for(lambda: training_process(running))
    engine.stop()
    ended = {job.folder: result["status"] for job, result in engine.collect(0)}
    engine.close()
    assert ended == {running.folder: "interrupted"}
    assert ray.is_initialized()  # it was not the engine that joined
    assert 0 < load_checkpoint(running.folder)[0]["step"] < 800
    assert not (running.folder / "model").exists()
    assert not waiting.folder.exists()


@pytest.mark.slow
def test_a_killed_process_is_retried_but_not_for_ever(joined, image_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_jobs, "RETRIES", 1)
    (tmp_path / "jobs").mkdir()
    (job,) = make(image_folder, tmp_path / "jobs", epochs=4000)
    engine = ray_engine([job], joined.address)
    engine.collect(0)
    first = wait_for(lambda: training_process(job))
    os.kill(first, signal.SIGKILL)
    os.kill(wait_for(lambda: training_process(job, other_than=first)), signal.SIGKILL)
    (result,) = collect_all(engine, 1).values()
    assert result["status"] == "failed"
    assert "tried 2 times" in result["problem"]


@pytest.mark.slow
def test_a_machine_without_killick_fails_the_job(tmp_path):
    task = ray_jobs._make_task(SimpleNamespace(remote=lambda **_: lambda function: function), 1, 0)
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
    assert "install 0.1.0 on all machines" in ran.stdout, ran


ON_ITS_OWN = """
import json
import sys
from killick.experiments.execution import Execution
from killick.experiments.jobs import Job
from killick.experiments.ray_jobs import RayJobs
jobs = [Job.from_json(each) for each in json.load(open(sys.argv[1]))]
engine = RayJobs(jobs, Execution(jobs=1, engine="ray"))
ended = []
try:
    while len(ended) < len(jobs):
        ended += engine.collect(0.5)
except KeyboardInterrupt:
    engine.stop()
    ended += engine.collect(0)
finally:
    engine.close()
print(*[result["status"] for _, result in ended])
"""


@pytest.mark.slow
def test_without_a_cluster_one_is_started_quietly_and_ctrl_c_saves(apart, image_folder, tmp_path):
    (tmp_path / "jobs").mkdir()
    job, waiting = jobs = make(image_folder, tmp_path / "jobs", seeds=[0, 1], epochs=4000)
    (tmp_path / "jobs.json").write_text(json.dumps([each.to_json() for each in jobs]))
    for _ in range(3):  # see `added`
        process = subprocess.Popen(
            [sys.executable, "-c", ON_ITS_OWN, str(tmp_path / "jobs.json")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "RAY_TMPDIR": f"{apart}/own"},
        )
        worker = wait_for(lambda: training_process(job) or process.poll())  # noqa: B023
        if process.poll() is None:
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=150)
    assert output == "interrupted\n"
    assert load_checkpoint(job.folder)[0]["step"] > 0
    assert not waiting.folder.exists()
    wait_for(lambda: not is_alive(worker))


class FakeRay:
    """Notes what it is asked for; its tasks end when a test says so."""

    class exceptions:  # noqa: N801, as in Ray
        RayError = ray.exceptions.RayError

    def __init__(self, nodes=({"CPU": 4.0},), refuses=None):
        self.joined, self.options, self.submitted, self.done = [], {}, [], set()
        self.cancelled = []
        self._nodes, self._refuses = nodes, refuses

    def is_initialized(self):
        return False

    def init(self, address, **options):
        if self._refuses is not None:
            raise self._refuses
        self.joined.append(address)

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

    def _submit(self, arguments):
        self.submitted.append(arguments)
        return len(self.submitted) - 1

    def wait(self, tasks, num_returns=1, timeout=None):
        ready = [task for task in tasks if task in self.done]
        return ready[:num_returns], [task for task in tasks if task not in ready]

    def cancel(self, task, force=False):
        self.cancelled.append((task, force))

    def get(self, task):
        if isinstance(self.done, dict):
            raise self.done[task]
        return {"status": "finished"}


@pytest.fixture
def job(image_folder, tmp_path):
    return make(image_folder, tmp_path / "jobs")[0]


def with_fake(monkeypatch, fake, todo, **options):
    monkeypatch.setattr(ray_jobs, "import_ray", lambda: fake)
    return ray_engine(todo, **options)


def test_a_cluster_is_joined_and_left(monkeypatch, job):
    fake = FakeRay()
    engine = with_fake(monkeypatch, fake, [job], address="host:6379")
    assert engine.collect(0) == []
    fake.done = {0}
    assert engine.collect(0) == [(job, {"status": "finished"})]
    engine.close()
    assert fake.joined == ["host:6379", "left"]
    assert fake.cancelled == []


def test_a_cluster_that_cannot_be_joined_is_an_error(monkeypatch, job):
    fake = FakeRay(refuses=ConnectionError("no\nway"))
    with pytest.raises(OptionError, match=r"at h:1 \(no\).*--address local"):
        with_fake(monkeypatch, fake, [job], address="h:1")


def test_no_more_jobs_are_submitted_than_at_once(monkeypatch, image_folder, tmp_path):
    jobs = make(image_folder, tmp_path / "jobs", seeds=range(5))
    fake = FakeRay()
    engine = with_fake(monkeypatch, fake, jobs, jobs=2)
    assert engine.collect(0) == []
    assert len(fake.submitted) == 2
    fake.done = {1}
    assert [job for job, _ in engine.collect(0)] == [jobs[1]]
    fake.done = {0, 1, 2}
    assert [job for job, _ in engine.collect(0)] == [jobs[0], jobs[2]]
    engine.collect(0)
    assert [Job.from_json(arguments["job"]) for arguments in fake.submitted] == jobs


def test_what_does_not_stop_is_ended(monkeypatch, image_folder, tmp_path):
    jobs = make(image_folder, tmp_path / "jobs", seeds=range(3))
    fake = FakeRay()
    engine = with_fake(monkeypatch, fake, jobs, jobs=2)
    engine.collect(0)
    fake.done = {0: ray.exceptions.TaskCancelledError()}
    engine.stop()
    assert engine.collect(0) == [(jobs[0], {"status": "interrupted"})]
    engine.close()
    assert fake.cancelled == [(0, False), (1, False), (1, True)]
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
def test_the_resources_of_a_job(monkeypatch, job, gpus, device, nodes, share, place):
    fake = FakeRay(nodes)
    with_fake(monkeypatch, fake, [job], gpus=gpus, device=device, cpus=3).collect(0)
    assert (fake.options["num_cpus"], fake.options["num_gpus"]) == (3, share)
    options = fake.submitted[0]["options"]
    assert (options["threads"], options["device"]) == (3, place)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cpus": -1}, "--cpus"),
        ({"gpus": 2}, "--gpus"),
        ({"gpus": -0.5}, "--gpus"),
        ({"device": "cuda:1"}, "cuda:1"),
    ],
)
def test_resources_that_cannot_work_are_refused(monkeypatch, job, options, match):
    fake = FakeRay()
    with pytest.raises(OptionError, match=match):
        with_fake(monkeypatch, fake, [job], **options)
    assert fake.joined == []


def test_a_warning_when_no_machine_is_large_enough(monkeypatch, job, caplog):
    with_fake(monkeypatch, FakeRay(), [job], cpus=8).collect(0)
    assert "8 cores" in caplog.text


@pytest.mark.parametrize(
    ("problem", "match"),
    [
        (ray.exceptions.WorkerCrashedError(), "WorkerCrashedError"),
        (ray.exceptions.NodeDiedError("of old age"), "NodeDiedError"),
        (
            ray.exceptions.RayTaskError("run", "a\ntrace", InterruptedError("it was stopped")),
            "it was stopped",
        ),
    ],
)
def test_a_job_that_ray_lost_has_failed(monkeypatch, job, problem, match):
    fake = FakeRay()
    engine = with_fake(monkeypatch, fake, [job])
    engine.collect(0)
    fake.done = {0: problem}
    ((_, result),) = engine.collect(0)
    assert result["status"] == "failed"
    assert match in result["problem"]
    assert "\n" not in result["problem"]


def test_without_ray_the_error_says_how_to_install_it(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InstallError, match=r"pip install -e '\.\[ray"):
        ray_engine([job])
