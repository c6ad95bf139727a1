"""A training run, from a recipe to a run folder. Read `train` top to bottom.

```
folder/
  recipe.yaml            every setting
  environment.json       versions, machine, command
  metrics.jsonl          a line for each look at the run
  checkpoint.pt          to go on from; checkpoint-before.pt, the one before
  model/                 what killick.save writes, at the end
  rows.csv               results on the test set, at the end
```
"""

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.data.preprocessing import PlainView
from killick.errors import CheckpointError, DivergedError, KillickError
from killick.nets import remembered
from killick.nets.custom import read_source
from killick.results.rows import Row, make_row, read_rows, write_rows
from killick.runtime.atomic_files import write_atomic
from killick.runtime.processes import Processes, joined
from killick.runtime.progress import Display, DisplayFactory, choose_display
from killick.runtime.signals import Interrupts
from killick.storage.model_folder import digest_weights, load, note_on_references, save
from killick.training.checkpoint import LAST, load_checkpoint, save_checkpoint
from killick.training.recipe import Recipe
from killick.training.recipe_files import make_recipe, read_yaml, to_yaml
from killick.training.run_inputs import gather_material
from killick.training.run_log import Metrics, environment
from killick.training.run_state import Run
from killick.training.source_run import find_start, warn_of_seen
from killick.training.validation import Held, Score, judge


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        folder: Of the run.
        finished: False if it was interrupted; it can be resumed.
        model: As saved, in eval mode; None if not finished.
        rows: Results on the test set.
    """

    folder: Path
    finished: bool
    model: Anchored | Standard | None
    rows: list[dict[str, Any]]


def train(
    recipe: Recipe | None,
    folder: str | Path,
    *,
    start: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    quiet: bool = False,
    show: DisplayFactory | None = None,
) -> Outcome:
    """Train a model as `recipe` says, and leave everything about it in `folder`.

    Several processes started by torchrun train together; the batch is the recipe's all the same.

    Args:
        recipe: None with `resume`: it is the folder's.
        folder: Of the run; must not hold another one.
        start: A trained network to start from; see `make_model`.
        resume: Go on from the last checkpoint in `folder`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        quiet: Show nothing.
        show: Who is told how it goes, instead of a terminal.

    Raises:
        DivergedError: If the loss becomes NaN or infinite; the last checkpoint stays.
    """
    folder = Path(folder)
    with joined(device) as processes, _own_randomness(processes.device):
        state, told = None, None
        show = choose_display(show, quiet or not processes.first)
        if resume:
            if (outcome := _find_finished(folder, processes)) is not None:
                with show(f"training {folder.name}", 1, 1, "step") as display:
                    display.message(
                        f"{folder} is finished, and stays as it is. To train longer, start another"
                        f" run from it: killick train --from {shlex.quote(str(folder))}"
                    )
                return outcome
            state, told = load_checkpoint(folder)
            recipe = make_recipe(state["recipe"], f"the recipe of {folder}")
            start = state["start"]
            recipe = _rebuilding(recipe, state)
        assert recipe is not None
        start = None if start is None else find_start(start)
        if not resume:
            check_free(folder, recipe)
        material = gather_material(recipe, processes)
        run = Run(
            recipe,
            material,
            processes,
            start,
            trained=not resume,  # a checkpoint has the weights
        )
        if state is not None:
            run.restore(state)
            begun = f"going on from step {run.done} of {run.steps}"
            told = f"{told} {begun}" if told else begun
        elif processes.first:  # not before all is well: a failed start leaves nothing
            open_folder(folder, run.recipe, processes.device)
            save_checkpoint(folder, run.state())  # from here on it can be killed
        processes.wait()
        title = f"{recipe.protocol.name}, seed {recipe.seed}"
        with show(title, run.steps, run.done, "step") as display:
            seen = None if start is None or resume else warn_of_seen(recipe, start)
            protocol, plan = recipe.protocol.describe(), _describe_plan(run, folder)
            for line in (material.description, run.described, protocol, plan, seen, told):
                if line is not None:
                    display.message(line)
            finished = _train(run, folder, display)
            if not finished:
                return Outcome(folder, False, None, [])
            if processes.first:  # what comes now may fail too
                _save_if_possible(run, folder, display)
            model = run.judged.eval()
            rows = _finish(run, folder, display)
        return Outcome(folder, True, model, rows)


def _find_finished(folder: Path, processes: Processes) -> Outcome | None:
    """The outcome of a run that has its model and its rows; None if anything is left to do."""
    try:
        model = load(folder / "model", device=processes.device)
        facts, there = model.provenance or {}, read_rows(folder)
    except KillickError:
        return None
    rows = facts.get("rows") or []
    if "steps" not in facts or (rows and not there):
        return None
    return Outcome(folder, True, model, rows)


def _train(run: Run, folder: Path, display: Display) -> bool:
    """All steps that are left; False if somebody interrupted."""
    recipe, processes = run.recipe, run.processes
    saved, cpu = time.monotonic(), processes.device.type == "cpu"
    with Interrupts() as interrupts, _metrics(run, folder) as metrics:
        if run.done == 0 and run.source is not None:
            _show_day_zero(run, display, metrics)
        clock = _Clock()
        while run.done < run.steps:
            epoch, within = divmod(run.done, run.steps_per_epoch)
            run.material.batches.begin(run.first_epoch + epoch, within)
            for _ in range(within, run.steps_per_epoch):
                run.take_step()
                display.advance(run.done)
                epoch_ends = run.done % run.steps_per_epoch == 0
                if run.done % recipe.log_every == 0 or epoch_ends:
                    _look(run, clock, display, metrics)
                if epoch_ends:
                    _end_epoch(run, clock, display, metrics)
                # Processes stop together, so they ask each other; on GPUs only now and then.
                asking = cpu or processes.count == 1 or run.done % recipe.log_every == 0
                if asking and _anyone(interrupts.asked, processes):
                    return _stop(run, folder, display)
                due = time.monotonic() - saved >= 60 * recipe.checkpoint_minutes
                if due and run.done < run.steps and processes.first:
                    before = time.monotonic()
                    _save_if_possible(run, folder, display)
                    saved = time.monotonic()
                    clock.leave_out(saved - before)
    return True


class _Clock:
    """Images per second, leaving out what is not training."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """What took so long was not training."""
        self._since += seconds

    def lap(self, steps: int) -> float:
        """Steps per second since the last look."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        return steps / max(seconds, 1e-9)


def _look(run: Run, clock: _Clock, display: Display, metrics: "Metrics | _NoMetrics") -> None:
    """Read what the steps left on the device; stop if the loss was bad."""
    seen, device = run.look(), run.processes.device
    bad = run.processes.highest(
        torch.tensor(-1 if seen.bad_step is None else seen.bad_step, device=device)
    )
    if bad >= 0:
        raise _diverged(run, int(bad))
    counts = torch.tensor([*seen.losses, seen.correct], dtype=torch.float64, device=device)
    *losses, correct = run.processes.total(counts).tolist()
    losses = [loss / run.processes.count for loss in losses]
    batch = run.material.batches.cut.batch
    speed = batch * clock.lap(len(losses))
    loss, accuracy = sum(losses) / len(losses), correct / (batch * len(losses))
    rate = run.rate(run.done - 1)
    epoch = run.done / run.steps_per_epoch
    metrics.write(
        "train",
        run.done,
        epoch=round(epoch, 4),
        loss=loss,
        accuracy=accuracy,
        lr=rate,
        images_per_second=round(speed, 1),
        **({"losses": losses} if len(losses) <= 10 else {}),
    )
    display.update(
        run.done,
        f"epoch {-(-run.done // run.steps_per_epoch)}/{run.recipe.epochs} loss {loss:.3f}"
        f" accuracy {100 * accuracy:.1f} % {speed:,.0f} images/s",
        line=run.done % run.steps_per_epoch == 0,
    )


def _end_epoch(run: Run, clock: _Clock, display: Display, metrics: "Metrics | _NoMetrics") -> None:
    epoch = run.done // run.steps_per_epoch
    last = run.done == run.steps
    held = run.material.validation
    if held is None or (epoch % run.recipe.validate_every and not last):
        return
    before = time.monotonic()
    score = judge(run.judged, held, run.processes, precision=run.precision)
    metrics.write("validation", run.done, epoch=epoch, **asdict(score))
    display.message(
        f"epoch {epoch}: validation accuracy {100 * score.accuracy:.2f} %, loss {score.loss:.4f}"
    )
    clock.leave_out(time.monotonic() - before)


def _describe_plan(run: Run, folder: Path) -> str:
    recipe = run.recipe
    epochs = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs:g} epochs"
    steps = "1 step" if run.steps_per_epoch == 1 else f"{run.steps_per_epoch:,} steps"
    return (
        f"{epochs} of {steps}, batch {recipe.batch}, {recipe.optimizer.name}"
        f" at {recipe.optimizer.lr:g}, {recipe.schedule.name}, into {folder}"
    )


def _show_day_zero(run: Run, display: Display, metrics: "Metrics | _NoMetrics") -> None:
    """A trained network predicts after anchoring what it did before; show it."""
    held = run.material.validation or run.material.test
    if held is None or run.source is None:
        return
    ours = judge(run.model, held, run.processes)
    theirs = _score_source(run, held)
    metrics.write("day 0", 0, **asdict(ours), source_accuracy=theirs.accuracy)
    display.message(
        f"day 0, before the first step: accuracy {100 * ours.accuracy:.2f} % on {held.count:,}"
        f" images of {held.name}; the network it starts from {100 * theirs.accuracy:.2f} %"
    )


def _score_source(run: Run, held: Held) -> Score:
    assert run.source is not None
    if isinstance(run.source, Anchored) and not len(run.source.references):
        run.source.set_references(run.model.references)  # type: ignore[arg-type]
    return judge(run.source.to(run.processes.device), held, run.processes)


def _diverged(run: Run, step: int) -> DivergedError:
    where = f"step {step + 1} (epoch {step // run.steps_per_epoch + 1})"
    return DivergedError(
        f"the loss or the weights became NaN or infinite at {where}, at learning rate"
        f" {run.rate(step):.3g}. Try a lower optimizer.lr, a longer schedule.warmup,"
        " optimizer.clip: 1.0, or precision: float32."
        " The last checkpoint was not touched. A run keeps its settings: begin another one, with"
        " --output."
    )


def _check_sound(run: Run) -> None:
    """Refuse to go on with a loss or weights that are not finite (waits for the device)."""
    if (bad := run.bad_step()) is not None:
        raise _diverged(run, bad)
    if not run.finite():
        raise _diverged(run, run.done - 1)


def _anyone(asked: bool, processes: Processes) -> bool:
    """Whether any process was asked to stop; alone, one need not wait for the device."""
    if processes.count == 1:
        return asked
    return bool(processes.highest(torch.tensor(int(asked), device=processes.device)) > 0)


def _stop(run: Run, folder: Path, display: Display) -> bool:
    _check_sound(run)
    if run.processes.first:
        save_checkpoint(folder, run.state())
    display.message(
        f"interrupted after step {run.done} of {run.steps}; saved. Go on with:"
        f" killick train --resume {shlex.quote(str(folder))}"
    )
    return False


def _save_if_possible(run: Run, folder: Path, display: Display) -> None:
    """A checkpoint; one that cannot be written is told, and tried again later.

    Weights that went bad do not replace good ones.
    """
    _check_sound(run)
    try:
        save_checkpoint(folder, run.state())
    except CheckpointError as problem:
        display.message(f"{problem} Training goes on, and the next checkpoint will be tried.")


def _finish(run: Run, folder: Path, display: Display) -> list[dict[str, Any]]:
    """Test once, and write model and rows."""
    recipe, processes, held = run.recipe, run.processes, run.material.test
    rows: list[Row] = []
    if held is not None:
        score = judge(run.judged, held, processes)
        rows = rows_of(recipe, run, score, folder.name)
        count = "1 image" if score.count == 1 else f"{score.count:,} images"
        display.message(f"test accuracy {100 * score.accuracy:.2f} % on {count}")
    if processes.first:
        save(
            run.judged,
            folder / "model",
            class_names=run.material.class_names,
            provenance={
                "recipe": asdict(recipe),
                "facts": training_facts(recipe, run),
                "steps": run.done,
                "trained_on": run.material.fingerprint,
                "rows": rows,
            },
        )
        if rows:
            write_rows(folder, rows)
        display.message(f"model, metrics and rows are in {folder}")
        if isinstance(run.judged, Anchored):
            display.message(note_on_references(run.judged))
    processes.wait()
    return rows


def rows_of(recipe: Recipe, run: Run, score: Score, name: str) -> list[Row]:
    """A row for each metric, with all that a result must name."""
    data = recipe.data
    common = {
        "model": name,
        **training_facts(recipe, run),
        "suite": "clean",
        "set": recipe.data.name,
        "view": PlainView(data.size, data.resize, data.interpolation).described,
        "evaluation_seed": 0,
        "inference": "single",
        "k": 1 if recipe.protocol.anchored else "",
        "precision": "float32",
        "count": score.count,
        "weights": digest_weights(run.judged),
    }
    values = {"top1": score.accuracy, "nll": score.loss}
    return [make_row(**common, metric=metric, value=value) for metric, value in values.items()]


def training_facts(recipe: Recipe, run: Run) -> dict[str, Any]:
    """How a model was trained, in the columns that every row about it has."""
    protocol = recipe.protocol
    masked = protocol.name == "masked"
    made = remembered(run.model.net)  # started from a folder, it is not the recipe's
    return {
        "network": recipe.network.name if made is None else made.name,
        "data": recipe.data.name,
        "protocol": protocol.name,
        "target": protocol.target if masked else "",
        "alpha": protocol.share if masked else "",
        "scope": protocol.scope if masked else "",
        "references": protocol.references if protocol.anchored else "",
        "reference_policy": getattr(run.judged, "reference_policy", None) or "",
        "start": "" if run.start is None else str(run.start),
        "epochs": recipe.epochs,
        "seed": recipe.seed,
    }


def check_free(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds a run already."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"cannot train into {folder}: expected a folder, found a file.")
    finished = (folder / "model" / "config.json").exists()
    if not (folder / LAST).exists() and not finished:
        return
    if finished:
        there = "a finished run"
    elif _same(recipe, recipe_of(folder)):
        there = (
            f"this run, unfinished: go on with killick train --resume {shlex.quote(str(folder))}"
        )
    else:
        there = "a run with other settings"
    raise CheckpointError(
        f"cannot train into {folder}: it holds {there}. Choose another folder (--output), or remove"
        " it."
    )


def _rebuilding(recipe: Recipe, state: dict[str, Any]) -> Recipe:
    """The recipe that makes the network of a checkpoint again, whatever it was started from."""
    if state["network"] is None:
        return recipe
    name, arguments = state["network"]
    arguments = {key: value for key, value in arguments.items() if key != "num_classes"}
    return replace(recipe, network=replace(recipe.network, name=name, arguments=arguments))


def _same(new: Recipe, old: Recipe) -> bool:
    """Whether two recipes are equal, where the older one has its normalization worked out."""
    if new.data.mean is None:
        old = replace(old, data=replace(old.data, mean=None, std=None))
    return new == old


def open_folder(folder: Path, recipe: Recipe, device: torch.device) -> None:
    """Make a run folder, and say in it what will be trained, and where."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CheckpointError(f"cannot make {folder}: {problem.strerror}.") from None
    write_atomic(folder / "recipe.yaml", to_yaml(recipe))
    write_atomic(folder / "environment.json", json.dumps(environment(device), indent=2) + "\n")
    source = read_source(recipe.network.name.partition(":")[0])
    if source is not None and not (folder / "network.py").exists():
        write_atomic(folder / "network.py", source)  # as it was when the run began


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run folder."""
    return make_recipe(read_yaml(folder / "recipe.yaml"), f"the recipe of {folder}")


class _NoMetrics:
    """For all processes but the first."""

    def write(self, kind: str, step: int, **values: Any) -> None:
        pass


@contextmanager
def _metrics(run: Run, folder: Path) -> "Iterator[Metrics | _NoMetrics]":
    if not run.processes.first:
        yield _NoMetrics()
        return
    with Metrics(folder, run.done or None) as metrics:
        yield metrics


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """The global state of torch, which dropout uses, is put back at the end."""
    cuda = [device.index] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        yield
