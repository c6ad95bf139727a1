"""Choosing a reference for each image, against slow loops in `oracles.transduction`."""

from collections import Counter

import numpy as np
import pytest
import torch
from conftest import small_cnn, stir
from hypothesis import given
from hypothesis import strategies as st
from oracles import transduction as oracle
from torch import Tensor, nn
from torch.testing import assert_close

import killick
from killick.errors import OptionError, ReferencesError, ShapeError


def numbers(*values: float) -> Tensor:
    """Vectors of one feature: whole numbers, so that distances and ties are exact."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def vector_model(references: Tensor, bank: Tensor) -> killick.Anchored:
    model = stir(killick.anchor(nn.Linear(references.shape[1], 3).double()), 1.0)
    return model.set_references(references).set_residuals(bank).eval()


def image_model(references: Tensor) -> killick.Anchored:
    model = stir(killick.anchor(small_cnn().double().eval()), 1.0)
    return model.set_references(references).eval()


def images(n: int, height: int = 6, width: int = 8) -> Tensor:
    return torch.randn(n, 3, height, width, dtype=torch.float64)


@given(st.data())
def test_the_nearest_candidate_and_its_distance_are_those_of_the_loops(data):
    n, k, size, features = (data.draw(st.integers(1, 6)) for _ in range(4))
    scale, offset = data.draw(st.sampled_from([(1, 0), (1, 100), (100, 0), (0.01, 1)]))
    torch.manual_seed(data.draw(st.integers(0, 2**32 - 1)))
    draws = [scale * torch.randn(m, features, dtype=torch.float64) for m in (n, k, size)]
    x, references, bank = draws[0] + offset, draws[1] + offset, draws[2]
    scores = oracle.distances(x.numpy(), references.numpy(), bank.numpy())
    found = killick.predict(vector_model(references, bank), x, "transductive")
    assert found.references.tolist() == oracle.nearest(scores)
    assert_close(found.distance, torch.as_tensor(scores.min(1)), atol=1e-6 * scale, rtol=1e-6)


def test_images_are_compared_as_vectors_are():
    x, references, bank = images(9), images(5), images(12)
    model = image_model(references).set_residuals(bank)
    scores = oracle.distances(x.numpy(), references.numpy(), bank.numpy())
    found = killick.predict(model, x, "transductive")
    assert found.references.tolist() == oracle.nearest(scores)
    assert_close(found.distance, torch.as_tensor(scores.min(1)))


def test_a_pooled_bank_is_compared_with_pooled_images():
    train, x, references = images(20), images(9), images(5)
    model = image_model(references)
    model.set_residuals(killick.residual_bank(model, train, size=12, pool=2))
    pooled = [oracle.average_pooled(a.numpy(), 2) for a in (x, references)]
    scores = oracle.distances(*pooled, model.residuals.numpy())
    found = killick.predict(model, x, "transductive")
    assert found.references.tolist() == oracle.nearest(scores)
    assert_close(found.distance, torch.as_tensor(scores.min(1)))


def test_logits_are_those_of_the_chosen_reference():
    references = torch.randn(6, 4).double()
    model, x = vector_model(references, torch.randn(5, 4).double()), torch.randn(20, 4).double()
    found = killick.predict(model, x, "transductive")
    assert len(found.references.unique()) > 1
    assert_close(found.logits, model(x, references[found.references]).detach())
    assert_close(found.probs, found.logits.softmax(-1))
    assert_close(found.energy, -found.logits.logsumexp(-1))


def test_one_choice_has_no_spread_over_references():
    model = vector_model(numbers(0, 1), numbers(1))
    found = killick.predict(model, numbers(3), "transductive")
    assert [found.std, found.mutual_information, found.disagreement] == [None] * 3


def test_regression_gives_the_outputs_alone():
    model = vector_model(numbers(0, 1), numbers(1))
    found = killick.predict(model, numbers(3), "transductive", task="regression")
    assert_close(found.logits, model(numbers(3), numbers(1)).detach())
    assert found.distance.tolist() == [1]
    assert [found.probs, found.energy] == [None, None]


def test_an_image_whose_residual_is_in_the_bank_is_at_distance_zero():
    references, x = torch.randn(4, 5).double(), torch.randn(3, 5).double()
    bank = torch.cat([x - references[[2, 0, 3]], torch.full((1, 5), 9.0)])
    found = killick.predict(vector_model(references, bank), x, "transductive")
    assert found.references.tolist() == [2, 0, 3]
    assert_close(found.distance, torch.zeros(3).double(), atol=1e-6, rtol=0)


def test_the_reference_decides_and_not_only_the_image():
    model = vector_model(numbers(0, 10, 20), numbers(1))
    found = killick.predict(model, numbers(1, 11, 21, 13), "transductive")
    assert found.references.tolist() == [0, 1, 2, 1]
    assert found.distance.tolist() == [0, 0, 0, 2]


def test_a_tie_goes_to_the_lowest_number():
    model = vector_model(numbers(8, 4, 4, 0), numbers(0, 4))
    found = killick.predict(model, numbers(6, 4, 3), "transductive")
    assert found.references.tolist() == [0, 1, 1]
    assert found.distance.tolist() == [2, 0, 1]


def test_k_limits_the_candidates_to_the_first():
    model = vector_model(numbers(0, 3, 5), numbers(1))
    chosen = [killick.predict(model, numbers(6), "transductive", k=k).references for k in (1, 2, 3)]
    assert torch.cat(chosen).tolist() == [0, 1, 2]


def test_fifty_candidates_are_compared_unless_told_otherwise():
    model = vector_model(numbers(*range(60)), numbers(0))
    assert killick.predict(model, numbers(55), "transductive").references.tolist() == [49]
    assert killick.predict(model, numbers(55), "transductive", k=60).references.tolist() == [55]


def test_many_images_and_residuals_are_compared_as_few_are():
    x, references, bank = (torch.randn(m, 2).double() for m in (1100, 3, 600))
    scores = oracle.distances(x.numpy(), references.numpy(), bank.numpy())
    found = killick.predict(vector_model(references, bank), x, "transductive")
    assert_close(found.distance, torch.as_tensor(scores.min(1)), atol=1e-6, rtol=1e-6)
    assert found.references.tolist() == oracle.nearest(scores)


@given(st.integers(0, 2**32 - 1), st.integers(1, 7))
def test_choosing_in_chunks_of_images_equals_choosing_at_once(seed, size):
    torch.manual_seed(seed)
    model = vector_model(torch.randn(4, 3).double(), torch.randn(5, 3).double())
    x = torch.randn(7, 3).double()
    whole = killick.predict(model, x, "transductive")
    parts = [killick.predict(model, part, "transductive") for part in x.split(size)]
    for name in ("references", "distance", "logits"):
        assert_close(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))


def test_a_model_without_a_bank_is_refused():
    model = killick.anchor(nn.Linear(4, 3)).set_references(torch.zeros(2, 4)).eval()
    with pytest.raises(ReferencesError, match=r"found none. Store one first: model.set_residuals"):
        killick.predict(model, torch.zeros(2, 4), "transductive")


def test_a_bank_of_another_size_is_refused():
    model = image_model(images(2, 8, 8)).set_residuals(images(4, 10, 6))
    with pytest.raises(ShapeError, match=r"\(3, 10, 6\) .* \(3, 8, 8\)"):
        killick.predict(model, images(2, 8, 8), "transductive")
    model.set_residuals(images(4, 4, 4)[:, :2])
    with pytest.raises(ShapeError, match=r"\(2, 4, 4\) .* \(3, 8, 8\)"):
        killick.predict(model, images(2, 8, 8), "transductive")


@pytest.mark.parametrize("bank", [torch.zeros(4), torch.zeros(0, 4), torch.zeros(2, 4, 1)])
def test_a_bank_that_is_empty_or_has_another_rank_is_refused(bank):
    with pytest.raises(ShapeError, match="expected a bank of residuals with one more axis"):
        killick.anchor(nn.Linear(4, 3)).set_residuals(bank)


def test_a_bank_with_nan_is_refused():
    with pytest.raises(ReferencesError, match="NaN or infinity in number 1 of the residual bank"):
        killick.anchor(nn.Linear(1, 3)).set_residuals(numbers(0, torch.nan))


def test_residuals_are_of_two_different_images_every_pair_as_often(generator):
    train = torch.randn(3, 4)
    bank = killick.residual_bank(
        killick.anchor(nn.Linear(4, 3)), train, size=6000, generator=generator
    )
    counts = Counter(oracle.pairs_behind(bank.numpy(), train.numpy(), train.numpy()))
    assert set(counts) == {(i, j) for i in range(3) for j in range(3) if i != j}
    assert max(abs(count - 1000) for count in counts.values()) < 150  # 5 standard deviations


@pytest.mark.parametrize("kind", [torch.as_tensor, killick.ReferencePool])
def test_residuals_from_given_references_pair_every_image_with_every_reference(kind, generator):
    train, references = torch.randn(3, 4), torch.randn(2, 4)
    model = killick.anchor(nn.Linear(4, 3))
    bank = killick.residual_bank(model, train, kind(references), size=3000, generator=generator)
    counts = Counter(oracle.pairs_behind(bank.numpy(), train.numpy(), references.numpy()))
    assert len(counts) == 6
    assert max(abs(count - 500) for count in counts.values()) < 105  # 5 standard deviations


def test_residuals_of_bytes_are_differences_of_normalized_images(generator):
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.4])
    model = killick.anchor(small_cnn(), normalize=(mean.tolist(), std.tolist()))
    train = torch.randint(256, (4, 3, 6, 6), dtype=torch.uint8)
    floats = (train.numpy() / 255 - mean[:, None, None]) / std[:, None, None]
    bank = killick.residual_bank(model, train, size=20, generator=generator).numpy()
    assert all(i != j for i, j in oracle.pairs_behind(bank, floats, floats))


def test_a_pooled_bank_is_the_pooled_one_of_the_same_draw():
    train, seeds = images(5), [torch.Generator().manual_seed(1) for _ in range(2)]
    model = image_model(train)
    whole = killick.residual_bank(model, train, size=10, generator=seeds[0])
    pooled = killick.residual_bank(model, train, size=10, pool=2, generator=seeds[1])
    assert_close(pooled, torch.as_tensor(oracle.average_pooled(whole.numpy(), 2)))


@pytest.mark.parametrize(("size", "side"), [(8192, 64), (8193, 32)])
def test_a_bank_is_pooled_as_soon_as_it_exceeds_128_mebibytes(size, side):
    model = killick.anchor(small_cnn(channels=1))
    bank = killick.residual_bank(model, torch.randn(3, 1, 64, 64), size=size)
    assert bank.shape == (size, 1, side, side)
    assert bank.numel() * 4 <= 128 * 2**20


@pytest.mark.parametrize(("h", "w"), [(37, 60), (60, 37), (100, 223), (10, 10)])
@pytest.mark.parametrize("pool", [None, 3, 4, 7, 200])
def test_an_image_is_pooled_as_the_bank_is_whatever_its_size(h, w, pool):
    model = image_model(images(3, h, w))
    train = images(2, h, w)  # two images: the bank holds both residuals
    model.set_residuals(killick.residual_bank(model, train, size=200, pool=pool))
    model.set_references(train[1:])
    found = killick.predict(model.double(), train[:1].double(), "transductive")
    assert found.distance.item() < 1e-3  # x - r is in the bank, pooled as it is


def test_a_balanced_pool_is_drawn_from_as_in_training(generator):
    labels = torch.tensor([0] * 99 + [1])
    pool = killick.ReferencePool(labels.float()[:, None] * 100, labels, balanced=True)
    model = killick.anchor(nn.Linear(1, 3))
    bank = killick.residual_bank(model, torch.zeros(2, 1), pool, size=4000, generator=generator)
    assert (bank == -100).float().mean().item() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("options", [{"size": 0}, {"pool": 0}])
def test_a_bank_without_residuals_or_with_no_squares_is_refused(options):
    with pytest.raises(OptionError, match="at least one image, size and pool of at least 1"):
        killick.residual_bank(killick.anchor(nn.Linear(2, 3)), torch.zeros(3, 2), **options)


def test_a_bank_is_the_same_from_one_seed_and_leaves_the_global_generator_alone():
    model, train = killick.anchor(nn.Linear(4, 3)), torch.randn(9, 4)
    seeds = [torch.Generator().manual_seed(s) for s in (3, 3, 4)]
    state = torch.get_rng_state()
    a, b, c = (killick.residual_bank(model, train, size=50, generator=s) for s in seeds)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), state)


def test_one_image_has_no_residual_from_itself():
    with pytest.raises(ReferencesError, match="at least 2 images to form residuals, found 1"):
        killick.residual_bank(killick.anchor(nn.Linear(4, 3)), torch.zeros(1, 4), size=5)


def test_a_plain_network_has_no_residuals():
    with pytest.raises(OptionError, match="expected an anchored model, found Linear"):
        killick.residual_bank(nn.Linear(4, 3), torch.zeros(2, 4))
