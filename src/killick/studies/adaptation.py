"""Fig. 6: are anchored networks better to build on? Linear probes on other data and domains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.errors import DataError, OptionError
from killick.settings import setting
from killick.studies.study import PROTOCOLS, Size, Study, Treatment, plain

if TYPE_CHECKING:
    from killick.studies.results import Results
    from killick.studies.shown import Shown

# Accuracy of a probe on the standard ViT-B/16 of ImageNet and on the proposed one. Fig. 6a: tested
# on the data it was trained on. Fig. 6b: the domains of DomainNet it was trained and tested on.
PAPER_DATA = {
    "cifar10": (95.48, 96.29),
    "cifar100": (80.1, 82.78),
    "ucf101": (75.55, 77.01),
    "flowers102": (94.68, 95.7),
    "stanford-cars": (58.54, 61.15),
}
PAPER_DOMAINS = {
    ("real", "sketch"): (25.85, 28.02),
    ("real", "clipart"): (37.38, 38.98),
    ("real", "painting"): (46.3, 46.97),
    ("sketch", "real"): (41.35, 44.81),
    ("sketch", "clipart"): (35.4, 37.76),
    ("sketch", "painting"): (31.42, 32.7),
}


@dataclass(frozen=True)
class Options:
    """What probes are trained on, and how."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms whose networks are probed")
    targets: list[str] = setting(["digits"], "data that a probe is trained and tested on")
    domains: str | None = setting(
        None, "folder of DOMAIN/CLASS/pictures; none: shapes in four styles made by Killick"
    )
    styles: list[str] | None = setting(None, "names of the domains; none: all that are there")
    sources: list[str] = setting(
        ["real", "sketch"], "domains that probes are trained on, to be tested on the others"
    )
    alphas: list[float] = setting(
        [0.4, 0.0], "how often a probe is masked, a probe each; the first is the one compared"
    )
    probe_target: str = setting("label", "of masked steps of a probe", among=("label", "uniform"))
    draws: int = setting(4, "references of each picture, and references to test from", least=1)
    probe_epochs: int = setting(60, "of a probe", least=1)
    probe_batch: int = setting(128, "pictures of its step", least=1)
    rates: list[float] = setting(
        [1.0, 3.0, 10.0, 30.0], "learning rates; each probe takes the best on pictures held back"
    )
    probe_decay: float = setting(1e-5, "of its weights", least=0)
    train_limit: int | None = setting(None, "pictures to train a probe on; none: all", least=2)
    test_limit: int | None = setting(None, "pictures of each test; none: all", least=1)


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """The protocols as they are: only what is built on them is varied."""
    if not options.alphas or not 0 <= min(options.alphas) <= max(options.alphas) <= 1:
        raise OptionError(f"expected alphas between 0 and 1, found {options.alphas}.")
    if not options.rates or min(options.rates) <= 0:
        raise OptionError(f"expected rates above 0, found {options.rates}.")
    if not options.targets and not options.sources:
        raise OptionError("expected targets or sources to train probes on, found neither.")
    return plain(options.protocols)


def find_data(options: Options) -> list[str]:
    """What probes are trained and tested on, beside the data of the networks."""
    if options.domains is None or not options.sources:
        return list(options.targets)
    folder = Path(options.domains)
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in [*options.sources, *(options.styles or [])]:
        if there and name not in there:
            raise DataError(
                f"expected the domain {name!r} in {folder}, found {', '.join(there[:10])}. Name"
                " others: --styles, and --sources among them."
            )
    return [*options.targets, f"pictures:{options.domains}"]


def count_passes(options: Options) -> int:
    """Pictures that an anchored network is shown, which are most; sizes of files are a guess."""
    train, test = options.train_limit or 2000, options.test_limit or 1000
    tests = len(options.targets) + len(options.sources) * len(options.styles or range(4))
    probes = len(options.targets) + len(options.sources)
    return options.draws * (2 * train * probes + test * tests)


def show(results: "Results") -> "Shown":
    """Accuracy by test and arm, beside the paper's."""
    from killick.studies import adapted
    from killick.studies.shown import Shown

    probed = adapted.collect_probed(results)
    says = "In the paper probes on masked networks are better in all tests, by 0.7 to 3.5 points."
    published = {(name, name): values for name, values in PAPER_DATA.items()} | PAPER_DOMAINS
    figure = adapted.draw_probed(results, probed, published, says)
    table = adapted.tabulate_probed(results, probed, published)
    notes = tuple(adapted.tell_notes(results, probed))
    return Shown(adapted.tell_probed(probed), (figure,), (table,), notes=notes)


_FOLDERS = ("ucf101", "flowers102", "stanford-cars")
_SHOWN = {"suites": ("clean",), "references": 1}
_FEW: dict[str, Any] = {
    "styles": ["real", "sketch"],
    "sources": ["real"],
    "train_limit": 60,
    "test_limit": 40,
}
_FEW |= {"draws": 2, "probe_epochs": 2, "rates": [3.0, 10.0]}
STUDY = Study(
    name="adaptation",
    item="Fig. 6",
    title="Are anchored networks better to build on?",
    about="accuracy of linear probes on frozen networks, on other data and on other domains",
    options=Options,
    varies=("protocols",),
    treat=treat,
    show=show,
    measure="killick.studies.adapting:measure",
    passes=count_passes,
    needs=find_data,
    sizes={
        "small": Size(
            "shapes-compare",
            options={"train_limit": 1500},
            seeds=(0, 1, 2),  # of two the intervals would tell nothing
            evaluation={**_SHOWN, "limit": 400},
        ),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 100, "data.validation": 0, "epochs": 1},
            _FEW,
            seeds=(0,),
            evaluation={**_SHOWN, "limit": 60},
        ),
        "paper": Size(
            "imagenet-vit-b16",
            options={
                "targets": ["cifar10", "cifar100", *(f"imagefolder:{name}" for name in _FOLDERS)],
                "domains": "domainnet",
                "styles": ["real", "sketch", "clipart", "painting"],
            },
            seeds=(0,),
            evaluation=_SHOWN,
            remark="Bring ImageNet as --data imagenet:FOLDER, DomainNet as --domains FOLDER, other"
            " data as --targets cifar10,imagefolder:FOLDER,... Unproven, for want of these data.",
        ),
    },
    unsaid=(
        "optimizer, epochs and learning rate of the probes; taken: SGD with a cosine, the same"
        " steps for all, each with the best of the same learning rates on pictures held back.",
        "target of masked steps, and references; taken: the label, one to test from, four of each"
        " picture to train with.",
        "which part of DomainNet is tested on; taken: all of the domains not trained on.",
    ),
)
