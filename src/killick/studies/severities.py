"""Accuracy by network, protocol and severity, as the paper's tables of generalization have it."""

import csv
from importlib import resources
from typing import Any

from killick.report.figures import Figure
from killick.report.statistics import Estimate, by_severity, mean_title
from killick.report.tables import TextTable
from killick.studies.drawing import NONE, draw_lines, mean_and_spread
from killick.studies.results import Results

COLUMNS = ("clean", *(f"c{s}" for s in range(1, 6)), *(f"cbar{s}" for s in range(1, 6)))
Columns = dict[str, dict[str, Estimate]]  # arm, column


def collect(results: Results) -> Columns:
    """The accuracies of each arm by column."""
    found: Columns = {arm: {} for arm in results.factors}
    for suite, letter in (("corruptions", "c"), ("cbar", "cbar")):
        for arm, numbers in by_severity(results.scene.comparison, suite).items():
            found[arm] |= {f"{letter}{s}" if s else "clean": n for s, n in numbers.items()}
    return found


def tabulate(results: Results, found: Columns) -> TextTable:
    """A line for each network and protocol."""
    rows = []
    for name, own in results.factors.items():
        numbers = found[name]
        cells = [
            mean_and_spread(numbers[column].values.values()) if column in numbers else NONE
            for column in COLUMNS
        ]
        rows.append((f"{own['network']}, {own['protocol']}", *cells))
    common, other = (mean_title(results.scene.comparison, s) for s in ("corruptions", "cbar"))
    says = (
        "Accuracy in %, mean ± standard deviation over seeds: clean, under common corruptions (c,"
    )
    says += f" {common or 'none'}) and those of C-bar (cbar, {other or 'none'}), by severity."
    title = "Accuracy by network, protocol and severity"
    return TextTable("study-networks", title, ("network, protocol", *COLUMNS), tuple(rows), says)


def tabulate_paper() -> TextTable:
    """The paper's lines."""
    columns = (*COLUMNS, "r", "sketch")
    rows = [
        (f"{line['data']}, {line['network']}, {line['protocol']}", *(line[c] for c in columns))
        for line in read_published()
    ]
    says = "ImageNet's standard networks are torchvision's released ones, which the authors did not"
    says += " train; r and sketch are ImageNet-R and -Sketch (here: --suite shift --shift)."
    title = "The same in the paper (Tables 1, 2 and 6)"
    return TextTable("study-networks-paper", title, ("in the paper", *columns), tuple(rows), says)


def read_published() -> list[dict[str, str]]:
    """The lines of the paper's tables."""
    file = resources.files("killick.studies") / "published" / "generalization.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def draw_network(results: Results, found: Columns, network: str) -> Figure:
    """Accuracy over severity, a panel for each kind of corruption."""
    protocols = results.levels("protocol")
    panels, records = [], []
    for letter, title in (("c", "common corruptions"), ("cbar", "C-bar")):
        columns = ["clean", *(f"{letter}{severity}" for severity in range(1, 6))]
        lines: dict[str, dict[Any, list[float]]] = {}
        for protocol in protocols:
            arm = results.arm(protocol=protocol, network=network)
            numbers = {} if arm is None else found[arm]
            lines[protocol] = {
                place: [100 * value for value in numbers[column].values.values()]
                for place, column in enumerate(columns)
                if column in numbers
            }
            records += [
                (network, protocol, title, place, number, value)
                for place, values in lines[protocol].items()
                for number, value in enumerate(values)
            ]
        levels = sorted({level for line in lines.values() for level in line})
        name = f"study-{''.join(c if c.isalnum() else '-' for c in network.lower())}-{letter}"
        heading = f"{network}: {title}"
        panels.append(draw_lines(results, lines, levels, name, heading, "accuracy, %", "severity"))
    columns_of = ("network", "protocol", "corruptions", "severity", "number of the seed", "top1")
    says = f"{network}: accuracy over severity; 0 is clean."
    return Figure(
        panels[0].name.removesuffix("-c"), says, tuple(panels), columns_of, tuple(records)
    )
