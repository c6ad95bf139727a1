"""The federations of a job: all methods on its data, network, protocol and seed."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from killick import metrics
from killick.core.anchored import Anchored
from killick.core.references import ReferencePool
from killick.federated.client_tasks import ClientTasks
from killick.federated.federated_data import FederatedData
from killick.federated.federation_report import clock_times
from killick.federated.federation_settings import Federation, FederationPlan
from killick.federated.method import State
from killick.federated.server_rounds import federate, personal_accuracies
from killick.results.measurements import Measured, Record
from killick.runtime.progress import DisplayFactory
from killick.studies import federated as names
from killick.studies.trained_job import corrupt_images
from killick.training.recipe_files import load_recipe


def measure(
    folder: Path,
    options: Mapping[str, Any],
    kept: Measured,
    *,
    device: torch.device,
    show: DisplayFactory,
) -> None:
    """Run the federations that are not measured yet, and measure their models."""
    for partition in options["partitions"]:
        for method in options["methods"]:
            known = {"partition": partition, "method": method}
            if kept.find(metric=names.SAVING, **known) is not None:  # it is written last
                continue
            place = folder / "federated" / f"{partition}-{method}".replace(":", "-")
            plan = FederationPlan(
                load_recipe(folder / "recipe.yaml"),
                Federation(
                    method=method,
                    partition=partition,
                    evaluate_every=max(2, options["rounds"] // 10),
                    **{name: options[name] for name in ("clients", "rounds", "local_epochs")},
                ),
                place,
                str(device),
            )
            found = _measure_federation(plan, options, show)
            kept.add(*({**known, **record} for record in found))


def _measure_federation(
    plan: FederationPlan, options: Mapping[str, Any], show: DisplayFactory
) -> list[Record]:
    state = federate(plan, show=show)
    data = FederatedData(plan)
    rounds = [record for record in state.records if "personal" in record]
    found: list[Record] = [
        {"metric": names.CURVE, "round": each["round"], "value": _mean(personal_accuracies(each))}
        for each in rounds
    ]
    last = personal_accuracies(rounds[-1])
    values = {names.PERSONAL: _mean(last), names.WORST: min(last.values())}
    if rounds[-1]["generic"] is not None:
        values[names.GENERIC] = rounds[-1]["generic"]
        values |= compare_references(data, state.weights)
    conditions = [(name, options["severity"]) for name in options["federated_corruptions"]]
    values |= measure_personalized(data, state.weights, conditions)
    times = clock_times(plan, state.records)
    values[names.SAVING] = 1 - times["wait-free"][-1] / times["sequential"][-1]
    found += [{"metric": name, "value": value} for name, value in values.items()]
    return found


def measure_personalized(
    data: FederatedData, generic: State, conditions: Sequence[tuple[str, int]]
) -> dict[str, float]:
    """Robustness and calibration of personalized models, pooled over the clients' test images."""
    rounds = data.plan.federation.rounds
    clean, corrupted, labels = [], [], []
    for number in range(data.plan.federation.clients):
        client = data.client(number, rounds)
        model = client.ready(ClientTasks(data, number).personalized(rounds, generic))
        images = client.test_images
        clean.append(client.predict(model, images))
        corrupted.append(
            torch.stack([client.predict(model, corrupt_images(images, *c)) for c in conditions])
        )
        labels.append(client.test.labels)
    truth, logits = torch.cat(labels), torch.cat(clean)
    under = list(torch.cat(corrupted, 1))
    return {
        names.ECE: metrics.smooth_ece(logits.softmax(1), truth),
        names.CORRUPTED: statistics.fmean(metrics.top_k(each, truth) for each in under),
        names.CORRUPTED_ECE: statistics.fmean(
            metrics.smooth_ece(each.softmax(1), truth) for each in under
        ),
    }


def compare_references(data: FederatedData, generic: State) -> dict[str, float]:
    """Accuracy of an anchored generic model on clients' test images, by whose references it uses.

    This is done offline, where all clients are in one process: no reference is ever sent.
    """
    if not isinstance(data.template, Anchored):
        return {}
    clients = data.plan.federation.clients
    stored: dict[int, torch.Tensor] = {}
    for number in range(clients):
        model = data.client(number, 1).ready(generic)
        assert isinstance(model, Anchored)
        stored[number] = model.references[:1]
    found: dict[str, list[float]] = {kind: [] for kind in names.REFERENCES}
    for number in range(clients):
        client = data.client(number, 1)
        model = client.ready(generic)
        assert isinstance(model, Anchored)
        mean = ReferencePool(client.train_images).mean()
        used = {"own": [stored[number]], "mean": [mean]}
        used["others"] = [each for other, each in stored.items() if other != number]
        for kind, choices in used.items():
            right = []
            for references in choices:
                model.set_references(references)
                logits = client.predict(model, client.test_images)
                right.append(metrics.top_k(logits, client.test.labels))
            found[kind].append(statistics.fmean(right))
    return {f"generic_{kind}_reference": statistics.fmean(v) for kind, v in found.items()}


def _mean(values: Mapping[int, float]) -> float:
    return statistics.fmean(values.values())
