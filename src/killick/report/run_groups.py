"""Groups runs into arms: runs that differ in nothing but the seed."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from killick.results.run_folder import Run

# Columns of rows that distinguish arms where there is no recipe.
_COLUMNS = (
    *("protocol", "target", "alpha", "scope", "batchnorm", "references", "epochs", "network"),
    "components",
)
# Settings of a recipe that no number depends on, or that follow from the seed, as the mean and the
# deviation of the training images do.
_IDLE = {
    *("about", "seed", "execution", "log_every", "checkpoint_minutes", "validate_every"),
    *("data.root", "data.download", "data.workers", "data.resident", "data.mean", "data.std"),
    "data.seed",
}
_ABOUT = (
    *("protocol", "target", "alpha", "scope", "batchnorm", "references", "reference_policy"),
    *("start", "epochs before", "epochs", "network"),
)

_MOST_WORDS = 2  # settings in a name
_PAIRS = "pairs [reference, image − reference]"
_TARGETS = {"label": "the label", "uniform": "the uniform distribution"}


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
    def description(self) -> str:
        """How its models were trained, for newcomers; empty if that is unknown."""
        row = _first(self.runs[0])
        images = {"standard": "images alone", "anchored": _PAIRS, "masked": _PAIRS}
        if self.protocol not in images or not is_known(self.runs[0]):
            return ""
        begin = "a trained network, tuned on" if self.start else "trained on"
        words = [f"{begin} {images[self.protocol]}"]
        if self.target:
            share = f"{float(row.get('alpha') or 0):.0%}".replace("%", " %")
            what = "batches" if row.get("scope") == "batch" else "pairs"
            words.append(
                f"reference masked in {share} of the {what}, towards {_TARGETS.get(self.target, self.target)}"
            )
        if self.components:
            words.append(f"with {', '.join(json.loads(self.components))}")
        return "; ".join([*words, f"{row['epochs']} epochs"])

    @property
    def components(self) -> str:
        """What was trained beside the protocol, as JSON; empty if nothing was."""
        return str(_first(self.runs[0]).get("components", ""))

    @property
    def start(self) -> str:
        """What its models started from; empty if fresh weights, or unknown."""
        return str(_first(self.runs[0]).get("start", ""))

    @property
    def from_scratch(self) -> bool:
        """Whether its models are known to have started from fresh weights."""
        return is_known(self.runs[0]) and not self.start


def is_known(run: Run) -> bool:
    """Whether it is known how the model was trained."""
    return str(_first(run).get("epochs", "")) != ""


def seed_of(run: Run) -> int:
    """The seed that a run was trained with; 0 if unknown."""
    seeds = (run.job.get("seed"), _first(run).get("seed"), run.recipe.get("seed"))
    return next((seed for seed in seeds if isinstance(seed, int)), 0)


def group_runs(runs: Sequence[Run]) -> list[ArmRuns]:
    """The arms, in the order of their first runs; an arm may have several runs of one seed."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        key = json.dumps([_base_name(run), _settings(run)], sort_keys=True, default=str)
        groups[key].append(run)
    names = _names([group[0] for group in groups.values()])
    return [
        ArmRuns(name, _about(group[0]), tuple(sorted(group, key=seed_of)))
        for name, group in zip(names, groups.values(), strict=True)
    ]


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


def _settings(run: Run) -> dict[str, Any]:
    """How a model was trained, without anything that depends on the seed."""
    row = _first(run)
    settings = {name: value for name, value in flatten(run.recipe).items() if name not in _IDLE}
    settings = settings or {name: row.get(name, "") for name in _COLUMNS}
    settings["reference_policy"] = row.get("reference_policy") or ""
    # A trained network that it started from is another for each seed.
    start = re.split(r"[\\/]", str(row.get("start", "")).rstrip("\\/"))[-1]
    settings["start"] = re.sub(r"seed[-_]?\d+(-[0-9a-f]{6,})?$", "seed*", start)
    if not run.job and row.get("seed", "") == "":
        settings["model"] = row.get("model")  # without a seed two models are two arms
    return settings


def _base_name(run: Run) -> str:
    row = _first(run)
    protocol, target = str(row.get("protocol", "")), str(row.get("target", ""))
    if given := run.job.get("arm") or row.get("name"):
        return str(given)
    if protocol == "masked" and target:
        return f"masked-{target}"
    known = protocol in ("standard", "anchored", "masked") and is_known(run)
    return protocol if known else str(row.get("model") or run.name)


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for each arm; where two would have the same, a setting that differs, or the folder's."""
    bases, settings = [_base_name(run) for run in runs], [_settings(run) for run in runs]
    found: list[str] = []
    for run, base, own in zip(runs, bases, settings, strict=True):
        same = [other for name, other in zip(bases, settings, strict=True) if name == base]
        words = [
            f"{name.removesuffix('.name').split('.')[-1]}={value}".replace(" ", "_")
            for name, value in own.items()
            if value not in ("", None) and any(other.get(name, value) != value for other in same)
        ]
        folder = re.sub(r"-seed[-_]?\d+.*", "", run.name)
        found.append("-".join([base, *words]) if len(words) <= _MOST_WORDS else folder)
    return [
        name if found.count(name) == 1 else f"{name}-{run.name}"
        for name, run in zip(found, runs, strict=True)
    ]


def _about(run: Run) -> str:
    row = {**_first(run), "epochs before": run.epochs_before}
    return ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in _ABOUT if row.get(name))
