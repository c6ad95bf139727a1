"""The clock: against the closed forms of a round, and a queue of events for many."""

import random

import pytest
from oracles import event_queue

from killick.federated import ClientTimes, simulate


def draw_times(clients: int, seed: int) -> dict[int, ClientTimes]:
    chance = random.Random(seed)
    return {c: ClientTimes(*(chance.uniform(0.1, 5) for _ in range(4))) for c in range(clients)}


def closed_form(times, aggregation, down, wait_free):
    """A round of clients with equal download times."""
    if not wait_free:
        return max(t.generic + t.personal + t.up for t in times) + aggregation + down
    return max(
        max(t.generic + t.up for t in times) + aggregation + down,
        max(t.generic + t.personal for t in times),
    )


@pytest.mark.parametrize("wait_free", [False, True])
@pytest.mark.parametrize("clients", [1, 7, 1000])
def test_one_round_takes_what_the_closed_form_says(clients, wait_free):
    times = {c: t._replace(down=0.7) for c, t in draw_times(clients, 1).items()}
    (end,) = simulate([times], wait_free=wait_free, aggregation=0.3)
    assert end == pytest.approx(closed_form(times.values(), 0.3, 0.7, wait_free))


@pytest.mark.parametrize("wait_free", [False, True])
@pytest.mark.parametrize("seed", range(50))
def test_many_rounds_with_changing_clients_equal_a_queue_of_events(seed, wait_free):
    chance = random.Random(seed)
    rounds = []
    for number in range(chance.randint(1, 8)):
        drawn = draw_times(6, 100 * seed + number)
        rounds.append({c: drawn[c] for c in chance.sample(range(6), chance.randint(1, 6))})
    ends = simulate(rounds, wait_free=wait_free, aggregation=0.2)
    wanted = event_queue.simulate(rounds, wait_free=wait_free, aggregation=0.2)
    assert ends == pytest.approx(wanted)


@pytest.mark.parametrize("wait_free", [False, True])
def test_equal_clients_repeat_the_same_round(wait_free):
    times = ClientTimes(2.0, 3.0, 0.5, 0.25)
    ends = simulate([dict.fromkeys(range(1000), times)] * 4, wait_free=wait_free, aggregation=0.1)
    one = closed_form([times], 0.1, 0.25, wait_free)
    assert ends == pytest.approx([one * n for n in range(1, 5)])


def test_waiting_less_saves_the_personal_training_that_fits_into_links():
    times = ClientTimes(2.0, 1.0, 4.0, 4.0)  # links are slow: all of the personal training is free
    rounds = [dict.fromkeys(range(3), times)] * 5
    sequential, wait_free = (simulate(rounds, wait_free=each)[-1] for each in (False, True))
    assert sequential - wait_free == pytest.approx(5 * times.personal)


def test_clients_that_skip_a_round_do_not_delay_it():
    slow, fast = ClientTimes(1, 100, 0, 0), ClientTimes(1, 1, 0, 0)
    ends = simulate([{0: slow, 1: fast}, {1: fast}, {0: slow, 1: fast}], wait_free=True)
    assert ends == [101, 4, 202]  # the slow client computes until 101, then its third round
