"""Beyond the paper: other regularizers beside anchoring, alone and combined.

After "Empirical evaluation of the robustness and uncertainty of regularization methods": each is
evaluated on clean, corrupted, occluded and attacked images, for calibration, OOD detection and
conformal sets, and trained with wrong labels; here also together with masked references.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from killick.errors import OptionError
from killick.experiments.arms import ARMS, Arm, parse_arm
from killick.report.conditions import OOD, SYNTHETIC_OOD, suite_of
from killick.report.tables import TextTable
from killick.results.rows import Row
from killick.settings import setting
from killick.studies.findings import (
    Findings,
    Results,
    Values,
    compare_values,
    format_mean,
    make_table,
)
from killick.studies.plots import Plot, draw_figure, draw_points
from killick.studies.study import STUDIES, Size, Study, StudyArm

NONE = "none"
POLICIES = ("autoaugment", "randaugment", "trivialaugment", "augmix", "pixmix")


@dataclass(frozen=True)
class Options:
    """What is compared."""

    methods: list[str] = setting(
        [
            *(NONE, "trivialaugment", "augmix", "label_smoothing", "mixup:mixup=0.2", "gridmask"),
            *("dropout", "dropblock", "stochastic_depth", "acls", "ps_kd", "elr"),
            *("spectral_decoupling", "sam", "gradient_penalty", "swa"),
            *("ensemble", "dropout+mc-dropout", "tta"),
        ],
        "components, policies and inferences as in the arms of killick compare; none: nothing",
    )
    protocols: list[str] = setting(["standard", "masked-label"], "arms with each of them")
    label_noise: float = setting(
        0.2, "flipped labels of further runs, for their clean accuracy; 0: no such runs", least=0
    )


@dataclass(frozen=True)
class Column:
    """A column: the mean over the rows of a suite with a metric."""

    title: str
    suite: str
    metric: str
    direction: int = 0  # +1 or -1 for higher or lower is better; 0: not ranked
    scaling: str = ""
    corruption: str = ""  # only rows of this one
    severity: int | None = None  # only rows of this one
    noisy: bool = False  # of the networks trained with wrong labels
    percent: bool = True

    @property
    def format(self) -> tuple[float, int]:
        """Factor and digits of values."""
        return (100, 1) if self.percent else (1, 3)

    def fits(self, row: Row) -> bool:
        """Whether a row is one of those; from the first reference, and no mean over corruptions."""
        own = (suite_of(row), row["metric"], row["scaling"])
        return (
            own == (self.suite, self.metric, self.scaling)
            and self.corruption in ("", row["corruption"])
            and self.severity in (None, row["severity"])
            and (row["inference"] != "marginal" or self.suite == "multiplicity")
            and row["score"] in ("", "energy")
            and not row["mean_of"]
        )


_CALIBRATION = [
    Column(f"{title}, C{words}", "corruptions", metric, -1, scaling, percent=False)
    for metric, title in (("smooth_ece", "smooth ECE"), ("nll", "NLL"))
    for scaling, words in (("", ""), ("temperature", ", temperature"))
]
ACCURACY, ERROR = Column("C", "corruptions", "top1", 1), _CALIBRATION[0]
NOISY = Column("label noise", "clean", "top1", 1, noisy=True)
COLUMNS = (
    Column("clean", "clean", "top1", 1),
    ACCURACY,
    Column("C-bar", "cbar", "top1", 1),
    Column("occluded", "occlusion", "top1", 1),
    Column("FGSM", "adversarial", "top1", 1, corruption="fgsm"),
    Column("PGD-20", "adversarial", "top1", 1, corruption="pgd20"),
    NOISY,
    *_CALIBRATION,
    Column("OOD AUROC", OOD, "auroc", 1),
    Column("synthetic OOD AUROC", SYNTHETIC_OOD, "auroc", 1),
    # Small sets are no gain where they miss the label, so these are not ranked.
    Column("THR coverage, C", "corruptions", "conformal_thr_coverage"),
    Column("THR size, C", "corruptions", "conformal_thr_size", percent=False),
    Column("ambiguity", "multiplicity", "ambiguity"),
    Column("discrepancy", "multiplicity", "discrepancy"),
)
_GROUPS = {
    "Accuracy": [each for each in COLUMNS if each.metric == "top1"],
    "Calibration and OOD": [each for each in COLUMNS if each.direction and each.metric != "top1"],
}


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """Every regularizer with every protocol, also with wrong labels."""
    found = []
    for regularizer in options.methods:
        for protocol in options.protocols:
            arm = make_arm(regularizer, protocol)
            factors = {"regularizer": regularizer, "protocol": protocol}
            found.append(StudyArm(arm, {**factors, "noise": 0.0}))
            if options.label_noise:
                noisy = replace(
                    arm,
                    name=f"noise{100 * options.label_noise:g}+{arm.name}",
                    settings={**arm.settings, "data.label_noise": options.label_noise},
                    evaluation={**arm.evaluation, "suites": ("clean",), "corruptions": None},
                )
                found.append(StudyArm(noisy, {**factors, "noise": options.label_noise}))
    return found


def make_arm(regularizer: str, protocol: str) -> Arm:
    """The arm of a regularizer and a protocol, by their names."""
    name, colon, rest = regularizer.partition(":")
    if protocol not in ARMS or set(name.split("+")) & set(ARMS):
        raise OptionError(
            f"--methods takes no protocols, and --protocols {', '.join(ARMS)}; found"
            f" {regularizer} and {protocol}."
        )
    if name == NONE and not colon:
        return ARMS[protocol]
    if name in POLICIES:
        known = ARMS[protocol]
        arm = replace(known, settings={**known.settings, "augment.policy": name})
    else:
        arm = parse_arm(f"{name}+{protocol}{colon}{rest}")
    return replace(arm, name=name if protocol == "standard" else f"{name}+{protocol}")


def values_of(results: Results, arm: str | None, column: Column) -> Values:
    """A column of an arm, by seed."""
    runs = results.report.comparison.runs.items()
    rows = {seed: list(filter(column.fits, run.rows)) for (name, seed), run in runs if name == arm}
    return {
        seed: statistics.fmean(float(row["value"]) for row in own)
        for seed, own in rows.items()
        if own
    }


@dataclass(frozen=True)
class Grid:
    """The values of a study by regularizer, protocol and column."""

    results: Results

    def values(self, regularizer: str, protocol: str, column: Column) -> Values:
        """By seed; empty where the arm is not finished."""
        noise = self.results.plan.options.label_noise if column.noisy else 0.0
        factors = {"regularizer": regularizer, "protocol": protocol, "noise": noise}
        return values_of(self.results, self.results.arm(**factors), column)

    @property
    def columns(self) -> list[Column]:
        """The columns that were measured."""
        return [each for each in COLUMNS if any(self.values(*arm, each) for arm in self.arms)]

    @property
    def arms(self) -> list[tuple[str, str]]:
        """Regularizer and protocol of those that are finished."""
        arms = self.results.factors.values()
        return [(own["regularizer"], own["protocol"]) for own in arms if not own["noise"]]

    def costs(self, regularizer: str, protocol: str) -> dict[str, str]:
        """Passes of the training and of a prediction."""
        name = self.results.arm(regularizer=regularizer, protocol=protocol, noise=0.0)
        from killick.report.sections.costs import count_costs  # imports torch

        comparison = self.results.report.comparison
        arm = next(each for each in comparison.arms if each.name == name)
        found = count_costs(arm, comparison.baseline or arm)
        return {f"{kind} cost": f"{found[kind]:g}" for kind in ("training", "inference")}

    def table(self) -> TextTable:
        """A row for each regularizer and protocol."""
        rows = []
        for arm in self.arms:
            row = {"regularizer": arm[0], "protocol": arm[1], **self.costs(*arm)}
            for each in self.columns:
                row[each.title] = format_mean(self.values(*arm, each), *each.format)
            rows.append(row)
        note = "Accuracies, AUROC and coverage in %. C: mean over corruptions and severities."
        return make_table("study-regularizers-table", "Regularizers and anchoring", rows, note)

    def interaction(self, protocol: str, base: str) -> TextTable:
        """What a protocol adds to each regularizer, and whether that is more than it adds alone."""
        rows = []
        for regularizer in self.results.levels("regularizer"):
            row = {"regularizer": regularizer}
            for each in self.columns:
                row[each.title] = self.compare(regularizer, protocol, base, each)
            for each in (ACCURACY, ERROR):
                own, alone = (self._gain(r, protocol, base, each) for r in (regularizer, NONE))
                same = regularizer == NONE
                row[f"{each.title}, beyond {protocol} alone"] = compare_values(
                    own, own if same else alone, *each.format
                )
            rows.append(row)
        return make_table(
            f"study-regularizers-{protocol}", f"{protocol} − {base}, by regularizer", rows
        )

    def compare(self, regularizer: str, protocol: str, base: str, column: Column) -> str:
        """What a protocol adds to a regularizer, with an interval over seeds."""
        ours, theirs = (self.values(regularizer, each, column) for each in (protocol, base))
        return compare_values(ours, theirs, *column.format)

    def _gain(self, regularizer: str, protocol: str, base: str, column: Column) -> Values:
        ours, theirs = (self.values(regularizer, each, column) for each in (protocol, base))
        return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}

    def ranks(self, columns: Sequence[Column]) -> dict[tuple[str, str], dict[int, float]]:
        """The mean rank of each arm over columns, by seed; among equals the mean of their ranks."""
        from scipy.stats import rankdata

        columns = [each for each in columns if each in self.columns]
        found: dict[tuple[str, str], dict[int, float]] = {arm: {} for arm in self.arms}
        values = {arm: [self.values(*arm, each) for each in columns] for arm in self.arms}
        for seed in self.results.plan.seeds:
            there = [arm for arm, lines in values.items() if all(seed in line for line in lines)]
            if not there:
                continue
            ranked = [
                rankdata([-each.direction * values[arm][number][seed] for arm in there])
                for number, each in enumerate(columns)
            ]
            for place, arm in enumerate(there):
                found[arm][seed] = statistics.fmean(float(ranks[place]) for ranks in ranked)
        return found

    def plot(self, title: str, columns: Sequence[Column]) -> Plot:
        """Mean ranks by regularizer and protocol."""
        curves: dict[str, dict[str, Values]] = {}
        for (regularizer, protocol), values in self.ranks(columns).items():
            curves.setdefault(protocol, {})[regularizer] = values
        return Plot(f"Ranks: {title}", curves, "mean rank, 1 is best", "regularizer", 1)


def find(results: Results) -> Findings:
    """The table, the ranks, and what masking adds to each regularizer."""
    grid = Grid(results)
    base, *others = sorted(results.levels("protocol"), key=lambda name: name != "standard")
    found = grid.ranks([each for each in COLUMNS if each.direction])
    ranks = {arm: statistics.fmean(v.values()) for arm, v in found.items() if v}
    parts = []
    if ranks:
        best = min(ranks, key=lambda arm: ranks[arm])
        parts.append(f"Best mean rank: {', '.join(best)} ({ranks[best]:.1f} of {len(ranks)}).")
    for protocol in others:
        gaps = [
            f"{each} {grid.compare(each, protocol, base, ACCURACY)}"
            for each in results.levels("regularizer")
        ]
        parts.append(f"Accuracy under C, {protocol} − {base}: {'; '.join(gaps)}.")
    plots = [grid.plot(title, columns) for title, columns in _GROUPS.items()]
    tables = (grid.table(), *(grid.interaction(protocol, base) for protocol in others))
    return Findings(
        " ".join(parts), (draw_figure("study-regularizers", plots, draw_points),), tables
    )


STUDY = Study(
    name="regularizers",
    item="",
    title="Is anchoring better than other regularizers, and does it add to them?",
    about="regularizers x {standard, masked} on robustness, calibration, OOD and label noise",
    options=Options,
    arms=make_arms,
    findings=find,
    suites=(
        *("clean", "corruptions", "cbar", "occlusion", "adversarial", "calibration", "ood"),
        *("conformal", "multiplicity"),
    ),
    sizes={
        "small": Size(
            "small-shapes",
            options={"methods": [NONE, "label_smoothing", "sam", "ensemble:members=2"]},
            evaluation={"limit": 200, "severities": (3, 5)},
        ),
        "smoke": Size(
            settings={"data.validation": 40},
            options={"methods": [NONE, "ensemble:members=2"]},
            evaluation={"limit": 20, "corruptions": ("fog", "sparkles"), "severities": (3,)},
        ),
        "paper": Size(
            "cifar10-resnet18",
            {"epochs": 60, "data.validation": 5000},
            remark="A network of 60 epochs for each; needs --data cifar10 and --data.root.",
        ),
    },
)
STUDIES.register(STUDY.name, STUDY)
