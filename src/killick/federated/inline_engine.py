"""The inline engine: all clients in this process, one after the other."""

from collections.abc import Callable, Sequence

from killick.errors import KillickError
from killick.federated.client_tasks import ClientTasks
from killick.federated.engine import Answers, Fault, T, Upload
from killick.federated.federated_data import FederatedData
from killick.federated.local_client import Counts
from killick.federated.method import State


class InlineEngine:
    """Runs clients here."""

    def __init__(self, data: FederatedData) -> None:
        self._method = data.plan.federation.method_settings
        self.tasks = [ClientTasks(data, n) for n in range(data.plan.federation.clients)]
        self._begun: tuple[int, State, list[int]] = (0, {}, [])

    def describe(self, *, fresh: bool) -> dict[int, Counts]:
        """All clients; they fit, having the server's own code and settings."""
        return {task.number: task.describe(fresh=fresh) for task in self.tasks}

    def train(self, round_: int, weights: State, clients: Sequence[int]) -> Answers[Upload]:
        """Train the generic model of each client."""
        answers: Answers[Upload] = {}
        if self._method.uploads:
            answers = _collect(
                clients, lambda c: Upload(*self.tasks[c].train_generic(round_, weights))
            )
        going = [c for c in clients if not isinstance(answers.get(c), Fault)]
        self._begun = (round_, weights, going if self._method.trains_personal else [])
        return answers

    def finish_personal(self) -> Answers[Counts]:
        """Train the personalized models now."""
        round_, weights, clients = self._begun
        return _collect(clients, lambda c: self.tasks[c].train_personal(round_, weights))

    def evaluate(
        self, round_: int, weights: State, clients: Sequence[int], *, last: bool
    ) -> Answers[Counts]:
        """Evaluate each client's model."""
        return _collect(clients, lambda c: self.tasks[c].evaluate(round_, weights, last=last))


def _collect(clients: Sequence[int], work: Callable[[int], T]) -> Answers[T]:
    """What each client answers; an error of one does not stop the others."""
    answers: Answers[T] = {}
    for client in clients:
        try:
            answers[client] = work(client)
        except KillickError as problem:
            answers[client] = Fault(str(problem))
    return answers
