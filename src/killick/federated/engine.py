"""What moves weights and counts between the server and its clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from killick.federated.local_client import Counts
from killick.federated.method import State


@dataclass(frozen=True)
class Fault:
    """Why there is no usable answer of a client."""

    reason: str


class Upload(NamedTuple):
    """A client's trained generic model."""

    weights: State
    counts: Counts  # samples, and seconds of training


T = TypeVar("T")
Answers = dict[int, T | Fault]  # by client


class Engine(Protocol):
    """Runs the tasks of clients, somewhere."""

    def describe(self, *, fresh: bool) -> dict[int, Counts]:
        """All clients, checked to fit the server, with their counts; `fresh`: nothing is resumed."""

    def train(self, round_: int, weights: State, clients: Sequence[int]) -> Answers[Upload]:
        """Train the generic model; each client has begun its personalized one when this returns."""

    def finish_personal(self) -> Answers[Counts]:
        """Wait until the personalized models of the round are trained."""

    def evaluate(
        self, round_: int, weights: State, clients: Sequence[int], *, last: bool
    ) -> Answers[Counts]:
        """Evaluate each client's model after a round."""
