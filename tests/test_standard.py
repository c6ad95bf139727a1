"""Standard models: ordinary networks that are used, saved and predicted with like anchored ones."""

import copy

import pytest
import torch
from conftest import small_cnn, stir
from torch import nn
from torch.testing import assert_close

import killick
from killick.errors import DtypeError, OptionError, ShapeError, StemError

HALF = ((0.5,) * 3, (0.25,) * 3)


def made(net: nn.Module | None = None, **options) -> killick.Standard:
    net = stir(small_cnn()) if net is None else net
    return killick.standard(net, **{"image_shape": (3, 8, 8), **options}).eval()


def bytes_of(n: int) -> torch.Tensor:
    return torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8)


def test_a_standard_model_computes_what_its_network_computes():
    model, x = made(), torch.rand(4, 3, 8, 8)
    assert_close(model(x), model.net(x))
    assert_close(model(torch.rand(2, 3, 9, 7)).shape, torch.Size([2, 5]))


def test_it_normalizes_bytes_inside():
    model, x = made(normalize=HALF), bytes_of(4)
    assert_close(model(x), model.net((x / 255 - 0.5) / 0.25))


def test_it_takes_the_logits_out_of_what_networks_return():
    class Tupled(nn.Module):
        def forward(self, x):
            return x.flatten(1), "and more"

    x = torch.rand(2, 3, 8, 8)
    assert_close(made(Tupled())(x), x.flatten(1))


def test_it_trains_the_very_network_it_was_given_and_keeps_its_modes():
    net = small_cnn().train()
    net[1].eval()
    model = killick.standard(net, image_shape=(3, 8, 8))
    assert model.training
    assert [m.training for m in model.net] == [m.training for m in net]
    assert model.net is net
    assert not killick.standard(small_cnn().eval(), image_shape=(3, 8, 8)).training


def test_it_refuses_the_images_that_an_anchored_model_refuses_in_the_same_words():
    for options, x in (
        ({}, torch.rand(3, 8, 8)),
        ({}, torch.rand(2, 1, 8, 8)),
        ({}, bytes_of(2)),
        ({}, torch.zeros(2, 3, 8, 8, dtype=torch.long)),
        ({}, [1.0]),
        ({"normalize": HALF}, torch.rand(2, 3, 8, 8)),
    ):
        with pytest.raises((ShapeError, DtypeError)) as found:
            made(**options)(x)
        with pytest.raises(type(found.value)) as expected:
            killick.anchor(small_cnn(), **options)(x)
        assert str(found.value) == str(expected.value)


def test_what_cannot_be_made_standard_is_refused():
    with pytest.raises(OptionError, match="expected a network, an nn.Module, found str"):
        killick.standard("resnet18", image_shape=(3, 8, 8))
    for model in (made(), killick.anchor(small_cnn()), torch.compile(made(), backend="eager")):
        with pytest.raises(OptionError, match="an ordinary network, found (Standard|Anchored), wh"):
            killick.standard(model, image_shape=(3, 8, 8))
    for shape in ((), (3, 0, 8), (3.0, 8, 8), "abc", (1,) * 5):
        with pytest.raises(ShapeError, match=r"such as \(3, 32, 32\) or \(features,\), found"):
            made(image_shape=shape)
    with pytest.raises(ShapeError, match="with 3 values each, one for each channel.*found 1"):
        made(normalize=((0.5,), (0.5,)))
    with pytest.raises(OptionError, match=r"expected normalize=\(mean, std\), a pair"):
        made(normalize=((0.5,), (0.5,), 3))


def test_it_follows_its_network_to_another_dtype():
    model = made(small_cnn().double(), normalize=HALF)
    assert model(bytes_of(2)).dtype == torch.float64
    assert model.float()(bytes_of(2)).dtype == torch.float32


@pytest.mark.parametrize("normalize", [None, HALF])
def test_an_anchored_standard_model_predicts_the_same_whatever_the_reference(normalize):
    model = made(normalize=normalize)
    model.class_names = tuple("abcde")
    model.provenance = {"epochs": 3}
    x = torch.rand(4, 3, 8, 8) if normalize is None else bytes_of(4)
    anchored = killick.anchor(model)
    assert_close(anchored(x, x.flip(0)), model(x), atol=1e-5, rtol=1e-5)
    assert anchored.class_names == tuple("abcde")
    assert anchored.provenance == {}  # it says how the model at hand was trained
    assert anchored.image_shape == (3, 8, 8)
    assert anchored.net is not model.net


def test_anchoring_leaves_a_standard_model_as_it_is_and_takes_another_normalization():
    model = made(normalize=HALF)
    before = copy.deepcopy(model.state_dict())
    anchored = killick.anchor(model, normalize=((0.0,) * 3, (1.0,) * 3))
    assert_close(model.state_dict(), before)
    assert anchored.normalize.mean == (0.0, 0.0, 0.0)
    assert anchored.normalize is not model.normalize
    assert model.normalize.mean == (0.5, 0.5, 0.5)


def test_anchoring_takes_the_mode_of_the_network_and_sees_through_the_compiler():
    model = made()
    assert not killick.anchor(model).training
    assert killick.anchor(model.train()).training
    compiled = torch.compile(model.eval(), backend="eager")
    x = torch.rand(2, 3, 8, 8)
    assert_close(killick.anchor(compiled)(x, x.flip(0)), model(x), atol=1e-5, rtol=1e-5)
    with pytest.raises(StemError, match="anchored already"):
        killick.anchor(torch.compile(killick.anchor(model), backend="eager"))


def test_the_shape_need_not_be_guessed():
    net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 7 * 5, 3))  # no usual shape
    model = killick.standard(net, image_shape=(2, 7, 5))
    x, references = torch.rand(2, 4, 2, 7, 5)
    assert_close(killick.anchor(model)(x, references), net(x), atol=1e-5, rtol=1e-5)


def test_predict_gives_the_plain_prediction():
    model, x = made(), torch.rand(4, 3, 8, 8)
    found, logits = killick.predict(model, x, k=1, members=True), model(x).detach()
    assert_close(found.logits, logits)
    assert_close(found.probs, logits.softmax(-1))
    assert_close(found.energy, -logits.logsumexp(-1))
    assert_close(found.members, logits[None])
    assert found.references.shape == (0,)
    assert (found.std, found.mutual_information, found.disagreement) == (None, None, None)
    assert_close(killick.predict(torch.compile(model, backend="eager"), x).logits, logits)
    assert killick.predict(model, x, task="regression").probs is None


def test_predict_refuses_what_needs_references_or_eval_mode():
    model, x = made(), torch.rand(4, 3, 8, 8)
    for protocol in ("marginal", "transductive"):
        with pytest.raises(OptionError, match="which has no references, found .*killick.anchor"):
            killick.predict(model, x, protocol=protocol)
    with pytest.raises(OptionError, match="expected k=1"):
        killick.predict(model, x, k=2)
    with pytest.raises(OptionError, match="at least 2 references for scaling='amp', found 0"):
        killick.predict(model, x, scaling="amp")
    with pytest.raises(OptionError, match="in eval mode"):
        killick.predict(model.train(), x)


def test_what_is_about_references_says_that_there_are_none():
    model, x = made(), torch.rand(4, 3, 8, 8)
    masking = killick.ReferenceMasking(alpha=0.5, target="label")
    for call in (
        lambda: killick.fold(model),
        lambda: killick.settle(model, [x]),
        lambda: killick.residual_bank(model, x),
        lambda: masking.loss(model, x, torch.zeros(4).long()),
        lambda: killick.fold(torch.compile(model, backend="eager")),
    ):
        with pytest.raises(OptionError, match=r"expected an anchored model, found Standard. Make"):
            call()


def test_it_says_what_it_is():
    assert "images (3, 8, 8), no references" in repr(made())


def test_a_normalization_that_is_no_pair_is_refused():
    for wrong in (True, 3, ((0.5,) * 3,)):
        with pytest.raises(killick.errors.OptionError, match="a pair of sequences"):
            killick.standard(nn.Flatten(), normalize=wrong, image_shape=(3, 8, 8))
