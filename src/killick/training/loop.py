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
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.dropout_lint import find_early_dropout
from killick.core.standard import Standard
from killick.data.data_settings import Data
from killick.data.preprocessing import PlainView
from killick.data.sources import GIVEN
from killick.data.worker_processes import dead_workers_explained
from killick.errors import CheckpointError, DivergedError, KillickError, OptionError, one_line
from killick.nets import weights_of
from killick.nets.size_limit import limited_to
from killick.results.rows import read_rows
from killick.runtime.devices import describe_device, forked_random_state, precise_device
from killick.runtime.processes import Processes, joined
from killick.runtime.progress import Display, DisplayFactory, choose_display
from killick.runtime.signals import Interrupts
from killick.storage.loading import load
from killick.storage.saving import note_on_references
from killick.training.callbacks import Callback, Progress
from killick.training.checkpoint import load_checkpoint, save_checkpoint
from killick.training.class_paths import check_same_classes, import_classes
from killick.training.initial_weights import find_start, warn_of_seen
from killick.training.loggers import JsonLogger, RunLoggers, find_loggers
from killick.training.output_folder import check_free, claimed, open_folder, save_results
from killick.training.recipe import Recipe, named_classes
from killick.training.recipe_files import make_recipe
from killick.training.run_state import TrainingRun
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
                    finished = _train(run, folder, display, loggers, hooks)
                if finished:
                    if processes.first:  # testing may fail too
                        _save_if_possible(run, folder, display)
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


def _train(
    run: TrainingRun,
    folder: Path,
    display: Display,
    loggers: RunLoggers,
    callbacks: Sequence[Callback],
) -> bool:
    """All steps that are left; False if interrupted."""
    recipe, processes = run.recipe, run.processes
    cpu = processes.device.type == "cpu"
    with Interrupts() as interrupts:
        if run.done == 0 and run.source is not None:
            _report_day_zero(run, display, loggers)
        saved = since = time.monotonic()
        logged = began = run.done
        while run.done < run.steps:
            epoch, within = divmod(run.done, run.steps_per_epoch)
            run.data.batches.begin(recipe.first_epoch + epoch, within)
            for _ in range(within, run.steps_per_epoch):
                run.take_step()
                display.advance(run.done)
                epoch_ends = run.done % run.steps_per_epoch == 0
                if run.done % recipe.log_every == 0 or epoch_ends:
                    speed = (run.done - logged) / max(time.monotonic() - since, 1e-9)
                    _log_training(run, speed, display, loggers)
                    # The first reading has the time of warming up in it.
                    left = run.compile_if_repaid(speed) if logged > began else None
                    if left is not None:
                        display.message(f"compiling: about {left:.0f} s of training are left")
                    if epoch_ends:
                        _validate(run, display, loggers)
                    since, logged = time.monotonic(), run.done
                if callbacks:
                    epoch_done = run.done / run.steps_per_epoch
                    progress = Progress(folder, run.done, epoch_done, dict(loggers.last), run)
                    for each in callbacks:
                        each.on_step(progress)
                        if epoch_ends:
                            each.on_epoch(progress)
                # Processes stop together, so they exchange it; on GPUs only now and then.
                due = cpu or processes.count == 1 or run.done % recipe.log_every == 0
                if due and _any_process(interrupts.asked, processes):
                    _stop(run, folder, display)
                    return False
                # Several processes have read their statistics then: they are in no checkpoint.
                due = time.monotonic() - saved >= 60 * recipe.checkpoint_minutes
                due &= processes.count == 1 or logged == run.done
                if not run.data.resumes_anywhere:
                    due = epoch_ends
                if due and run.done < run.steps and processes.first:
                    _save_if_possible(run, folder, display)
                    saved = time.monotonic()
    return True


def _log_training(run: TrainingRun, speed: float, display: Display, loggers: RunLoggers) -> None:
    """Read what the steps left on the device; stop if the loss was bad."""
    processes, (losses, correct) = run.processes, run.read_statistics()
    bad = processes.highest(torch.tensor(run.bad_step(), device=processes.device))
    if bad >= 0:
        raise _diverged(run, int(bad))
    counts = torch.tensor(
        [*losses, correct], dtype=torch.float64, device=precise_device(processes.device)
    )
    *losses, correct = processes.total(counts).tolist()
    losses = [loss / processes.count for loss in losses]
    batch = run.data.batches.cut.batch
    speed *= batch
    loss, accuracy = sum(losses) / len(losses), correct / (batch * len(losses))
    loggers.log(
        "train",
        run.done,
        epoch=round(run.done / run.steps_per_epoch, 4),
        loss=loss,
        accuracy=accuracy,
        lr=run.rate(run.done - 1),
        images_per_second=round(speed, 1),
        **({"losses": losses} if len(losses) <= 10 else {}),
    )
    display.update(
        run.done,
        f"epoch {-(-run.done // run.steps_per_epoch)}/{run.recipe.epochs} loss {loss:.3f}"
        f" accuracy {100 * accuracy:.1f} % {speed:,.0f} images/s",
        line=run.done % run.steps_per_epoch == 0,
    )


def _validate(run: TrainingRun, display: Display, loggers: RunLoggers) -> None:
    epoch = run.done // run.steps_per_epoch
    images = run.data.validation
    if images is None or (epoch % run.recipe.validate_every and run.done < run.steps):
        return
    score = validate(run.inference_model, images, run.processes, precision=run.precision)
    loggers.log("validation", run.done, epoch=epoch, **asdict(score))
    display.message(
        f"epoch {epoch}: validation accuracy {100 * score.accuracy:.2f} %, loss {score.loss:.4f}"
    )


def _report_day_zero(run: TrainingRun, display: Display, loggers: RunLoggers) -> None:
    """Show that a trained network predicts after anchoring what it did before."""
    images, source = run.data.validation or run.data.test, run.source
    if images is None or source is None:
        return
    if isinstance(source, Anchored) and not len(source.references):
        source.set_references(run.model.references)  # type: ignore[arg-type]
    ours = validate(run.model, images, run.processes)
    theirs = validate(source.to(run.processes.device), images, run.processes)
    loggers.log("day 0", 0, **asdict(ours), source_accuracy=theirs.accuracy)
    display.message(
        f"before the first step: accuracy {100 * ours.accuracy:.2f} % on {images.count:,} images of"
        f" {images.name}; the network it starts from {100 * theirs.accuracy:.2f} %"
    )


def _diverged(run: TrainingRun, step: int) -> DivergedError:
    return DivergedError(
        f"the loss or the weights became NaN or infinite at step {step + 1} (epoch"
        f" {step // run.steps_per_epoch + 1}), at learning rate {run.rate(step):.3g}. Start another"
        " run with a lower optimizer.lr, a longer schedule.warmup, optimizer.clip: 1.0, or"
        " precision: float32. The last checkpoint was kept."
    )


def _check_finite(run: TrainingRun) -> None:
    """Refuse to save a loss or weights that are not finite (waits for the device)."""
    if (bad := run.bad_step()) >= 0 or not run.finite():
        raise _diverged(run, bad if bad >= 0 else run.done - 1)


def _any_process(interrupted: bool, processes: Processes) -> bool:
    """Whether any process was interrupted; alone, one need not wait for the device."""
    if processes.count == 1:
        return interrupted
    return bool(processes.highest(torch.tensor(int(interrupted), device=processes.device)) > 0)


def _stop(run: TrainingRun, folder: Path, display: Display) -> None:
    _check_finite(run)
    run.gather_statistics()
    at_end = run.done % run.steps_per_epoch == 0
    saves = run.data.resumes_anywhere or at_end
    if run.processes.first and saves:
        save_checkpoint(folder, run.state())
    how = f"killick train --resume {shlex.quote(str(folder))}"
    if named_classes(run.recipe):
        how += ", and --recipe FILE or the class_path options again"
    if GIVEN in run.recipe.data.name or GIVEN in run.recipe.network.name:
        how = "killick.train(network, data, folder, resume=True)"
    saved = "saved" if saves else "its last whole epoch is saved"
    display.message(
        f"interrupted after step {run.done} of {run.steps}; {saved}. Resume with: {how}"
    )


def _save_if_possible(run: TrainingRun, folder: Path, display: Display) -> None:
    """Save a checkpoint; if it cannot be written, say so and go on."""
    _check_finite(run)
    try:
        save_checkpoint(folder, run.state())
    except CheckpointError as problem:
        display.message(f"{problem} Training goes on, and the next checkpoint will be tried.")


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
