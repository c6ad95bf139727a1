"""`killick federate`: rounds, resume, report, anchored clients, bad input."""

import copy
from dataclasses import asdict, replace

import pytest
import torch
from federations import assert_equal, colors, make_plan, make_sets, without_seconds

import killick
from killick.cli import main
from killick.core.anchored import Anchored
from killick.data.image_set import Sets
from killick.data.sources import given_sets
from killick.errors import DivergedError, KillickError, OptionError
from killick.federated import federate, federated_data, local_client
from killick.federated.client_store import ClientStore
from killick.federated.client_tasks import ClientTasks
from killick.federated.engine import Upload
from killick.federated.federated_data import FederatedData
from killick.federated.federation_report import clock_times
from killick.federated.federation_settings import Federation
from killick.federated.local_client import state_of
from killick.federated.server_rounds import aggregate, choose_clients
from killick.federated.server_state import FILE, ServerState, load_state
from killick.runtime.atomic_files import locked
from killick.training import make_recipe
from killick.training.recipe import Schedule

SETTINGS = [
    *(
        "--data",
        "given:colors",
        "--data.size",
        "8",
        "--batch",
        "8",
        "--threads",
        "1",
        "--device",
        "cpu",
    ),
    *("--network.arguments", "{width: 4}", "--clients", "2", "--rounds", "2", "--partition", "iid"),
]


@pytest.fixture(autouse=True)
def _data():
    with colors():
        yield


def test_a_federation_writes_models_rounds_and_a_report(tmp_path, capsys):
    words = ["federate", *SETTINGS, "--output", str(tmp_path), "--protocol", "masked"]
    assert main([*words, "--target", "label"]) == 0
    said = capsys.readouterr().out
    assert "personalized accuracy" in said
    assert "red, green, blue" in said
    page = (tmp_path / "report.html").read_text()
    assert "Clients after the last round" in page
    assert "wait-free" in page
    lines = (tmp_path / "rounds.csv").read_text().splitlines()
    assert lines[0] == "round,model,client,accuracy,count"
    assert len(lines) == 4
    generic = killick.load(tmp_path / "generic" / "model")
    assert isinstance(generic, Anchored)
    assert generic.reference_policy == "mean of test images"
    plan_weights = load_state_weights(tmp_path)
    assert_equal(state_of(generic), plan_weights)
    own = killick.load(tmp_path / "clients" / "0001" / "model")
    train = FederatedData(make_plan(tmp_path, clients=2, partition="iid")).client(1, 1).train
    images = {image.numpy().tobytes() for image in train.images()}
    assert own.references[0].numpy().tobytes() in images  # the client's own
    before = (tmp_path / FILE).read_bytes()
    assert main([*words, "--target", "label", "--quiet"]) == 0  # finished: nothing is trained again
    assert (tmp_path / FILE).read_bytes() == before


def load_state_weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / FILE)


@pytest.mark.parametrize("method", ["spectral", "pfedme"])
def test_a_killed_federation_goes_on_with_the_same_bits(method, tmp_path, monkeypatch):
    changes = {"rounds": 3, "fraction": 0.5, "clients": 4}
    whole = federate(make_plan(tmp_path / "whole", method, **changes), quiet=True)
    plan = make_plan(tmp_path / "killed", method, **changes)
    save = ServerState.save

    def killed(self, plan):
        if len(self.records) == 2:  # clients have trained round 2, the server has not saved it
            raise KeyboardInterrupt
        save(self, plan)

    monkeypatch.setattr(ServerState, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        federate(plan, quiet=True)
    monkeypatch.undo()
    assert len(load_state(plan).records) == 1
    resumed = federate(plan, quiet=True)
    assert_equal(whole.weights, resumed.weights)
    assert without_seconds(whole.records) == without_seconds(resumed.records)
    for client in range(4):
        stores = [
            ClientStore(p / "clients" / f"{client:04}") for p in (tmp_path / "whole", plan.output)
        ]
        first, second = (store.load(before=4) for store in stores)
        assert (first is None) is (second is None)
        if first is not None:
            assert_equal(first, second)


def test_a_store_keeps_two_rounds_and_begins_again_before_a_repeated_one(tmp_path):
    store = ClientStore(tmp_path)
    assert store.load(before=1) is None
    for number in (1, 3, 7):
        store.save(number, {"w": torch.tensor(float(number))})
    assert store.load(before=8)["w"] == 7
    assert store.load(before=7)["w"] == 3
    assert len(list(tmp_path.iterdir())) == 2
    store.save(7, {"w": torch.tensor(70.0)})  # repeated
    assert store.load(before=8)["w"] == 70
    assert store.load(before=7)["w"] == 3
    store.clear()
    assert store.load(before=99) is None


def test_who_takes_part_depends_on_seed_and_round_and_every_client_does():
    federation = Federation(fraction=0.25)
    drawn = [choose_clients(federation, 0, n, list(range(8))) for n in range(400)]
    assert drawn == [choose_clients(federation, 0, n, list(range(8))) for n in range(400)]
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=8)
    assert counts.min() > 70  # 100 of 400 on average
    assert counts.max() < 130
    assert all(len(set(each)) == 2 for each in drawn)


def test_models_do_not_share_storage_and_training_does_not_touch_what_it_was_given(tmp_path):
    data = FederatedData(make_plan(tmp_path, protocol="masked"))
    client, first = data.client(0, 1), data.first_weights
    before, template = copy.deepcopy(first), copy.deepcopy(data.first_weights)
    trained = client.fit(first)
    assert_equal(first, before)
    assert_equal(data.first_weights, template)
    places = {each.data_ptr() for each in trained.values()}
    assert places.isdisjoint(each.data_ptr() for each in first.values())


def statistics_of(data, number, weights):
    """BatchNorm statistics of the first layer on a client's images, in one batch."""
    model = data.client(number, 1).load(weights).eval()
    inputs = []
    model.net.bn1.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with torch.no_grad():
        model(data.client(number, 1).train_images)
    return inputs[0].mean((0, 2, 3)), inputs[0].var((0, 2, 3))


@pytest.mark.parametrize("method", ["ditto", "local", "fedavg-finetune", "pfedme"])
def test_personalized_models_have_the_statistics_of_their_last_weights(method, tmp_path):
    plan = make_plan(tmp_path, method, clients=4, rounds=1, partition="iid")
    generic = federate(plan, quiet=True).weights
    data = FederatedData(plan)
    for number in range(2):
        own = ClientTasks(data, number).personalized(1, generic)
        mean, variance = statistics_of(data, number, own)
        assert torch.allclose(own["bn1.running_mean"], mean, atol=1e-4)
        assert torch.allclose(own["bn1.running_var"], variance, rtol=1e-2)


@pytest.mark.parametrize("protocol", ["standard", "masked"])
def test_a_generic_model_is_used_with_the_averaged_statistics(protocol, tmp_path):
    data = FederatedData(make_plan(tmp_path, protocol=protocol))
    weights = data.client(0, 1).fit(data.first_weights)
    assert_equal(state_of(data.client(1, 1).ready(weights)), weights)


def test_anchored_clients_settle_before_they_upload(tmp_path):
    data = FederatedData(make_plan(tmp_path, protocol="masked", partition="dirichlet:alpha=0.3"))
    uploads = [data.client(number, 1).fit(data.first_weights) for number in range(2)]
    for number, upload in enumerate(uploads):
        settled = data.client(number, 1).settle(upload)
        near = (settled["bn1.running_mean"] - upload["bn1.running_mean"]).norm()
        far = (settled["bn1.running_mean"] - uploads[1 - number]["bn1.running_mean"]).norm()
        assert near < far
    again = data.client(0, 1).settle(uploads[0])
    assert_equal(again, data.client(0, 1).settle(uploads[0]))


def test_random_numbers_of_clients_rounds_and_purposes_differ(tmp_path):
    data = FederatedData(make_plan(tmp_path, partition="iid"))
    client, first = data.client(0, 1), data.first_weights
    base = client.fit(first)["conv1.weight"]
    assert torch.equal(base, client.fit(first)["conv1.weight"])
    for other in (
        data.client(0, 2).fit(first),
        client.fit(first, purpose="personal"),
    ):
        assert not torch.equal(base, other["conv1.weight"])


def test_the_clock_of_a_federation_counts_links_only_where_something_is_sent(tmp_path):
    for method, sent in (("ditto", True), ("local", False)):
        plan = make_plan(tmp_path / method, method, clients=2, rounds=1, bandwidth=0.001)
        state = federate(plan, quiet=True)
        times = clock_times(plan, state.records)
        link = 2 * state.records[0]["bytes"] / 1000
        assert (times["sequential"][-1] > link) is sent
        assert (times["wait-free"][-1] < times["sequential"][-1]) is sent


def test_a_diverging_client_is_left_out_and_the_others_go_on(tmp_path, monkeypatch):
    train = ClientTasks.train_generic

    def diverge(self, round_, received):
        if self.number == 1:
            raise DivergedError("the loss of client 1 is not finite.")
        return train(self, round_, received)

    monkeypatch.setattr(ClientTasks, "train_generic", diverge)
    state = federate(make_plan(tmp_path, "fedavg", clients=3, rounds=1), quiet=True)
    assert state.records[0]["faults"] == [
        {"client": 1, "fault": "the loss of client 1 is not finite."}
    ]
    assert set(state.records[0]["seconds"]["generic"]) == {"0", "2"}


def test_a_model_that_diverges_in_its_last_step_is_not_kept(tmp_path):
    plan = make_plan(tmp_path, "ditto", rounds=1)
    optimizer = replace(plan.recipe.optimizer, lr=1e38, weight_decay=1e3)
    one_step = replace(plan.recipe, batch=120, optimizer=optimizer)
    data = FederatedData(replace(plan, recipe=one_step))
    with pytest.raises(DivergedError):
        ClientTasks(data, 0).train_personal(1, data.first_weights)
    assert not (tmp_path / "clients").exists()


def with_parts(plan, *parts):
    recipe = make_recipe({**asdict(plan.recipe), "components": list(parts)})
    return replace(plan, recipe=recipe)


@pytest.mark.parametrize(
    ("part", "acts_at_first"),
    [
        ({"name": "gridmask"}, True),
        ({"name": "dropblock", "rate": 0.3}, True),
        ({"name": "dropout", "rate": 0.5, "when": "early"}, True),
        ({"name": "dropout", "rate": 0.5, "when": "late"}, False),
    ],
)
def test_components_follow_their_schedules_over_rounds(part, acts_at_first, tmp_path):
    plain = make_plan(tmp_path, "fedavg", rounds=4)
    plain = replace(plain, recipe=replace(plain.recipe, batch=4))
    first = FederatedData(plain).first_weights
    for number, acts in ((1, acts_at_first), (4, part.get("when") != "early")):
        alone, with_part = (
            FederatedData(plan).client(0, number).fit(first)
            for plan in (plain, with_parts(plain, part))
        )
        equal = all(torch.equal(alone[name], with_part[name]) for name in alone)
        assert equal is not acts, number


@pytest.mark.parametrize("name", ["ps_kd", "elr", "mixout", "co_teaching", "swa"])
def test_components_that_keep_something_are_refused(name, tmp_path):
    plan = with_parts(make_plan(tmp_path), {"name": name})
    with pytest.raises(OptionError, match=f"component {name} cannot be used"):
        FederatedData(plan).check()


def test_two_replacements_of_the_gradient_are_refused(tmp_path):
    sam = {"name": "sam"}
    FederatedData(with_parts(make_plan(tmp_path, "ditto"), sam)).check()
    with pytest.raises(OptionError, match="pfedme and the component sam"):
        FederatedData(with_parts(make_plan(tmp_path, "pfedme"), sam)).check()


def test_a_second_start_touches_nothing_of_a_running_federation(tmp_path):
    plan = make_plan(tmp_path, "ditto")
    store = ClientStore(tmp_path / "clients" / "0000")
    store.save(1, {"w": torch.ones(1)})
    with locked(plan.output, ".running"), pytest.raises(KillickError, match="another process"):
        federate(plan, quiet=True)
    assert store.load(before=2)["w"] == 1


def test_clients_settle_on_images_of_all_classes_also_where_these_are_sorted(tmp_path, monkeypatch):
    labels = torch.arange(3).repeat_interleave(40)
    sets = make_sets()
    order = sets.train.labels.argsort(stable=True)
    ordered = Sets(sets.train.part(order), sets.test)
    assert torch.equal(ordered.train.labels, labels)
    monkeypatch.setattr(local_client, "_SETTLED_IMAGES", 64)
    seen = []
    monkeypatch.setattr(local_client, "settle", lambda model, batches, **_: seen.extend(batches))
    with given_sets("sorted", ordered):
        plan = make_plan(tmp_path, protocol="masked", clients=1, partition="iid")
        data = replace(plan.recipe.data, name="given:sorted")
        clients = FederatedData(replace(plan, recipe=replace(plan.recipe, data=data)))
        clients.client(0, 1).settle(clients.first_weights)
    for batch in seen:  # red, green and blue images are in each
        assert batch.float().mean((2, 3)).argmax(1).unique().numel() == 3


def test_fine_tuning_does_not_follow_the_schedule(tmp_path):
    plan = make_plan(tmp_path, "fedavg-finetune", rounds=60)
    cosine = replace(plan.recipe, schedule=Schedule(name="cosine"))
    data = FederatedData(replace(plan, recipe=cosine))
    client, first = data.client(0, 60), data.first_weights
    tuned = client.fit(first, purpose="tuning")["fc.weight"]
    trained = client.fit(first)["fc.weight"]
    assert (tuned - first["fc.weight"]).norm() > 10 * (trained - first["fc.weight"]).norm()


@pytest.mark.parametrize("method", ["fedavg", "fedavg-finetune", "fedbabu", "local"])
def test_a_round_without_clients_stops_the_federation_with_one_line(method, tmp_path, capsys):
    words = ["federate", *SETTINGS, "--output", str(tmp_path / "run"), "--method", method]
    assert main([*words, "--optimizer.lr", "1e30", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "no client is left in round 1" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("method", ["fedrep", "fedbabu"])
def test_a_body_without_a_tensor_is_left_out(method, tmp_path):
    plan = make_plan(tmp_path, method, clients=2)
    data = FederatedData(plan)
    body = data.client(0, 1).without_head(data.first_weights)
    bad = {name: each for name, each in body.items() if name != "conv1.weight"}
    faults = []
    mean = aggregate(
        plan.federation.method_settings,
        data.first_weights,
        {0: Upload(body, {}), 1: Upload(bad, {})},
        {0: 1, 1: 1},
        faults,
        "fc.",
    )
    assert_equal(mean, data.first_weights)
    assert [each["client"] for each in faults] == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--clients", "500"], "500 clients are more than the 60 test images"),
        (["--partition", "dirichlet:p=0.0001"], "has no owner"),
        (["--clients", "35"], "has 0 test images"),
        (["--fraction", "0.1"], "selects none of 2 clients"),
        (["--method", "fedfoo"], "federated method"),
        (["--method", "ditto:mu=1"], "no such setting"),
        (["--partition", "sorted"], "partition"),
        (["--superlink", "127.0.0.1:1"], "requires --engine flower"),
        (["--engine", "flower", "--superlink", "127.0.0.1:1"], "no SuperLink at 127.0.0.1:1"),
        (["--certificates", "ca.pem"], "requires --superlink"),
        (["--epochs", "3"], "--local-epochs"),
        (["--rounds", "0"], "at least 1"),
        (["--augment.crop", "resized"], "crop: pad"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(words, message, tmp_path, capsys):
    output = tmp_path / "run"
    assert main(["federate", *SETTINGS, "--output", str(output), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_a_folder_with_another_federation_is_refused(tmp_path):
    plan = make_plan(tmp_path, "fedavg", clients=2, rounds=1)
    federate(plan, quiet=True)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(OptionError, match="other settings"):
        federate(make_plan(tmp_path, "ditto", clients=2, rounds=1), quiet=True)
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("fits", [True, False])
def test_images_are_read_once_where_they_fit_into_memory(fits, tmp_path, monkeypatch):
    reads = []
    read = local_client.read_pixels
    monkeypatch.setattr(local_client, "read_pixels", lambda *a: reads.append(1) or read(*a))
    if not fits:
        monkeypatch.setattr(federated_data, "_KEPT_BYTES", 0)
    federate(make_plan(tmp_path, "ditto", clients=2, rounds=2, partition="iid"), quiet=True)
    assert len(reads) == (2 if fits else 8)


def test_how_long_to_wait_and_the_clocks_links_may_change_on_resume(tmp_path):
    plan = make_plan(tmp_path, "fedavg", clients=2, rounds=1)
    federate(plan, quiet=True)
    changed = make_plan(tmp_path, "fedavg", clients=2, rounds=1, timeout=5.0, bandwidth=9.0)
    assert len(federate(changed, quiet=True).records) == 1


@pytest.mark.parametrize(
    ("method", "saves"), [("local", False), ("fedrep", False), ("ditto", True)]
)
def test_only_models_that_are_of_use_are_evaluated(method, saves, tmp_path, capsys):
    words = ["federate", *SETTINGS, "--rounds", "1", "--method", method, "--output", str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert ("generic accuracy" in said) is saves
    assert ("less time" in said) is saves
    assert (tmp_path / "generic").exists() is saves
    page = (tmp_path / "report.html").read_text()
    assert "Clients after the last round" in page
    assert ("model of client 0" in page) is not saves
