"""Cutting sets class by class, and flipping labels."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from killick.data.splits import flip_labels, stratified
from killick.errors import OptionError

SEEDS = st.integers(0, 2**32 - 1)
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=60)


def counts_of(labels: Tensor) -> dict[int, int]:
    return dict(Counter(labels.tolist()))


@given(LABELS, st.data(), SEEDS)
def test_every_image_is_either_kept_or_cut(labels, data, seed):
    count = data.draw(st.integers(0, len(labels) - 1))
    kept, cut = stratified(torch.tensor(labels), count, seed)
    assert len(cut) == count
    assert sorted(kept.tolist() + cut.tolist()) == list(range(len(labels)))
    assert kept.tolist() == sorted(kept.tolist())
    assert cut.tolist() == sorted(cut.tolist())


@given(LABELS, st.data(), SEEDS)
def test_as_many_classes_keep_a_image_as_can(labels, data, seed):
    count = data.draw(st.integers(0, len(labels) - 1))
    kept, _ = stratified(torch.tensor(labels), count, seed)
    left = {labels[number] for number in kept.tolist()}
    assert len(left) == min(len(set(labels)), len(labels) - count)


@given(st.lists(st.integers(5, 40), min_size=1, max_size=8), st.floats(0, 0.7), SEEDS)
def test_classes_are_cut_in_proportion_to_within_one(sizes, share, seed):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    _, cut = stratified(labels, round(share * sum(sizes)), seed)
    assert len(cut) == round(share * sum(sizes))
    found = counts_of(labels[cut])
    for kind, size in enumerate(sizes):
        assert abs(found.get(kind, 0) - size * len(cut) / sum(sizes)) < 1


def test_the_largest_remainders_get_the_images_that_are_left_over():
    labels = torch.tensor([0] * 16 + [1] * 9 + [2] * 5)  # quotas of 10: 5.33, 3, 1.67
    for seed in range(5):
        assert counts_of(labels[stratified(labels, 10, seed)[1]]) == {0: 5, 1: 3, 2: 2}


def test_a_class_of_one_image_is_not_cut_while_others_have_more():
    labels = torch.tensor([0] * 10 + list(range(1, 11)))
    _, cut = stratified(labels, 9, seed=0)
    assert counts_of(labels[cut]) == {0: 9}


def test_the_seed_decides_and_decides_alone():
    labels = torch.arange(200) % 4
    before = torch.random.get_rng_state()
    first, again, other = (stratified(labels, 50, seed)[1].tolist() for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert torch.equal(before, torch.random.get_rng_state())


def test_ties_between_classes_fall_differently():
    labels = torch.arange(20) % 4
    gave = {tuple(sorted(labels[stratified(labels, 2, seed)[1]].tolist())) for seed in range(60)}
    assert len(gave) == 6


def test_every_image_of_a_class_is_cut_as_often():
    labels = torch.tensor([0] * 5 + [1] * 10)
    times = torch.zeros(15)
    for seed in range(2000):
        times[stratified(labels, 3, seed)[1]] += 1
    assert ((times / 2000 - 0.2).abs() < 0.045).all()  # five standard deviations


def test_labels_need_not_count_from_zero():
    kept, cut = stratified(torch.tensor([7, 7, 7, 7, -3, -3], dtype=torch.int16), 3, seed=0)
    assert len(kept) == len(cut) == 3


def test_nothing_is_cut_off_for_zero():
    assert stratified(torch.tensor([1, 0]), 0, 0)[0].tolist() == [0, 1]
    assert stratified(torch.tensor([1, 0]), 0, 0)[1].tolist() == []


@pytest.mark.parametrize("count", [2, -1])
def test_a_count_out_of_range_is_refused(count):
    with pytest.raises(OptionError, match=f"cannot cut {count} of 2"):
        stratified(torch.tensor([0, 1]), count, seed=0)


@given(LABELS, st.floats(0, 1), SEEDS)
def test_exactly_the_share_of_labels_is_flipped_to_other_classes(labels, share, seed):
    given_labels = torch.tensor(labels)
    wrong, flipped = flip_labels(given_labels, share, 7, seed)
    assert int(flipped.sum()) == round(share * len(labels))
    assert torch.equal(wrong != given_labels, flipped)
    assert 0 <= int(wrong.min()) <= int(wrong.max()) < 7
    assert given_labels.tolist() == labels


def test_every_other_class_comes_as_often():
    labels = torch.arange(5).repeat_interleave(20_000)
    wrong, flipped = flip_labels(labels, 0.5, 5, seed=1)
    table = torch.zeros(5, 5)
    table.index_put_((labels[flipped], wrong[flipped]), torch.ones(50_000), accumulate=True)
    assert not table.diagonal().any()
    others = table[~torch.eye(5, dtype=torch.bool)]
    assert float(((others - 2500) ** 2 / 2500).sum()) < 45  # 19 degrees, p < 1e-3


def test_every_label_is_flipped_as_often():
    times = sum(flip_labels(torch.zeros(10), 0.3, 2, seed)[1].float() for seed in range(2000))
    assert ((times / 2000 - 0.3).abs() < 0.052).all()  # five standard deviations


def test_a_larger_share_flips_the_same_labels_and_more():
    labels = torch.arange(300) % 10
    few, some = flip_labels(labels, 0.2, 10, seed=5)
    many, most = flip_labels(labels, 0.6, 10, seed=5)
    assert most[some].all()
    assert torch.equal(few[some], many[some])


def test_flipping_depends_on_its_seed_alone():
    labels = torch.arange(100) % 10
    before = torch.random.get_rng_state()
    first, again, other = (flip_labels(labels, 0.5, 10, seed)[0].tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert torch.equal(before, torch.random.get_rng_state())


def test_small_integers_do_not_overflow():
    labels = torch.full((50,), 199, dtype=torch.uint8)
    wrong, flipped = flip_labels(labels, 1.0, 200, seed=0)
    assert wrong.dtype == torch.uint8
    assert flipped.all()
    assert int(wrong.max()) < 199
