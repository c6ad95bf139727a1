"""Fig. 2: does the inference protocol matter? Accuracy and cost of four of them."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.study import STUDIES, Size, Study, StudyArm, protocol_arms

if TYPE_CHECKING:
    from killick.report.figures import Figure
    from killick.report.tables import TextTable
    from killick.results.measurements import Record
    from killick.studies.findings import Findings, Results

SINGLE, MEAN, MARGINAL, TRANSDUCTIVE = "single", "mean-image", "marginal", "transductive"
INFERENCES = (SINGLE, MEAN, MARGINAL, TRANSDUCTIVE)
# Metrics of the records. The last three: the worst of K references, the share of images for which
# transduction chooses its most frequent candidate, and its mean distance to the nearest residual.
TOP1, SECONDS = "top1", "seconds_per_1000"
WORST, SHARE, DISTANCE = "worst_reference_top1", "largest_candidate_share", "residual_distance"
# CIFAR-100-C, ResNet-18: accuracy, its spread, and seconds for 1,000 images, which the paper gives
# once for both protocols.
PAPER = {
    ("anchored", SINGLE): (50.70, 0.44, 2.24),
    ("anchored", MARGINAL): (50.70, 0.43, 3.51),
    ("anchored", TRANSDUCTIVE): (50.69, 0.45, 24.24),
    ("masked-label", SINGLE): (53.49, 0.38, 2.24),
    ("masked-label", MARGINAL): (53.55, 0.42, 3.51),
    ("masked-label", TRANSDUCTIVE): (53.41, 0.30, 24.24),
}


@dataclass(frozen=True)
class Options:
    """The corrupted images and the inference protocols."""

    protocols: list[str] = setting(["anchored", "masked-label"], "arms that have references")
    corruptions: list[str] | None = setting(None, "of the test images; none: the 19 common ones")
    severities: list[int] = setting([1, 2, 3, 4, 5], "of each corruption")
    images: int | None = setting(None, "of the test set, by class; none: all", least=1)
    draws: int = setting(5, "how often references are drawn from the training set", least=1)
    k: int = setting(10, "references whose logits are averaged", least=2)
    candidates: int = setting(50, "references of which transduction takes the best", least=2)
    searched: int = setting(5, "of the draws, how many transduction is run for", least=1)
    bank: int = setting(10_000, "residuals of training that it compares with", least=1)
    at_once: int = setting(100, "images of a forward pass", least=1)
    timed: int = setting(1000, "images that inference is timed on", least=1)
    repeats: int = setting(5, "how often; the fastest counts", least=1)


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """The protocols themselves; only inference is varied."""
    from killick.evaluation.evaluation_settings import EvaluationSettings

    names, severities = options.corruptions, tuple(options.severities)
    EvaluationSettings(
        suites=("corruptions",),
        corruptions=None if names is None else tuple(names),
        severities=severities,
    ).check()
    if "standard" in options.protocols:
        raise OptionError("--protocols needs protocols with references, found standard.")
    if options.k > options.candidates:
        raise OptionError(
            f"--k must be at most the {options.candidates} candidates, found {options.k}."
        )
    return protocol_arms(options.protocols)


@dataclass(frozen=True)
class InferenceResult:
    """An arm with one inference protocol.

    Attributes:
        protocol: How it was trained.
        inference: One of `INFERENCES`.
        top1: By seed the accuracy of each draw, mean over the corrupted sets.
        seconds: For 1,000 images, mean over seeds; None if not timed.
    """

    protocol: str
    inference: str
    top1: Mapping[int, Sequence[float]]
    seconds: float | None

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


def collect(results: "Results") -> dict[tuple[str, str], InferenceResult]:
    """By protocol and inference, in the order of the plan."""
    found = {}
    for protocol in results.levels("protocol"):
        for inference in INFERENCES:
            known = {"protocol": protocol, "inference": inference}
            top1 = _by_seed_and_draw(results.records(metric=TOP1, **known))
            times = [float(each["value"]) for each in results.records(metric=SECONDS, **known)]
            if top1:
                seconds = statistics.fmean(times) if times else None
                found[protocol, inference] = InferenceResult(protocol, inference, top1, seconds)
    return found


def _by_seed_and_draw(records: "Iterable[Record]") -> dict[int, list[float]]:
    sets: dict[int, dict[int, list[float]]] = {}
    for record in records:
        draws = sets.setdefault(int(record["seed"]), {})
        draws.setdefault(int(record["draw"]), []).append(float(record["value"]))
    return {
        seed: [statistics.fmean(draws[draw]) for draw in sorted(draws)]
        for seed, draws in sorted(sets.items())
    }


def compare_with_single(result: InferenceResult, single: InferenceResult) -> str:
    """Whether inference differs from one random reference by more than chance.

    The difference must exceed the spread over draws of either. With several seeds its 95 % interval
    must exclude 0; with one it must be twice that spread.
    """
    from killick.studies.findings import paired_difference

    gap = paired_difference(result.by_seed, single.by_seed)
    if gap is None or single.over_draws is None:
        return "unknown"
    mean = statistics.fmean(result.by_seed[seed] - single.by_seed[seed] for seed in result.by_seed)
    spread = max(single.over_draws, result.over_draws or 0)
    significant = abs(mean) > (2 * spread if gap.low is None else spread)
    significant &= gap.low is None or gap.significant
    return ("better" if mean > 0 else "worse") if significant else "not significant"


def find(results: "Results") -> "Findings":
    """Accuracy with its spread over draws, against seconds."""
    from killick.studies.findings import Findings

    options, found = results.plan.options, collect(results)
    titles = {
        SINGLE: "1 random reference",
        MEAN: "mean image",
        MARGINAL: f"mean of {options.k}",
        TRANSDUCTIVE: f"best of {options.candidates}",
    }
    parts = []
    for protocol in results.levels("protocol"):
        single = found.get((protocol, SINGLE))
        for each in found.values() if single else ():
            if single is not None and each.protocol == protocol and each is not single:
                word = compare_with_single(each, single)
                gap = f"{100 * (each.mean - single.mean):+.2f}"
                parts.append(f"{protocol}, {titles[each.inference]} {gap} ({word})")
    headline = f"Corrupted accuracy against {titles[SINGLE]}, points: {'; '.join(parts)}."
    table = tabulate(results, found, titles)
    return Findings(headline, (draw(results, found, titles),), (table,))


def tabulate(
    results: "Results",
    found: Mapping[tuple[str, str], InferenceResult],
    titles: Mapping[str, str],
) -> "TextTable":
    """A row for each protocol and inference, with the paper's values and the controls."""
    from killick.report.tables import TextTable
    from killick.studies.findings import NONE, format_mean

    def control(metric: str, place: tuple[str, str], factor: float) -> str:
        records = results.records(metric=metric, protocol=place[0], inference=place[1])
        values = [float(record["value"]) for record in records]
        return f"{factor * statistics.fmean(values):.1f}" if values else NONE

    options, rows = results.plan.options, []
    same = {MARGINAL: options.k == 10, TRANSDUCTIVE: options.candidates == 50}
    for place, each in found.items():
        single = found.get((each.protocol, SINGLE), each)
        times = each.seconds / single.seconds if each.seconds and single.seconds else None
        theirs = PAPER.get(place) if same.get(each.inference, True) else None
        rows.append(
            (
                f"{each.protocol}, {titles[each.inference]}",
                format_mean(each.by_seed.values(), digits=2),
                NONE if each.over_draws is None else f"{100 * each.over_draws:.2f}",
                NONE if each is single else compare_with_single(each, single),
                NONE if each.seconds is None else f"{each.seconds:.3g}",
                NONE if times is None else f"{times:.2g}",
                *(control(metric, place, 100) for metric in (WORST, SHARE)),
                control(DISTANCE, place, 1),
                NONE if theirs is None else f"{theirs[0]:.2f} ± {theirs[1]:.2f}",
                NONE if theirs is None else f"{theirs[2]:.2f}",
            )
        )
    machines = sorted({str(record["on"]) for record in results.records(metric=SECONDS)})
    return TextTable(
        "study-inference-table",
        "Inference protocols on the same corrupted images",
        (
            "protocol, inference",
            "corrupted accuracy, %",
            "± over draws",
            "against 1 reference",
            "s for 1,000",
            "times 1 reference",
            "worst reference, %",
            "most frequent candidate, %",
            "residual distance",
            "paper: accuracy, %",
            "paper: s for 1,000",
        ),
        tuple(rows),
        f"{options.draws} draws of references ({min(options.searched, options.draws)} of"
        " transduction); ± over seeds. Seconds: fastest of"
        f" {options.repeats}, {options.at_once} images at a time, on {', '.join(machines)}. Paper:"
        " CIFAR-100-C, ResNet-18.",
    )


_MARKERS = {SINGLE: "o", MEAN: "s", MARGINAL: "^", TRANSDUCTIVE: "D"}


def draw(
    results: "Results",
    found: Mapping[tuple[str, str], InferenceResult],
    titles: Mapping[str, str],
) -> "Figure":
    """Accuracy against seconds."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

    from killick.report.figures import (
        COLORS,
        Figure,
        drawing,
        finish,
        legend_height,
        new_canvas,
        put_axes,
        put_heading,
        put_legend,
    )
    from killick.studies.plots import PLOT

    timed = [(each, each.seconds) for each in found.values() if each.seconds is not None]
    protocols = list(dict.fromkeys(each.protocol for each, _ in timed))
    inferences = list(dict.fromkeys(each.inference for each, _ in timed))
    legend = [*protocols, *(titles[each] for each in inferences)]
    with drawing():
        canvas = new_canvas(44 + PLOT + 44 + legend_height(legend))
        put_heading(canvas, "Accuracy and cost", "corrupted accuracy, %; bars: spread over draws")
        axes = put_axes(canvas, left=44, top=44, width=282, height=PLOT)
        for each, seconds in timed:
            axes.errorbar(
                [seconds],
                [100 * each.mean],
                yerr=None if each.over_draws is None else [100 * each.over_draws],
                color=results.style(each.protocol).color,
                marker=_MARKERS[each.inference],
                linestyle="none",
                elinewidth=1.1,
                capsize=2,
                markersize=6,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.12, y=0.15)
        axes.set_xlabel("seconds for 1,000 images, logarithmic")
        samples = [(each, Line2D([], [], color=results.style(each).color)) for each in protocols]
        muted: dict[str, Any] = {"color": COLORS["muted"][0], "linestyle": "none"}
        samples += [
            (titles[each], Line2D([], [], marker=_MARKERS[each], **muted)) for each in inferences
        ]
        put_legend(canvas, samples)
        words = "; ".join(
            f"{each.protocol}, {titles[each.inference]}: {100 * each.mean:.1f} %, {seconds:.3g} s"
            for each, seconds in timed
        )
        panel = finish(canvas, "study-inference", "Accuracy and seconds for 1,000 images", words)
    columns = ("protocol", "inference", "top1", "over_draws", "seconds_per_1000")
    records = tuple(
        (e.protocol, e.inference, 100 * e.mean, "" if e.over_draws is None else e.over_draws, s)
        for e, s in timed
    )
    return Figure("study-inference", "", (panel,), columns, records)


_FEW = {"corruptions": ["gaussian_noise", "motion_blur", "fog", "pixelate"], "severities": [3, 5]}
_ONE = {"corruptions": ["fog"], "severities": [3]}
STUDY = Study(
    name="inference",
    item="Fig. 2",
    title="Does the inference protocol matter?",
    about="accuracy and seconds of one reference, the mean image, K references, and transduction",
    options=Options,
    varies=("protocols",),
    arms=make_arms,
    findings=find,
    measure="killick.studies.inference.measure:measure",
    sizes={
        "small": Size(
            options={
                **_FEW,
                "images": 500,
                "searched": 3,
                "bank": 2000,
                "timed": 500,
                "repeats": 3,
            },
            evaluation={**_FEW, "limit": 500},
        ),
        "smoke": Size(
            options={
                **_ONE,
                "images": 60,
                "draws": 2,
                "k": 3,
                "candidates": 5,
                "bank": 50,
                "timed": 50,
                "repeats": 1,
            },
            evaluation=_ONE,
        ),
        "paper": Size(options={"at_once": 1000}, remark="--data.download true fetches CIFAR-100."),
    },
    notes=(
        "The paper does not state over what its ± runs, nor how transduction measures distance: here"
        " the Euclidean distance of normalized pixels to residuals of random training pairs.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
