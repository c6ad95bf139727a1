"""The report of a federation: accuracy over rounds, by client, and the clock."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from killick.federated.event_clock import ClientTimes, simulate
from killick.federated.federation_settings import FederationPlan
from killick.federated.partitions import ClassCounts
from killick.federated.server_rounds import personal_accuracies
from killick.federated.server_state import Record
from killick.report.figures import Figure, Panel, Style, drawing, finish, new_chart, put_line
from killick.report.sections import Content, Section
from killick.report.tables import TextTable
from killick.report.writer import write_report
from killick.results.csv_text import to_csv
from killick.results.run_folder import Run
from killick.runtime.atomic_files import write_atomic

ROUNDS = "rounds.csv"
_STYLES = {"generic": Style("arm-0", "-", "o"), "personalized": Style("arm-2", "-", "^")}
_CLOCK_STYLES = {"sequential": Style("arm-0", "-", "o"), "wait-free": Style("arm-1", "-", "s")}


def clock_times(plan: FederationPlan, records: Sequence[Record]) -> dict[str, list[float]]:
    """When each round ends with the measured compute times and the plan's links, by protocol."""
    rounds = []
    for record in records:
        seconds, link = record["seconds"], record["bytes"] / (1e6 * plan.federation.bandwidth)
        link = link if seconds["generic"] else 0.0  # nothing is sent
        rounds.append(
            {
                client: ClientTimes(
                    seconds["generic"].get(str(client), 0.0),
                    seconds["personal"].get(str(client), 0.0),
                    link,
                    link,
                )
                for client in record["clients"]
            }
        )
    aggregation = statistics.fmean(record["seconds"]["aggregation"] for record in records)
    alone = not any(record["seconds"]["generic"] for record in records)  # nobody waits for others
    return {
        name: simulate(rounds, wait_free=alone or name == "wait-free", aggregation=aggregation)
        for name in _CLOCK_STYLES
    }


def describe_outcome(plan: FederationPlan, records: Sequence[Record]) -> str:
    """The result of a federation, in one sentence or two."""
    last = personal_accuracies(records[-1])
    generic = records[-1]["generic"]
    shared = "" if generic is None else f", generic accuracy {generic:.1%} on all test images"
    result = (
        f"{plan.federation.method}: personalized accuracy {statistics.fmean(last.values()):.1%}"
        f" (worst client {min(last.values()):.1%}){shared}."
    )
    method = plan.federation.method_settings
    if not (method.uploads and method.trains_personal):  # nothing overlaps
        return result
    times = clock_times(plan, records)
    saved = 1 - times["wait-free"][-1] / times["sequential"][-1]
    return (
        f"{result} By the clock, wait-free training takes {saved:.0%} less time than sequential"
        f" ({times['wait-free'][-1]:.0f} s for {len(records)} rounds, links of"
        f" {plan.federation.bandwidth:g} MB/s)."
    )


def write_rounds(plan: FederationPlan, records: Sequence[Record]) -> Path:
    """A CSV file with every accuracy: of the generic model and of each client, by round."""
    lines: list[tuple[Any, ...]] = []
    for record in records:
        if record.get("generic") is not None:
            lines.append((record["round"], "generic", "", record["generic"], ""))
        for client, counts in record.get("personal", {}).items():
            value = counts["correct"] / counts["count"]
            lines.append((record["round"], "personalized", client, value, counts["count"]))
    columns = ("round", "model", "client", "accuracy", "count")
    write_atomic(plan.output / ROUNDS, to_csv(columns, lines))
    return plan.output / ROUNDS


def write_federation_report(
    plan: FederationPlan,
    records: Sequence[Record],
    run: Run,
    clients: ClassCounts | None,
    command: str | None,
) -> Path:
    """`report.html` of a finished federation, with the evaluation of one model.

    `clients` are the classes of each client, if these are known here.
    """
    write_rounds(plan, records)
    whose = "the server" if plan.federation.method_settings.evaluates_generic else "client 0"
    section = Section(
        "federation", "Rounds, clients and clock", 0, lambda _: _content(plan, records, clients)
    )
    return write_report(
        [run],
        plan.output,
        title=f"Federated training of {plan.federation.clients} clients: {plan.federation.method}",
        command=command,
        before=[section],
        lead=f"{describe_outcome(plan, records)} The results below are of the model of {whose} on"
        " all test images.",
    )


def _content(
    plan: FederationPlan, records: Sequence[Record], clients: ClassCounts | None
) -> Content:
    evaluated = [record for record in records if "personal" in record]
    rounds = [record["round"] for record in evaluated]
    curves = {
        "personalized": [[*personal_accuracies(each).values()] for each in evaluated],
        "generic": [[each["generic"]] for each in evaluated if each["generic"] is not None],
    }
    times = clock_times(plan, records)
    panels = (
        _draw_lines("accuracy", "Accuracy", "%; band: all clients", rounds, curves, _STYLES, 100),
        _draw_lines(
            "clock",
            "Time by the clock",
            "seconds",
            [record["round"] for record in records],
            {name: [[end] for end in ends] for name, ends in times.items()},
            _CLOCK_STYLES,
            1,
        ),
    )
    accuracy = [
        (name, number, float(np.mean(values)), float(min(values)), float(max(values)))
        for name, line in curves.items()
        for number, values in zip(rounds, line, strict=False)
    ]
    columns = ("model", "round", "mean", "least", "most")
    figure = Figure("federation", "", panels, columns, tuple(accuracy))
    images = records[-1]["samples"]
    heads, note = ["client", "training images", "personalized accuracy, %"], ""
    blocks: list[str] = []
    if clients is not None:
        heads.append("classes")
        note = f"Classes, darker is more: {', '.join(clients.class_names)}."
        blocks = clients.blocks()
    rows = tuple(
        (str(client), str(images[str(client)]), f"{100 * accuracy:.1f}", *blocks[client:][:1])
        for client, accuracy in personal_accuracies(evaluated[-1]).items()
    )
    title = "Clients after the last round"
    table = TextTable("federation-clients", title, tuple(heads), rows, note)
    faults = tuple(
        f"Round {record['round']}, client {fault['client']} left out: {fault['fault']}."
        for record in records
        for fault in record["faults"]
    )
    return Content((figure,), (table,), faults)


def _draw_lines(
    name: str,
    title: str,
    below: str,
    x: Sequence[int],
    curves: Mapping[str, Sequence[Sequence[float]]],
    styles: Mapping[str, Style],
    factor: float,
) -> Panel:
    """A line for each curve, with a band over its values."""
    with drawing():
        canvas, axes = new_chart(title, below)
        for label, values in curves.items():
            if values:
                put_line(axes, x, factor * np.array(values).T, styles[label], label)
        axes.set_xlabel("round")
        axes.set_ylim(bottom=0)
        return finish(canvas, f"federation-{name}", title, below)
