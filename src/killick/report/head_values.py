"""The attention heads of a run, as its rows have them."""

import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from killick.metrics.attention_locality import HeadSummary, summarize_heads
from killick.results.run_folder import Run

SUITE = "attention"
_MEASURES = ("distance", "entropy", "diagonal_mass")


class HeadValues(NamedTuple):
    """What was measured of one head."""

    layer: int
    head: int
    distance: float
    entropy: float
    diagonal_mass: float


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

    def records(self) -> list[dict[str, Any]]:
        """The summary as records of numbers, each with how it was measured."""
        values = self.summary._asdict()
        values |= {
            "early_distance": statistics.fmean(head.distance for head in self.early),
            "early_entropy": statistics.fmean(head.entropy for head in self.early),
            "change": self.change,
        }
        about = {**self.about, "layers": 1 + self.heads[-1].layer}
        return [
            {**about, "metric": f"{SUITE}_{name}", "value": value}
            for name, value in values.items()
            if value is not None
        ]

    @property
    def summary(self) -> HeadSummary:
        """Minimum, mean and median distance of all heads, and what the most local look at."""
        own = [head.diagonal_mass for head in self.heads]
        return summarize_heads([head.distance for head in self.heads], own)


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
            found[int(row["layer"]), int(row["head"])][name] = value
        elif row["layer"] != "":
            layers[name].append(value)
        else:
            change = value
    heads = tuple(
        HeadValues(*place, *(values[name] for name in _MEASURES))
        for place, values in sorted(found.items())
        if all(name in values for name in _MEASURES)
    )
    if not heads:
        return None
    words = {name: ", ".join(sorted(values)) for name, values in about.items()}
    return RunHeads(heads, words, dict(layers), change)
