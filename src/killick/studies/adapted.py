"""How probes on differently trained networks compare: numbers, differences, a figure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from killick.report.figures import (
    Figure,
    Panel,
    drawing,
    finish,
    legend_height,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
    sample_line,
    shorten,
)
from killick.report.formatting import capitalise, count_words, enumerate_words
from killick.report.intervals import Interval, no_interval, t_interval
from killick.report.tables import TextTable
from killick.studies.adapting import CHOSEN, ID, LACKING, OOD, WITHIN
from killick.studies.drawing import NONE, judge, mean_and_spread, tell_difference
from killick.studies.results import Results

BASE = "standard"
_ROW = 17  # px for each arm of a line in a figure
_LEFT = 92  # px for the names of its lines


@dataclass(frozen=True)
class Trial:
    """What a probe was trained and tested on.

    Attributes:
        task: "id", "within" or "ood".
        source: What it was trained on.
        target: What it was tested on.
    """

    task: str
    source: str
    target: str

    @property
    def title(self) -> str:
        """For people."""
        if self.task == ID:
            return self.source
        return f"{self.source}, itself" if self.task == WITHIN else f"{self.source} → {self.target}"


@dataclass(frozen=True)
class Probed:
    """Accuracies of the probes of an arm.

    Attributes:
        protocol: How the network was trained.
        alpha: How often the probe was masked.
        top1: By test and seed, from the first reference.
        over_references: Of the same, the standard deviation over references, mean over seeds; only
            where there are several.
    """

    protocol: str
    alpha: float
    top1: Mapping[Trial, Mapping[int, float]]
    over_references: Mapping[Trial, float]

    def mean_over(self, tests: Iterable[Trial]) -> dict[int, float]:
        """By seed, the mean over tests; of seeds that have them all."""
        rows = [self.top1.get(test, {}) for test in tests]
        seeds = [seed for seed in (rows[0] if rows else ()) if all(seed in row for row in rows)]
        return {seed: statistics.fmean(row[seed] for row in rows) for seed in seeds}


def collect_probed(results: Results) -> list[Probed]:
    """The probes of each arm, of each that of the first alpha first."""
    found = []
    for protocol in results.levels("protocol"):
        for alpha in dict.fromkeys((*results.plan.options.alphas, 0.0)):
            records = results.records(metric="top1", protocol=protocol, alpha=alpha)
            values: dict[Trial, dict[int, dict[int, float]]] = {}
            for each in records:
                test = Trial(str(each["task"]), str(each["source"]), str(each["target"]))
                seeds = values.setdefault(test, {})
                seeds.setdefault(int(each["seed"]), {})[int(each["reference"])] = each["value"]
            if values:
                first = {
                    test: {seed: rows[0] for seed, rows in sorted(seeds.items())}
                    for test, seeds in values.items()
                }
                found.append(Probed(protocol, alpha, first, _over_references(values)))
    return found


def _over_references(
    values: Mapping[Trial, Mapping[int, Mapping[int, float]]],
) -> dict[Trial, float]:
    spreads = {
        test: [statistics.stdev(rows.values()) for rows in seeds.values() if len(rows) > 1]
        for test, seeds in values.items()
    }
    return {test: statistics.fmean(each) for test, each in spreads.items() if each}


def shown_first(probed: Sequence[Probed]) -> dict[str, Probed]:
    """By protocol the probe that the study is about: that of the first alpha."""
    found: dict[str, Probed] = {}
    for each in probed:
        found.setdefault(each.protocol, each)
    return found


def trials_of(probed: Iterable[Probed], *tasks: str) -> list[Trial]:
    """All tests, or those of some tasks, in the order in which they were made."""
    every = dict.fromkeys(test for each in probed for test in each.top1)
    return [test for test in every if not tasks or test.task in tasks]


def compare(one: Mapping[int, float], other: Mapping[int, float]) -> Interval | None:
    """What one is above the other, with an interval over the seeds that both have."""
    gaps = [one[seed] - other[seed] for seed in one if seed in other]
    if not gaps:
        return None
    if len(gaps) < 2 or statistics.stdev(gaps) < 1e-9:  # accuracies have steps
        return no_interval(gaps[0], "one seed, or seeds that agree to the digit, tell no spread")
    return replace(t_interval(gaps), by_seed=tuple(gaps))


def tell_probed(probed: Sequence[Probed]) -> str:
    """Who is better on the same data, on other domains, and whether masking the probe helps."""
    first, said = shown_first(probed), []
    words = {ID: "on the data they were trained for", OOD: "on domains they were not trained on"}
    for task, where in words.items():
        tests = trials_of(probed, task)
        base = first.get(BASE)
        others = [each for each in first.values() if each.protocol != BASE]
        if not tests or base is None or not others:
            continue
        told = []
        for each in others:
            found = compare(each.mean_over(tests), base.mean_over(tests))
            told.append(f"on {each.protocol} {tell_difference(found)} points ({judge(found)})")
        mean = mean_and_spread(base.mean_over(tests).values())
        said.append(
            f"Accuracy of probes {where}: on {BASE} networks {mean} %; {enumerate_words(told)}."
        )
    said += [_tell_masking(first, each) for each in probed if _is_plain(each, first)]
    return " ".join(said) or "No probe is finished."


def _is_plain(probed: Probed, first: Mapping[str, Probed]) -> bool:
    """Whether it is a probe without masking, of an arm that also has one with it."""
    return probed.alpha == 0 and first[probed.protocol] is not probed


def _tell_masking(first: Mapping[str, Probed], plain: Probed) -> str:
    """What masking does to a probe, and how it would do without against a standard network."""
    masked, base = first[plain.protocol], first.get(BASE)
    tests = [test for test in masked.top1 if test.task != WITHIN]
    found = compare(masked.mean_over(tests), plain.mean_over(tests))
    text = (
        f"{capitalise(masked.protocol)}: masking the probe too, alpha {masked.alpha:g}, gives"
        f" {tell_difference(found)} points in all these tests ({judge(found)})"
    )
    if base is not None:
        found = compare(plain.mean_over(tests), base.mean_over(tests))
        text += f"; without that it is {tell_difference(found)} from {BASE} ({judge(found)})"
    return f"{text}."


def tabulate_probed(
    results: Results,
    probed: Sequence[Probed],
    published: Mapping[tuple[str, str], tuple[float, float]],
) -> TextTable:
    """A line for each test, with the paper's values; then tests that the paper alone has.

    Args:
        results: For what was asked for.
        probed: All of them.
        published: The paper's accuracy on a standard and on a masked network, by source and target
            as `spell_source` writes them.
    """
    first = shown_first(probed)
    others = [each for each in first.values() if each.protocol != BASE]
    plain = [each for each in probed if first[each.protocol] is not each]
    columns = ["trained on → tested on", *first]
    columns += [f"{each.protocol} − {BASE}" for each in others] if BASE in first else []
    columns += [f"{each.protocol}, probe masked {100 * each.alpha:g} %" for each in plain]
    columns += ["paper: standard", "paper: masked"]
    rows, left = [], dict(published)
    for test in trials_of(probed):
        cells = [test.title]
        cells += [mean_and_spread(each.top1.get(test, {}).values()) for each in first.values()]
        for each in others if BASE in first else ():
            base = first[BASE].top1.get(test, {})
            cells.append(tell_difference(compare(each.top1.get(test, {}), base)))
        cells += [mean_and_spread(each.top1.get(test, {}).values()) for each in plain]
        theirs = left.pop((spell_source(test.source), spell_source(test.target)), None)
        cells += [NONE, NONE] if theirs is None else [f"{value:.2f}" for value in theirs]
        rows.append(tuple(cells))
    for (source, target), values in left.items():
        title = source if source == target else f"{source} → {target}"
        empty = [NONE] * (len(columns) - 3)
        rows.append((title, *empty, *(f"{value:.2f}" for value in values)))
    options = results.plan.options
    says = (
        f"The probe of anchored networks is masked in {100 * options.alphas[0]:g} % of its steps"
        f" (target {options.probe_target}), but where a column says otherwise. Mean ± standard"
        " deviation over seeds; differences with their 95 % intervals over seeds. The paper's:"
        " ViT-B/16 of ImageNet on the data of these names, domains from DomainNet, number of seeds"
        " not said."
    )
    title = "Accuracy of linear probes, %"
    return TextTable("study-adaptation-table", title, tuple(columns), tuple(rows), says)


def spell_source(name: str) -> str:
    """The name of data without its kind and folders.

    Example:
        >>> spell_source("imagefolder:/data/flowers102"), spell_source("cifar10")
        ('flowers102', 'cifar10')
    """
    return name.partition(":")[2].rstrip("/").rpartition("/")[2] or name


def tell_notes(results: Results, probed: Sequence[Probed]) -> list[str]:
    """What the domains are, what the references decide, and how learning rates came out."""
    notes = [_tell_domains(results)] if results.plan.options.sources else []
    spreads = [value for each in probed for value in each.over_references.values()]
    if spreads:
        notes.append(
            f"Tested from {results.plan.options.draws} references one after the other, the accuracy"
            f" of a probe has a standard deviation of {100 * statistics.fmean(spreads):.2f} points"
            f" in the mean, {100 * max(spreads):.2f} at most; the table has the first."
        )
    rates = [float(record["value"]) for record in results.records(metric=CHOSEN)]
    ends = (min(results.plan.options.rates), max(results.plan.options.rates))
    if rates and ends[0] != ends[1]:
        lowest, highest = (rates.count(end) for end in ends)
        notes.append(
            f"Of {count_words(len(rates), 'probe')}, {lowest} chose the lowest learning rate on"
            f" offer, {ends[0]:g}, and {highest} the highest, {ends[1]:g}."
        )
    return notes


def _tell_domains(results: Results) -> str:
    if results.plan.options.domains is None:
        return (
            "The domains are shapes in four styles, of pictures that no network was trained on. A"
            " network that was trained on shapes knows these classes already: here a probe finds"
            " out what is left of them in another style, not how new ones are learnt."
        )
    text = (
        "A fixed fifth of each source domain is held back to test on the domain itself; the other"
        " domains are tested on whole."
    )
    lacking = {str(r["target"]): str(r["classes"]) for r in results.records(metric=LACKING)}
    if lacking:
        told = "; ".join(f"{name} has no {classes}" for name, classes in lacking.items())
        text += f" Compared are the classes that all domains have: {told}."
    return text


@dataclass(frozen=True)
class Line:
    """A line of a figure: its name, and percent of each protocol, one for each seed."""

    title: str
    values: Mapping[str, Sequence[float]]


def draw_probed(
    results: Results,
    probed: Sequence[Probed],
    published: Mapping[tuple[str, str], tuple[float, float]],
    says: str,
) -> Figure:
    """Points with a bar from the least to the most of the seeds; the paper's in panels beside."""
    first = shown_first(probed)
    sources = list(dict.fromkeys(test.source for test in trials_of(probed, OOD)))
    panels, records = [], []
    groups = [("The same data", trials_of(probed, ID))]
    groups += [
        (f"Trained on {source}", [t for t in trials_of(probed, OOD, WITHIN) if t.source == source])
        for source in sources
    ]
    for number, (heading, tests) in enumerate(groups):
        lines = [
            Line(
                spell_source(test.source) if test.task == ID else test.target,
                {
                    name: [100 * value for value in each.top1[test].values()]
                    for name, each in first.items()
                    if test in each.top1
                },
            )
            for test in tests
        ]
        if lines:
            panels.append(_draw(results, lines, f"study-adaptation-{number}", heading))
        records += [
            (test.task, test.source, test.target, name, seed, 100 * value)
            for test in tests
            for name, each in first.items()
            for seed, value in each.top1.get(test, {}).items()
        ]
    for number, source in enumerate(dict.fromkeys((None, *sources))):
        theirs = {
            (one, other): values
            for (one, other), values in published.items()
            if (one == other if source is None else one == source)
        }
        lines = [
            Line(other, {BASE: [values[0]], "masked-label": [values[1]]})
            for (_, other), values in theirs.items()
        ]
        heading = "In the paper: the same data"
        if source is not None:
            heading = f"In the paper: DomainNet, {source}"
        if lines:
            panels.append(_draw(results, lines, f"study-adaptation-paper{number}", heading))
    columns = ("task", "source", "target", "protocol", "seed", "top1")
    return Figure("study-adaptation", says, tuple(panels), columns, tuple(records))


def _draw(results: Results, lines: Sequence[Line], name: str, heading: str) -> Panel:
    protocols = list(dict.fromkeys(protocol for line in lines for protocol in line.values))
    height = len(lines) * (_ROW * len(protocols) + 10)
    several = any(len(values) > 1 for line in lines for values in line.values.values())
    with drawing():
        canvas = new_canvas(44 + height + 30 + legend_height(protocols))
        put_heading(canvas, heading, "accuracy, %" + ("; bars: all seeds" if several else ""))
        axes = put_axes(canvas, left=_LEFT, top=44, width=326 - _LEFT, height=height)
        _put_points(results, axes, lines, protocols)
        put_legend(canvas, [(each, sample_line(results.style(each))) for each in protocols])
        words = "; ".join(
            f"{line.title}: "
            + ", ".join(f"{key} {statistics.fmean(v):.1f}" for key, v in line.values.items() if v)
            for line in lines
        )
        return finish(canvas, name, heading, f"Accuracy of linear probes in percent. {words}.")


def _put_points(
    results: Results, axes: Axes, lines: Sequence[Line], protocols: Sequence[str]
) -> None:
    step = 0.75 / len(protocols)
    for place, line in enumerate(lines):
        for number, protocol in enumerate(protocols):
            values = line.values.get(protocol)
            if not values:
                continue
            style = results.style(protocol)
            y = place + step * (number - (len(protocols) - 1) / 2)
            axes.plot([min(values), max(values)], [y, y], color=style.colour, linewidth=1.4)
            axes.plot([statistics.fmean(values)], [y], color=style.colour, marker=style.marker)
    axes.set_yticks(range(len(lines)), [shorten(line.title, 13) for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.08)
