"""Groups runs into arms: runs that differ in nothing but the seed."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from killick.results.run_folder import Run

# Columns that may distinguish two arms of one protocol, most important first.
_FACTS = (
    *("alpha", "scope", "batchnorm", "start", "epochs", "network", "references"),
    *("reference_policy", "model"),
)
# Settings of a recipe that no number depends on, or that follow from the seed, as the mean and the
# deviation of the training images do.
_IDLE = {
    *("about", "seed", "execution", "log_every", "checkpoint_minutes", "validate_every"),
    *("data.root", "data.download", "data.workers", "data.resident", "data.mean", "data.std"),
}
_KNOWN = ("standard", "anchored", "masked")


@dataclass(frozen=True)
class ArmRuns:
    """Runs that differ in nothing but the seed."""

    name: str  # the arm of a comparison, or made from how its models were trained
    about: str  # how its models were trained, in one line
    runs: tuple[Run, ...]  # by seed

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs."""
        return tuple(seed_of(run) for run in self.runs)

    @property
    def protocol(self) -> str:
        """How its models were trained: "standard", "anchored", "masked", or another word."""
        return str(_first(self.runs[0]).get("protocol", ""))

    @property
    def target(self) -> str:
        """The target of masked pairs; empty if none were masked."""
        return str(_first(self.runs[0]).get("target", ""))

    @property
    def from_scratch(self) -> bool:
        """Whether its models did not start from trained ones."""
        return not _first(self.runs[0]).get("start")


def seed_of(run: Run) -> int:
    """The seed that a run was trained with; 0 if unknown."""
    return _known_seed(run) or 0


def _known_seed(run: Run) -> int | None:
    for found in (run.job.get("seed"), _first(run).get("seed"), run.recipe.get("seed")):
        if isinstance(found, int | float) and not isinstance(found, bool):
            return int(found)
    return None


def group_runs(runs: Sequence[Run]) -> list[ArmRuns]:
    """The arms, in the order of their first runs; an arm may have several runs of one seed."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run, recipe in zip(runs, _recipes(runs), strict=True):
        key = json.dumps([_base_name(run), _facts(run), recipe], sort_keys=True, default=str)
        groups[key].append(run)
    members = list(groups.values())
    return [
        ArmRuns(name, _about(group[0]), tuple(sorted(group, key=seed_of)))
        for name, group in zip(_names(members), members, strict=True)
    ]


def _recipes(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The settings of each run that numbers depend on.

    A file of rows has no recipe: it goes with runs that are alike in all else, if these share a
    single recipe.
    """
    own = [_settings(run.recipe) for run in runs]
    alike: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    keys = [json.dumps([_base_name(run), _facts(run)], default=str) for run in runs]
    for key, recipe in zip(keys, own, strict=True):
        if recipe:
            alike[key][json.dumps(recipe, sort_keys=True, default=str)] = recipe
    return [
        recipe or (next(iter(alike[key].values())) if len(alike[key]) == 1 else {})
        for key, recipe in zip(keys, own, strict=True)
    ]


def _settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flatten(recipe).items() if name not in _IDLE}


def flatten(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _first(run: Run) -> Mapping[str, Any]:
    return run.rows[0] if run.rows else {}


def _facts(run: Run) -> dict[str, Any]:
    """How a model was trained, without anything that depends on the seed."""
    row = _first(run)
    facts: dict[str, Any] = {name: row.get(name, "") for name in ("protocol", "target", *_FACTS)}
    # Without a seed two models cannot be taken for one arm.
    facts["model"] = str(row.get("model", "")) if _known_seed(run) is None else ""
    facts["reference_policy"] = _without_seed(str(facts["reference_policy"]))
    # A trained network that it started from is another for each seed.
    start = re.split(r"[\\/]", str(facts["start"]).rstrip("\\/"))[-1]
    facts["start"] = re.sub(r"seed[-_]?\d+(-[0-9a-f]{6,})?$", "seed*", start)
    return facts


def _without_seed(policy: str) -> str:
    return re.sub(r",? ?seed \d+", "", policy)


def _base_name(run: Run) -> str:
    arm = run.job.get("arm")
    if isinstance(arm, str) and arm:
        return arm
    row = _first(run)
    protocol, target = str(row.get("protocol", "")), str(row.get("target", ""))
    if protocol == "masked" and target:
        return f"masked-{target}"
    return protocol if protocol in _KNOWN else str(row.get("model") or run.name)


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """A name for each group; what differs is added where two would have the same."""
    bases = [_base_name(group[0]) for group in groups]
    recipes = _recipes([group[0] for group in groups])
    everything = [
        {**_facts(group[0]), **recipe} for group, recipe in zip(groups, recipes, strict=True)
    ]
    found: list[str] = []
    used: dict[str, int] = defaultdict(int)
    for base, facts in zip(bases, everything, strict=True):
        same = [other for name, other in zip(bases, everything, strict=True) if name == base]
        name = "-".join([base, *_differences(facts, same)])
        used[name] += 1
        found.append(name if used[name] == 1 else f"{name}-{used[name]}")
    return found


def _differences(facts: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Words for what differs within a group: facts first, settings if these do not suffice."""
    differing = [name for name in _FACTS if len({str(other.get(name)) for other in group}) > 1]
    alike = [other for other in group if all(other.get(n) == facts.get(n) for n in differing)]
    settings = sorted(
        name
        for name in {name for other in alike for name in other} - {*_FACTS, "protocol", "target"}
        if len({str(other.get(name)) for other in alike}) > 1
    )
    return [word for name in (*differing, *settings) if (word := _word(name, facts.get(name)))]


def _word(name: str, value: Any) -> str:
    if value in ("", None) and name in _FACTS:
        return ""
    plain = {
        "start": "finetuned",
        "epochs": f"{value}epochs",
        "network": str(value).split(":")[-1],
        "alpha": f"alpha{value}",
    }
    return plain.get(name, f"{name.split('.')[-1]}={value}").replace(" ", "_")


def _about(run: Run) -> str:
    row = {**_first(run), "epochs before": run.epochs_before}
    row["reference_policy"] = _without_seed(str(row.get("reference_policy") or ""))
    names = (
        *("protocol", "target", "alpha", "scope", "batchnorm", "references", "reference_policy"),
        *("start", "epochs before", "epochs", "network"),
    )
    return ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in names if row.get(name))
