"""What to evaluate on, and how: the settings of an evaluation and their checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from killick.corruptions.corruption import CORRUPTIONS, Corruption, Photographs, describe
from killick.corruptions.suites import PUBLISHED, SEVERITIES, SUITES, check_severity
from killick.data.given_data import as_sets
from killick.data.image_set import ImageSet
from killick.data.synthetic_ood import SYNTHETIC
from killick.errors import OptionError, check_option
from killick.evaluation.class_mapping import ClassMap

EVALUATION_SUITES = {
    "clean": "the test set: accuracy, NLL, Brier score, risk and coverage",
    "corruptions": "the 19 corruptions of ImageNet-C at five severities, generated or from files",
    "cbar": "the ten corruptions of C-bar, likewise",
    "calibration": "calibration errors of every set, also after temperature scaling",
    "ood": "detection of OOD images: AUROC, AUPR, FPR at 95 % TPR, by several scores",
    "shift": "shifted sets with the model's classes (ImageNet-R, -A, -V2, Sketch, ...)",
    "references": "dependence on the choice of reference (anchored models)",
}
DEFAULT_SUITES = ("clean", "corruptions", "calibration", "ood")
_CBAR = {*SUITES["cbar-cifar"], *SUITES["cbar-imagenet"]}


@dataclass(frozen=True)
class EvaluationSettings:
    """What to evaluate on, and how; see `killick.evaluate`."""

    suites: tuple[str, ...] = DEFAULT_SUITES
    ood: Mapping[str, str | ImageSet] = field(default_factory=dict)
    shift: Mapping[str, str | ImageSet] = field(default_factory=dict)
    corruption_files: str | None = None
    cbar_files: str | None = None
    corruptions: tuple[str, ...] | None = None
    own_corruptions: Mapping[str, Corruption] = field(default_factory=dict)
    severities: tuple[int, ...] = SEVERITIES
    synthetic: tuple[str, ...] = tuple(SYNTHETIC)
    table: str | None = None
    frost: Photographs = None
    references: int = 5
    limit: int | None = None
    seed: int = 0
    acceptance: float = 0.95
    class_map: ClassMap | None = None
    batch: int | None = None
    precision: str = "float32"
    workers: int | None = None
    again: bool = False
    predictions: bool = True

    def check(self) -> None:
        """Refuse what does not exist, and options without the suite they are for."""
        check_option("precision", self.precision, ["float32", "bfloat16"])
        for option in ("references", "limit", "batch"):
            value = getattr(self, option)
            if value is not None and (type(value) is not int or value < 1):
                raise OptionError(f"{option} must be at least 1, found {value!r}.")
        if not 0 < self.acceptance < 1:
            raise OptionError(f"acceptance must be between 0 and 1, found {self.acceptance!r}.")
        if not self.suites:
            raise OptionError(f"no suite is chosen. Choose some of {', '.join(EVALUATION_SUITES)}.")
        for suite in self.suites:
            check_option("a suite", suite, EVALUATION_SUITES)
        for name in self.synthetic:
            check_option("a synthetic set", name, SYNTHETIC)
        for severity in self.severities:
            check_severity(severity)
        for option, given, suite in (
            ("corruption-files", self.corruption_files, "corruptions"),
            ("cbar-files", self.cbar_files, "cbar"),
            ("class-map", self.class_map, "shift"),
            ("shift", self.shift or None, "shift"),
            ("ood", self.ood or None, "ood"),
        ):
            if given is not None and suite not in self.suites:
                raise OptionError(f"--{option} requires --suite {suite}.")
        if "ood" in self.suites and not self.ood and not self.synthetic:
            raise OptionError("--suite ood requires OOD images: --ood or --synthetic.")
        if "shift" in self.suites and not self.shift:
            raise OptionError("--suite shift requires --shift NAME=imagefolder:PATH.")
        if taken := set(self.ood) & set(self.synthetic):
            raise OptionError(f"--ood {min(taken)} is the name of a built-in set. Choose another.")
        for name in self.own_corruptions:
            if name in PUBLISHED:
                raise OptionError(f"{name} is a published corruption. Name yours otherwise.")
        for name in self.corruptions or ():
            self.find_corruption(name)
            if suite_of(name) not in self.suites:
                raise OptionError(f"the corruption {name} requires --suite {suite_of(name)}.")

    def choose_corruptions(self, suite: str, table: str) -> tuple[str, ...]:
        """The corruptions of a suite that are evaluated."""
        known = SUITES["c" if suite == "corruptions" else f"cbar-{table}"]
        if self.corruptions is None:
            return known
        # In the order of the suite; those of no suite come last.
        own = [name for name in self.corruptions if name not in PUBLISHED]
        chosen = [name for name in known if name in self.corruptions]
        chosen += own if suite == "corruptions" else []
        if not chosen:
            names = ", ".join(self.corruptions)
            raise OptionError(f"--suite {suite} has no {names} for table {table}.")
        return tuple(dict.fromkeys(chosen))

    def find_corruption(self, name: str) -> Corruption:
        """A corruption of the user, or a registered one."""
        return self.own_corruptions.get(name) or CORRUPTIONS.find(name)


def suite_of(corruption: str) -> str:
    """The evaluation suite that a corruption belongs to."""
    return "cbar" if corruption in _CBAR else "corruptions"


def make_settings(options: Mapping[str, Any]) -> EvaluationSettings:
    """The checked settings in the options of `killick.evaluate`; others are left alone."""
    names = {each.name for each in fields(EvaluationSettings)}
    found = {name: value for name, value in options.items() if name in names}
    own = found.get("corruptions")
    if isinstance(own, Mapping):
        found["own_corruptions"] = {name: describe(name, each) for name, each in own.items()}
    for name in ("ood", "shift"):
        found[name] = as_sets(found.get(name), name, options.get("normalize"))
    for name in ("suites", "corruptions", "severities", "synthetic"):
        if (value := found.get(name)) is not None:
            found[name] = (value,) if isinstance(value, str | int) else tuple(value)
    settings = EvaluationSettings(**found)
    settings.check()
    return settings
