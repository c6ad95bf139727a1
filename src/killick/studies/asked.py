"""How the ways to ask a network compare: accuracy with its spreads, seconds, and controls."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from killick.report.formatting import capitalise, percent
from killick.report.intervals import t_interval
from killick.report.tables import TextTable
from killick.results.measurements import Record
from killick.studies.asking import (
    DISTANCE,
    MARGINAL,
    MEAN,
    SECONDS,
    SHARE,
    SINGLE,
    TOP1,
    TRANSDUCTIVE,
    WORST,
)
from killick.studies.drawing import NONE, mean_and_spread
from killick.studies.results import Results

INFERENCES = (SINGLE, MEAN, MARGINAL, TRANSDUCTIVE)
AllAsked = Mapping[tuple[str, str], "Asked"]  # by protocol and way


@dataclass(frozen=True)
class Asked:
    """An arm asked in one way.

    Attributes:
        protocol: How it was trained.
        inference: How it was asked.
        top1: By seed the accuracy of each draw, mean over the corrupted sets.
        seconds: By seed, for 1,000 pictures.
    """

    protocol: str
    inference: str
    top1: Mapping[int, Sequence[float]]
    seconds: Mapping[int, float]

    @property
    def by_seed(self) -> dict[int, float]:
        """The mean over draws of each seed."""
        return {seed: statistics.fmean(values) for seed, values in self.top1.items()}

    @property
    def mean(self) -> float:
        """Over draws and seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def over_draws(self) -> float | None:
        """The standard deviation over draws for one seed, mean over seeds; None with one draw."""
        spreads = [statistics.stdev(draws) for draws in self.top1.values() if len(draws) > 1]
        return statistics.fmean(spreads) if spreads else None

    @property
    def mean_seconds(self) -> float | None:
        """Over seeds."""
        return statistics.fmean(self.seconds.values()) if self.seconds else None

    def times(self, other: "Asked") -> float | None:
        """How many times as long it takes as another; None for itself, or if not timed."""
        if other is self or not self.mean_seconds or not other.mean_seconds:
            return None
        return self.mean_seconds / other.mean_seconds


def collect_asked(results: Results) -> dict[tuple[str, str], Asked]:
    """By protocol and way, in the order of the plan; ways that were not measured are absent."""
    found = {}
    for protocol in results.levels("protocol"):
        for inference in INFERENCES:
            known = {"protocol": protocol, "inference": inference}
            top1 = _by_seed_and_draw(results.records(metric=TOP1, **known))
            times = results.records(metric=SECONDS, **known)
            seconds = {int(record["seed"]): float(record["value"]) for record in times}
            if top1:
                found[protocol, inference] = Asked(protocol, inference, top1, seconds)
    return found


def _by_seed_and_draw(records: Iterable[Record]) -> dict[int, list[float]]:
    sets: dict[int, dict[int, list[float]]] = {}
    for record in records:
        draws = sets.setdefault(int(record["seed"]), {})
        draws.setdefault(int(record["draw"]), []).append(float(record["value"]))
    return {
        seed: [statistics.fmean(draws[draw]) for draw in sorted(draws)]
        for seed, draws in sorted(sets.items())
    }


def judge_way(way: Asked, single: Asked) -> str:
    """Whether a way differs from one random reference by more than chance.

    The difference has to be larger than the spread over draws of either way. With several seeds its
    95 % interval over them must be without 0; with one it must be twice that spread.
    """
    if single.over_draws is None:
        return "one draw, nothing to tell"
    gaps = [value - single.by_seed[seed] for seed, value in way.by_seed.items()]
    gap, spread = statistics.fmean(gaps), max(single.over_draws, way.over_draws or 0)
    if len(gaps) > 1 and statistics.stdev(gaps) > 1e-9:
        certain = abs(gap) > spread and t_interval(gaps).significant
    else:
        certain = abs(gap) > 2 * spread
    if not certain:
        return "no clear difference"
    return "better" if gap > 0 else "worse"


def tell_ways(asked: AllAsked, spelled: Mapping[str, str]) -> str:
    """A sentence for each protocol: what each way gives, whether it differs, and its cost."""
    sentences = []
    for protocol in dict.fromkeys(protocol for protocol, _ in asked):
        single = asked.get((protocol, SINGLE))
        if single is None:
            continue
        told = [
            f"{spelled[way.inference]} {percent(way.mean)} ({judge_way(way, single)}"
            + (f", {way.times(single):.2g} × the time)" if way.times(single) else ")")
            for way in asked.values()
            if way.protocol == protocol and way is not single
        ]
        sentences.append(
            f"{capitalise(protocol)}: {spelled[SINGLE]} {percent(single.mean)}; {', '.join(told)}."
        )
    return " ".join(sentences)


def tabulate_ways(
    asked: AllAsked,
    spelled: Mapping[str, str],
    published: Mapping[tuple[str, str], tuple[float, float, float]],
    says: str,
) -> TextTable:
    """A line for each protocol and way.

    Args:
        asked: All of them.
        spelled: The ways for people.
        published: The paper's accuracy, its spread, and seconds, by protocol and way.
        says: What to know when reading it.
    """
    rows = []
    for place, way in asked.items():
        single = asked.get((way.protocol, SINGLE), way)
        times, theirs = way.times(single), published.get(place)
        base = published.get((way.protocol, SINGLE))
        row = [
            f"{way.protocol}, {spelled[way.inference]}",
            mean_and_spread(way.by_seed.values(), digits=2),
            NONE if way.over_draws is None else f"{100 * way.over_draws:.2f}",
            NONE if way is single else judge_way(way, single),
            NONE if way.mean_seconds is None else f"{way.mean_seconds:.3g}",
            NONE if times is None else f"{times:.2g}",
        ]
        if theirs is None or base is None:
            row += [NONE, NONE, NONE]
        else:
            row += [f"{theirs[0]:.2f} ± {theirs[1]:.2f}", f"{theirs[2]:.2f}"]
            row += [f"{theirs[2] / base[2]:.2g}"]
        rows.append(tuple(row))
    columns = (
        "asked",
        "corrupted accuracy, %",
        "± over draws",
        "against 1 random reference",
        "s for 1,000",
        "times 1 reference",
        "paper: accuracy, %",
        "paper: s for 1,000",
        "paper: times 1 reference",
    )
    title = "Four ways to ask the same networks about the same pictures"
    return TextTable("study-inference-table", title, columns, tuple(rows), says)


def tell_controls(results: Results) -> tuple[str, ...]:
    """How bad a reference can be, whether transduction always takes the same, and the machine."""
    options, notes = results.plan.options, []
    for protocol in results.levels("protocol"):
        worst, share, distance = (
            _mean(results.records(metric=metric, protocol=protocol))
            for metric in (WORST, SHARE, DISTANCE)
        )
        if worst is not None and share is not None and distance is not None:
            notes.append(
                f"{capitalise(protocol)}: the worst of {options.k} references, on each set anew,"
                f" gives {percent(worst)}; transduction takes its most frequent candidate of"
                f" {options.candidates} for {percent(share)} of a set's pictures, and what it takes"
                f" is {distance:.1f} away from the nearest residual of training, in the mean."
            )
    where = sorted({str(record["on"]) for record in results.records(metric=SECONDS)})
    if where:
        notes.append(f"Timed on {'; '.join(where)}, {options.at_once} pictures at a time.")
    return tuple(notes)


def _mean(records: Iterable[Record]) -> float | None:
    values = [float(record["value"]) for record in records]
    return statistics.fmean(values) if values else None
