"""Fig. 6: are anchored networks better to build on? Linear probes on other data and domains."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, protocol_arms

if TYPE_CHECKING:
    from killick.report.figures import Figure
    from killick.report.tables import TextTable
    from killick.studies.findings import Findings, Results

# Accuracy of a probe on the standard and on the proposed ViT-B/16 of ImageNet, by training and test
# data. Fig. 6a: the same data. Fig. 6b: domains of DomainNet.
PAPER = {
    ("cifar10", "cifar10"): (95.48, 96.29),
    ("cifar100", "cifar100"): (80.1, 82.78),
    ("ucf101", "ucf101"): (75.55, 77.01),
    ("flowers102", "flowers102"): (94.68, 95.7),
    ("stanford-cars", "stanford-cars"): (58.54, 61.15),
    ("real", "sketch"): (25.85, 28.02),
    ("real", "clipart"): (37.38, 38.98),
    ("real", "painting"): (46.3, 46.97),
    ("sketch", "real"): (41.35, 44.81),
    ("sketch", "clipart"): (35.4, 37.76),
    ("sketch", "painting"): (31.42, 32.7),
}
_BASE = "standard"
_TASKS = {"id": "the same data", "ood": "other domains"}


@dataclass(frozen=True)
class Options:
    """What probes are trained on, and how."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms whose networks are probed")
    targets: list[str] = setting(["digits"], "data that a probe is trained and tested on")
    domains: str | None = setting(None, "folder of DOMAIN/CLASS/images, as DomainNet")
    styles: list[str] | None = setting(None, "names of the domains; none: all that are there")
    sources: list[str] = setting(
        ["real", "sketch"], "domains that probes are trained on, to be tested on the others"
    )
    alphas: list[float] = setting(
        [0.4, 0.0], "share of masked steps of a probe, a probe each; the first is compared"
    )
    probe_target: str = setting("label", "of masked steps of a probe", among=("label", "uniform"))
    draws: int = setting(4, "references of each image, and references to test with", least=1)
    probe_epochs: int = setting(60, "of a probe", least=1)
    probe_batch: int = setting(128, "images of its step", least=1)
    rates: list[float] = setting(
        [1.0, 3.0, 10.0, 30.0], "learning rates; each probe takes the best on held-out images"
    )
    probe_decay: float = setting(1e-5, "of its weights", least=0)
    train_limit: int | None = setting(None, "images to train a probe on; none: all", least=2)
    test_limit: int | None = setting(None, "images of each test; none: all", least=1)


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """The protocols themselves; probes are trained on each."""
    if not options.alphas or not 0 <= min(options.alphas) <= max(options.alphas) <= 1:
        raise OptionError(f"--alphas needs values between 0 and 1, found {options.alphas}.")
    if not options.rates or min(options.rates) <= 0:
        raise OptionError(f"--rates needs values above 0, found {options.rates}.")
    if not options.targets and options.domains is None:
        raise OptionError("--targets or --domains is needed to train probes on.")
    return protocol_arms(options.protocols)


def find_data(options: Options) -> list[str]:
    """What probes are trained and tested on."""
    folders = [] if options.domains is None else [f"pictures:{options.domains}"]
    return [*options.targets, *folders]


@dataclass(frozen=True)
class ProbeTest:
    """What a probe was trained and tested on.

    Attributes:
        task: "id": the same data; "within": the same domain; "ood": another domain.
        source: Training data.
        target: Test data.
    """

    task: str
    source: str
    target: str

    @property
    def names(self) -> tuple[str, str]:
        """Source and target without their kind and folders."""
        source, target = (
            name.partition(":")[2].rstrip("/").rpartition("/")[2] or name
            for name in (self.source, self.target)
        )
        return source, target


@dataclass(frozen=True)
class ProbeResults:
    """Accuracies of the probes of an arm.

    Attributes:
        protocol: How the network was trained.
        alpha: How often the probe was masked.
        top1: By test and seed, with the first reference.
        over_references: By test the standard deviation over references, mean over seeds.
    """

    protocol: str
    alpha: float
    top1: Mapping[ProbeTest, Mapping[int, float]]
    over_references: Mapping[ProbeTest, float]

    def mean_over(self, tests: Iterable[ProbeTest]) -> dict[int, float]:
        """By seed, the mean over tests; of seeds that have them all."""
        rows = [self.top1.get(test, {}) for test in tests]
        seeds = [seed for seed in (rows[0] if rows else ()) if all(seed in row for row in rows)]
        return {seed: statistics.fmean(row[seed] for row in rows) for seed in seeds}


def collect(results: "Results") -> list[ProbeResults]:
    """The probes of each arm, those of the first alpha first."""
    found = []
    for protocol in results.levels("protocol"):
        for alpha in dict.fromkeys((*results.plan.options.alphas, 0.0)):
            values: dict[ProbeTest, dict[int, dict[int, float]]] = {}
            for each in results.records(metric="top1", protocol=protocol, alpha=alpha):
                test = ProbeTest(str(each["task"]), str(each["source"]), str(each["target"]))
                seeds = values.setdefault(test, {})
                seeds.setdefault(int(each["seed"]), {})[int(each["reference"])] = each["value"]
            top1 = {
                test: {seed: rows[0] for seed, rows in sorted(seeds.items())}
                for test, seeds in values.items()
            }
            spreads = {
                test: [statistics.stdev(rows.values()) for rows in seeds.values() if len(rows) > 1]
                for test, seeds in values.items()
            }
            means = {test: statistics.fmean(each) for test, each in spreads.items() if each}
            if values:
                found.append(ProbeResults(protocol, alpha, top1, means))
    return found


def first_of_each(probes: Sequence[ProbeResults]) -> dict[str, ProbeResults]:
    """By protocol the probe of the first alpha."""
    found: dict[str, ProbeResults] = {}
    for each in probes:
        found.setdefault(each.protocol, each)
    return found


def find(results: "Results") -> "Findings":
    """Accuracy of probes by test and arm, beside the paper's."""
    from killick.studies.findings import (
        Findings,
        format_difference,
        paired_difference,
        verdict,
    )

    probes = collect(results)
    first, parts = first_of_each(probes), []
    base = first.get(_BASE)
    for task, words in _TASKS.items():
        tests = [test for test in _tests(probes) if test.task == task]
        for each in first.values() if base and tests else ():
            if base is not None and each is not base:
                gap = paired_difference(each.mean_over(tests), base.mean_over(tests))
                text = f"{each.protocol} {format_difference(gap)} ({verdict(gap)})"
                parts.append(f"{text} on {words}")
    headline = f"Accuracy of probes against {_BASE} networks: {'; '.join(parts) or 'unknown'}."
    spreads = [value for each in probes for value in each.over_references.values()]
    notes = ["A fixed fifth of each source domain is held out to test on the domain itself."]
    notes = notes if results.plan.options.domains else []
    if spreads:
        deviation = (
            f"{100 * statistics.fmean(spreads):.2f} on average, {100 * max(spreads):.2f} at most"
        )
        notes.append(f"Standard deviation of the accuracy over references: {deviation}.")
    table, figure = tabulate(results, probes), draw(results, probes)
    return Findings(headline, (figure,), (table,), notes=tuple(notes))


def _tests(probes: Iterable[ProbeResults]) -> list[ProbeTest]:
    return list(dict.fromkeys(test for each in probes for test in each.top1))


def tabulate(results: "Results", probes: Sequence[ProbeResults]) -> "TextTable":
    """A row for each test with the paper's values, then the tests that only the paper has."""
    from killick.report.tables import TextTable
    from killick.studies.findings import NONE, format_difference, format_mean, paired_difference

    first = first_of_each(probes)
    others = [each for each in first.values() if each.protocol != _BASE] if _BASE in first else []
    unmasked = [each for each in probes if first[each.protocol] is not each]
    columns = ["trained on → tested on", *first]
    columns += [f"{each.protocol} − {_BASE}" for each in others]
    columns += [f"{each.protocol}, probe alpha {each.alpha:g}" for each in unmasked]
    columns += ["paper: standard", "paper: masked"]
    rows, left = [], dict(PAPER)
    for test in _tests(probes):
        row = [" → ".join(test.names)]
        row += [format_mean(each.top1.get(test, {}).values()) for each in first.values()]
        for each in others:
            base = first[_BASE].top1.get(test, {})
            row.append(format_difference(paired_difference(each.top1.get(test, {}), base)))
        row += [format_mean(each.top1.get(test, {}).values()) for each in unmasked]
        theirs = left.pop(test.names, None)
        row += [NONE, NONE] if theirs is None else [f"{value:.2f}" for value in theirs]
        rows.append(tuple(row))
    for names, values in left.items():
        empty = [NONE] * (len(columns) - 3)
        rows.append((" → ".join(names), *empty, *(f"{value:.2f}" for value in values)))
    return TextTable(
        "study-adaptation-table",
        "Accuracy of linear probes, %",
        tuple(columns),
        tuple(rows),
        f"Probes of anchored networks are masked with alpha {results.plan.options.alphas[0]:g} unless"
        " a column names another. Mean ± standard deviation over seeds; differences with 95 %"
        " intervals over seeds. Paper: ViT-B/16 of ImageNet.",
    )


def draw(results: "Results", probes: Sequence[ProbeResults]) -> "Figure":
    """The accuracy of each protocol, a panel for each training domain."""
    from killick.report.figures import Figure
    from killick.studies.plots import draw_points

    first = first_of_each(probes)
    groups: dict[str, list[ProbeTest]] = {}
    for test in _tests(probes):
        group = "The same data" if test.task == "id" else f"Trained on {test.source}"
        groups.setdefault(group, []).append(test)
    panels, records = [], []
    for number, (heading, tests) in enumerate(groups.items()):
        rows = {
            test.names[1]: {
                protocol: [100 * value for value in each.top1[test].values()]
                for protocol, each in first.items()
                if test in each.top1
            }
            for test in tests
        }
        name = f"study-adaptation-{number}"
        panels.append(draw_points(results, rows, name, heading, "accuracy, %", left=92))
        records += [
            (test.task, test.source, test.target, protocol, seed, 100 * value)
            for test in tests
            for protocol, each in first.items()
            for seed, value in each.top1.get(test, {}).items()
        ]
    columns = ("task", "source", "target", "protocol", "seed", "top1")
    return Figure("study-adaptation", "", tuple(panels), columns, tuple(records))


_FOLDERS = ("ucf101", "flowers102", "stanford-cars")
STUDY = Study(
    name="adaptation",
    item="Fig. 6",
    title="Are anchored networks better to build on?",
    about="accuracy of linear probes on frozen networks, on other data and on other domains",
    options=Options,
    varies=("protocols",),
    arms=make_arms,
    findings=find,
    measure="killick.studies.adaptation.probes:measure",
    needs=find_data,
    suites=("clean",),
    sizes={
        "small": Size(options={"train_limit": 1500}, seeds=(0, 1, 2)),
        "smoke": Size(
            options={
                "train_limit": 60,
                "test_limit": 40,
                "draws": 2,
                "probe_epochs": 2,
                "rates": [3.0, 10.0],
            }
        ),
        "paper": Size(
            "imagenet-vit-b16",
            options={
                "targets": ["cifar10", "cifar100", *(f"imagefolder:{name}" for name in _FOLDERS)],
                "domains": "domainnet",
                "styles": ["real", "sketch", "clipart", "painting"],
            },
            seeds=(0,),
            remark="Needs --data imagenet:FOLDER, --domains DOMAINNET and --targets"
            " cifar10,imagefolder:FOLDER,... Untested.",
        ),
    },
    notes=(
        "The paper states neither optimizer nor learning rate of the probes: SGD with a cosine"
        " schedule, the same steps for all, the best of the same learning rates on held-out images.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
