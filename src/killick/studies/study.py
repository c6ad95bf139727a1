"""What a study is: its arms, its sizes, and how its results become findings.

Importing a study needs no torch, so that the command line's help stays fast.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError, check_option
from killick.experiments.arms import ARMS, Arm
from killick.registry import Registry
from killick.settings import read_options
from killick.studies.set_names import describe_missing, is_imagenet

if TYPE_CHECKING:
    from killick.experiments.jobs import Job
    from killick.studies.findings import Findings, Results

PROTOCOLS = ("standard", "anchored", "masked-label")
WITH_REFERENCES = tuple(name for name in ARMS if name != "standard")


@dataclass(frozen=True)
class StudyArm:
    """An arm of a study and its factor levels.

    Attributes:
        arm: What is trained.
        factors: Such as `{"protocol": "anchored", "references": 50}`.
    """

    arm: Arm
    factors: Mapping[str, Any]


@dataclass(frozen=True)
class Size:
    """The scale of a study. A study states only what differs from `SIZES`.

    Attributes:
        recipe: Shared by all arms.
        settings: Of the recipe, by dotted name.
        options: Of the study.
        seeds: Of each arm.
        evaluation: Options of `killick.evaluate`.
        remark: One line for the help.
    """

    recipe: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


_EMBEDDED = "shapes"
_FEW = {"data.limit": 100, "data.validation": 0, "data.workers": 0, "epochs": 1}
SIZES = {
    "small": Size("shapes-compare", seeds=(0, 1), evaluation={"limit": 400}),
    "smoke": Size("shapes-compare", _FEW, seeds=(0,), evaluation={"limit": 60}),
    "paper": Size("cifar100-resnet18", seeds=(0, 1, 2)),
}


@dataclass(frozen=True)
class NoOptions:
    """The options of a study that has none."""


@dataclass(frozen=True)
class Study:
    """An experiment.

    Attributes:
        name: On the command line.
        item: In the paper: "Fig. 1", "Tables 1, 2 and 6"; empty for what goes beyond it.
        title: The question that it answers, also the title of its report.
        about: One line for lists and help.
        arms: From the options and the shared settings to what is trained.
        findings: From the results to a headline, figures and tables.
        options: A frozen dataclass of fields made by `killick.settings.setting`.
        suites: Of the evaluation.
        sizes: What it changes in each of `SIZES`.
        varies: Options that `arms` reads and `measure` does not; needed with `measure` alone.
        measure: `module:function` that measures each job after its evaluation; see
            `killick.experiments.job_runner`.
        finish: `module:function` that works on all finished jobs and returns the run folders it made.
        check: Raises an error for options that do not fit the jobs, before these are run.
        notes: Choices that the paper does not state.
        sets: The paper's sets beside ImageNet itself, by the option that takes them.
        models: Whether it also takes models that are trained already.
    """

    name: str
    item: str
    title: str
    about: str
    arms: Callable[[Any, Mapping[str, Any]], Sequence[StudyArm]]
    findings: "Callable[[Results], Findings]"
    options: type = NoOptions
    suites: tuple[str, ...] = ("clean", "corruptions")
    sizes: Mapping[str, Size] = field(default_factory=dict)
    varies: tuple[str, ...] = ()
    measure: str | None = None
    finish: str | None = None
    check: "Callable[[Any, Sequence[Job]], None] | None" = None
    notes: tuple[str, ...] = ()
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    models: bool = False

    def at_size(self, name: str) -> Size:
        """A size of this study, complete."""
        check_option("the size of a study", name, SIZES)
        base, own = SIZES[name], self.sizes.get(name, Size())
        shown = {"suites": self.suites, "references": 1, **base.evaluation}
        if name == "smoke" and "corruptions" in self.suites:
            shown["corruptions"] = ("fog", "contrast")
        return Size(
            own.recipe or base.recipe,
            {**base.settings, **own.settings},
            own.options,
            own.seeds or base.seeds,
            {**shown, **own.evaluation},
            own.remark,
        )


STUDIES: Registry[Study] = Registry("studies", "study")


@dataclass(frozen=True)
class Plan:
    """A study at a size: everything that decides its numbers."""

    study: Study
    size: str  # its name
    recipe: str  # name or file
    settings: Mapping[str, Any]  # of the recipe, shared by all arms
    options: Any  # an instance of the study's options
    study_arms: tuple[StudyArm, ...]
    seeds: tuple[int, ...]  # of each arm
    evaluation: Mapping[str, Any]  # options of `killick.evaluate`
    models: tuple[str, ...] = ()  # evaluated in the place of training

    @property
    def missing_sets(self) -> str:
        """A line about the paper's sets that are not evaluated; empty if there are none."""
        data = str(self.settings.get("data.name") or Path(self.recipe).stem)
        if self.size != "paper" or not is_imagenet(data):
            return ""
        return describe_missing(self.study.sets, self.evaluation)

    @property
    def measure_options(self) -> dict[str, Any]:
        """The options that `measure` reads."""
        if self.study.measure is None:
            return {}
        return {k: v for k, v in asdict(self.options).items() if k not in self.study.varies}

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What is trained, without factor levels."""
        return tuple(each.arm for each in self.study_arms)


def make_plan(
    study: Study,
    size: str = "small",
    *,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    models: Sequence[str] = (),
) -> Plan:
    """A study at one of its sizes, with some things changed.

    Args:
        study: Which study.
        size: "small", "smoke" or "paper".
        recipe: Another recipe, without the settings of the size.
        settings: Of the recipe, by dotted name.
        options: Of the study, by name.
        seeds: Of each arm.
        evaluation: Options of `killick.evaluate`.
        models: Evaluated in the place of training: folders, or networks by name with the weights of
            their library. Settings are then those of the data alone.
    """
    if models:
        return _plan_models(study, size, models, settings or {}, options or {}, evaluation or {})
    base = study.at_size(size)
    shared = {} if recipe is not None else dict(base.settings)
    given = dict(settings or {})
    if recipe is None and size != "paper" and given.get("data.name", _EMBEDDED) != _EMBEDDED:
        shared |= {"data.limit": None, "data.validation": 0.1}  # the size's are of its own data
    shared |= given
    chosen = read_options(
        study.options, {**base.options, **(options or {})}, f"the study {study.name}"
    )
    for name, value in vars(chosen).items():
        if value == []:
            raise OptionError(f"--{name.replace('_', '-')} needs at least one value.")
    arms = tuple(study.arms(chosen, shared))
    names = [each.arm.name for each in arms]
    if not arms or len(set(names)) < len(names):
        raise OptionError(
            f"the study {study.name} needs arms with different names, found"
            f" {', '.join(names) or 'none'}."
        )
    return Plan(
        study,
        size,
        recipe or base.recipe,
        shared,
        chosen,
        arms,
        tuple(seeds or base.seeds),
        {**base.evaluation, **(evaluation or {})},
    )


def _plan_models(
    study: Study,
    size: str,
    models: Sequence[str],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    evaluation: Mapping[str, Any],
) -> Plan:
    """A plan that trains nothing."""
    idle = [*(k for k in settings if k not in ("data.name", "data.root")), *options]
    if not study.models or idle:
        what = f"--{idle[0]} has no effect" if study.models else f"{study.name} takes no models"
        raise OptionError(f"{what}: --models evaluates without training. Leave it out.")
    arms = tuple(StudyArm(Arm(name_model(model), run=model), {}) for model in models)
    names = [each.arm.name for each in arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"two of the models are named {twice}.")
    base = study.at_size(size)
    shown = {**base.evaluation, **evaluation}
    return Plan(
        study, size, base.recipe, settings, study.options(), arms, (0,), shown, tuple(models)
    )


def name_model(model: str) -> str:
    """The name of an arm for a model: its folder's, or the network's.

    Example:
        >>> name_model("runs/mine/model"), name_model("torchvision:swin_v2_t#IMAGENET1K_V1")
        ('mine', 'swin_v2_t-IMAGENET1K_V1')
    """
    path = Path(model).absolute()
    name = path.parent.name if path.stem == "model" else path.name
    if not path.exists() and ":" in model:
        name = model.rpartition(":")[2]
    return re.sub(r"[^\w.-]+", "-", name)


def cross_arms(
    factor: str, levels: Mapping[Any, Mapping[str, Any]], protocols: Iterable[str] = PROTOCOLS
) -> list[StudyArm]:
    """Every protocol at every level of a factor; a level brings settings of the recipe.

    Example:
        >>> made = cross_arms("noise", {0.1: {"data.label_noise": 0.1}}, ["standard", "anchored"])
        >>> [each.arm.name for each in made]
        ['standard-noise0.1', 'anchored-noise0.1']
    """
    return [
        StudyArm(
            vary_arm(protocol, f"{factor}{level}", settings), {"protocol": protocol, factor: level}
        )
        for level, settings in levels.items()
        for protocol in protocols
    ]


def vary_arm(protocol: str, name: str, settings: Mapping[str, Any]) -> Arm:
    """A known arm with more settings and a longer name."""
    check_option("a protocol", protocol, ARMS)
    known = ARMS[protocol]
    clean = "".join(c if c.isalnum() or c in "-_." else "_" for c in f"{protocol}-{name}")
    return replace(known, name=clean, settings={**known.settings, **settings})


def compare_protocols(options: Any, settings: Mapping[str, Any]) -> list[StudyArm]:
    """The arms of a study that varies nothing but the protocol, its option `protocols`."""
    for protocol in options.protocols:
        check_option("a protocol", protocol, ARMS)
    return [StudyArm(ARMS[protocol], {"protocol": protocol}) for protocol in options.protocols]
