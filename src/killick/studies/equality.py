"""What of a study was as in the paper, and what was not: settings side by side."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from killick.studies.study import Plan, Study, Treatment, make_plan
from killick.training.recipe_files import load_recipe

# These change no number, or follow from the machine.
_IDLE = {
    *("about", "seed", "execution", "log_every", "checkpoint_minutes", "validate_every"),
    *("data.root", "data.download", "data.workers", "data.resident"),
}
_PAPER = "paper"
_PUBLISHED = "published files"
_VARIES = "varies between the arms, or is not set"
_EVALUATED = ("suites", "limit", "corruptions", "severities", "references", "ood", "shift")


@dataclass(frozen=True)
class Equality:
    """A plan beside that of the paper.

    Attributes:
        equal: Names of what is the same.
        different: A name, what it is here, and what it is in the paper's recipe.
    """

    equal: tuple[str, ...]
    different: tuple[tuple[str, str, str], ...]


def compare_with_paper(plan: Plan) -> Equality:
    """All that decides the numbers of a plan, beside the study's size "paper"."""
    paper = make_plan(plan.study, _PAPER)
    ours, theirs = _facts(plan), _facts(paper)
    theirs["corrupted pictures"] = _PUBLISHED
    names = list(dict.fromkeys([*theirs, *ours]))
    equal = [name for name in names if ours.get(name, _VARIES) == theirs.get(name, _VARIES)]
    different = [
        (name, _spell(ours.get(name, _VARIES)), _spell(theirs.get(name, _VARIES)))
        for name in names
        if name not in equal
    ]
    return Equality(tuple(equal), tuple(different))


def _facts(plan: Plan) -> dict[str, Any]:
    """Settings by dotted name, options, evaluation and seeds."""
    shared = [_settings(plan, treatment) for treatment in plan.treatments]
    found = {
        name: value
        for name, value in shared[-1].items()  # that of the method itself comes last
        if all(other.get(name) == value for other in shared) or name.startswith("protocol.")
    }
    found |= {f"option {name}": value for name, value in _plain(asdict(plan.options)).items()}
    found |= {f"evaluation {name}": "as usual" for name in _EVALUATED}
    asked = {k: v for k, v in _plain(plan.evaluation).items() if not k.endswith("_files")}
    found |= {f"evaluation {name}": value for name, value in asked.items()}
    found["corrupted pictures"] = _source(plan)
    found["arms"] = [treatment.arm.name for treatment in plan.treatments]
    found["number of seeds"] = len(plan.seeds)
    return found


def _source(plan: Plan) -> str:
    """Where corrupted pictures come from; those that are measured beside are always made."""
    given = plan.evaluation.get("corruption_files")
    return _PUBLISHED if given and plan.study.measure is None else "made by Killick"


def _settings(plan: Plan, treatment: Treatment) -> dict[str, Any]:
    recipe = load_recipe(plan.recipe, {**plan.settings, **treatment.arm.settings})
    return {name: value for name, value in _flat(asdict(recipe)).items() if name not in _IDLE}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and key not in ("arguments", "policy_arguments"):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def _spell(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_spell, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_spell(each)}" for key, each in value.items()) or "none"
    return str(value)


def is_about_the_paper(study: Study) -> bool:
    """Whether there is something in the paper to be compared with."""
    return bool(study.item)
