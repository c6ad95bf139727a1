"""Predictions from one reference and from several, against slow loops in `oracles.prediction`."""

import math

import numpy as np
import pytest
import torch
from conftest import small_cnn, stir
from hypothesis import given
from hypothesis import strategies as st
from oracles import prediction as oracle
from torch import Tensor, nn
from torch.testing import assert_close

import killick
from killick.errors import DtypeError, OptionError, ReferencesError, ShapeError

FIELDS = ("logits", "probs", "energy", "std", "mutual_information", "disagreement")
SEEDS = st.integers(0, 2**32 - 1)


def vectors(n: int, seed: int, features: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, features, generator=generator, dtype=torch.float64)


def two_layer_model(k: int, seed: int = 0) -> killick.Anchored:
    """4 features, 3 classes, and a reference that matters: labels differ between references."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    model = stir(killick.anchor(net), 2.0)
    return model.set_references(vectors(k, seed + 1)).eval()


def member_logits(model: killick.Anchored, x: Tensor) -> np.ndarray:
    weights = [parameter.detach().numpy() for parameter in model.net.parameters()]
    references = model.references.numpy()
    return np.array([[oracle.two_layers(weights, a, r) for a in x.numpy()] for r in references])


def assert_says(prediction: killick.Prediction, expected: dict) -> None:
    for name, value in expected.items():
        found = getattr(prediction, name)
        assert (found is None) == (value is None), name
        if value is not None:
            assert_close(found.double(), torch.as_tensor(value), atol=1e-7, rtol=1e-7)


def opposite_model() -> killick.Anchored:
    """Two classes; the label is the sign of the reference, with certainty, whatever the image."""
    model = killick.anchor(nn.Linear(1, 2).double())
    model.net.weight.data = torch.tensor([[100.0, 0.0], [-100.0, 0.0]]).double()
    model.net.bias.data.zero_()
    return model.set_references(torch.tensor([[1.0], [-1.0]]).double()).eval()


def test_each_member_is_the_network_on_a_reference_and_the_residual_from_it():
    model, x = two_layer_model(k=4), vectors(6, seed=0)
    prediction = killick.predict(model, x, "marginal", members=True)
    assert prediction.members.shape == (4, 6, 3)
    assert_close(prediction.members, torch.as_tensor(member_logits(model, x)))


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_the_marginal_prediction_is_what_the_formulas_say(k):
    model, x = two_layer_model(k), vectors(20, seed=0)
    prediction = killick.predict(model, x, "marginal")
    assert_says(prediction, oracle.marginal(member_logits(model, x)))


def test_references_disagree_in_the_model_of_these_tests():
    prediction = killick.predict(two_layer_model(k=8), vectors(20, seed=0), "marginal")
    assert len(prediction.disagreement.unique()) > 2
    assert prediction.std.min() > 1e-3


@pytest.mark.parametrize("scaling", ["amp", "amp-imagenet"])
def test_scaling_divides_the_mean_logits_by_the_temperature_of_the_formula(scaling):
    model, x = two_layer_model(k=5), vectors(20, seed=0)
    prediction = killick.predict(model, x, "marginal", scaling=scaling)
    assert_says(prediction, oracle.marginal(member_logits(model, x), scaling))


def test_regression_gives_the_mean_and_the_spread_of_the_outputs():
    model, x = two_layer_model(k=5), vectors(20, seed=0)
    prediction = killick.predict(model, x, "marginal", task="regression")
    assert_says(prediction, oracle.regression(member_logits(model, x)))
    assert prediction.mutual_information is None
    assert prediction.disagreement is None


def test_regression_from_one_reference_has_no_spread():
    prediction = killick.predict(two_layer_model(k=2), vectors(3, seed=0), task="regression")
    assert prediction.logits.shape == (3, 3)
    assert prediction.std is None
    assert prediction.probs is None


def test_two_certain_references_that_contradict_each_other_give_one_bit():
    prediction = killick.predict(opposite_model(), vectors(3, seed=0, features=1), "marginal")
    assert_close(prediction.mutual_information, torch.full((3,), math.log(2)).double())
    assert_close(prediction.disagreement.double(), torch.full((3,), 0.5).double())
    assert_close(prediction.std, torch.full((3, 2), math.sqrt(0.5)).double())
    assert_close(prediction.logits, torch.zeros(3, 2).double())


def test_single_is_the_model_itself_and_the_marginal_of_one_reference():
    model, x = two_layer_model(k=3), vectors(10, seed=0)
    single, first = killick.predict(model, x), killick.predict(model, x, "marginal", k=1)
    assert_close(single.logits, model(x).detach())
    assert_close(single.logits, model(x, model.references[:1].expand_as(x)).detach())
    for name in FIELDS:
        assert_close(getattr(single, name), getattr(first, name))


def test_k_takes_the_first_stored_references_and_all_by_default():
    model, x = two_layer_model(k=5), vectors(10, seed=0)
    members = member_logits(model, x)
    assert_says(killick.predict(model, x, "marginal", k=3), oracle.marginal(members[:3]))
    assert_says(killick.predict(model, x, "marginal"), oracle.marginal(members))
    assert killick.predict(model, x, "marginal", k=3).references.tolist() == [0, 1, 2]


@pytest.mark.parametrize("protocol", ["single", "marginal"])
def test_members_are_returned_only_where_asked_for(protocol):
    model, x = two_layer_model(k=2), vectors(3, seed=0)
    assert killick.predict(model, x, protocol).members is None
    k = 1 if protocol == "single" else 2
    assert killick.predict(model, x, protocol, members=True).members.shape == (k, 3, 3)


def test_logits_of_many_thousands_give_the_numbers_of_the_formulas():
    model, x = two_layer_model(k=4), vectors(10, seed=0)
    model.net[2].weight.data.mul_(10_000)
    expected = oracle.marginal(member_logits(model, x))
    assert np.abs(expected["logits"]).max() > 10_000
    assert_says(killick.predict(model, x, "marginal"), expected)


def test_images_are_predicted_as_vectors_are():
    model = stir(killick.anchor(small_cnn().double().eval()), 1.0)
    x, references = torch.randn(6, 3, 8, 8).double(), torch.randn(4, 3, 8, 8).double()
    model.set_references(references).eval()
    members = torch.stack([model(x, r.expand_as(x)) for r in references]).detach().numpy()
    assert_says(killick.predict(model, x, "marginal"), oracle.marginal(members))


def test_bytes_are_predicted_as_the_floats_they_are_normalized_to():
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    net = small_cnn().eval()
    of_bytes, of_floats = (stir(killick.anchor(net, normalize=n)) for n in ((mean, std), None))
    x = torch.randint(256, (7, 3, 8, 8), dtype=torch.uint8)
    floats = (x / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    found = killick.predict(of_bytes.set_references(x[:3]).eval(), x[3:], "marginal")
    of_floats.set_references(floats[:3]).eval()
    expected = killick.predict(of_floats, floats[3:], "marginal")
    assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-4)


def test_a_wrapped_model_predicts_as_the_model_inside():
    model, x = two_layer_model(k=3), vectors(5, seed=0)
    wrapped = torch.optim.swa_utils.AveragedModel(model).eval()
    inside = killick.predict(model, x, "marginal")
    assert_close(killick.predict(wrapped, x, "marginal").probs, inside.probs)


@pytest.mark.parametrize("protocol", ["single", "marginal"])
def test_predicting_draws_nothing_and_keeps_no_gradients(protocol):
    model, x = two_layer_model(k=3), vectors(5, seed=0)
    state = torch.get_rng_state()
    prediction = killick.predict(model, x, protocol)
    assert torch.equal(torch.get_rng_state(), state)
    assert not prediction.logits.requires_grad
    assert torch.equal(killick.predict(model, x, protocol).logits, prediction.logits)


@given(SEEDS, st.permutations(range(5)))
def test_the_mean_ignores_the_order_of_references(seed, order):
    model, x = two_layer_model(k=5, seed=seed), vectors(4, seed)
    before = killick.predict(model, x, "marginal")
    model.set_references(model.references[list(order)])
    after = killick.predict(model, x, "marginal")
    for name in FIELDS:
        assert_close(getattr(after, name), getattr(before, name), atol=1e-7, rtol=1e-7)


@given(SEEDS, st.integers(1, 7), st.integers(1, 4))
def test_predicting_in_chunks_of_images_equals_predicting_at_once(seed, size, k):
    model, x = two_layer_model(k, seed), vectors(7, seed)
    whole = killick.predict(model, x, "marginal")
    parts = [killick.predict(model, part, "marginal") for part in x.split(size)]
    for name in FIELDS if k > 1 else FIELDS[:3]:
        together = torch.cat([getattr(part, name) for part in parts])
        assert_close(together, getattr(whole, name))


@given(SEEDS, st.integers(2, 6))
def test_copies_of_one_reference_have_no_spread_and_predict_as_one(seed, k):
    model, x = two_layer_model(k, seed), vectors(4, seed)
    single = killick.predict(model, x)
    model.set_references(model.references[:1].repeat(k, 1))
    copies = killick.predict(model, x, "marginal")
    assert_close(copies.std, torch.zeros_like(copies.std))
    assert_close(copies.mutual_information, torch.zeros(4).double())
    assert_close(copies.disagreement, torch.zeros(4))
    assert_close(copies.probs, single.probs)


@given(SEEDS, st.integers(2, 6))
def test_information_and_disagreement_stay_in_their_ranges(seed, k):
    prediction = killick.predict(two_layer_model(k, seed), vectors(6, seed), "marginal")
    information, disagreement = prediction.mutual_information, prediction.disagreement
    assert 0 <= information.min() <= information.max() <= math.log(min(k, 3)) + 1e-9
    assert 0 <= disagreement.min() <= disagreement.max() <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "marginl"}, r"expected protocol .* 'marginl' \(did you mean 'marginal'\?\)"),
        ({"protocol": "transductiv"}, r"did you mean 'transductive'\?"),
        ({"task": "regresion"}, r"expected task .* \(did you mean 'regression'\?\)"),
        ({"scaling": "amp-imagnet"}, r"expected scaling .* \(did you mean 'amp-imagenet'\?\)"),
        ({"k": 0, "protocol": "marginal"}, "expected k to be a whole number from 1, found 0"),
        ({"k": -1, "protocol": "transductive"}, "expected k to be a whole number from 1, found -1"),
        ({"k": 2}, "expected k=1 with protocol='single', found 2. Use 'marginal'"),
        ({"scaling": "amp"}, "at least 2 references for scaling='amp', found 1"),
        ({"scaling": "amp", "protocol": "marginal", "k": 1}, "at least 2 references for scaling"),
    ],
)
def test_an_option_out_of_range_is_refused_with_the_way_out(options, message):
    with pytest.raises(OptionError, match=message):
        killick.predict(two_layer_model(k=3), vectors(2, seed=0), **options)


@pytest.mark.parametrize("protocol", ["marginal", "transductive"])
def test_more_references_than_are_stored_are_refused(protocol):
    with pytest.raises(ReferencesError, match=r"expected 4 stored reference\(s\), found 3"):
        killick.predict(two_layer_model(k=3), vectors(2, seed=0), protocol, k=4)


@pytest.mark.parametrize("protocol", ["single", "marginal", "transductive"])
def test_a_model_without_stored_references_is_refused(protocol):
    model = killick.anchor(nn.Linear(4, 3)).eval()
    with pytest.raises(ReferencesError, match="found 0. Store some first: model.set_references"):
        killick.predict(model, torch.zeros(2, 4), protocol)


def test_a_model_in_train_mode_is_refused():
    with pytest.raises(OptionError, match=r"eval mode, found train mode. Call model.eval\(\)"):
        killick.predict(two_layer_model(k=3).train(), vectors(2, seed=0))


@pytest.mark.parametrize("protocol", ["single", "marginal", "transductive"])
def test_images_of_another_size_than_the_references_are_refused(protocol):
    model = killick.anchor(small_cnn()).set_references(torch.zeros(3, 3, 8, 8)).eval()
    with pytest.raises(ShapeError, match=r"references' shape \(3, 8, 8\), found \(3, 6, 8\)"):
        killick.predict(model, torch.zeros(2, 3, 6, 8), protocol)


def test_vectors_of_another_length_are_refused():
    with pytest.raises(ShapeError, match=r"expected images of shape \(n, 4\), found \(2, 5\)"):
        killick.predict(two_layer_model(k=3), vectors(2, seed=0, features=5))


def test_bytes_for_a_model_of_floats_are_refused():
    with pytest.raises(DtypeError, match="found images of dtype torch.uint8"):
        killick.predict(two_layer_model(k=3), torch.zeros(2, 4, dtype=torch.uint8))


def test_a_plain_network_is_refused():
    with pytest.raises(OptionError, match=r"found Linear. Make one with killick.anchor\(net\)"):
        killick.predict(nn.Linear(4, 3).eval(), torch.zeros(2, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "transductive", "scaling": "amp"},
        {"task": "regression", "scaling": "amp"},
    ],
)
def test_options_about_several_references_are_refused_without_them(options):
    model = killick.anchor(nn.Linear(4, 3)).set_references(torch.randn(3, 4)).eval()
    with pytest.raises(OptionError, match="leave it out"):
        killick.predict(model, torch.randn(2, 4), **options)


def test_amp_s_temperature_of_references_that_agree_is_not_zero():
    model = killick.anchor(nn.Linear(4, 3)).set_references(torch.ones(3, 4)).eval()
    found = killick.predict(model, torch.randn(2, 4), "marginal", scaling="amp-imagenet")
    assert found.logits.isfinite().all()


@pytest.mark.parametrize("net", [nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))])
def test_outputs_that_are_no_logits_are_refused_for_classification(net):
    model = killick.anchor(net).set_references(torch.ones(3, 4)).eval()
    with pytest.raises(ShapeError, match=r"shape \(n, classes\).*use task='regression'"):
        killick.predict(model, torch.randn(2, 4), "marginal")
    assert killick.predict(model, torch.randn(2, 4), "marginal", task="regression").probs is None


def test_half_precision_models_are_compared_in_float32():
    model = killick.anchor(nn.Linear(4, 3)).bfloat16().set_references(torch.randn(3, 4)).eval()
    model.set_residuals(torch.randn(5, 4))
    found = killick.predict(model, torch.randn(2, 4, dtype=torch.bfloat16), "transductive")
    assert found.distance.dtype == torch.float32


def test_a_prediction_moves_to_another_device_as_a_whole():
    prediction = killick.predict(two_layer_model(k=2), vectors(3, seed=0), "marginal")
    moved = prediction.to("meta")
    assert moved.members is moved.distance is None
    for name in (*FIELDS, "references"):
        assert getattr(moved, name).device.type == "meta", name
        assert getattr(moved, name).shape == getattr(prediction, name).shape


def test_a_prediction_is_printed_in_one_line_with_its_labels_and_confidence():
    found = killick.predict(two_layer_model(3), vectors(8, 5), "marginal", members=True)
    assert "\n" not in repr(found)
    assert len(repr(found)) < 150
    for i, row in enumerate(found.probs.tolist()):
        assert found.labels[i] == row.index(max(row))
        assert found.confidence[i] == max(row)
    assert str(found.labels[0].item()) in repr(found)
    outputs = killick.predict(two_layer_model(3), vectors(2, 5), "marginal", task="regression")
    assert outputs.labels is None
    assert outputs.confidence is None
    assert "2 images, 3 outputs" in repr(outputs)
