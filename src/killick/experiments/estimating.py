"""How long cells will take, from a few seconds of timing on this machine. Read `estimate`."""

import heapq
import inspect
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from killick.corruptions.registry import choose_table, list_corruptions
from killick.data.sources import load_whole
from killick.errors import DataError
from killick.evaluation.evaluator import evaluate
from killick.evaluation.plan import Choices
from killick.experiments.jobs import Cell, Phase
from killick.experiments.scheduler import count_cores
from killick.experiments.timing import Stopwatch, Timing
from killick.results.run_folder import read_cell
from killick.runtime.processes import choose_device
from killick.training.recipe import Recipe
from killick.training.run_inputs import RESIDENT_BYTES, sets_of

_BEGINNING = 5.0  # seconds in which a process starts and reads its data
_COMPILING = 30.0  # seconds in which a run on a GPU compiles its step
# What evaluation does beside asking the network (metrics, distances, files), as a share of that.
_BESIDE = 1.3
_USUAL_REFERENCES = inspect.signature(evaluate).parameters["references"].default

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Estimate:
    """How long some cells will take.

    Attributes:
        seconds: Of each cell that is not finished, by its folder.
        total: Seconds until the last one is finished.
        found: How this was found, in a sentence.
    """

    seconds: Mapping[Path, float]
    total: float
    found: str


class Sizes(NamedTuple):
    """Of the sets of a recipe: how many pictures, and what has to be known of them."""

    train: int
    validation: int
    test: int
    classes: int
    in_memory: bool


def estimate(
    cells: Sequence[Cell],
    *,
    jobs: int,
    device: str,
    passes: int = 0,
    timing: Timing | None = None,
) -> Estimate:
    """How long the cells that are not finished will take.

    Steps, forward passes and corruptions are timed here, in some seconds, with random weights and
    pictures. Finished cells among those given tell better, and are asked first.

    Args:
        cells: All of a grid.
        jobs: Cells that run at once.
        device: "auto", "cpu", "cuda" or "cuda:1".
        passes: Pictures that are shown to each cell's network when it is measured.
        timing: Who says how long things take; by default this machine.
    """
    todo = [cell for cell in cells if not cell.finished]
    if not todo:
        return Estimate({}, 0.0, "all cells are finished")
    place = choose_device(device)
    threads = max(1, count_cores() // jobs)
    gpu = place.type == "cuda"
    costs = _Costs(timing or Stopwatch(place, threads), threads, gpu, cells)
    seconds: dict[Path, float] = {}
    counted: set[Path] = set()
    for cell in todo:
        seconds[cell.folder] = (
            sum(costs.train(phase) for phase in _untrained(cell, counted))
            + costs.evaluate(cell)
            + passes * costs.forward(cell.phases[-1].recipe)
        )
    total = schedule(seconds.values(), jobs) + _BEGINNING
    return Estimate(seconds, total, _explain(threads, gpu, costs.cells_asked))


def schedule(seconds: Iterable[float], jobs: int) -> float:
    """When the last of some tasks ends, if each begins as soon as one of the jobs is free.

    Example:
        >>> schedule([3, 1, 1, 1], 2)
        3.0
    """
    free = [0.0] * jobs
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def describe(seconds: float) -> str:
    """A time for people, no more exact than an estimate is.

    Example:
        >>> describe(370)
        'about 6 minutes'
    """
    if seconds < 10:
        return "a few seconds"
    for limit, unit, name in ((90, 1, "seconds"), (5400, 60, "minutes"), (129600, 3600, "hours")):
        if seconds < limit:
            amount = round(seconds, -1) if unit == 1 else seconds / unit
            whole = unit < 3600 or amount >= 10
            return f"about {round(amount) if whole else round(2 * amount) / 2:g} {name}"
    return f"about {seconds / 86400:.0f} days"


def _untrained(cell: Cell, counted: set[Path]) -> list[Phase]:
    """The runs of a cell that are still to be trained; one that cells share is counted once."""
    found = []
    for phase in cell.phases:
        trained = (phase.folder / "model" / "config.json").exists()
        if not trained and phase.folder not in counted:
            counted.add(phase.folder)
            found.append(phase)
    return found


def _explain(threads: int, gpu: bool, asked: int) -> str:
    where = "this machine's GPU" if gpu else "this machine"
    found = f"from a few steps and pictures timed on {where}"
    if not gpu:
        found += f", {threads} thread{'' if threads == 1 else 's'} for each cell"
    if asked:
        found += f", and from {asked} finished cell{'' if asked == 1 else 's'}"
    if gpu:
        found += "; at most so long: steps are faster once they are captured in a CUDA graph"
    return found


@dataclass
class _Costs:
    """Seconds of the parts of cells; each thing is timed once.

    Attributes:
        timing: Who is asked.
        threads: Of a cell.
        gpu: Whether cells run on one.
        cells: Finished ones among them tell how long others of their kind take.
    """

    timing: Timing
    threads: int
    gpu: bool
    cells: Sequence[Cell]
    _known: dict[str, Any] = field(default_factory=dict)
    _asked: set[Path] = field(default_factory=set)

    @property
    def cells_asked(self) -> int:
        """Finished cells that were of use."""
        return len(self._asked)

    def train(self, phase: Phase) -> float:
        """Seconds of a training run."""
        recipe, sizes = phase.recipe, self._sizes(phase.recipe)
        steps = count_steps(recipe, sizes)
        told = self._told_step(recipe)
        if told is not None:
            return steps * told
        judged = -(-recipe.epochs // recipe.validate_every) * sizes.validation + sizes.test
        compiling = _COMPILING if self.gpu and recipe.execution != "eager" else 0.0
        working, reading = steps * self._step(recipe), self._reading(recipe, sizes, steps)
        together = max(working, reading) if self.gpu else working + reading
        return together + judged * self.forward(recipe) + compiling

    def evaluate(self, cell: Cell) -> float:
        """Seconds of its evaluation."""
        recipe = cell.phases[-1].recipe
        told = self._told_evaluation(cell)
        if told is not None:
            return told
        sizes, choices = self._sizes(recipe), _choices(cell.evaluation)
        test = _limited(_tested(cell.evaluation, sizes), choices)
        made, files = _corrupted(recipe.data.size, choices)
        others = _count_others(choices, test) + _limited(sizes.validation, choices)
        shown = test * (1 + len(choices.severities) * (len(made) + len(files))) + others
        making = test * len(choices.severities) * self._making(made, recipe.data.size)
        reading = 0.0 if sizes.in_memory else (test + others) * self._read(recipe) / self.threads
        asking = shown * _references(recipe, cell.evaluation) * self.forward(recipe)
        return _BESIDE * asking + making + reading

    def forward(self, recipe: Recipe) -> float:
        """Seconds to show the network one picture."""
        classes, kind = self._sizes(recipe).classes, _kind(recipe)
        return self._once(["forward", kind], lambda: self.timing.forward(recipe, classes))

    def _step(self, recipe: Recipe) -> float:
        classes, kind = self._sizes(recipe).classes, _kind(recipe)
        return self._once(["step", kind], lambda: self.timing.step(recipe, classes))

    def _read(self, recipe: Recipe) -> float:
        about = ["read", recipe.data.name, recipe.data.size, asdict(recipe.augment)]
        return self._once(about, lambda: self.timing.read(recipe))

    def _reading(self, recipe: Recipe, sizes: Sizes, steps: int) -> float:
        """Seconds in which all pictures of a run are read: each time they come, or once."""
        if _streams(recipe, sizes):
            return steps * min(recipe.batch, sizes.train) * self._read(recipe) / self.threads
        return 0.0 if sizes.in_memory else sizes.train * self._read(recipe) / self.threads

    def _making(self, names: Sequence[str], size: int) -> float:
        """Seconds to make all of some corruptions of one picture."""
        about = ["corruptions", *names, size]
        return self._once(about, lambda: sum(self.timing.corruptions(names, size).values()))

    def _sizes(self, recipe: Recipe) -> Sizes:
        return self._once(["sizes", asdict(recipe.data)], lambda: _count(recipe))

    def _once(self, about: list[Any], find: Callable[[], _Found]) -> _Found:
        name = _text(about)
        if name not in self._known:
            self._known[name] = find()
        found: _Found = self._known[name]
        return found

    def _told_step(self, recipe: Recipe) -> float | None:
        """Seconds of a step, with all that a run does beside, in finished cells of this kind."""
        found = []
        for cell in self._finished():
            only = cell.phases[0].recipe
            if len(cell.phases) == 1 and _kind(only) == _kind(recipe):
                taken = float(read_cell(cell.folder).get("seconds", {}).get("train", 0))
                if taken > 0:
                    found.append(taken / count_steps(only, self._sizes(only)))
                    self._asked.add(cell.folder)
        return statistics.mean(found) if found else None

    def _told_evaluation(self, cell: Cell) -> float | None:
        """Seconds that finished cells of this kind were evaluated in, if asked the same."""
        recipe, found = cell.phases[-1].recipe, []
        for other in self._finished():
            same = other.asked == cell.asked and _kind(other.phases[-1].recipe) == _kind(recipe)
            taken = float(read_cell(other.folder).get("seconds", {}).get("evaluate", 0))
            if same and taken > 0:
                found.append(taken)
                self._asked.add(other.folder)
        return statistics.mean(found) if found else None

    def _finished(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.finished]


def count_steps(recipe: Recipe, sizes: Sizes) -> int:
    """Of a run: epochs leave out what is left of the last batch."""
    return recipe.epochs * max(1, sizes.train // recipe.batch)


def _count(recipe: Recipe) -> Sizes:
    """What is there is counted; an estimate fetches nothing."""
    parts = sets_of(replace(recipe, data=replace(recipe.data, download=False)))
    held, test = (0 if part is None else len(part) for part in (parts.validation, parts.test))
    if test == 0:
        raise DataError(
            f"expected pictures to test on in {recipe.data.name}, found none. Name data with a test"
            " set."
        )
    return Sizes(len(parts.train), held, test, parts.train.classes, parts.train.in_memory)


def _streams(recipe: Recipe, sizes: Sizes) -> bool:
    """Whether pictures are read and augmented one by one, as training decides it."""
    augment, resident = recipe.augment, recipe.data.resident
    if augment.crop == "resized" or augment.policy != "none" or resident == "never":
        return True
    return resident == "auto" and sizes.train * 3 * recipe.data.size**2 > RESIDENT_BYTES


def _choices(evaluation: Mapping[str, Any]) -> Choices:
    names = {each.name for each in fields(Choices)}
    given = {name: value for name, value in evaluation.items() if name in names}
    if isinstance(given.get("suites"), str):
        given["suites"] = (given["suites"],)
    return Choices(**given)


def _tested(evaluation: Mapping[str, Any], sizes: Sizes) -> int:
    data = evaluation.get("data")
    return len(load_whole(data)) if isinstance(data, str) else sizes.test


def _corrupted(size: int, choices: Choices) -> tuple[list[str], list[str]]:
    """The corruptions that are made, and those that come from files."""
    table = choose_table((size, size), choices.table)
    made: list[str] = []
    read: list[str] = []
    for suite, kind, files in (
        ("corruptions", "c", choices.corruption_files),
        ("cbar", "cbar", choices.cbar_files),
    ):
        if suite in choices.suites:
            known = list_corruptions(kind, table)
            chosen = [n for n in known if choices.corruptions is None or n in choices.corruptions]
            (made if files is None else read).extend(chosen)
    return made, read


def _count_others(choices: Choices, test: int) -> int:
    """Pictures of sets other than the test set and its corruptions."""
    count = len(choices.synthetic) * test if "ood" in choices.suites else 0
    for suite, given in (("ood", choices.ood), ("shift", choices.shift)):
        if suite in choices.suites:
            sets = (load_whole(s) if isinstance(s, str) else s for s in given.values())
            count += sum(_limited(len(each), choices) for each in sets)
    return count


def _limited(count: int, choices: Choices) -> int:
    return count if choices.limit is None else min(count, choices.limit)


def _references(recipe: Recipe, evaluation: Mapping[str, Any]) -> int:
    """From how many references each picture is looked at."""
    protocol = recipe.protocol
    if not protocol.anchored:
        return 1
    stored = 1 if protocol.stored_as == "mean" else protocol.stored
    return min(int(evaluation.get("references", _USUAL_REFERENCES)), stored)


def _kind(recipe: Recipe) -> str:
    """All that decides how long a step takes."""
    protocol, data = recipe.protocol, recipe.data
    return _text(
        [
            asdict(recipe.network),
            asdict(recipe.augment),
            asdict(recipe.average),
            recipe.optimiser.name,
            protocol.anchored,
            protocol.references if protocol.anchored else "",
            *(data.name, data.size, data.repeats),
            *(recipe.batch, recipe.accumulate, recipe.precision, recipe.execution),
        ]
    )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
