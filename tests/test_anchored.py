"""Pairs, and the model that reads them."""

import copy

import pytest
import torch
from conftest import small_cnn, stir
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import killick
from killick.errors import DtypeError, OptionError, ReferencesError, ShapeError


@st.composite
def images_and_references(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Any batch, channel count, image size and scale; float64."""
    n, c = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    h, w = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    scale = draw(st.sampled_from([0.0, 1.0, 100.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    x, r = scale * torch.randn(2, n, c, h, w, generator=generator, dtype=torch.float64)
    return x, r


@given(images_and_references())
def test_the_halves_of_a_pair_sum_to_the_image(both):
    x, references = both
    first, second = killick.pair(x, references).chunk(2, dim=1)
    assert_close(first, references)
    assert_close(first + second, x)


@given(images_and_references())
def test_a_mask_zeroes_the_reference_half_and_keeps_the_true_residual(both):
    x, references = both
    masked = torch.arange(len(x)) % 2 == 0
    pairs = killick.pair(x, references, masked)
    for i in range(len(x)):
        first = torch.zeros_like(references[i]) if masked[i] else references[i]
        assert_close(pairs[i], torch.cat([first, x[i] - references[i]]))


def test_a_mask_for_the_whole_batch_is_one_value_on_any_form():
    x, references = torch.randn(2, 3, 2, 4, 4)
    expected = killick.pair(x, references, torch.ones(3, dtype=torch.bool))
    assert_close(killick.pair(x, references, torch.tensor(True)), expected)
    assert_close(killick.pair(x, references, True), expected)
    assert_close(killick.pair(x, references, False), killick.pair(x, references))


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (2, 1, 4, 4), (2, 3, 4, 1), (3, 4, 4)])
def test_references_that_would_broadcast_are_refused(shape):
    with pytest.raises(ShapeError, match=r"x is \(2, 3, 4, 4\), references are \("):
        killick.pair(torch.zeros(2, 3, 4, 4), torch.zeros(shape))


@pytest.mark.parametrize("masked", [torch.ones(3, dtype=torch.bool), torch.ones(2)])
def test_a_mask_of_another_length_or_dtype_is_refused(masked):
    with pytest.raises(ShapeError, match="one Boolean or 2 of them, found"):
        killick.pair(torch.zeros(2, 3), torch.zeros(2, 3), masked)


@given(images_and_references())
def test_an_anchored_network_predicts_as_before_whatever_the_reference(both):
    x, references = both
    net = small_cnn(channels=x.shape[1]).double().eval()
    model = killick.anchor(net)
    assert_close(model(x, references), net(x))


def test_anchoring_leaves_the_network_untouched_and_its_mode_and_frozen_weights_as_they_were():
    net = small_cnn().train()
    net[3].eval()
    net[0].weight.requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    model = killick.anchor(net)
    assert_close(net.state_dict(), before)
    assert net[0].in_channels == 3
    assert [m.training for m in net] == [m.training for m in model.net]
    assert model.net[0].weight.requires_grad is False
    assert model.net[3].weight.requires_grad is True


def test_an_anchored_network_is_in_the_mode_of_the_network():
    assert killick.anchor(small_cnn().train()).training
    assert not killick.anchor(small_cnn().eval()).training
    front = nn.Sequential(nn.Sequential(nn.Tanh(), nn.Tanh()), small_cnn())  # one with children
    assert not killick.anchor(front.eval()).training


def test_a_random_stem_is_drawn_from_the_generator_and_twice_as_wide(generator):
    first = killick.anchor(small_cnn(), init="random", generator=generator)
    again = killick.anchor(small_cnn(), init="random", generator=torch.Generator().manual_seed(0))
    assert first.net[0].weight.shape == (8, 6, 3, 3)
    assert_close(first.net[0].weight, again.net[0].weight)
    bound = 1 / (6 * 9) ** 0.5  # PyTorch's own rule for a new layer
    assert first.net[0].weight.abs().max() <= bound
    assert first.net[0].weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_anchor_does_not_touch_the_global_random_state(generator):
    net = small_cnn()
    state = torch.get_rng_state()
    killick.anchor(net)
    killick.anchor(net, init="random", generator=generator)
    assert torch.equal(state, torch.get_rng_state())


def test_eval_uses_the_first_stored_reference_for_every_image():
    model = stir(killick.anchor(small_cnn())).set_references(torch.rand(3, 3, 8, 8)).eval()
    x = torch.rand(5, 3, 8, 8)
    assert_close(model(x), model(x, model.references[:1].expand_as(x)))
    assert_close(model(x), torch.cat([model(one[None]) for one in x]))


def test_eval_without_stored_references_is_an_error_that_says_what_to_do():
    with pytest.raises(ReferencesError, match=r"found 0. Store some first: model.set_references"):
        killick.anchor(small_cnn()).eval()(torch.rand(2, 3, 8, 8))


def test_in_train_mode_a_batch_is_paired_within_itself():
    model = killick.anchor(nn.Linear(2, 2, bias=False)).train()
    with torch.no_grad():  # let the network show the reference it was given
        model.net.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]]))
    x = torch.randn(6, 2)
    shown = model(x)
    assert_close(shown.sort(0).values, x.sort(0).values)
    assert not (shown == x).all(1).any()


def test_a_batch_of_one_cannot_be_paired_within_itself():
    with pytest.raises(ReferencesError, match="at least 2 images.*found 1.*its own reference"):
        killick.anchor(nn.Linear(2, 2)).train()(torch.randn(1, 2))


def test_uint8_images_are_normalized_inside():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    net = small_cnn().eval()
    model = killick.anchor(net, normalize=(mean, std)).eval()
    x, references = torch.randint(256, (2, 4, 3, 8, 8), dtype=torch.uint8)
    m, s = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    assert_close(model(x, references), net((x / 255 - m) / s), atol=1e-5, rtol=1e-5)


def test_floats_for_a_model_that_normalizes_are_refused_and_uint8_for_one_that_does_not():
    x = torch.zeros(2, 3, 8, 8)
    plain, normalizing = (
        killick.anchor(small_cnn()),
        killick.anchor(small_cnn(), normalize=((0.5,) * 3, (0.5,) * 3)),
    )
    with pytest.raises(DtypeError, match="dtype torch.float32: this model normalizes by itself"):
        normalizing(x, x)
    with pytest.raises(DtypeError, match=r"dtype torch.uint8: this model has no normalize="):
        plain(x.byte(), x.byte())
    with pytest.raises(DtypeError, match="as floats, found dtype torch.int64"):
        plain(x.long(), x.long())


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 1, 8, 8), (2, 4, 8, 8), (2, 3, 8), (2, 3)])
def test_images_of_a_wrong_rank_or_channel_count_are_refused(shape):
    model = killick.anchor(small_cnn())
    with pytest.raises(ShapeError, match=r"expected images of shape \(n, 3, .* found"):
        model(torch.zeros(shape), torch.zeros(shape))


def test_references_of_another_size_than_the_images_are_refused():
    model = killick.anchor(small_cnn()).set_references(torch.rand(1, 3, 8, 8)).eval()
    with pytest.raises(
        ShapeError, match=r"stored references' shape \(3, 8, 8\), found \(3, 9, 9\)"
    ):
        model(torch.rand(2, 3, 9, 9))


@pytest.mark.parametrize(
    ("images", "error", "text"),
    [
        (torch.rand(3, 8, 8), ShapeError, r"references as \(k, 3, .* found \(3, 8, 8\)"),
        (torch.rand(0, 3, 8, 8), ShapeError, "with k > 0"),
        (torch.full((2, 3, 8, 8), torch.nan), ReferencesError, "NaN or infinity in number 0"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), DtypeError, "no normalize="),
    ],
)
def test_references_that_cannot_serve_are_refused(images, error, text):
    with pytest.raises(error, match=text):
        killick.anchor(small_cnn()).set_references(images)


def test_normalize_must_fit_the_channels():
    with pytest.raises(ShapeError, match="with 3 values each.*found 1"):
        killick.anchor(small_cnn(), normalize=((0.5,), (0.5,)))
    with pytest.raises(ShapeError, match="one positive std"):
        killick.anchor(small_cnn(), normalize=((0.5,) * 3, (0.5, 0, 0.5)))


def test_an_unknown_init_is_refused_with_the_nearest_name():
    with pytest.raises(OptionError, match=r"found 'exakt' \(did you mean 'exact'\?\)"):
        killick.anchor(small_cnn(), init="exakt")


def test_state_dicts_round_trip_with_any_number_of_references():
    source = stir(killick.anchor(small_cnn())).set_references(torch.rand(4, 3, 8, 8)).eval()
    target = killick.anchor(small_cnn()).set_references(torch.rand(1, 3, 8, 8)).eval()
    target.load_state_dict(source.state_dict())
    x = torch.rand(2, 3, 8, 8)
    assert_close(target(x), source(x))
    assert len(target.references) == 4


def test_a_model_prints_what_it_is():
    model = killick.anchor(small_cnn()).set_references(torch.rand(4, 3, 32, 32), policy="random")
    assert "images (3, 32, 32), reads pairs at 0, 4 stored references (random)" in repr(model)


def test_vectors_are_paired_like_images():
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    model = killick.anchor(net)
    x, references = torch.randn(2, 4, 5, dtype=torch.float64)
    assert_close(model(x, references), net(x))
    assert model.net[0].in_features == 10


def test_references_are_cast_to_the_model_s_dtype():
    model = killick.anchor(small_cnn()).set_references(torch.rand(1, 3, 8, 8).double()).eval()
    assert model(torch.rand(2, 3, 8, 8)).dtype == torch.float32


@pytest.mark.parametrize("masked", [None, True])
def test_images_and_references_of_other_sizes_or_numbers_are_refused_before_anything(masked):
    model, x = killick.anchor(small_cnn()), torch.rand(4, 3, 8, 8)
    for references in (torch.rand(4, 3, 16, 16), torch.rand(3, 3, 8, 8)):
        with pytest.raises(ShapeError, match="expected one reference for each image"):
            model(x, references, masked)


def test_arrays_lists_and_pools_are_refused_by_name():
    model = killick.anchor(small_cnn())
    with pytest.raises(DtypeError, match=r"found ndarray.*torch.from_numpy"):
        model(torch.rand(2, 3, 8, 8).numpy())
    with pytest.raises(DtypeError, match=r"references as a torch.Tensor, found ReferencePool"):
        model.set_references(killick.ReferencePool(torch.rand(2, 3, 8, 8)))
    with pytest.raises(DtypeError, match=r"the pool's images as a torch.Tensor, found list"):
        killick.ReferencePool([1, 2])


def test_a_model_made_in_inference_mode_can_be_moved_copied_and_called():
    with torch.inference_mode():
        model = killick.anchor(killick.nets.resnet_small().eval(), stem="conv1")
        model = copy.deepcopy(model.double().float()).set_references(torch.rand(1, 3, 32, 32))
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
