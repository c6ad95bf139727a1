"""Flower: the apps in this process, what is in their messages, bad clients; and real simulations."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import assert_equal, colors, make_plan, without_seconds
from PIL import Image

from killick.errors import DataError, KillickError, OptionError
from killick.federated import federate, flower_runner
from killick.federated.client_tasks import ClientTasks
from killick.federated.federated_data import FederatedData
from killick.federated.federation_settings import FederationPlan
from killick.federated.flower_runner import run_flower, write_app
from killick.federated.server_rounds import run_rounds
from killick.federated.server_state import load_state
from killick.runtime.progress import choose_display
from killick.training.recipe_files import load_recipe

flwr_app = pytest.importorskip("flwr.app")
ArrayRecord, ConfigRecord, Context = flwr_app.ArrayRecord, flwr_app.ConfigRecord, flwr_app.Context
Message, MetricRecord, RecordDict = flwr_app.Message, flwr_app.MetricRecord, flwr_app.RecordDict
QUIET = choose_display(None, quiet=True)


class LoopGrid:
    """A Grid whose nodes answer in this process, when they are asked for replies."""

    def __init__(self, plan, clients=4, spoil=None):
        from flwr.supercore.task_identity import TaskIdentity

        from killick.federated.flower_apps import client_app

        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.app, self.plan, self.spoil = client_app, plan, spoil
        self.waiting, self.log, self.messages = {}, [], []
        self.left = set()  # clients that are not connected any more
        self.contexts = {
            100 + client: Context(
                1, 100 + client, {"partition-id": client}, RecordDict(), {"plan": plan.to_json()}
            )
            for client in range(clients)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        for message in messages:
            if message.metadata.dst_node_id - 100 in self.left:
                yield ""
                continue
            number = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = number
            self.waiting[number] = message
            self.log.append((message.metadata.message_type, message.metadata.dst_node_id - 100))
            self.messages.append(message)
            yield number

    def pull_messages(self, numbers):
        for number in list(self.waiting):  # one node answers at a time
            if number not in numbers:
                continue
            message = self.waiting.pop(number)
            node = message.metadata.dst_node_id
            reply = self.app(message, self.contexts[node])
            if self.spoil is not None:
                reply = self.spoil(message, reply, node - 100)
            if reply is None:
                self.waiting[number] = message
                continue
            reply.metadata.__dict__["_reply_to_message_id"] = number
            self.messages.append(reply)
            return [reply]
        return []


@pytest.fixture(autouse=True)
def _data():
    with colors():
        yield


def run(plan, grid):
    from killick.federated.flower_apps import FlowerEngine

    data = FederatedData(plan)
    return run_rounds(data, FlowerEngine(grid, data), QUIET)


@pytest.mark.parametrize(
    ("method", "protocol"), [("spectral", "masked"), ("fedrep", "standard"), ("local", "standard")]
)
def test_flower_and_inline_give_the_same_bits(method, protocol, tmp_path):
    inline = federate(make_plan(tmp_path / "a", method, protocol=protocol, clients=3), quiet=True)
    plan = make_plan(tmp_path / "b", method, protocol=protocol, clients=3)
    flower = run(plan, LoopGrid(plan, 3))
    assert_equal(inline.weights, flower.weights)
    assert without_seconds(inline.records) == without_seconds(flower.records)


def test_personal_training_is_sent_before_aggregation_and_while_others_still_train(
    tmp_path, monkeypatch
):
    from killick.federated import server_rounds

    plan = make_plan(tmp_path, "spectral", clients=3, rounds=1)
    grid = LoopGrid(plan, 3)
    mean = server_rounds.weighted_mean

    def aggregate(*arguments):
        grid.log.append(("aggregate", -1))
        return mean(*arguments)

    monkeypatch.setattr(server_rounds, "weighted_mean", aggregate)
    answered = []
    grid.spoil = lambda message, reply, client: (
        answered.append((message.metadata.message_type, client)) or reply
    )
    run(plan, grid)
    kinds = [kind for kind, _ in grid.log]
    assert kinds.count("train.personal") == 3
    assert max(i for i, k in enumerate(kinds) if k == "train.personal") < kinds.index("aggregate")
    first = next(i for i, k in enumerate(kinds) if k == "train.personal")
    assert first < len(kinds)
    asked = [client for kind, client in answered if kind == "train.generic"]
    assert grid.log[first][1] == asked[0]  # when the first had answered, not when all had


def test_messages_hold_model_tensors_and_counts_and_no_image(tmp_path):
    plan = make_plan(tmp_path, "spectral", protocol="masked", clients=3)
    data = FederatedData(plan)
    grid = LoopGrid(plan, 3)
    run(plan, grid)
    shapes = {name: tuple(each.shape) for name, each in data.first_weights.items()}
    assert not any("reference" in name for name in shapes)
    images = data.parts.train.images()
    pixels = {
        images[i].float().flatten().sort().values.numpy().tobytes() for i in range(len(images))
    }
    seen = set()
    for message in grid.messages:
        seen.add(message.metadata.message_type)
        for record in message.content.values():
            if isinstance(record, ArrayRecord):
                found = record.to_torch_state_dict()
                assert {n: tuple(t.shape) for n, t in found.items()} == shapes
                for each in found.values():
                    assert each.float().flatten().sort().values.numpy().tobytes() not in pixels
            elif isinstance(record, MetricRecord):
                assert set(record) <= {"samples", "seconds", "correct", "count", "loss"}
                assert all(isinstance(value, int | float) for value in record.values())
            else:
                assert isinstance(record, ConfigRecord)
                assert set(record) <= {"round", "last", "fresh", "client", "signature"}
    assert seen == {"query.describe", "train.generic", "train.personal", "evaluate.personal"}


def spoiled(kind):
    """Answers of client 1 to train.generic that are of no use."""

    def spoil(message, reply, client):
        if client != 1 or message.metadata.message_type != "train.generic":
            return reply
        if kind == "late":
            return None
        if kind == "dropped":
            return Message(flwr_app.Error(code=0, reason="gone"), reply_to=message)
        state = reply.content["weights"].to_torch_state_dict()
        name = "fc.weight"
        bad = state[name] * torch.nan if kind == "nan" else state[name][:, :2]
        reply.content["weights"] = ArrayRecord({**state, name: bad.contiguous()})
        return reply

    return spoil


@pytest.mark.parametrize(
    ("kind", "words"),
    [("late", "no answer"), ("dropped", "gone"), ("nan", "not finite"), ("shape", "shape")],
)
def test_bad_clients_are_reported_and_never_aggregated(kind, words, tmp_path):
    plan = make_plan(
        tmp_path / "a", "fedavg", clients=3, rounds=1, timeout=4 if kind == "late" else 60
    )
    state = run(plan, LoopGrid(plan, 3, spoiled(kind)))
    (fault,) = state.records[0]["faults"]
    assert fault["client"] == 1
    assert words in fault["fault"]
    from killick.federated.aggregation import weighted_mean
    from killick.federated.client_tasks import ClientTasks

    data = FederatedData(make_plan(tmp_path / "b", "fedavg", clients=3, rounds=1))
    tasks = {client: ClientTasks(data, client) for client in (0, 2)}
    uploads = {c: task.train_generic(1, data.first_weights)[0] for c, task in tasks.items()}
    samples = {c: int(task.describe(fresh=True)["samples"]) for c, task in tasks.items()}
    assert_equal(state.weights, weighted_mean(uploads, samples))


@pytest.mark.parametrize("method", ["ditto", "local"])
def test_clients_that_have_left_are_reported_at_once(method, tmp_path):
    plan = make_plan(tmp_path, method, clients=4, rounds=2, timeout=120)
    grid = LoopGrid(plan, 4)

    def leave(message, reply, client):
        if message.metadata.message_type == "evaluate.personal":
            grid.left = {1, 2}
        return reply

    grid.spoil = leave
    began = time.monotonic()
    records = run(plan, grid).records
    assert time.monotonic() - began < 60
    assert {fault["client"] for fault in records[1]["faults"]} == {1, 2}
    assert list(records[1]["personal"]) == ["0", "3"]

    plan = make_plan(tmp_path / "all", method, clients=4, rounds=2)
    grid = LoopGrid(plan, 4, lambda m, reply, c: grid.left.update(range(4)) or reply)
    with pytest.raises(KillickError, match="no client is left|clients left"):
        run(plan, grid)


def test_clients_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    plan = make_plan(tmp_path, "fedavg", clients=2, timeout=0.5)
    with pytest.raises(OptionError, match="found 1 of 2 clients within 0.5 s"):
        run(plan, LoopGrid(plan, 1))

    def other(message, reply, client):
        about = dict(reply.content["about"])
        reply.content["about"] = ConfigRecord({**about, "signature": "9.9.9 other"})
        return reply

    with pytest.raises(OptionError, match="another version, network or classes"):
        run(plan, LoopGrid(plan, 2, other))
    grid = LoopGrid(plan, 2)
    grid.contexts[101].node_config["partition-id"] = 0
    with pytest.raises(OptionError, match="two clients have the partition-id 0"):
        run(plan, grid)
    assert load_state(plan) is None
    assert not list(tmp_path.glob("*.safetensors"))


def test_faults_of_clients_with_data_of_their_own_do_not_name_their_files(tmp_path, monkeypatch):
    plan = make_plan(tmp_path, "fedavg", clients=2, rounds=1)
    grid = LoopGrid(plan, 2)

    def unreadable(self, round_, received):
        raise DataError("cannot read /clinic/jane-doe.png")

    monkeypatch.setattr(ClientTasks, "train_generic", unreadable)
    grid.contexts[101].node_config["data"] = "given:colors"
    with pytest.raises(KillickError, match="no client is left"):
        run(plan, grid)
    faults = {
        message.metadata.src_node_id: str(dict(message.content["about"]).get("fault", ""))
        for message in grid.messages
        if message.has_content() and "about" in message.content
    }
    assert "DataError" in faults[101]
    assert "jane" not in faults[101]
    assert "jane" in faults[100]  # it has the plan's images, which the server has, too


@pytest.mark.parametrize("number", [2, -1, None])
def test_a_partition_id_that_no_client_has_is_refused(number, tmp_path):
    plan = make_plan(tmp_path / "run", "fedavg", clients=2, timeout=60)
    grid = LoopGrid(plan, 2)
    del grid.contexts[101].node_config["partition-id"]
    if number is not None:
        grid.contexts[101].node_config["partition-id"] = number
    with pytest.raises(OptionError, match="partition-id of a SuperNode must be 0 to 1"):
        run(plan, grid)
    assert not list(plan.output.iterdir())  # and nothing is left


@pytest.mark.parametrize("other", ["blue", "pink"])
def test_a_client_of_its_own_may_lack_a_class_but_have_no_other(other, tmp_path):
    for split in ("train", "test"):
        for number, name in enumerate(("green", other)):
            folder = tmp_path / "own" / split / name
            folder.mkdir(parents=True)
            for place in range(4):
                Image.new("RGB", (8, 8), (9, 99 * number, 9 * place)).save(folder / f"{place}.png")
    plan = make_plan(tmp_path / "run", "fedavg", clients=2, rounds=1)
    plan = replace(plan, class_names=("red", "green", "blue"))
    grid = LoopGrid(plan, 2)
    grid.contexts[101].node_config["data"] = f"imagefolder:{tmp_path / 'own'}"
    if other == "pink":
        with pytest.raises(OptionError, match="DataError"):
            run(plan, grid)
        return
    record = run(plan, grid).records[0]
    assert record["faults"] == []
    assert record["personal"]["1"]["count"] == 8
    own = FederatedData(plan, f"imagefolder:{tmp_path / 'own'}").client(1, 1).train
    assert sorted(own.labels.tolist()) == [1] * 4 + [2] * 4  # blue and green in its folders


def test_texts_of_other_errors_stay_with_the_client(tmp_path, monkeypatch):
    plan = make_plan(tmp_path, "fedavg", clients=2, rounds=1)
    grid = LoopGrid(plan, 2)

    def fail(self, round_, received):
        raise FileNotFoundError("/clinic/jane-doe.png")

    monkeypatch.setattr(ClientTasks, "train_generic", fail)
    with pytest.raises(KillickError, match="FileNotFoundError; the client's log says more"):
        run(plan, grid)


def test_an_unreachable_superlink_is_one_line(tmp_path):
    plan = make_plan(tmp_path / "run")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(OptionError, match=f"no SuperLink at 127.0.0.1:{port}"):
        run_flower(plan, f"127.0.0.1:{port}", quiet=True)
    with pytest.raises(OptionError, match="HOST:PORT"):
        run_flower(plan, "nowhere", quiet=True)
    assert not plan.output.exists()


FLWR = """\
import json, os, sys
from pathlib import Path
if sys.argv[1] == "run":
    settings = Path(os.environ["FLWR_HOME"], "config.toml").read_text()
    Path(os.environ["SEEN"]).write_text(settings)
    print(json.dumps({"success": True, "run-id": "7"}))
elif sys.argv[1] == "ls":
    assert sys.argv[sys.argv.index("--run-id") + 1] == "7"
    print(json.dumps({"success": True, "runs": [{"status": os.environ["STATUS"]}]}))
"""


@pytest.mark.parametrize("status", ["finished:completed", "finished:failed"])
def test_the_status_of_a_run_on_another_machine_decides(status, tmp_path, monkeypatch):
    program = tmp_path / "flwr"
    program.write_text(f"#!{sys.executable}\n{FLWR}")
    program.chmod(0o755)
    monkeypatch.setattr(flower_runner, "_command", lambda name: str(tmp_path / name))
    monkeypatch.setenv("STATUS", status)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.toml"))
    certificates = tmp_path / "ca.pem"
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        link.listen()
        address = f"127.0.0.1:{link.getsockname()[1]}"
        arguments = make_plan(tmp_path / "run"), address
        if status == "finished:completed":
            run_flower(*arguments, certificates=certificates, quiet=True)
        else:
            with pytest.raises(KillickError, match="status finished:failed"):
                run_flower(*arguments, certificates=certificates, quiet=True)
    import tomllib

    seen = tomllib.loads((tmp_path / "seen.toml").read_text())["superlink"]["killick"]
    assert seen == {"address": address, "root-certificates": str(certificates)}


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_what_a_superlink_started_ends_with_it(tmp_path):
    grandchild = "import time; time.sleep(600)"
    child = (
        "import subprocess, sys, time;"
        f"print(subprocess.Popen([sys.executable, '-c', {grandchild!r}],"
        " start_new_session=True).pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", child],
        env=os.environ | {"FLWR_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process.stdout:
        other = int(process.stdout.readline())
    flower_runner._end(process, str(tmp_path))
    assert process.returncode is not None
    stat = Path(f"/proc/{other}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"  # ended, if not reaped yet


def test_a_plan_survives_the_way_to_other_processes(tmp_path):
    plan = make_plan(tmp_path, "spectral:keep=0.1", protocol="masked")
    assert FederationPlan.from_json(plan.to_json()) == plan
    import tomllib

    app = write_app(plan, tmp_path / "app")
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert json.loads(project["tool"]["flwr"]["app"]["config"]["plan"])["device"] == "cpu"


def make_digits_plan(output: Path, clients: int) -> FederationPlan:
    """A plan that other processes can read: data by name."""
    plan = make_plan(output, "spectral", clients=clients, partition="iid", rounds=2)
    recipe = load_recipe(
        "shapes-federated",
        {
            "data.name": "digits",
            "data.limit": 160,
            "data.size": 16,
            "network.arguments": {"width": 4, "stride": 2},
        },
    )
    return replace(plan, recipe=recipe, threads=1)


@pytest.mark.slow
def test_a_simulation_of_four_clients_equals_inline(tmp_path):
    inline = federate(make_digits_plan(tmp_path / "inline", 4), quiet=True)
    plan = make_digits_plan(tmp_path / "flower", 4)
    run_flower(plan, quiet=True)
    flower = load_state(plan)
    assert_equal(inline.weights, flower.weights)
    assert without_seconds(inline.records) == without_seconds(flower.records)


@pytest.mark.slow
def test_a_superlink_with_two_supernodes_on_loopback_equals_inline(tmp_path):
    ports = []
    for _ in range(3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(str(probe.getsockname()[1]))
    plan = make_digits_plan(tmp_path / "flower", 2)
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    started = []

    def start(name, *words):
        home = {**environment, "FLWR_HOME": str(tmp_path / f"home{len(started)}")}
        with open(tmp_path / f"{name}-{len(started)}.log", "wb") as log:
            words = [str(programs / name), "--insecure", *words]
            started.append(
                subprocess.Popen(words, env=home, stdout=log, stderr=log, start_new_session=True)
            )

    try:
        start("flower-superlink", "--host", "127.0.0.1", "--port", ports[0])
        for _ in range(300):
            time.sleep(0.2)
            try:
                socket.create_connection(("127.0.0.1", int(ports[0])), timeout=1).close()
                break
            except OSError:
                continue
        for client in (0, 1):
            start(
                *("flower-supernode", "--superlink", f"127.0.0.1:{ports[0]}"),
                *("--host", "127.0.0.1", "--port", ports[1 + client]),
                *("--node-config", f"partition-id={client} num-partitions=2"),
            )
        run_flower(plan, f"127.0.0.1:{ports[0]}", quiet=True)
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)
    flower = load_state(plan)
    inline = federate(make_digits_plan(tmp_path / "inline", 2), quiet=True)
    assert_equal(inline.weights, flower.weights)
    assert without_seconds(inline.records) == without_seconds(flower.records)
