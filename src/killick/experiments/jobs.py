"""Cells of a comparison: an arm with a seed, trained and evaluated in a run folder of its own."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from killick.errors import OptionError
from killick.experiments.arms import Arm
from killick.protocols.base import PROTOCOLS
from killick.results.run_folder import LATER, read_job
from killick.training.recipe import Recipe
from killick.training.recipe_files import load_recipe, make_recipe
from killick.training.unused_settings import find_unused

# These change what is written down of a run, not the run.
_ASIDE = ("about", "log_every", "checkpoint_minutes", "execution")


@dataclass(frozen=True)
class Phase:
    """A training run, the only one of a cell or one after another.

    Attributes:
        recipe: All of its settings.
        folder: Of the run.
        start: A trained network to start from.
    """

    recipe: Recipe
    folder: Path
    start: str | None


@dataclass(frozen=True)
class Job:
    """What has to be done for one arm and seed.

    Attributes:
        arm: Its name.
        seed: Of all its runs.
        folder: Of its last run, where the results are.
        phases: Its runs, in their order.
        evaluation: Options of `killick.evaluate`, as plain values.
        measure: `module:function` that is called when it is evaluated, by `run_job`.
        options: Of that function, as plain values.
    """

    arm: str
    seed: int
    folder: Path
    phases: tuple[Phase, ...]
    evaluation: Mapping[str, Any]
    measure: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.arm}, seed {self.seed}"

    @property
    def measuring(self) -> dict[str, Any]:
        """What is measured of it and how, as its records know it."""
        return {"measure": self.measure, **self.options}

    @property
    def asked(self) -> str:
        """A digest of how it is evaluated and measured."""
        if self.measure is None:
            return _digest(dict(self.evaluation))
        return _digest([dict(self.evaluation), self.measure, dict(self.options)])

    @property
    def finished(self) -> bool:
        """Whether its folder holds all that is asked for."""
        there = read_job(self.folder)
        return there.get("finished") is True and there.get("asked") == self.asked

    def to_json(self) -> dict[str, Any]:
        """As plain values, for another process or machine."""
        phases = [
            {"recipe": asdict(phase.recipe), "folder": str(phase.folder), "start": phase.start}
            for phase in self.phases
        ]
        return {
            "arm": self.arm,
            "seed": self.seed,
            "folder": str(self.folder),
            "phases": phases,
            "evaluation": dict(self.evaluation),
            "measure": self.measure,
            "options": dict(self.options),
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Job":
        """The cell that `to_json` was asked of."""
        phases = tuple(
            Phase(make_recipe(each["recipe"]), Path(each["folder"]), each["start"])
            for each in values["phases"]
        )
        return Job(
            values["arm"],
            values["seed"],
            Path(values["folder"]),
            phases,
            values["evaluation"],
            values["measure"],
            values["options"],
        )


def make_jobs(
    source: str | Path,
    settings: Mapping[str, Any],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    output: Path,
    evaluation: Mapping[str, Any],
    *,
    measure: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[Job]:
    """The cells of a comparison, seed by seed, so that early results are of all arms.

    A cell's folder is named after all that decides its weights: other settings are another folder,
    and what fits is used again.

    Args:
        source: A recipe's name or file.
        settings: That all arms share, by dotted name.
        arms: What differs.
        seeds: Of each arm.
        output: Where the folders are.
        evaluation: Options of `killick.evaluate`.
        measure: What is measured of each beside, see `Job`.
        options: Of that.
    """
    if not seeds:
        raise OptionError("expected at least one seed, found none.")
    if len(set(seeds)) < len(seeds):
        raise OptionError(f"expected different seeds, found {', '.join(map(str, seeds))}.")
    cells = [
        replace(
            _make_cell(source, settings, arm, seed, output.absolute(), evaluation),
            measure=measure,
            options=options or {},
        )
        for seed in seeds
        for arm in arms
    ]
    alike: dict[str, Job] = {}
    for cell in cells:
        other = alike.setdefault(f"{cell.seed} {cell.folder.name.rpartition('-')[2]}", cell)
        if other is not cell:
            raise OptionError(
                f"expected arms that differ, found {other.arm} and {cell.arm} with the same"
                " settings."
            )
    return cells


def _make_cell(
    source: str | Path,
    settings: Mapping[str, Any],
    arm: Arm,
    seed: int,
    output: Path,
    evaluation: Mapping[str, Any],
) -> Job:
    recipe = load_recipe(source, {**settings, **arm.settings, "seed": seed})
    idle = find_unused(recipe, settings)
    if idle:  # an alpha for all makes no other standard network, which is not trained again
        acting = {name: value for name, value in settings.items() if name not in idle}
        recipe = load_recipe(source, {**acting, **arm.settings, "seed": seed})
    start = None if arm.start is None else _find_start(arm.start)
    recipes = [recipe] if not arm.first else list(_halves(recipe, arm))
    earlier: tuple[Phase, ...] = ()
    if arm.after is not None:
        assert not arm.first, "an arm starts from another one, or from a part of itself"
        assert start is None, "an arm starts from another one, or from a file"
        earlier = _make_cell(source, settings, arm.after, seed, output, evaluation).phases
    recipes_before = [phase.recipe for phase in earlier]
    decided = [_deciding(each) for each in (*recipes_before, *recipes)] + [_fingerprint(start)]
    digest = _digest(decided)[:6]
    folder = next(
        (path for path in sorted(output.glob(f"*-seed{seed}-{digest}")) if path.is_dir()),
        output / f"{arm.name}-seed{seed}-{digest}",
    )
    phases = [*earlier, Phase(recipes[-1], folder, str(earlier[-1].folder) if earlier else start)]
    if arm.first:
        before = folder / "first"
        phases = [Phase(recipes[0], before, None), Phase(recipes[1], folder, str(before))]
    return Job(arm.name, seed, folder, tuple(phases), evaluation)


def _halves(recipe: Recipe, arm: Arm) -> tuple[Recipe, Recipe]:
    """A standard run and one that goes on from it, along one schedule and with one budget."""
    if recipe.epochs < 2:
        raise OptionError(
            f"expected at least 2 epochs for the arm {arm.name}, which trains a share of them"
            f" first, found {recipe.epochs}."
        )
    if (recipe.schedule.begin, recipe.schedule.end) != (0.0, 1.0):
        raise OptionError(
            f"expected a whole schedule for the arm {arm.name}, found a part of one: leave"
            " schedule.begin and schedule.end out."
        )
    epochs = min(max(round(arm.first * recipe.epochs), 1), recipe.epochs - 1)
    share = epochs / recipe.epochs
    first = replace(
        recipe,
        epochs=epochs,
        protocol=PROTOCOLS.find("standard")(),
        schedule=replace(recipe.schedule, end=share),
    )
    second = replace(
        recipe,
        epochs=recipe.epochs - epochs,
        schedule=replace(recipe.schedule, begin=share),
    )
    return first, second


def _deciding(recipe: Recipe) -> dict[str, Any]:
    decided = {name: value for name, value in asdict(recipe).items() if name not in _ASIDE}
    for dotted, before in LATER.items():  # a cell's folder is named as ever
        group, name = dotted.split(".")
        if decided[group].get(name) == before:
            decided[group] = {k: v for k, v in decided[group].items() if k != name}
    return decided


def _find_start(given: str) -> str:
    from killick.training.source_run import find_start  # with torch, which takes seconds to import

    return str(find_start(given))


def _fingerprint(start: str | None) -> str:
    """What a trained network is known by; its name alone would hide that it has changed."""
    if start is None:
        return ""
    place = Path(start)
    for file in (place / "model" / "config.json", place / "config.json", place):
        if file.is_file():
            with open(file, "rb") as opened:
                return hashlib.file_digest(opened, "sha256").hexdigest()
    raise OptionError(
        f"expected a trained network to start from, found none at {start}: a run folder, a folder"
        " written by killick.save, or a file with weights."
    )


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
