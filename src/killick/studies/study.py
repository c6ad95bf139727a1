"""What a study is: what is varied, at which sizes it is run, and how its results are shown.

A study is plain data and two functions: `treat` says what is trained, `show` what is seen in the
results. Everything between, cells, processes, records, pages, is `killick.studies.running`'s.
Importing a study needs no torch, so that the command line can tell of it at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError, check_option
from killick.experiments.arms import KNOWN, Arm
from killick.settings import read_options
from killick.training.recipe import Recipe
from killick.training.recipe_files import load_recipe

if TYPE_CHECKING:
    from killick.studies.results import Results
    from killick.studies.shown import Shown

SIZES = ("small", "smoke", "paper")
PROTOCOLS = ("standard", "anchored", "masked-label")


@dataclass(frozen=True)
class Treatment:
    """An arm of a study, and where it stands in what is varied.

    Attributes:
        arm: What is trained.
        factors: Such as `{"protocol": "anchored", "references": 50}`.
    """

    arm: Arm
    factors: Mapping[str, Any]


@dataclass(frozen=True)
class Size:
    """A scale at which a study is run.

    Attributes:
        recipe: That all arms share.
        settings: Of the recipe, by dotted name.
        options: Of the study.
        seeds: Of each arm.
        evaluation: Options of `killick.evaluate`.
        remark: What a reader has to know of it.
    """

    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True)
class NoOptions:
    """Of a study that has none."""


@dataclass(frozen=True)
class Study:
    """An experiment.

    Attributes:
        name: On the command line.
        item: In the paper: "Fig. 1", "Tables 1, 2 and 6"; empty for what goes beyond it.
        title: Of its section in the report, a question.
        about: In a line, for lists and help.
        sizes: By name: "small", the default, minutes on two cores; "smoke", seconds; "paper".
        treat: From the options and the shared settings to what is trained.
        show: From the results to what is seen.
        options: A frozen dataclass of fields made by `killick.training.recipe.setting`.
        varies: Names of the options that `treat` reads; the others are those of `measure`.
        measure: `module:function` that measures each cell when it is evaluated; see
            `killick.experiments.job_runner`.
        finish: `module:function` that works on all finished cells together, and returns the
            folders of what it made, runs too.
        passes: From the options to the pictures that `measure` shows to a cell's network, for
            estimates of time.
        needs: From the options to data, by name, that are read beside those trained on.
        check: From the options and the recipes of all cells: refuses what would fail at the end.
        unsaid: What the paper leaves open, and what was taken.
    """

    name: str
    item: str
    title: str
    about: str
    sizes: Mapping[str, Size]
    treat: Callable[[Any, Mapping[str, Any]], Sequence[Treatment]]
    show: "Callable[[Results], Shown]"
    options: type = NoOptions
    varies: tuple[str, ...] = ()
    measure: str | None = None
    finish: str | None = None
    passes: Callable[[Any], int] | None = None
    needs: Callable[[Any], Sequence[str]] | None = None
    check: Callable[[Any, Sequence[Recipe]], None] | None = None
    unsaid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A study at a scale: all that decides its numbers.

    Attributes:
        study: Which.
        size: Name of the scale it was made from.
        recipe: Name or file.
        settings: That all arms share.
        options: An instance of the study's.
        treatments: What is trained.
        seeds: Of each.
        evaluation: Options of `killick.evaluate`.
    """

    study: Study
    size: str
    recipe: str
    settings: Mapping[str, Any]
    options: Any
    treatments: tuple[Treatment, ...]
    seeds: tuple[int, ...]
    evaluation: Mapping[str, Any]

    @property
    def measured_with(self) -> dict[str, Any]:
        """The options that `measure` reads."""
        if self.study.measure is None:
            return {}
        return {k: v for k, v in asdict(self.options).items() if k not in self.study.varies}

    @property
    def measuring(self) -> dict[str, Any]:
        """What is measured of each cell and how, as its records know it."""
        return {"measure": self.study.measure, **self.measured_with}

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Of the treatments."""
        return tuple(treatment.arm for treatment in self.treatments)


def make_plan(
    study: Study,
    size: str = "small",
    *,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> Plan:
    """A study at one of its scales, with some things changed.

    Args:
        study: Which.
        size: "small", "smoke" or "paper".
        recipe: Another one. Settings of the scale that are about its own recipe's data and network
            (their names, sizes and budget) are then left out.
        settings: Of the recipe, by dotted name.
        options: Of the study, by name.
        seeds: Others.
        evaluation: Options of `killick.evaluate`, others.
    """
    check_option("the size of a study", size, study.sizes)
    base = study.sizes[size]
    kept = {} if recipe is not None else dict(base.settings)
    given = dict(settings or {})
    if "data.name" in given and recipe is None and size != "paper":
        kept = _without_data(base, kept, given)
    shared = {**kept, **given}
    chosen = read_options(
        study.options, {**base.options, **(options or {})}, f"the study {study.name}"
    )
    shown = {**base.evaluation, **(evaluation or {})}
    treatments = tuple(study.treat(chosen, shared))
    if not treatments:
        raise OptionError(f"expected something to train in the study {study.name}, found nothing.")
    names = [treatment.arm.name for treatment in treatments]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"expected different values of what is varied, found {twice} twice.")
    return Plan(
        study,
        size,
        recipe or base.recipe,
        shared,
        chosen,
        treatments,
        tuple(base.seeds if seeds is None else seeds),
        shown,
    )


def _without_data(base: Size, kept: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a scale without those that its own data alone can have: how many are taken."""
    own = load_recipe(base.recipe, {**kept, "protocol.name": "standard"}).data.name
    if given["data.name"] == own:
        return dict(kept)
    return {**kept, "data.limit": None, "data.validation": 0.1}


def cross(
    factor: str,
    levels: Mapping[Any, Mapping[str, Any]],
    protocols: Iterable[str] = PROTOCOLS,
) -> list[Treatment]:
    """Every protocol at every level of what is varied.

    Args:
        factor: What is varied, in a word.
        levels: The settings of the recipe at each of its values.
        protocols: Names of arms that are known.

    Example:
        >>> made = cross("noise", {0.1: {"data.label_noise": 0.1}}, ["standard", "anchored"])
        >>> [treatment.arm.name for treatment in made]
        ['standard-noise0.1', 'anchored-noise0.1']
    """
    return [
        Treatment(
            vary(protocol, f"{factor}{level}", settings), {"protocol": protocol, factor: level}
        )
        for level, settings in levels.items()
        for protocol in protocols
    ]


def vary(protocol: str, name: str, settings: Mapping[str, Any]) -> Arm:
    """A known arm with more settings, under a name that says so."""
    check_option("a protocol", protocol, KNOWN)
    known = KNOWN[protocol]
    clean = "".join(c if c.isalnum() or c in "-_." else "_" for c in f"{protocol}-{name}")
    return replace(known, name=clean, settings={**known.settings, **settings})


def plain(protocols: Iterable[str] = PROTOCOLS) -> list[Treatment]:
    """The protocols themselves, nothing varied."""
    for protocol in protocols:
        check_option("a protocol", protocol, KNOWN)
    return [Treatment(KNOWN[protocol], {"protocol": protocol}) for protocol in protocols]
