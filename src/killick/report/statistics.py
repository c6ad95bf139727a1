"""From rows and answers to the numbers of a report: means, spreads, differences with intervals.

All values are as rows have them, shares from 0 to 1; `Measure` says how people read them.
"""

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from killick.corruptions.suites import PUBLISHED, SEVERITIES, list_corruptions
from killick.report.comparison import Comparison, RunKey
from killick.report.intervals import ENOUGH_SEEDS as ENOUGH_SEEDS
from killick.report.intervals import Interval as Interval
from killick.report.intervals import bootstrap_interval, mean_of, no_interval, t_interval
from killick.report.run_groups import Arm
from killick.report.table_cells import MARGINAL, OOD, SINGLE, TEMPERED, Cell
from killick.runtime.atomic_files import write_atomic


@dataclass(frozen=True)
class Measure:
    """A column of the table.

    Attributes:
        key: Its name in the table.
        title: For people.
        unit: After the number.
        factor: What the value is multiplied by to be in that unit.
        digits: After the point.
        higher_is_better: Which way is good.
        meaning: What it tells, in a sentence.
        suite: On which pictures it was taken.
        metric: As cells call it.
        severity: The only one that counts; 0 for all.
        inference: "single", from the first reference, or "marginal", the mean over all.
    """

    key: str
    title: str
    unit: str
    factor: float
    digits: int
    higher_is_better: bool
    meaning: str
    suite: str = "clean"
    metric: str = "top1"
    severity: int = 0
    inference: str = SINGLE


@dataclass(frozen=True)
class Number:
    """A measure of an arm.

    Attributes:
        values: By seed.
        mean: Over seeds.
        spread: Sample standard deviation over seeds; None with one.
        difference: To the baseline, over the seeds that both have; None for the baseline itself.
    """

    values: dict[int, float]
    mean: float
    spread: float | None
    difference: Interval | None


Table = dict[str, dict[str, Number]]  # arm, measure; one that cannot be had is absent

_ACCURACY = ("%", 100.0, 1, True)
_CALIBRATION = ("", 1.0, 3, False)
_LIKELIHOOD = ("nats", 1.0, 3, False)
_TEMPERED_ERROR, _SCALED = "smooth_ece_temperature", ", with a temperature"
_FITTED = "fitted on pictures that are neither trained nor tested on"
_SINGLE = (
    Measure(
        *("clean_top1", "clean accuracy", *_ACCURACY),
        "How often the model is right on the test pictures as they are.",
    ),
    Measure(
        *("corrupted_top1", "corrupted accuracy", *_ACCURACY),
        "How often it is right on corrupted pictures, mean over corruptions and severities.",
        suite="corruptions",
    ),
    Measure(
        *("severity5_top1", "accuracy at severity 5", *_ACCURACY),
        "How often it is right at the strongest corruption.",
        suite="corruptions",
        severity=5,
    ),
    Measure(
        *("cbar_top1", "C-bar accuracy", *_ACCURACY),
        "How often it is right under corruptions of another kind than the common ones.",
        suite="cbar",
    ),
    Measure(
        *("clean_smooth_ece", "clean calibration error", *_CALIBRATION),
        "How far confidence is from accuracy on the test pictures (smooth ECE).",
        metric="smooth_ece",
    ),
    Measure(
        *("corrupted_smooth_ece", "corrupted calibration error", *_CALIBRATION),
        "How far confidence is from accuracy on corrupted pictures (smooth ECE of each set, mean).",
        suite="corruptions",
        metric="smooth_ece",
    ),
    Measure(
        *(f"clean_{_TEMPERED_ERROR}", f"clean calibration error{_SCALED}", *_CALIBRATION),
        f"The same of logits divided by one number, {_FITTED}.",
        metric=f"smooth_ece{TEMPERED}",
    ),
    Measure(
        *(f"corrupted_{_TEMPERED_ERROR}", f"corrupted calibration error{_SCALED}", *_CALIBRATION),
        f"The same of logits divided by one number, {_FITTED}: what a simpler cure leaves.",
        suite="corruptions",
        metric=f"smooth_ece{TEMPERED}",
    ),
    Measure(
        *("clean_nll", "clean surprise", *_LIKELIHOOD),
        "The negative logarithm of the probability given to the true class, mean.",
        metric="nll",
    ),
    Measure(
        *("corrupted_nll", "corrupted surprise", *_LIKELIHOOD),
        "The same on corrupted pictures, mean over corruptions and severities.",
        suite="corruptions",
        metric="nll",
    ),
    Measure(
        *("corrupted_nll_temperature", f"corrupted surprise{_SCALED}", *_LIKELIHOOD),
        f"The same of logits divided by one number, {_FITTED}.",
        suite="corruptions",
        metric=f"nll{TEMPERED}",
    ),
    Measure(
        *("ood_auroc", "OOD detection, AUROC", *_ACCURACY),
        "How often a foreign picture has a higher energy than a test picture; 50 % is chance."
        " Mean over the foreign sets.",
        suite=OOD,
        metric="auroc",
    ),
    Measure(
        *("ood_fpr", "OOD accepted at 95 % TPR", "%", 100.0, 1, False),
        "The share of foreign pictures that pass where 95 % of the test pictures do. Mean over the"
        " foreign sets.",
        suite=OOD,
        metric="fpr_at_95_tpr_in",
    ),
)
MEASURES: tuple[Measure, ...] = (
    *_SINGLE,
    *(
        replace(
            measure,
            key=f"{measure.key}_marginal",
            title=f"{measure.title}, mean over references",
            meaning=f"{measure.meaning} From the mean over all references, not the first alone.",
            inference=MARGINAL,
        )
        for measure in _SINGLE
    ),
)


def measures_of(comparison: Comparison) -> tuple[Measure, ...]:
    """The measures that some arm has, titled by which mean over corruptions they are."""
    found = []
    for measure in MEASURES:
        if not _cells_of(comparison, measure):
            continue
        title = measure.title
        if measure.suite in ("corruptions", "cbar"):
            title += f", {mean_title(comparison, measure.suite)}"
        found.append(replace(measure, title=title))
    return tuple(found)


def mean_title(comparison: Comparison, suite: str = "corruptions") -> str:
    """Which mean over corruptions is taken: "mean of 19", "mean of 3 chosen at severity 5", ...

    Empty if nothing was corrupted.
    """
    title, _, severities = _corrupted(comparison, suite)
    if not title or severities == list(SEVERITIES):
        return title
    words = "severity" if len(severities) == 1 else "severities"
    return f"{title} at {words} {', '.join(map(str, severities))}"


def summarise(comparison: Comparison) -> Table:
    """The measures of all arms, with their differences to the baseline."""
    table: Table = {arm.name: {} for arm in comparison.arms}
    for measure in MEASURES:
        cells = _cells_of(comparison, measure)
        for arm in comparison.arms if cells else ():
            number = _number(comparison, arm, cells)
            if number is not None:
                table[arm.name][measure.key] = number
    return table


def by_severity(
    comparison: Comparison, suite: str = "corruptions", metric: str = "top1"
) -> dict[str, dict[int, Number]]:
    """The accuracy of each arm at each severity, mean over corruptions; 0 is clean.

    Args:
        comparison: The arms.
        suite: "corruptions" or "cbar".
        metric: Another one, as rows call it.
    """
    _, names, severities = _corrupted(comparison, suite)
    cells = {0: _common(comparison, "clean", metric, SINGLE)}
    for severity in severities:
        cells[severity] = [Cell(SINGLE, metric, suite, "", name, severity) for name in names]
    return {
        arm.name: {
            severity: number
            for severity, chosen in cells.items()
            if (number := _number(comparison, arm, chosen)) is not None
        }
        for arm in comparison.arms
    }


def by_corruption(comparison: Comparison) -> dict[str, dict[str, Number]]:
    """The accuracy of each arm under each corruption, mean over severities.

    The common corruptions come first, those of C-bar after them.
    """
    found: dict[str, dict[str, Number]] = {}
    for suite in ("corruptions", "cbar"):
        cells = _common(comparison, suite, "top1", SINGLE)
        for name in PUBLISHED:
            chosen = [cell for cell in cells if cell.corruption == name]
            if chosen:
                found[name] = _by_arm(comparison, chosen)
    return found


def between(comparison: Comparison, name: str, base: str, key: str) -> Interval | None:
    """The difference of a measure between two arms; None where it cannot be had.

    Args:
        comparison: With both arms.
        name: Of the arm.
        base: Of the one that it is compared with.
        key: Of the measure.
    """
    arms = {arm.name: arm for arm in comparison.arms}
    measure = next(measure for measure in MEASURES if measure.key == key)
    cells = _cells_of(comparison, measure)
    if name not in arms or base not in arms or not cells:
        return None
    found = _difference(comparison, arms[name], cells, arms[base])
    if found is None:
        return None
    ours, theirs = (_values(comparison, arms[each], cells) for each in (name, base))
    return replace(found, by_seed=tuple(ours[s] - theirs[s] for s in ours if s in theirs))


def ood_by_set(comparison: Comparison) -> dict[str, dict[str, Number]]:
    """How well the energy of each arm's models tells each foreign set: AUROC."""
    cells = _common(comparison, OOD, "auroc", SINGLE)
    return {cell.set: _by_arm(comparison, [cell]) for cell in cells}


def write_summary(comparison: Comparison, table: Table, path: Path) -> None:
    """`summary.csv`: a line for each arm and measure."""
    seeds = sorted({seed for arm in comparison.arms for seed in arm.seeds})
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    columns = ("mean", "spread", "difference", "low", "high", "how")
    writer.writerow(["arm", "measure", *(f"seed {seed}" for seed in seeds), *columns])
    for arm, numbers in table.items():
        for key, number in numbers.items():
            values = [number.values.get(seed) for seed in seeds]
            gap = number.difference
            interval = (gap.value, gap.low, gap.high, gap.how) if gap else (None,) * 4
            writer.writerow([arm, key, *values, number.mean, number.spread, *interval])
    write_atomic(path, text.getvalue())


def _by_arm(comparison: Comparison, cells: Sequence[Cell]) -> dict[str, Number]:
    return {
        arm.name: number
        for arm in comparison.arms
        if (number := _number(comparison, arm, cells)) is not None
    }


def _cells_of(comparison: Comparison, measure: Measure) -> list[Cell]:
    """The numbers that a measure is the mean of."""
    found = _common(comparison, measure.suite, measure.metric, measure.inference)
    if measure.suite not in ("corruptions", "cbar"):
        return found
    _, names, severities = _corrupted(comparison, measure.suite)
    wanted = [s for s in severities if measure.severity in (0, s)]
    cells = [
        Cell(measure.inference, measure.metric, measure.suite, "", name, severity)
        for name in names
        for severity in wanted
    ]
    return cells if set(cells) <= set(found) else []


def _common(comparison: Comparison, suite: str, metric: str, inference: str) -> list[Cell]:
    """The cells of a kind that all runs have, of those runs that have any.

    Means over several references count only where every model with references has them. A model
    without is asked in one way alone, so that its numbers stand for both.
    """
    shared: list[Cell] | None = None
    with_references = False
    for run in comparison.runs:
        values = comparison.values[run]
        asked = _inference_for(comparison, run, inference)
        cells = [
            cell._replace(inference=inference)
            for cell in values
            if (cell.suite, cell.metric, cell.inference) == (suite, metric, asked)
        ]
        with_references |= comparison.has_references(run)
        if not cells and not any((c.suite, c.metric) == (suite, metric) for c in values):
            continue  # of such pictures it was shown none
        shared = cells if shared is None else [cell for cell in shared if cell in set(cells)]
    if inference == MARGINAL and not with_references:
        return []
    return shared or []


def _inference_for(comparison: Comparison, run: RunKey, inference: str) -> str:
    return inference if comparison.has_references(run) else SINGLE


def _corrupted(comparison: Comparison, suite: str) -> tuple[str, list[str], list[int]]:
    """Which mean over corruptions all runs allow: its title, the corruptions, the severities."""
    cells = _common(comparison, suite, "top1", SINGLE)
    severities = sorted({cell.severity for cell in cells})
    there = {(cell.corruption, cell.severity) for cell in cells}
    names = (
        [name for name in PUBLISHED if all((name, s) in there for s in severities)] if cells else []
    )
    for wanted in _known_lists(suite):
        if set(wanted) <= set(names):
            return f"mean of {len(wanted)}", list(wanted), severities
    title = names[0] if len(names) == 1 else f"mean of {len(names)} chosen"
    return (title if names else ""), names, severities


def _known_lists(suite: str) -> list[tuple[str, ...]]:
    if suite == "cbar":
        return [list_corruptions("cbar", table) for table in ("cifar", "imagenet")]
    return [list_corruptions(kind, "cifar") for kind in ("c", "c15")]


def _number(comparison: Comparison, arm: Arm, cells: Sequence[Cell]) -> Number | None:
    values = _values(comparison, arm, cells)
    if not values:
        return None
    found = list(values.values())
    spread = statistics.stdev(found) if len(found) > 1 else None
    difference = _difference(comparison, arm, cells, comparison.baseline)
    return Number(values, statistics.fmean(found), spread, difference)


def _values(comparison: Comparison, arm: Arm, cells: Sequence[Cell]) -> dict[int, float]:
    """The mean over cells for each seed that has all of them."""
    found = {}
    for seed in arm.seeds:
        run = (arm.name, seed)
        numbers = [comparison.values[run].get(cell) for cell in _asked(comparison, run, cells)]
        known = [number for number in numbers if number is not None]
        if known and len(known) == len(numbers):
            found[seed] = statistics.fmean(known)
    return found


def _asked(comparison: Comparison, run: RunKey, cells: Iterable[Cell]) -> list[Cell]:
    return [
        cell._replace(inference=_inference_for(comparison, run, cell.inference)) for cell in cells
    ]


def _difference(
    comparison: Comparison, arm: Arm, cells: Sequence[Cell], base: Arm | None
) -> Interval | None:
    """To `base`: over seeds if there are enough, else over images, else as well as can be."""
    if base is None or arm is base:
        return None
    ours, theirs = _values(comparison, arm, cells), _values(comparison, base, cells)
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return None
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    if len(seeds) >= ENOUGH_SEEDS:
        return t_interval(differences)
    found = _by_images(comparison, arm, base, cells, seeds, statistics.fmean(differences))
    if found is not None:
        return found
    if len(seeds) > 1 and statistics.stdev(differences) > 1e-12:
        # Answers to each image are kept as the network gives them.
        tempered = any(cell.metric.endswith(TEMPERED) for cell in cells)
        few = ", few as they are: no answers by image to compare"
        return t_interval(differences, " where logits have a temperature" if tempered else few)
    # Few seeds may agree by chance, as accuracies have steps: that is not certainty.
    why = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds that agree to the digit"
    return no_interval(statistics.fmean(differences), f"{why}, no interval")


def _by_images(
    comparison: Comparison,
    arm: Arm,
    base: Arm,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    value: float,
) -> Interval | None:
    """The bootstrap over images; None unless all answers are there and of the same images."""
    resampled = []
    count = 0
    for seed in seeds:
        pair = [(arm.name, seed), (base.name, seed)]
        ours, theirs = (comparison.resampled[run] for run in pair)
        for cell in cells:
            place = cell[2:]
            if place not in ours.places or ours.places[place] != theirs.places.get(place):
                return None
            count = max(count, ours.counts[place])
        means = []
        for run, found in zip(pair, (ours, theirs), strict=True):
            asked = _asked(comparison, run, cells)
            if any(cell not in found.values for cell in asked):
                return None
            means.append(mean_of([found.values[cell] for cell in asked]))
        resampled.append(means[0] - means[1])
    return bootstrap_interval(value, mean_of(resampled), count, len(seeds))
