"""The Flower apps: the same client tasks and server rounds, over Flower's messages.

Messages hold weights, counts, and settings of a task; nothing else, so no image leaves a client. A
client trains in two actions, `train.generic` and `train.personal`. The server sends a client the
second when its answer to the first is there: before it aggregates, and while others still train.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from killick.errors import DivergedError, KillickError, OptionError
from killick.federated.client_tasks import ClientTasks
from killick.federated.engine import Answers, Fault, Upload
from killick.federated.federated_data import FederatedData
from killick.federated.federation_settings import FederationPlan
from killick.federated.local_client import Counts
from killick.federated.method import State
from killick.federated.server_rounds import run_rounds
from killick.runtime.atomic_files import write_atomic
from killick.runtime.progress import choose_display

PROBLEM = "problem.txt"
DESCRIBE, GENERIC, PERSONAL, EVALUATE = (
    *("query.describe", "train.generic"),
    *("train.personal", "evaluate.personal"),
)
_SECONDS_BETWEEN_PULLS = 0.1
Handler = Callable[[Message, Context], Message]
client_app = ClientApp()
server_app = ServerApp()


@lru_cache(maxsize=4)
def _open_data(plan: str, own: str | None) -> FederatedData:
    """The data of a plan, read once in each process."""
    return FederatedData(FederationPlan.from_json(plan), own)


def _tasks(context: Context) -> ClientTasks:
    """The client of a node: one of the plan's, or with `data` and `folder` of its own."""
    node, plan = context.node_config, str(context.run_config["plan"])
    own = str(node["data"]) if "data" in node else None
    folder = Path(str(node["folder"])) if "folder" in node else None
    data = _open_data(plan, own)
    if data.plan.threads is not None:
        torch.set_num_threads(data.plan.threads)
    number, clients = int(node.get("partition-id", -1)), data.plan.federation.clients
    if number < 0 or (own is None and number >= clients):
        raise OptionError(
            f"the partition-id of a SuperNode must be 0 to {clients - 1}, found {number}."
        )
    return ClientTasks(data, number, folder)


def _answer(message: Message, **records: Any) -> Message:
    return Message(RecordDict(records), reply_to=message)


def _task(message: Message) -> dict[str, Any]:
    """The settings of the task in a message."""
    record: Any = message.content["task"]
    return dict(record)


def _metrics(counts: Counts) -> MetricRecord:
    values: dict[str, Any] = dict(counts)
    return MetricRecord(values)


def _fault(message: Message, problem: Exception, context: Context) -> Message:
    """What the server learns of an error: of a text that may name the client's files, the type."""
    text = str(problem)
    own = "data" in context.node_config and not isinstance(problem, DivergedError)
    if own or not isinstance(problem, KillickError):
        logging.getLogger(__name__).error(text, exc_info=problem)
        text = f"{type(problem).__name__}; the client's log says more"
    return _answer(message, about=ConfigRecord({"fault": text}))


def _reporting(handler: Handler) -> Handler:
    """Let a client answer with its fault where a handler raises."""

    @wraps(handler)
    def run(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as problem:  # noqa: BLE001
            return _fault(message, problem, context)

    return run


@client_app.query("describe")
@_reporting
def describe(message: Message, context: Context) -> Message:
    """Number, signature and counts of this client."""
    tasks = _tasks(context)
    counts = tasks.describe(fresh=bool(_task(message)["fresh"]))
    about: dict[str, Any] = {"client": tasks.number, "signature": tasks.data.signature}
    return _answer(message, about=ConfigRecord(about), counts=_metrics(counts))


@client_app.train("generic")
@_reporting
def train_generic(message: Message, context: Context) -> Message:
    """Train the generic model, and remember the one received for the personalized one."""
    received = message.content["weights"]
    context.state["received"] = received
    number = int(_task(message)["round"])
    weights, counts = _tasks(context).train_generic(number, _to_state(received))
    return _answer(message, weights=ArrayRecord(weights), counts=_metrics(counts))


@client_app.train("personal")
@_reporting
def train_personal(message: Message, context: Context) -> Message:
    """Train the personalized model, which stays here."""
    received = context.state["received"] if "received" in context.state else ArrayRecord()
    number = int(_task(message)["round"])
    counts = _tasks(context).train_personal(number, _to_state(received))
    return _answer(message, counts=_metrics(counts))


@client_app.evaluate("personal")
@_reporting
def evaluate_personal(message: Message, context: Context) -> Message:
    """Counts of this client's model on its test images."""
    task, weights = _task(message), _to_state(message.content["weights"])
    counts = _tasks(context).evaluate(int(task["round"]), weights, last=bool(task["last"]))
    return _answer(message, counts=_metrics(counts))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; what goes wrong is also written to the folder, for the command that waits."""
    plan = FederationPlan.from_json(str(context.run_config["plan"]))
    try:
        data = FederatedData(plan)
        run_rounds(data, FlowerEngine(grid, data), choose_display(None, quiet=False))
    except KillickError as problem:
        plan.output.mkdir(parents=True, exist_ok=True)
        write_atomic(plan.output / PROBLEM, str(problem))
        raise


def _to_state(record: Any) -> State:
    return dict(record.to_torch_state_dict())


class FlowerEngine:
    """Sends tasks to Flower's nodes and collects their answers."""

    def __init__(self, grid: Grid, data: FederatedData) -> None:
        federation = data.plan.federation
        self._grid, self._signature = grid, data.signature
        self._count, self._timeout = federation.clients, federation.timeout
        self._method = federation.method_settings
        self._nodes: dict[int, int] = {}  # by client
        self._personal: dict[str, int] = {}  # clients by message that is not answered yet
        self._gone: Answers[Any] = {}  # clients that the task of `_personal` did not reach

    def describe(self, *, fresh: bool) -> dict[int, Counts]:
        """All clients, once enough of them are there; a client that does not fit is an error."""
        end = time.monotonic() + self._timeout
        while len(nodes := list(self._grid.get_node_ids())) < self._count:
            if time.monotonic() > end:
                raise OptionError(
                    f"found {len(nodes)} of {self._count} clients within {self._timeout:g} s. Start"
                    " more SuperNodes, or use fewer --clients."
                )
            time.sleep(_SECONDS_BETWEEN_PULLS)
        task = {"fresh": fresh}
        sent = {self._send(DESCRIBE, node, task): node for node in nodes[: self._count]}
        sent.pop("", None)  # these have left since
        found: dict[int, Counts] = {}
        for message, reply in self._replies(sent):
            node = sent.pop(message)
            about = _read(reply, "about")
            if isinstance(about, Fault):
                raise OptionError(f"a client cannot take part: {about.reason}")
            client = int(about["client"])
            if about["signature"] != self._signature:
                raise OptionError(
                    f"client {client} has another version, network or classes"
                    f" ({about['signature']}) than the server ({self._signature}). Install the same"
                    " version of Killick, and use the same classes."
                )
            if client in found:
                raise OptionError(f"two clients have the partition-id {client}. Number them anew.")
            self._nodes[client], found[client] = node, _counts(reply)
        if silent := self._count - len(found):
            raise OptionError(f"{silent} clients left or did not answer in {self._timeout:g} s.")
        return dict(sorted(found.items()))

    def train(self, round_: int, weights: State, clients: Sequence[int]) -> Answers[Upload]:
        """Train the generic model; who has answered goes on with the personalized one at once."""
        task = {"round": round_}
        answers: Answers[Upload] = {}
        if not self._method.uploads:
            self._begin_personal(clients, task)
            return answers
        sent, answers = self._ask(GENERIC, clients, task, weights)
        for message, reply in self._replies(sent):
            client = sent.pop(message)
            received = _read(reply, "weights")
            if isinstance(received, Fault):
                answers[client] = received
                continue
            answers[client] = Upload(_to_state(received), _counts(reply))
            if self._method.trains_personal:
                self._begin_personal([client], task)
        return answers | self._late(sent)

    def _begin_personal(self, clients: Sequence[int], task: dict[str, Any]) -> None:
        sent, gone = self._ask(PERSONAL, clients, task)
        self._personal |= sent
        self._gone |= gone

    def finish_personal(self) -> Answers[Counts]:
        """Wait for the personalized models."""
        sent, gone = self._personal, self._gone
        self._personal, self._gone = {}, {}
        return gone | self._collect_counts(sent)

    def evaluate(
        self, round_: int, weights: State, clients: Sequence[int], *, last: bool
    ) -> Answers[Counts]:
        """Let every client evaluate its model."""
        task = {"round": round_, "last": last}
        sent, gone = self._ask(EVALUATE, clients, task, weights)
        return gone | self._collect_counts(sent)

    def _collect_counts(self, sent: dict[str, int]) -> Answers[Counts]:
        answers: Answers[Counts] = {}
        for message, reply in self._replies(sent):
            fault = _read(reply, "counts")
            answers[sent.pop(message)] = fault if isinstance(fault, Fault) else _counts(reply)
        return answers | self._late(sent)

    def _late(self, sent: dict[str, int]) -> Answers[Any]:
        return {c: Fault(f"no answer within {self._timeout:g} s") for c in sent.values()}

    def _ask(
        self, kind: str, clients: Sequence[int], task: dict[str, Any], weights: State | None = None
    ) -> tuple[dict[str, int], Answers[Any]]:
        """Send a task: the clients by message, and faults of those that it does not reach."""
        sent: dict[str, int] = {}
        gone: Answers[Any] = {}
        for client in clients:
            if number := self._send(kind, self._nodes[client], task, weights):
                sent[number] = client
            else:
                gone[client] = Fault("is no longer connected")
        return sent, gone

    def _send(
        self, kind: str, node: int, task: dict[str, Any], weights: State | None = None
    ) -> str:
        """Send a task to a node; the message's number, which is empty if the node has left."""
        records: dict[str, Any] = {"task": ConfigRecord(task)}
        if weights is not None:
            records["weights"] = ArrayRecord(weights)
        message = Message(RecordDict(records), node, kind, ttl=self._timeout)
        (number,) = self._grid.push_messages([message])
        return number

    def _replies(self, sent: Iterable[str]) -> Iterator[tuple[str, Message]]:
        """Replies as they come, until all are there or the time is over."""
        waiting, end = set(sent), time.monotonic() + self._timeout
        while waiting and time.monotonic() < end:
            for reply in self._grid.pull_messages(set(waiting)):
                number = reply.metadata.reply_to_message_id
                waiting.discard(number)
                yield number, reply
            if waiting:
                time.sleep(_SECONDS_BETWEEN_PULLS)


def _read(reply: Message, name: str) -> Any:
    """A record of a reply; or what is wrong with the client."""
    if reply.has_error():
        return Fault(f"dropped out ({' '.join(str(reply.error.reason).split())[:200]})")
    about: Any = reply.content.get("about", {})
    if "fault" in about:
        return Fault(str(about["fault"]))
    return reply.content[name] if name in reply.content else Fault(f"an answer without {name}")


def _counts(reply: Message) -> Counts:
    record: Any = reply.content["counts"]
    return dict(record)
