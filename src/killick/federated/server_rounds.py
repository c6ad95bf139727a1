"""The server: rounds of training, aggregation and evaluation, over any engine."""

import json
import time
from collections.abc import Mapping
from typing import Any

import torch

from killick.core.residual_blocks import head_of
from killick.data.keyed_random import key
from killick.errors import KillickError, OutputError
from killick.federated.aggregation import find_fault, weighted_mean
from killick.federated.engine import Answers, Engine, Fault, T, Upload
from killick.federated.federated_data import FederatedData
from killick.federated.federation_settings import Federation, FederationPlan
from killick.federated.inline_engine import InlineEngine
from killick.federated.local_client import Counts
from killick.federated.method import Method, State
from killick.federated.server_state import Record, ServerState, load_state
from killick.runtime.atomic_files import locked
from killick.runtime.progress import DisplayFactory, choose_display

_LOCK = ".running"
_SELECTION = 0x5E1EC7  # in the seed of who takes part


def federate(
    plan: FederationPlan, *, show: DisplayFactory | None = None, quiet: bool = False
) -> ServerState:
    """Run a federation in this process; one that was interrupted goes on.

    Returns:
        The generic model and what was measured in each round. The folder of the plan also has the
        clients' models, in `clients/`.
    """
    data = FederatedData(plan)
    return run_rounds(data, InlineEngine(data), choose_display(show, quiet))


def run_rounds(data: FederatedData, engine: Engine, show: DisplayFactory) -> ServerState:
    """All rounds that are left; the state is saved after each."""
    plan = data.plan
    plan.output.mkdir(parents=True, exist_ok=True)
    with locked(plan.output, _LOCK, wait=False):
        state = load_state(plan)
        try:
            described = engine.describe(fresh=state is None)
        except KillickError:
            if state is None:  # nothing has begun
                (plan.output / _LOCK).unlink()
            raise
        state = state or ServerState(data.first_weights)
        samples = {client: int(counts["samples"]) for client, counts in described.items()}
        rounds, done = plan.federation.rounds, len(state.records)
        with show("federation", rounds, done, "round") as bar:
            for number in range(done + 1, rounds + 1):
                record = _run_round(data, engine, state, number, samples)
                record = json.loads(json.dumps(record))  # as it is after a resume
                state.records.append(record)
                state.save(plan)
                bar.update(number, summarize_round(record))
                for fault in record["faults"]:
                    who = f"client {fault['client']}"
                    bar.message(f"round {number}: {who} left out: {fault['fault']}")
    return state


def _run_round(
    data: FederatedData, engine: Engine, state: ServerState, number: int, samples: Mapping[int, int]
) -> Record:
    federation = data.plan.federation
    method = federation.method_settings
    chosen = choose_clients(federation, data.plan.recipe.seed, number, list(samples))
    faults: list[dict[str, Any]] = []
    answers = engine.train(number, state.weights, chosen)
    uploads = _take(answers, faults)
    began = time.perf_counter()
    head = f"{head_of(data.template)}." if method.keep_head else ""
    state.weights = aggregate(method, state.weights, uploads, samples, faults, head)
    aggregation = time.perf_counter() - began
    personal = _take(engine.finish_personal(), faults)
    _check_some_are_left(number, chosen, faults)
    record: Record = {
        "round": number,
        "clients": chosen,
        "samples": samples,
        "seconds": {
            "generic": {c: each.counts["seconds"] for c, each in uploads.items()},
            "personal": {c: each["seconds"] for c, each in personal.items()},
            "aggregation": aggregation,
        },
        "bytes": sum(each.numel() * each.element_size() for each in state.weights.values()),
    }
    last = number == federation.rounds
    if last or number % federation.evaluate_every == 0:
        scores = engine.evaluate(number, state.weights, list(samples), last=last)
        record["personal"] = _take(scores, faults)
        _check_some_are_left(number, list(samples), faults)
        generic = data.score_generic(state.weights) if method.evaluates_generic else None
        record["generic"] = generic
    record["faults"] = faults
    return record


def _check_some_are_left(number: int, clients: list[int], faults: list[dict[str, Any]]) -> None:
    """Stop if all clients were left out: there would be nothing to go on with."""
    if clients and {fault["client"] for fault in faults} >= {*clients}:
        raise OutputError(
            f"no client is left in round {number}: client {faults[0]['client']}:"
            f" {faults[0]['fault']}. Mend that; the same command goes on from the round before."
        )


def choose_clients(federation: Federation, seed: int, number: int, clients: list[int]) -> list[int]:
    """Those that train in a round, in ascending order; they depend on the seed and the round."""
    count = round(federation.fraction * len(clients))
    generator = torch.Generator().manual_seed(key(seed, _SELECTION, number) % 2**63)
    order = torch.randperm(len(clients), generator=generator)[:count]
    return sorted(clients[place] for place in order.tolist())


def aggregate(
    method: Method,
    before: State,
    uploads: Mapping[int, Upload],
    samples: Mapping[int, int],
    faults: list[dict[str, Any]],
    head: str,
) -> State:
    """The next generic model from the good uploads; bad ones are noted, and left out.

    Names of weights of the last layer begin with `head`.
    """
    good: dict[int, State] = {}
    for client, upload in uploads.items():
        like = before
        if method.keep_head:
            like = {name: each for name, each in before.items() if not name.startswith(head)}
        fault = find_fault(upload.weights, like)
        if fault is None:
            good[client] = upload.weights
        else:
            faults.append({"client": client, "fault": f"uploaded {fault}"})
    return method.average(before, weighted_mean(good, samples)) if good else before


def _take(answers: Answers[T], faults: list[dict[str, Any]]) -> dict[int, T]:
    """The answers that came; faults are noted."""
    found: dict[int, T] = {}
    for client in sorted(answers):
        answer = answers[client]
        if isinstance(answer, Fault):
            faults.append({"client": client, "fault": answer.reason})
        else:
            found[client] = answer
    return found


def personal_accuracies(record: Record) -> dict[int, float]:
    """Accuracy of each client's model in a record; empty if it was not evaluated."""
    scores: dict[Any, Counts] = record.get("personal", {})
    return {int(client): each["correct"] / each["count"] for client, each in scores.items()}


def summarize_round(record: Record) -> str:
    """A round in a few words."""
    accuracies = personal_accuracies(record)
    if not accuracies:
        return f"{len(record['clients'])} clients"
    mean = sum(accuracies.values()) / len(accuracies)
    generic = "" if record["generic"] is None else f"generic {record['generic']:.1%}, "
    return f"{generic}personalized {mean:.1%}"
