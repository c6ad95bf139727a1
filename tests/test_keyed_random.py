"""Drawn numbers: the same for the same keys everywhere, uniform, and independent of each other."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracles import chance as oracle
from scipy import stats
from torch import Tensor

from killick.data.keyed_random import Stream, key, sample_keys, uniform, whole

MANY = 2**18
LARGE = [0, 1, 2**31, 2**32 + 5, 2**63 - 1]
FAR = torch.tensor([0, 1, 2, 49_999, 2**32 - 1, 2**32, 2**40 + 3, 2**62])


def keys_of(seed: int = 0, epoch: int = 0, n: int = MANY) -> Tensor:
    return sample_keys(seed, epoch, torch.arange(n))


def test_a_key_is_an_output_of_splitmix64():
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert oracle.splitmix(1234567, 4) == known
    assert [key(1234567 + i * oracle.GOLDEN) for i in range(4)] == known
    assert key(3, 5) == oracle.splitmix(key(3) + 5, 1)[0]


@pytest.mark.parametrize("seed", LARGE)
@pytest.mark.parametrize("epoch", [0, 1, 2**33 + 1])
@pytest.mark.parametrize("wrap", [int, torch.tensor])
def test_keys_of_samples_are_those_of_their_numbers(seed, epoch, wrap):
    found = sample_keys(seed, wrap(epoch), FAR)
    assert found.dtype == torch.int64
    assert [k % 2**64 for k in found.tolist()] == [key(seed, epoch, n) for n in FAR.tolist()]


def test_keys_depend_on_the_order_and_count_of_their_numbers():
    made = [key(), key(0), key(0, 0), key(0, 0, 0), key(1, 0), key(0, 1), key(1), key(1, 2, 3)]
    assert len({*made, key(3, 2, 1), key(2, 1, 3)}) == 10


def test_no_two_samples_of_neighbouring_epochs_and_seeds_share_a_key():
    keys = [keys_of(seed, epoch, 50_000) for seed in (0, 1, 2**63 - 1) for epoch in range(5)]
    assert len(torch.cat(keys).unique()) == 15 * 50_000


@pytest.mark.parametrize("stream", list(Stream))
def test_numbers_are_those_of_the_slow_version(stream):
    keys = sample_keys(2**63 - 1, 7, FAR)
    slow = [[oracle.uniform(k, stream, i) for i in range(3)] for k in keys.tolist()]
    assert uniform(keys, stream, 3).tolist() == slow
    assert uniform(keys, stream).tolist() == [row[0] for row in slow]
    for below in (1, 2, 9, 50_000, 1_281_167):
        slow_whole = [oracle.draw(k, stream) % below for k in keys.tolist()]
        assert whole(keys, stream, below).tolist() == slow_whole


def test_every_stream_has_a_number_of_its_own():
    assert len(set(Stream)) == len(Stream.__members__)


@pytest.mark.parametrize("stream", list(Stream))
def test_numbers_are_uniform_in_every_stream(stream):
    drawn = uniform(keys_of(seed=3), stream).numpy()
    assert drawn.dtype == np.float32
    assert 0 <= drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    assert 1e-3 < stats.chisquare(np.histogram(drawn, 1024, (0, 1))[0]).pvalue < 1 - 1e-3


def test_every_bit_is_set_in_half_of_the_numbers_and_no_two_bits_go_together():
    whole_numbers = (uniform(keys_of(), Stream.FLIP).double() * 2**24).long()
    bits = ((whole_numbers[:, None] >> torch.arange(24)) & 1).double() * 2 - 1
    five_sigma = 5 / MANY**0.5
    assert bits.mean(0).abs().max() < five_sigma
    together = bits.T @ bits / MANY - torch.eye(24)
    assert together.abs().max() < five_sigma


def shifted(lag: int) -> Callable[[], tuple[Tensor, Tensor]]:
    def draw() -> tuple[Tensor, Tensor]:
        drawn = uniform(keys_of(n=MANY + lag), Stream.TOP)
        return drawn[lag:], drawn[:-lag]

    return draw


def over_epochs(lag: int) -> Callable[[], tuple[Tensor, Tensor]]:
    def draw() -> tuple[Tensor, Tensor]:
        epochs = torch.arange(MANY + lag)
        drawn = uniform(sample_keys(0, epochs, torch.zeros_like(epochs)), Stream.MASK)
        return drawn[lag:], drawn[:-lag]

    return draw


def counted(first: int, second: int) -> Callable[[], tuple[Tensor, Tensor]]:
    def draw() -> tuple[Tensor, Tensor]:
        drawn = uniform(keys_of(), Stream.ERASE_SHAPE, second + 1)
        return drawn[:, first], drawn[:, second]

    return draw


def between(
    first: tuple[int, int, Stream], second: tuple[int, int, Stream]
) -> Callable[[], tuple[Tensor, Tensor]]:
    def draw() -> tuple[Tensor, Tensor]:
        one, other = (uniform(keys_of(seed, epoch), s) for seed, epoch, s in (first, second))
        return one, other

    return draw


NEIGHBOURS = {
    **{f"numbers {lag} apart": shifted(lag) for lag in (1, 2, 3, 8, 128, 1000)},
    **{f"one sample {lag} epochs apart": over_epochs(lag) for lag in (1, 2, 100)},
    **{f"places {i} and {j}": counted(i, j) for i, j in ((0, 1), (0, 2), (0, 10), (9, 10))},
    "a place and the next sample's": lambda: (
        uniform(keys_of(), Stream.ERASE_SHAPE, 2)[:-1, 1],
        uniform(keys_of(), Stream.ERASE_SHAPE, 2)[1:, 0],
    ),
    "epochs 0 and 1": between((0, 0, Stream.TOP), (0, 1, Stream.TOP)),
    "epochs 1 and 2": between((0, 1, Stream.TOP), (0, 2, Stream.TOP)),
    "seeds 0 and 1": between((0, 0, Stream.TOP), (1, 0, Stream.TOP)),
    "seeds 2^63 apart": between((0, 0, Stream.TOP), (2**63, 0, Stream.TOP)),
    "seed and epoch exchanged": between((0, 1, Stream.TOP), (1, 0, Stream.TOP)),
    **{
        f"{one.name} and {other.name}": between((0, 0, one), (0, 0, other))
        for one, other in itertools.pairwise(Stream)
    },
    "an image and its reference": between((0, 0, Stream.LEFT), (0, 0, Stream.REFERENCE_LEFT)),
}


@pytest.mark.parametrize("neighbours", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_neighbours_are_independent(neighbours):
    one, other = (drawn.double().numpy() for drawn in neighbours())
    assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / len(one) ** 0.5
    cells = np.histogram2d(one, other, 32, ((0, 1), (0, 1)))[0].ravel()
    assert 1e-4 < stats.chisquare(cells).pvalue < 1 - 1e-4


@pytest.mark.parametrize("below", [1, 2, 3, 9, 10, 1000, 1023])
def test_whole_numbers_are_uniform_below_their_bound(below):
    drawn = whole(keys_of(seed=1), Stream.REFERENCE, below)
    assert drawn.dtype == torch.int64
    assert set(drawn.unique().tolist()) == set(range(below))
    if below > 1:
        assert 1e-3 < stats.chisquare(drawn.bincount().numpy()).pvalue < 1 - 1e-3


def test_whole_numbers_reach_over_a_large_set_evenly():
    drawn = whole(keys_of(), Stream.REFERENCE, 1_281_167)
    assert stats.kstest(drawn.double().numpy() / 1_281_167, "uniform").pvalue > 1e-3


def test_numbers_do_not_depend_on_how_keys_are_batched():
    keys = keys_of(seed=5, n=1000)
    order = torch.randperm(1000)
    drawn, four = uniform(keys, Stream.LEFT), uniform(keys, Stream.LEFT, 4)
    assert torch.equal(torch.cat([uniform(k, Stream.LEFT) for k in keys.split(7)]), drawn)
    assert torch.equal(uniform(keys[order], Stream.LEFT), drawn[order])
    assert torch.equal(uniform(keys.view(10, 100), Stream.LEFT).view(-1), drawn)
    assert float(uniform(keys[3], Stream.LEFT)) == float(drawn[3])
    assert torch.equal(uniform(keys[order], Stream.LEFT, 4), four[order])
    assert torch.equal(uniform(keys, Stream.LEFT, 2), four[:, :2])


def test_nothing_is_drawn_from_the_global_state():
    before = torch.get_rng_state()
    keys = keys_of(n=9)
    uniform(keys, Stream.VIEW, 2)
    whole(keys, Stream.VIEW, 7)
    assert torch.equal(before, torch.get_rng_state())
