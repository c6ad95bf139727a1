"""The attention heads of a run, as its rows have them."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from killick.metrics.attention_locality import LOCAL, HeadSummary, summarize_heads
from killick.results.run_folder import Run

SUITE = "attention"
SUMMARY = {  # columns of tables, by measure of a run
    "minimum": "minimum distance",
    "mean": "mean",
    "median": "median",
    "local": f"heads below {LOCAL:g}",
    "diagonal_mass": "diagonal mass of the 3 most local",
    "prefix_mass": "prefix mass",
    "reference_spread": "spread over references",
}
_MEASURES = ("distance", "entropy", "diagonal_mass", "prefix_mass")
_SPREAD = "distance_spread"


class HeadValues(NamedTuple):
    """What was measured of one head."""

    layer: int
    head: int
    distance: float
    entropy: float
    diagonal_mass: float
    prefix_mass: float
    spread: float | None  # of the distance, the standard deviation over references


@dataclass(frozen=True)
class RunHeads:
    """All heads of a run, and how they were measured."""

    heads: tuple[HeadValues, ...]
    about: dict[str, str]  # grid, windows, normalizer, prefix, count
    layers: dict[str, list[float]]  # values of each layer by metric: norms
    change: float | None  # of a head's distance by doubling the images

    @cached_property
    def early(self) -> tuple[HeadValues, ...]:
        """The heads of the first third of the layers."""
        count = 1 + max(head.layer for head in self.heads)
        return tuple(head for head in self.heads if 3 * head.layer < count)

    @cached_property
    def measures(self) -> dict[str, float]:
        """The summary, early heads, change and spread over references, by name."""
        spreads = [head.spread for head in self.heads if head.spread is not None]
        found = {
            **self.summary._asdict(),
            "early_distance": statistics.fmean(head.distance for head in self.early),
            "early_entropy": statistics.fmean(head.entropy for head in self.early),
            "change": self.change,
            "reference_spread": statistics.fmean(spreads) if spreads else None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def records(self) -> list[dict[str, Any]]:
        """The measures as records, each with how it was measured."""
        about = {**self.about, "layers": 1 + self.heads[-1].layer}
        return [
            {**about, "metric": f"{SUITE}_{name}", "value": value}
            for name, value in self.measures.items()
        ]

    @property
    def summary(self) -> HeadSummary:
        """Minimum, mean and median distance of all heads, and what they look at."""
        return summarize_heads(
            [head.distance for head in self.heads],
            [head.diagonal_mass for head in self.heads],
            [head.prefix_mass for head in self.heads],
        )


def summary_cells(values: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Cells by column of `SUMMARY`, from the measures of several runs: no minimum stands alone."""
    cells = {
        title: mean_text(values.get(name, ()), 1 if name == "local" else 3)
        for name, title in SUMMARY.items()
    }
    if values.get("heads"):
        cells[SUMMARY["local"]] += f" of {max(values['heads']):.0f}"
    return cells


def mean_text(values: Sequence[float], digits: int) -> str:
    """A mean over runs, with the standard deviation if there are several: "0.41 ± 0.02"."""
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def read_heads(run: Run) -> RunHeads | None:
    """The heads in the rows of a run; None if attention was not measured."""
    rows = [row for row in run.rows if row["suite"] == SUITE]
    found: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    layers: dict[str, list[float]] = defaultdict(list)
    change, about = None, dict[str, set[str]]()
    for row in rows:
        name, value = str(row["metric"]).removeprefix(f"{SUITE}_"), float(row["value"])
        for column in ("grid", "windows", "normalizer", "prefix", "count"):
            if row["layer"] != "":
                about.setdefault(column, set()).add(str(row[column]))
        if row["head"] != "":
            own = found[int(row["layer"]), int(row["head"])]
            own[name] = value
            if name == "distance" and row["std"] != "":
                own[_SPREAD] = float(row["std"])
        elif row["layer"] != "":
            layers[name].append(value)
        else:
            change = value
    heads = tuple(
        HeadValues(
            *place,
            values["distance"],
            values["entropy"],
            values["diagonal_mass"],
            values["prefix_mass"],
            values.get(_SPREAD),
        )
        for place, values in sorted(found.items())
        if all(name in values for name in _MEASURES)
    )
    if not heads:
        return None
    words = {name: ", ".join(sorted(values)) for name, values in about.items()}
    return RunHeads(heads, words, dict(layers), change)
