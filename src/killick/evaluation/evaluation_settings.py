"""The settings of an evaluation, and their checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from killick.corruptions.corruption import CORRUPTIONS, Corruption, Photographs, describe
from killick.corruptions.suites import PUBLISHED, SEVERITIES, SUITES, list_corruptions
from killick.data.given_data import as_sets
from killick.data.image_set import ImageSet
from killick.data.synthetic_ood import SYNTHETIC
from killick.errors import OptionError, check_option
from killick.evaluation.class_mapping import ClassMap
from killick.evaluation.evaluation_suites import DEFAULT_SUITES, check_options, imply_suites

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
    references: int | None = None
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
        """Refuse what does not exist."""
        check_options(vars(self))
        for name in self.synthetic:
            check_option("a synthetic set", name, SYNTHETIC)
        if taken := set(self.ood) & set(self.synthetic):
            raise OptionError(f"--ood {min(taken)} is the name of a built-in set. Choose another.")
        for name in self.own_corruptions:
            if name in PUBLISHED:
                raise OptionError(f"{name} is a published corruption. Name yours otherwise.")
        for name in self.corruptions or ():
            self.find_corruption(name)
            if suite_of(name) not in self.suites:
                raise OptionError(f"the corruption {name} requires --suite {suite_of(name)}.")

    def leave_out(self, suite: str, reason: str, notes: list[str]) -> None:
        """Note that a suite is left out; an error if it is the only one."""
        if self.suites == (suite,):
            raise OptionError(f"--suite {suite}: {reason}.")
        notes.append(f"the suite {suite} is left out: {reason}")

    def choose_corruptions(self, suite: str, table: str) -> tuple[str, ...]:
        """The corruptions of a suite that are evaluated."""
        known = list_corruptions("c" if suite == "corruptions" else "cbar", table)
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
    if found.get("suites"):
        found["suites"] = imply_suites(found["suites"], found)
    settings = EvaluationSettings(**found)
    settings.check()
    return settings
