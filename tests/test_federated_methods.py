"""Federated methods: each against its formula, on one client and over rounds."""

import copy

import pytest
import torch
from federations import (
    assert_equal,
    colors,
    make_client,
    make_plan,
    without_seconds,
)

from killick.federated import federate
from killick.federated.aggregation import find_fault, weighted_mean
from killick.federated.federated_data import FederatedData
from killick.federated.method import METHODS
from killick.federated.methods.pfedme import MoreauStep
from killick.federated.penalties import Proximal, SpectralPenalty
from killick.federated.server_rounds import personal_accuracies
from killick.federated.weight_spectrum import spectral_kl

ALL = (
    *("local", "fedavg", "fedavg-finetune", "fedprox", "ditto", "pfedme", "fedrep", "fedbabu"),
    "spectral",
)


@pytest.fixture(autouse=True)
def _data():
    with colors():
        yield


def test_all_methods_are_registered():
    assert sorted(METHODS.names()) == sorted(ALL)


@pytest.mark.parametrize("method", ALL)
def test_every_method_trains_and_what_it_shares_is_what_it_says(method, tmp_path):
    plan = make_plan(tmp_path, method, clients=2)
    state = federate(plan, quiet=True)
    first = FederatedData(plan).first_weights
    changed = {n for n in first if not torch.equal(first[n], state.weights[n])}
    kind = METHODS.find(method)
    if not kind.uploads:
        assert changed == set()
    else:
        assert "conv1.weight" in changed
        assert ("fc.weight" in changed) is not kind.keep_head
    record = state.records[-1]
    assert record["faults"] == []
    assert sum(each["count"] for each in record["personal"].values()) == 60
    assert (record["generic"] is None) is (method in ("local", "fedrep"))
    assert list(personal_accuracies(record)) == [0, 1]
    assert (tmp_path / "clients" / "0000" / "model" / "config.json").exists()
    assert set(record["seconds"]["personal"]) == ({"0", "1"} if kind.trains_personal else set())


@pytest.mark.parametrize("protocol", ["standard", "masked"])
def test_ditto_is_ours_without_spectral_terms(protocol, tmp_path):
    methods = (
        "ditto:strength=0.3",
        "spectral:generic=0,personal=0,strength=0.3",
        "spectral:generic=30,personal=40,strength=0.3",
    )
    ditto, ours, with_terms = (
        federate(make_plan(tmp_path / m, m, protocol=protocol, clients=2), quiet=True)
        for m in methods
    )
    assert_equal(ditto.weights, ours.weights)
    assert without_seconds(ditto.records) == without_seconds(ours.records)
    assert not torch.equal(ours.weights["conv1.weight"], with_terms.weights["conv1.weight"])


@pytest.mark.parametrize("term", ["generic", "personal"])
def test_each_spectral_term_alone_brings_the_spectra_nearer(term, tmp_path):
    plan = make_plan(tmp_path, "spectral:strength=0")
    client = make_client(plan)
    first = FederatedData(plan).first_weights
    other = client.fit(first, purpose="tuning", epochs=4)
    method = METHODS.find("spectral")
    distances = []
    for strength in (0.0, 30.0):
        settings = {"generic": 0.0, "personal": 0.0, "strength": 0.0, "keep": 0.4, term: strength}
        made = method(**settings)
        if term == "generic":
            trained = made.train_generic(client, first, other).upload
            distances.append(spectral_kl(trained, other, 0.4).item())
        else:
            trained = made.train_personal(client, other, first)
            distances.append(spectral_kl(trained, other, 1.0).item())
    assert distances[1] < 0.8 * distances[0]


def test_penalties_have_the_values_of_their_formulas(tmp_path):
    client = make_client(make_plan(tmp_path))
    first = FederatedData(client.plan).first_weights
    other = {name: each + 0.1 if each.is_floating_point() else each for name, each in first.items()}
    model = client.load(first)
    names = [name for name, _ in model.net.named_parameters()]
    squared = sum(((first[n].double() - other[n].double()) ** 2).sum() for n in names)
    context = client._context(0, client._batches(0), steps=1)
    for term, value in (
        (Proximal(3.0, other), 3 * squared / 2),
        (SpectralPenalty(3.0, other, 0.4), 3 * spectral_kl(first, other, 0.4)),
    ):
        term.setup(model, context)
        found = term.loss(None, torch.tensor(0.5))
        assert found.item() == pytest.approx(0.5 + value.item(), rel=1e-5)


def test_fedprox_pulls_towards_what_was_received(tmp_path):
    client = make_client(make_plan(tmp_path))
    first = FederatedData(client.plan).first_weights

    def moved(strength):
        trained = METHODS.find("fedprox")(strength=strength).train_generic(client, first, first)
        return sum((trained.upload[n] - first[n]).norm() for n in first if n.endswith("weight"))

    plain = client.fit(first)
    assert_equal(
        METHODS.find("fedprox")(strength=0.0).train_generic(client, first, {}).upload, plain
    )
    assert moved(5.0) < 0.95 * moved(0.0)  # few steps: the pull has little time


def test_the_moreau_gradient_is_that_of_a_quadratic():
    """For loss a/2 |theta|^2 the envelope has the gradient lambda a / (lambda + a) w."""
    weight = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    a, strength = 3.0, 2.0
    step = MoreauStep(strength, steps=400, rate=0.05)
    step._net = torch.nn.ParameterDict({"w": weight})

    def again():
        weight.grad = a * weight.detach()

    again()
    with torch.no_grad():
        step.gradient([weight], again)
    assert weight.tolist() == [2.0, -1.0]
    assert torch.allclose(weight.grad, strength * a / (strength + a) * weight)
    assert torch.allclose(step.theta["w"], strength / (strength + a) * weight)


def test_fedrep_trains_head_and_body_in_turns_and_keeps_the_head(tmp_path):
    client = make_client(make_plan(tmp_path))
    first = FederatedData(client.plan).first_weights
    head = client.fit(first, train="head")
    body = client.fit(first, train="body")
    for name, weight in client.template.net.named_parameters():
        in_head = name.startswith("fc.")
        assert torch.equal(head[name], weight.detach()) is not in_head
        assert torch.equal(body[name], weight.detach()) is in_head
    result = METHODS.find("fedrep")().train_generic(client, first, first)
    assert result.upload.keys() == first.keys() - {"fc.weight", "fc.bias"}
    assert not torch.equal(result.own["fc.weight"], first["fc.weight"])
    joined = METHODS.find("fedrep")().personalize(client, first, result.own)
    assert torch.equal(joined["fc.weight"], result.own["fc.weight"])
    assert torch.equal(joined["conv1.weight"], first["conv1.weight"])


def test_pfedme_goes_a_part_of_the_way_to_the_mean():
    before = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    mean = {"w": torch.tensor([3.0, 6.0]), "n": torch.tensor(5)}
    found = METHODS.find("pfedme")(beta=0.5).average(before, mean)
    assert found["w"].tolist() == [2.0, 4.0]
    assert found["n"] == 5


def test_the_mean_is_weighted_by_samples_and_does_not_depend_on_the_order():
    generator = torch.Generator().manual_seed(0)
    uploads = {
        client: {"w": torch.randn(50, generator=generator), "n": torch.tensor(client)}
        for client in (5, 2, 9)
    }
    samples = {5: 10, 2: 30, 9: 60}
    found = weighted_mean(uploads, samples)
    wanted = sum(samples[c] / 100 * uploads[c]["w"].double() for c in uploads)
    assert torch.allclose(found["w"].double(), wanted, atol=1e-7)
    assert found["n"] == round(0.1 * 5 + 0.3 * 2 + 0.6 * 9)
    assert found["w"].dtype == torch.float32
    again = weighted_mean(dict(sorted(uploads.items())), samples)
    assert torch.equal(found["w"], again["w"])


def test_one_client_alone_averages_to_itself(tmp_path):
    plan = make_plan(tmp_path, "fedavg", clients=1, partition="iid", rounds=1)
    state = federate(plan, quiet=True)
    client = make_client(plan)
    assert_equal(state.weights, client.fit(FederatedData(plan).first_weights))


def test_uploads_with_faults_are_found():
    like = {"w": torch.zeros(2, 3), "n": torch.tensor(1)}
    assert find_fault(copy.deepcopy(like), like) is None
    assert "not finite" in find_fault({**like, "w": torch.full((2, 3), torch.nan)}, like)
    assert "not finite" in find_fault({**like, "w": torch.full((2, 3), torch.inf)}, like)
    assert "(3, 2)" in find_fault({**like, "w": torch.zeros(3, 2)}, like)
    assert "another" in find_fault({**like, "w": torch.zeros(2, 3).double()}, like)
    assert "missing" in find_fault({"w": like["w"]}, like)
    assert "unknown" in find_fault({**like, "x": like["w"]}, like)
