"""Arms: runs that differ in nothing but the seed, under a name that tells them from the others."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from killick.results.run_folder import LATER, Run

# What may tell two arms of one protocol apart, most telling first.
_FACTS = ("alpha", "scope", "start", "epochs", "network", "references", "reference_policy", "model")
# Settings of a recipe that no number depends on, or that follow from the seed, as the mean and the
# deviation of the training pictures do: which those are is drawn.
_IDLE = {
    *("about", "seed", "execution", "log_every", "checkpoint_minutes", "validate_every"),
    *("data.root", "data.download", "data.workers", "data.resident", "data.mean", "data.std"),
}
_KNOWN = ("standard", "anchored", "masked")


@dataclass(frozen=True)
class Arm:
    """Runs that differ in nothing but the seed.

    Attributes:
        name: The arm of a comparison, or made from how its models were trained.
        title: For people.
        about: How its models were trained, in one line.
        runs: By seed.
    """

    name: str
    title: str
    about: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of its runs."""
        return tuple(seed_of(run) for run in self.runs)

    @property
    def protocol(self) -> str:
        """How its models were trained: "standard", "anchored", "masked", or another word."""
        return str(_first(self.runs[0]).get("protocol", ""))

    @property
    def target(self) -> str:
        """Towards what masked pairs were trained; empty if none were."""
        return str(_first(self.runs[0]).get("target", ""))

    @property
    def from_scratch(self) -> bool:
        """Whether its models did not start from trained ones."""
        return not _first(self.runs[0]).get("start")


def seed_of(run: Run) -> int:
    """The seed that a run was trained with; 0 if nobody knows."""
    found = _known_seed(run)
    return 0 if found is None else found


def _known_seed(run: Run) -> int | None:
    for found in (run.job.get("seed"), _first(run).get("seed"), run.recipe.get("seed")):
        if isinstance(found, int | float) and not isinstance(found, bool):
            return int(found)
    return None


def group_runs(runs: Sequence[Run]) -> list[Arm]:
    """The arms, in the order of their first runs; an arm may have several runs of one seed."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run, recipe in zip(runs, _recipes(runs), strict=True):
        key = json.dumps([_base_name(run), _facts(run), recipe], sort_keys=True, default=str)
        groups[key].append(run)
    members = list(groups.values())
    return [
        Arm(name, title, _about(group[0]), tuple(sorted(group, key=seed_of)))
        for (name, title), group in zip(_names(members), members, strict=True)
    ]


def _recipes(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What numbers depend on in the recipe of each run.

    Rows alone come without one: they go with those that are alike in all else, if these have a
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


def _settings(recipe: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The settings of a recipe by their dotted names, those left out that change no number."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            found |= _settings(value, f"{name}.")
        elif name not in _IDLE and not (name in LATER and value == LATER[name]):
            found[name] = value
    return found


def _first(run: Run) -> Mapping[str, Any]:
    return run.rows[0] if run.rows else {}


def _facts(run: Run) -> dict[str, Any]:
    """How a model was trained, without the seed, wherever that is hidden."""
    row = _first(run)
    facts: dict[str, Any] = {name: row.get(name, "") for name in ("protocol", "target", *_FACTS)}
    # Without a seed nobody can say that two models differ in nothing else.
    facts["model"] = str(row.get("model", "")) if _known_seed(run) is None else ""
    facts["reference_policy"] = _seedless(str(facts["reference_policy"]))
    # A trained network that it started from is another for each seed.
    start = re.split(r"[\\/]", str(facts["start"]).rstrip("\\/"))[-1]
    facts["start"] = re.sub(r"seed[-_]?\d+(-[0-9a-f]{6,})?$", "seed*", start)
    return facts


def _seedless(policy: str) -> str:
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


def _names(groups: Sequence[Sequence[Run]]) -> list[tuple[str, str]]:
    """A name and a title for each group; what differs is added where two would have the same."""
    bases = [_base_name(group[0]) for group in groups]
    recipes = _recipes([group[0] for group in groups])
    everything = [
        {**_facts(group[0]), **recipe} for group, recipe in zip(groups, recipes, strict=True)
    ]
    found = []
    used: dict[str, int] = defaultdict(int)
    for base, facts in zip(bases, everything, strict=True):
        same = [other for name, other in zip(bases, everything, strict=True) if name == base]
        words = [base, *_differences(facts, same)]
        used["-".join(words)] += 1
        if used["-".join(words)] > 1:
            words.append(str(used["-".join(words)]))
        title = ", ".join([re.sub("^masked-(label|uniform)$", r"masked, \1", base), *words[1:]])
        found.append(("-".join(words), title))
    return found


def _differences(facts: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Words for what is not alike in a group: facts first, settings if these do not suffice."""
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
        return ""  # the plain case needs no word
    plain = {
        "start": "finetuned",
        "epochs": f"{value}epochs",
        "network": str(value).split(":")[-1],
        "alpha": f"alpha{value}",
    }
    return plain.get(name, f"{name.split('.')[-1]}={value}").replace(" ", "_")


def _about(run: Run) -> str:
    row = _first(run)
    parts = [_describe_protocol(row)]
    if row.get("references") or row.get("reference_policy"):
        policy = _seedless(str(row.get("reference_policy") or ""))
        words = [f"references {row['references']}" if row.get("references") else "", policy]
        parts.append(": ".join(word for word in words if word))
    parts.append(_describe_start(run))
    if row.get("epochs"):
        parts.append(f"{row['epochs']} epochs")
    parts.append(str(row.get("network", "")))
    return "; ".join(part for part in parts if part)


def _describe_start(run: Run) -> str:
    *above, start = re.split(r"[\\/]", str(_first(run).get("start", "")).rstrip("\\/"))
    if above and above[-1] == run.name:
        return _describe_first_part(run)
    return f"fine-tuned from {start}" if start else "from scratch"


def _describe_first_part(run: Run) -> str:
    """What was trained before, along the same schedule, as a standard network."""
    if not run.epochs_before:
        return "goes on from a first part of its own"
    return f"after {run.epochs_before} epochs as a standard network"


def _describe_protocol(row: Mapping[str, Any]) -> str:
    protocol = str(row.get("protocol", ""))
    if protocol != "masked":
        return protocol
    of = {"batch": "of the batches", "sample": "of the samples"}.get(str(row.get("scope")), "")
    share = row.get("alpha")
    how_often = f"in {100 * float(share):g} %" if share not in ("", None) else ""
    target = {"label": "the label"}.get(str(row.get("target")), str(row.get("target")))
    words = [f"masked towards {target}", how_often, of]
    return " ".join(word for word in words if word)
