"""Fig. 6: are anchored networks better to build on? Linear probes on other data and domains."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from killick.errors import DataError, OptionError
from killick.experiments.jobs import Job
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
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, compare_protocols

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
_TASKS = {"id": "the same data", "ood": "other domains"}


@dataclass(frozen=True)
class Options:
    """What probes are trained on, and how."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms whose networks are probed")
    targets: list[str] | None = setting(
        ["digits"], "data that a probe is trained and tested on; none: domains alone"
    )
    domains: str | None = setting(None, "folder of DOMAIN/CLASS/images, as DomainNet")
    styles: list[str] | None = setting(None, "names of the domains; none: all that are there")
    sources: list[str] = setting(
        ["real", "sketch"], "domains that probes are trained on, to be tested on the others"
    )
    alphas: list[float] = setting(
        [0.4, 0.0],
        "share of masked steps of a probe, a probe each; the first is compared",
        least=0,
        most=1,
    )
    probe_target: str = setting("label", "of masked steps of a probe", among=("label", "uniform"))
    draws: int = setting(4, "references of each image, and references to test with", least=1)
    probe_epochs: int = setting(60, "of a probe", least=1)
    probe_batch: int = setting(128, "images of its step", least=1)
    rates: list[float] = setting(
        [1.0, 3.0, 10.0, 30.0],
        "learning rates; each probe takes the best on held-out images",
        above=0,
    )
    probe_decay: float = setting(1e-5, "of its weights", least=0)
    train_limit: int | None = setting(None, "images to train a probe on; none: all", least=2)
    test_limit: int | None = setting(None, "images of each test; none: all", least=1)


def check(options: Options, jobs: Sequence[Job]) -> None:
    """Refuse probes without data, or with data that are not there."""
    from killick.experiments.experiment import check_places

    if not options.targets and options.domains is None:
        raise OptionError("--targets or --domains is needed to train probes on.")
    check_places(options.targets or (), "--targets ")
    if options.domains is not None and not Path(options.domains).is_dir():
        raise DataError(f"no folder {options.domains}: write --domains FOLDER.")


def find(results: Results) -> Findings:
    """Accuracy of probes by test and arm, beside the paper's."""

    def values(probe: tuple[str, float], **known: str) -> Values:
        return results.by_seed("top1", reference=0, protocol=probe[0], alpha=probe[1], **known)

    def compare(probe: tuple[str, float], **known: str) -> str:
        return compare_values(values(probe, **known), values(base, **known))

    alphas, base = [*results.plan.options.alphas, 0.0], ("standard", 0.0)
    probes = [(p, a) for p in results.levels("protocol") for a in dict.fromkeys(alphas)]
    probes = [probe for probe in probes if values(probe)]
    first: dict[str, tuple[str, float]] = {}  # by protocol the probe with the first alpha
    for probe in probes:
        first.setdefault(probe[0], probe)
    others = [probe for probe in probes if probe not in first.values()]
    compared = [probe for probe in first.values() if probe != base]
    records = results.records(metric="top1", reference=0)
    names = ("task", "source", "target")
    tests = [
        dict(zip(names, each, strict=True))
        for each in dict.fromkeys(tuple(record[name] for name in names) for record in records)
    ]
    rows = []
    left = {
        places: {"paper: standard": f"{standard:.2f}", "paper: masked": f"{masked:.2f}"}
        for places, (standard, masked) in PAPER.items()
    }
    groups: dict[str, dict[str, dict[str, Values]]] = {}
    for test in tests:
        places = (shorten(test["source"]), shorten(test["target"]))
        row = {"trained on → tested on": " → ".join(places)}
        row |= {probe[0]: format_mean(values(probe, **test)) for probe in first.values()}
        row |= {f"{probe[0]} − standard": compare(probe, **test) for probe in compared}
        row |= {f"{p}, probe alpha {a:g}": format_mean(values((p, a), **test)) for p, a in others}
        rows.append(row | left.pop(places, {}))
        group = "The same data" if test["task"] == "id" else f"Trained on {test['source']}"
        lines = groups.setdefault(group, {protocol: {} for protocol in first})
        for protocol, probe in first.items():
            lines[protocol][places[1]] = values(probe, **test)
    for places, paper in left.items():
        rows.append({"trained on → tested on": " → ".join(places)} | paper)
    table = make_table(
        "study-adaptation-table",
        "Accuracy of linear probes, %",
        rows,
        f"Probes of anchored networks are masked with alpha {alphas[0]:g} unless a column names"
        " another. Paper: ViT-B/16 of ImageNet.",
    )
    plots = [Plot(group, lines, "accuracy, %") for group, lines in groups.items()]
    gaps = [
        f"{probe[0]} {compare(probe, task=task)} on {words}"
        for task, words in _TASKS.items()
        if any(test["task"] == task for test in tests)
        for probe in compared
    ]
    return Findings(
        f"Accuracy of probes against standard networks: {'; '.join(gaps)}.",
        (draw_figure("study-adaptation", plots, draw_points),),
        (table,),
    )


def shorten(data: str) -> str:
    """The name of data without its kind and folders: "flowers102" of "imagefolder:/data/flowers102"."""
    return data.partition(":")[2].rstrip("/").rpartition("/")[2] or data


_FOLDERS = ("ucf101", "flowers102", "stanford-cars")
STUDY = Study(
    name="adaptation",
    item="Fig. 6",
    title="Are anchored networks better to build on?",
    about="accuracy of linear probes on frozen networks, on other data and on other domains",
    options=Options,
    varies=("protocols",),
    arms=compare_protocols,
    findings=find,
    measure="killick.studies.adaptation.probes:measure",
    check=check,
    suites=("clean",),
    sizes={
        "small": Size(options={"train_limit": 1500}, seeds=(0, 1, 2)),
        "smoke": Size(
            options={"train_limit": 60, "test_limit": 40, "draws": 2, "probe_epochs": 2}
            | {"rates": [3.0, 10.0]}
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
        "A fixed fifth of each source domain is held out to test on the domain itself.",
        "The paper states neither optimizer nor learning rate of the probes: SGD with a cosine"
        " schedule, the same steps for all, the best of the same learning rates on held-out images.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
