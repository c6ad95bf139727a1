"""How long rounds take, by events: when clients compute, send and wait.

Sequential: a client trains both models, then uploads. Wait-free: it uploads the generic model and
trains the personalized one meanwhile. Either way the server aggregates when all uploads of a round
are there, and a client begins its next round when it has the new model and nothing left to compute.
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ClientTimes(NamedTuple):
    """Seconds that a client needs in a round."""

    generic: float  # to train the generic model
    personal: float  # to train the personalized one
    up: float  # to upload
    down: float  # to download


def simulate(
    rounds: Sequence[Mapping[int, ClientTimes]], *, wait_free: bool, aggregation: float = 0.0
) -> list[float]:
    """When each round ends: all of its clients have the new model and are done computing.

    Args:
        rounds: The clients of each round by number, with their times.
        wait_free: Whether uploads overlap with training.
        aggregation: Seconds of the server in each round.

    Example:
        >>> slow, fast = ClientTimes(2, 3, 1, 1), ClientTimes(1, 1, 1, 1)
        >>> simulate([{0: slow, 1: fast}], wait_free=False)
        [7.0]
        >>> simulate([{0: slow, 1: fast}], wait_free=True)
        [5.0]
    """
    ends = [0.0] * len(rounds)
    missing = [len(each) for each in rounds]  # uploads
    model = [dict.fromkeys(each, number == 0) for number, each in enumerate(rounds)]
    busy: set[int] = set()  # clients that still compute
    begun: set[tuple[int, int]] = set()
    order = itertools.count()
    queue: list[tuple[float, int, str, int, int]] = []

    def after(now: float, seconds: float, event: str, number: int, client: int = -1) -> None:
        heapq.heappush(queue, (now + seconds, next(order), event, number, client))

    def begin(now: float, client: int) -> None:
        """Begin the client's next round, if it can."""
        for number, ready in enumerate(model):
            if ready.get(client) and (number, client) not in begun and client not in busy:
                begun.add((number, client))
                busy.add(client)
                after(now, rounds[number][client].generic, "generic", number, client)

    for client in rounds[0] if rounds else ():
        begin(0.0, client)
    while queue:
        now, _, event, number, client = heapq.heappop(queue)
        times = rounds[number].get(client)
        if event == "aggregated":
            ends[number] = max(ends[number], now + max(t.down for t in rounds[number].values()))
            for other, own in (rounds[number + 1] if number + 1 < len(rounds) else {}).items():
                after(now, own.down, "download", number + 1, other)
            continue
        assert times is not None
        if event == "generic":
            after(now, times.personal, "personal", number, client)
        if event == ("generic" if wait_free else "personal"):
            after(now, times.up, "upload", number, client)
        if event == "personal":
            busy.discard(client)
            ends[number] = max(ends[number], now)
        elif event == "upload":
            missing[number] -= 1
            if missing[number] == 0:
                after(now, aggregation, "aggregated", number)
        elif event == "download":
            model[number][client] = True
        begin(now, client)
    return ends
