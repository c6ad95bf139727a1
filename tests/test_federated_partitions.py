"""Partitions: every image dealt once, by the shares that were drawn, the same for the same seed."""

import numpy as np
import pytest

from killick.errors import OptionError
from killick.federated.partitions import (
    PARTITIONS,
    ClassCounts,
    Dirichlet,
    Iid,
    LongTail,
    deal,
    draw_partition,
)


def make_labels(count: int, classes: int = 10, seed: int = 0):
    return np.random.default_rng(seed).integers(0, classes, count)


LABELS = {"train": make_labels(3000), "test": make_labels(1000, seed=1)}


@pytest.mark.parametrize("kind", [Dirichlet(), Dirichlet(p=0.7, alpha=10), Iid()])
def test_every_image_is_dealt_once_and_the_seed_decides(kind):
    found = draw_partition(kind, 6, 10, LABELS, seed=3)
    for name, labels in LABELS.items():
        assert np.array_equal(np.sort(np.concatenate(found[name])), np.arange(len(labels)))
    again = draw_partition(kind, 6, 10, LABELS, seed=3)
    other = draw_partition(kind, 6, 10, LABELS, seed=4)
    assert all(map(np.array_equal, found["train"], again["train"]))
    assert not all(map(np.array_equal, found["train"], other["train"]))


def test_a_client_is_tested_on_its_own_shares_of_the_classes():
    found = draw_partition(Dirichlet(p=0.7, alpha=2), 6, 10, LABELS, seed=0)
    counts = {
        name: np.array([np.bincount(LABELS[name][own], minlength=10) for own in parts])
        for name, parts in found.items()
    }
    shares = {name: each / each.sum(0) for name, each in counts.items()}
    sizes = np.bincount(LABELS["test"], minlength=10)
    assert np.abs((shares["train"] - shares["test"]) * sizes).max() < 2  # rounded, both


def test_a_client_gets_its_share_to_within_an_image_and_rounding_favors_nobody():
    generator = np.random.default_rng(0)
    shares, labels = np.full((8, 200), 1 / 8), np.repeat(np.arange(200), 3)
    totals = np.array([len(own) for own in deal(shares, labels, generator)])
    assert totals.sum() == 600
    assert np.abs(totals - 75).max() < 30  # binomial-like, not 0 for some and 200 for others
    shares = Dirichlet(alpha=0.5).shares(8, 4, generator)
    labels = make_labels(4000, 4)
    for client, own in enumerate(deal(shares, labels, generator)):
        wanted = shares[client] * np.bincount(labels)
        assert np.abs(np.bincount(labels[own], minlength=4) - wanted).max() <= 1


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    generator, alpha, clients = np.random.default_rng(0), 0.5, 4
    drawn = Dirichlet(alpha=alpha).shares(clients, 20_000, generator)
    assert np.allclose(drawn.sum(0), 1)
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * alpha + 1)
    assert drawn.mean(1) == pytest.approx(mean, abs=0.01)
    assert drawn.var(1) == pytest.approx(variance, rel=0.04)
    owned = Dirichlet(p=0.7, alpha=10).shares(50, 2000, generator) > 0
    assert owned.mean() == pytest.approx(0.7, abs=0.01)


def test_long_tail_cuts_classes_exponentially_and_uses_an_image_at_most_once():
    labels = {"train": np.repeat(np.arange(10), 1000), "test": np.repeat(np.arange(10), 100)}
    found = draw_partition(LongTail(ratio=0.01), 5, 10, labels, seed=0)
    used = np.concatenate(found["train"])
    assert len(np.unique(used)) == len(used)
    sizes = np.bincount(labels["train"][used])
    assert sizes.tolist() == pytest.approx([1000 * 0.01 ** (c / 9) for c in range(10)], abs=1)


def test_bad_partitions_are_refused_in_one_line():
    few = {"train": np.arange(6) % 2, "test": np.arange(20) % 2}
    with pytest.raises(OptionError, match="7 clients are more than the 6 train images"):
        draw_partition(Iid(), 7, 2, few, seed=0)
    with pytest.raises(OptionError, match=r"class number \d has no owner"):
        draw_partition(Dirichlet(p=0.01), 3, 10, LABELS, seed=0)
    with pytest.raises(OptionError, match="has no owner"):
        draw_partition(Dirichlet(p=1e-12), 3, 10, LABELS, seed=0)
    uneven = {"train": make_labels(3000), "test": np.arange(10)}
    with pytest.raises(OptionError, match=r"client \d has 0 test images"):
        draw_partition(Dirichlet(alpha=0.05), 8, 10, uneven, seed=0)
    with pytest.raises(OptionError, match=r"client \d has [01] train images"):
        draw_partition(Iid(), 5, 2, few, seed=0)


def test_class_counts_print_a_row_for_each_client_and_a_block_for_each_class():
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    found = ClassCounts.of([np.arange(4), np.arange(4, 7)], labels, ("a", "b", "c"))
    assert str(found).splitlines()[1:] == ["     0       4  ██····", "     1       3  ··▒▒░░"]


def test_all_partitions_have_names():
    assert PARTITIONS.names() == ("dirichlet", "iid", "long-tail")
