"""Jobs of a comparison: an arm with a seed, trained and evaluated in a run folder of its own."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from killick.errors import OptionError, RecipeError
from killick.experiments.arms import TUNING_LR, Arm
from killick.protocols.base import PROTOCOLS
from killick.results.run_folder import read_job
from killick.runtime.hub import read_hub_name
from killick.training.recipe import Recipe
from killick.training.recipe_files import find_unused, load_recipe, make_recipe, recipe_of

_CONFIGS = ("model/config.json", "config.json", "model.json")  # of runs, models and exports
_BETWEEN_MEMBERS = 1_000_000  # between the seeds of an ensemble's members
# Settings that change what is logged and saved, not the trained weights.
_NOT_IN_DIGEST = ("about", "log_every", "loggers", "checkpoint_minutes", "execution")


@dataclass(frozen=True)
class Phase:
    """A training run of a job: its recipe, its folder, and the trained network it starts from."""

    recipe: Recipe
    folder: Path
    start: str | None


@dataclass(frozen=True)
class Job:
    """All that is done for one arm and seed."""

    arm: str
    seed: int
    phases: tuple[Phase, ...]  # its training runs, in order
    evaluation: Mapping[str, Any]  # options of `killick.evaluate`, as plain values
    measure: str | None = None  # `module:function` that `run_job` calls after the evaluation
    options: Mapping[str, Any] = field(default_factory=dict)  # of that function, as plain values
    run: str | None = None  # a finished run, which is evaluated in the place of phases
    place: str | None = None  # the folder of its results, where it is not that of its last phase
    members: tuple[str, ...] = ()  # run folders that an ensemble is made of, before the evaluation

    @property
    def folder(self) -> Path:
        """The folder that holds the results: the run folder of its last phase."""
        return self.phases[-1].folder if self.place is None else Path(self.place)

    @property
    def title(self) -> str:
        """Arm and seed, to print."""
        return f"{self.arm}, seed {self.seed}"

    @property
    def evaluation_digest(self) -> str:
        """A digest of how it is evaluated and measured."""
        return _digest([self.evaluation, self.measure, self.options])

    @property
    def evaluation_columns(self) -> dict[str, Any]:
        """Columns that rows of its evaluation have, and rows of other evaluations may not."""
        asked = self.evaluation
        return {
            "limit": "" if asked.get("limit") is None else asked["limit"],
            "evaluation_seed": asked.get("seed", 0),
            "precision": asked.get("precision", "float32"),
        }

    @property
    def finished(self) -> bool:
        """Whether its folder holds all results."""
        there = read_job(self.folder)
        done = there.get("finished") is True
        return done and there.get("evaluation_digest") == self.evaluation_digest

    def to_json(self) -> dict[str, Any]:
        """Plain values, for another process or machine."""
        return dict(json.loads(json.dumps(asdict(self), default=str)))

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Job":
        """The job of `to_json`."""
        phases = tuple(
            Phase(make_recipe(each["recipe"]), Path(each["folder"]), each["start"])
            for each in values["phases"]
        )
        return Job(**{**values, "phases": phases, "members": tuple(values["members"])})


class JobResult(TypedDict, total=False):
    """How a job ended; `problem` is a line, if it failed."""

    status: Literal["finished", "failed", "interrupted"]
    problem: str
    seconds: float


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
    """The jobs of a comparison, seed by seed, so that early results cover all arms.

    `source` is a recipe's name or file, `settings` are shared by all arms, `output` is the parent of
    the run folders. A job's folder is named after a digest of all that decides its weights: other
    settings are another folder, and a folder that fits is used again.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise OptionError(
            f"seeds must differ, and there must be one at least, found {', '.join(map(str, seeds))}."
        )
    jobs, known = [], dict[tuple[int, str], str]()
    trained = [arm for arm in arms if arm.run is None]
    for seed in seeds:
        for arm in trained:
            job = _make_job(source, settings, arm, seed, output.absolute(), evaluation)
            jobs.append(replace(job, measure=measure, options=options or {}))
            digest = job.folder.name.rpartition("-")[2]
            other = known.setdefault((seed, digest), arm.name)
            if other != arm.name:
                raise OptionError(f"the arms {other} and {arm.name} have the same settings.")
    if trained or "data.name" in settings:  # all are evaluated on the data of the comparison
        first = (trained or [Arm("", {"protocol.name": "standard"})])[0].settings
        data = load_recipe(source, {**settings, **first}).data
        evaluation = {**evaluation, "data": data.name, "root": data.root}
    for arm in (arm for arm in arms if arm.run is not None):
        jobs += _make_run_jobs(arm, seeds, output.absolute(), evaluation)
    return jobs


def _make_job(
    source: str | Path,
    settings: Mapping[str, Any],
    arm: Arm,
    seed: int,
    output: Path,
    evaluation: Mapping[str, Any],
) -> Job:
    """The job of an arm that is trained, or made of runs that are trained.

    The members of an ensemble are runs of the arm without it. The first is that of the same seed;
    the seeds of others are far away, so that no two ensembles share a member, but all have its
    training and validation images.
    """
    trained, own = replace(arm, name=arm.trained), {**evaluation, **arm.evaluation}
    runs = [_make_phases(source, settings, trained, seed, output)]
    for number in range(1, arm.members):
        same = {"data.seed": seed, **settings}
        runs.append(_make_phases(source, same, trained, seed + number * _BETWEEN_MEMBERS, output))
    phases = tuple(phase for run in runs for phase in run)
    if not arm.members and "inference" not in arm.evaluation:
        return Job(arm.name, seed, phases, own)
    folders = tuple(str(run[-1].folder) for run in runs)
    names = [Path(folder).name for folder in folders]
    place = output / f"{arm.name}-seed{seed}-{_digest([names, own.get('inference')])[:6]}"
    run, members = (None, folders) if arm.members else (folders[0], ())
    return Job(arm.name, seed, phases, own, run=run, place=str(place), members=members)


def _make_run_jobs(
    arm: Arm, seeds: Sequence[int], output: Path, evaluation: Mapping[str, Any]
) -> Iterator[Job]:
    """The jobs of an arm that is trained already: its runs are evaluated into folders of their own."""
    assert arm.run is not None
    if (named := _evaluation_of_name(arm.run, evaluation)) is not None:
        place = output / f"{arm.name}-seed{seeds[0]}-{_digest(arm.run)[:6]}"
        yield Job(arm.name, seeds[0], (), named, run=arm.run, place=str(place))
        return
    for seed in seeds if "{seed}" in arm.run else seeds[:1]:
        run = Path(arm.run.replace("{seed}", str(seed))).absolute()
        if not any((run / file).is_file() for file in (*_CONFIGS, "")):
            raise OptionError(f"no finished run or model at {run} for the arm {arm.name}.")
        with suppress(RecipeError):
            seed = recipe_of(run).seed
        place = output / f"{arm.name}-seed{seed}-{_digest(_fingerprint(str(run)))[:6]}"
        yield Job(arm.name, seed, (), evaluation, run=str(run), place=str(place))


def _evaluation_of_name(model: str, evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """How a network by name or a model on the hub is evaluated; None if it is neither."""
    if Path(model).exists():
        return None
    if ":" not in model:
        on_hub = read_hub_name(model) is not None and not Path(model).parent.is_dir()
        return dict(evaluation) if on_hub else None
    from killick.nets.custom import is_network_name  # imports torch

    if not is_network_name(model):
        raise OptionError(f"no model at {model}, nor a network by that name.")
    if "data" not in evaluation:
        raise OptionError(f"{model} needs --data.")
    return {**evaluation, "pretrained": True}


def check_settings_used(settings: Iterable[str], arms: Sequence[Arm], jobs: Sequence[Job]) -> None:
    """Raise an `OptionError` for a setting for all arms that has no effect in any of them."""
    for name in settings:
        if not any(job.phases for job in jobs) and name.startswith("data."):
            continue  # what finished runs are evaluated on
        if all(
            name in arm.settings or find_unused(job.phases[-1].recipe, [name])
            for arm, job in zip(arms, jobs, strict=False)  # jobs of the first seed
        ):
            raise OptionError(f"no effect in any of the arms: {name}. Leave it out.")


def _make_phases(
    source: str | Path, settings: Mapping[str, Any], arm: Arm, seed: int, output: Path
) -> tuple[Phase, ...]:
    """The training runs of an arm with a seed; the last one's folder is the job's."""
    recipe = load_recipe(source, {**settings, **arm.settings, "seed": seed})
    unused = find_unused(recipe, settings)
    # So that --alpha for all arms does not train the standard one again.
    used = {name: value for name, value in settings.items() if name not in unused}
    overrides, start = {**used, **arm.settings, "seed": seed}, None
    # What follows imports torch, which takes seconds.
    if arm.start is not None:
        from killick.training.initial_weights import find_start

        start = str(find_start(arm.start))
    if start is not None or recipe.network.may_name_weights:
        from killick.training.initial_weights import add_preprocessing

        overrides = add_preprocessing(source, overrides, None if start is None else Path(start))
    recipe = load_recipe(source, overrides)
    if arm.more:
        recipe = _shorten(recipe, arm.more)
    earlier: tuple[Phase, ...] = ()
    if arm.after is not None:
        earlier = _make_phases(source, settings, arm.after, seed, output)
    recipes = list(_split(recipe, arm)) if arm.first else [recipe]
    deciding = [_deciding(each) for each in (*(phase.recipe for phase in earlier), *recipes)]
    digest = _digest([*deciding, _fingerprint(start)])[:6]
    folder = next(
        (path for path in sorted(output.glob(f"*-seed{seed}-{digest}")) if path.is_dir()),
        output / f"{arm.name}-seed{seed}-{digest}",
    )
    if arm.first:
        earlier = (Phase(recipes[0], folder / "first", None),)
    if earlier:
        start = str(earlier[-1].folder)
    return (*earlier, Phase(recipes[-1], folder, start))


def _split(recipe: Recipe, arm: Arm) -> tuple[Recipe, Recipe]:
    """A standard run and its continuation, with one budget and one schedule."""
    whole = (recipe.schedule.begin, recipe.schedule.end) == (0.0, 1.0)
    if recipe.epochs < 2 or not whole:
        raise OptionError(
            f"the arm {arm.name} trains a share of the epochs first: it needs at least 2, and a"
            " whole schedule (no schedule.begin or schedule.end)."
        )
    epochs = min(max(round(arm.first * recipe.epochs), 1), recipe.epochs - 1)
    share = epochs / recipe.epochs
    schedules = [replace(recipe.schedule, end=share), replace(recipe.schedule, begin=share)]
    standard = PROTOCOLS.find("standard")()
    first = replace(recipe, epochs=epochs, protocol=standard, schedule=schedules[0])
    second = replace(recipe, epochs=recipe.epochs - epochs, schedule=schedules[1])
    return first, second


def _shorten(recipe: Recipe, share: float) -> Recipe:
    """Fine-tuning: a share of the epochs, at a low learning rate."""
    optimizer = replace(recipe.optimizer, lr=TUNING_LR * recipe.optimizer.lr)
    return replace(recipe, epochs=max(round(share * recipe.epochs), 1), optimizer=optimizer)


def _deciding(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in asdict(recipe).items() if name not in _NOT_IN_DIGEST}


def _fingerprint(start: str | None) -> str:
    """A digest of a trained network, so that another one at the same path is another job."""
    if start is None:
        return ""
    place = Path(start)
    for file in (*(place / name for name in _CONFIGS), place):
        if file.is_file():
            with open(file, "rb") as opened:
                return hashlib.file_digest(opened, "sha256").hexdigest()
    raise OptionError(
        f"no trained network at {start}: give a run folder, a folder written by killick.save, or a"
        " file with weights."
    )


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
