"""How long rounds take: when clients compute, send and wait.

Sequential: a client trains both models, then uploads. Wait-free: it uploads the generic model and
trains the personalized one meanwhile. Either way the server aggregates when all uploads of a round
are there, and a client begins its next round when it has the new model and nothing left to compute.
"""

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
    ends: list[float] = []
    free: dict[int, float] = {}  # when a client is done computing
    ready = 0.0  # when the server has aggregated
    for clients in rounds:
        begin = {
            client: max(ready + times.down if ends else 0.0, free.get(client, 0.0))
            for client, times in clients.items()
        }
        for client, times in clients.items():
            free[client] = begin[client] + times.generic + times.personal
        uploaded = [
            times.up + (begin[client] + times.generic if wait_free else free[client])
            for client, times in clients.items()
        ]
        ready = aggregation + max(uploaded)
        arrived = ready + max(times.down for times in clients.values())
        ends.append(max(arrived, *(free[client] for client in clients)))
    return ends
