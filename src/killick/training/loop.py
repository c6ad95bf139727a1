"""A training run, from a recipe to a run folder. Read `train` top to bottom.

```
folder/
  recipe.yaml            every setting
  environment.json       versions, machine, command
  metrics.jsonl          loss and accuracy over time
  checkpoint.pt          to resume from; checkpoint-before.pt, the one before
  model/                 what killick.save writes, at the end
  rows.csv               results on the test set, at the end
```
"""

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.dropout_lint import find_early_dropout
from killick.core.standard import Standard
from killick.data.data_settings import Data
from killick.data.preprocessing import PlainView
from killick.data.worker_processes import dead_workers_explained
from killick.errors import CheckpointError, KillickError, OptionError, one_line
from killick.nets import weights_of
from killick.nets.size_limit import limited_to
from killick.results.rows import read_rows
from killick.runtime.devices import describe_device, forked_random_state
from killick.runtime.processes import Processes, joined
from killick.runtime.progress import Display, DisplayFactory, choose_display
from killick.storage.loading import load
from killick.storage.saving import note_on_references
from killick.training.callbacks import Callback
from killick.training.checkpoint import load_checkpoint, save_checkpoint
from killick.training.class_paths import check_same_classes, import_classes
from killick.training.initial_weights import find_start, warn_of_seen
from killick.training.loggers import JsonLogger, RunLoggers, find_loggers
from killick.training.output_folder import check_free, claimed, open_folder, save_results
from killick.training.recipe import Recipe
from killick.training.recipe_files import make_recipe
from killick.training.run_state import TrainingRun
from killick.training.step_loop import run_steps, save_if_possible
from killick.training.training_data import load_training_data
from killick.training.validation import validate


@dataclass(frozen=True)
class Outcome:
    """The result of `train`.

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
    transform: Callable[..., Any] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train a model by a recipe, and write everything about it into `folder`.

    Several processes started by torchrun train together; the batch is the recipe's all the same.
    With `resume` the recipe is the folder's, and given again only if that names classes by class
    path. The other arguments are those of `killick.train`.

    Raises:
        DivergedError: If the loss becomes NaN or infinite; the last checkpoint stays.
    """
    folder = Path(folder)
    with joined(device) as processes, ExitStack() as stack:
        stack.enter_context(forked_random_state(processes.device))  # dropout uses it
        state, note = None, None
        show = choose_display(show, quiet or not processes.first)
        if resume:
            if (outcome := _find_finished(folder, processes)) is not None:
                with show(f"training {folder.name}", 1, 1, "step") as display:
                    display.message(
                        f"{folder} is finished. To train longer, start another run from it:"
                        f" killick train --from {shlex.quote(str(folder))}"
                    )
                return outcome
            if processes.first and folder.is_dir():
                stack.enter_context(claimed(folder))
            state, note = load_checkpoint(folder)
            given, start = recipe, state["start"]
            recipe = _recipe_of_checkpoint(folder, state)
            check_same_classes(given, recipe, str(folder))
            _check_given(folder, state.get("given", []), transform, loss)
        else:
            check_free(folder)
        assert recipe is not None
        start = None if start is None else find_start(start)
        kinds = find_loggers(recipe.loggers)  # an error before anything is written
        own = import_classes(recipe)
        own = replace(own, transform=transform or own.transform, loss=loss or own.loss)
        way = None if state is None else state["way"]
        data = load_training_data(recipe, processes, own.transform, way, resumed=resume)
        with nullcontext() if state is None else limited_to(state["model"]):
            run = TrainingRun(recipe, data, processes, start, restoring=resume, own=own)
        run.given = [name for name, each in (("transform", transform), ("loss", loss)) if each]
        facts = "".join(f", {name} {value}" for name, value in recipe.protocol.facts().items())
        plan = f"{recipe.epochs} epochs of {run.steps_per_epoch:,} steps, into {folder}"
        where = describe_device(processes.device)
        lines: list[str | None] = [
            data.description,
            f"{recipe.protocol.name}{facts}: {plan}, on {where}",
            _describe_view(run.recipe.data),
            run.fallback,
        ]
        if state is not None:
            try:
                run.restore(state)
            except KillickError:
                raise
            except Exception as problem:  # whatever torch raises for weights of another network
                raise CheckpointError(
                    f"cannot resume {folder}: its checkpoint does not fit ({one_line(problem)})."
                ) from None
            lines += [note, f"resuming from step {run.done} of {run.steps}"]
        else:
            lines += [run.description, _warn_of_start(run), _warn_of_dropout(run)]
            if processes.first:  # a failed start leaves nothing
                stack.enter_context(claimed(folder))
                open_folder(folder, run.recipe, processes.device)
                save_checkpoint(folder, run.state())  # from here on it can be killed
        processes.wait()
        title = f"{recipe.protocol.name}, seed {recipe.seed}"
        with show(title, run.steps, run.done, "step") as display:
            for line in filter(None, lines):
                display.message(line)
            kinds = {"json": JsonLogger, **kinds} if processes.first else {}
            step = run.done or None
            open_loggers = closing(RunLoggers(folder, run.recipe, step, kinds, display.message))
            hooks = list(callbacks) if processes.first else []
            with open_loggers as loggers:
                with dead_workers_explained(recipe.data.name), closing(run):
                    finished = run_steps(run, folder, display, loggers, hooks)
                if finished:
                    if processes.first:  # testing may fail too
                        save_if_possible(run, folder, display)
                    model = run.inference_model.eval()
                    rows = _finish(run, folder, display)
                    loggers.log_rows(run.done, rows)
                    outcome = Outcome(folder, True, model, rows)
                else:
                    outcome = Outcome(folder, False, None, [])
        for each in hooks:
            each.on_end(outcome)
        return outcome


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


def _describe_view(data: Data) -> str:
    return (
        f"images of {PlainView.of(data).described}, normalized by mean {data.mean} and std {data.std}"
        " (data.size, data.resize, data.interpolation, data.squash, data.mean, data.std)"
    )


def _warn_of_start(run: TrainingRun) -> str | None:
    """Whether a trained network may have seen images for validation."""
    if run.source is None:
        return None
    weights = weights_of(run.source.net)
    origin = run.start or (None if weights is None else weights.name)
    return None if origin is None else warn_of_seen(run.recipe, origin)


def _warn_of_dropout(run: TrainingRun) -> str | None:
    """Whether dropout in the network biases BatchNorm."""
    found = find_early_dropout(run.model)
    if not found:
        return None
    return (
        f"dropout at {found[0]!r} ({len(found)} such) comes before a BatchNorm, whose variance it"
        " shifts between training and test: move it behind the last one"
    )


def _recipe_of_checkpoint(folder: Path, state: dict[str, Any]) -> Recipe:
    """The recipe that makes the network of a checkpoint again, whatever it was started from."""
    recipe = make_recipe(state["recipe"], f"the recipe of {folder}")
    if state["network"] is None:
        return recipe
    name, arguments = state["network"]
    arguments = {key: value for key, value in arguments.items() if key != "num_classes"}
    return replace(recipe, network=replace(recipe.network, name=name, arguments=arguments))


def _check_given(folder: Path, names: list[str], transform: object, loss: object) -> None:
    """Refuse to resume without the callables that a run was given, or with others."""
    given = [name for name, each in (("transform", transform), ("loss", loss)) if each is not None]
    if given != list(names):
        expected, found = (", ".join(each) or "none" for each in (names, given))
        raise OptionError(
            f"{folder} was trained with callables of your own: {expected}, found {found}. Pass the"
            " same to train(..., resume=True)."
        )


def _finish(run: TrainingRun, folder: Path, display: Display) -> list[dict[str, Any]]:
    """Test once, and write model and rows."""
    score = None
    if run.data.test is not None:
        score = validate(run.inference_model, run.data.test, run.processes)
        display.message(f"test accuracy {100 * score.accuracy:.2f} % on {score.count:,} images")
    rows = save_results(run, folder, score)
    display.message(f"model, metrics and rows are in {folder}")
    if isinstance(run.inference_model, Anchored) and run.processes.first:
        display.message(note_on_references(run.inference_model))
    run.processes.wait()
    return rows
