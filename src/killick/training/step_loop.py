"""The steps of a run: logging, validation, checkpoints, and stopping when asked."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from killick.core.anchored import Anchored
from killick.data.sources import GIVEN
from killick.errors import CheckpointError, DivergedError
from killick.runtime.devices import precise_device
from killick.runtime.processes import Processes
from killick.runtime.progress import Display
from killick.runtime.signals import Interrupts
from killick.training.callbacks import Callback, Progress
from killick.training.checkpoint import save_checkpoint
from killick.training.loggers import RunLoggers
from killick.training.recipe import named_classes
from killick.training.run_state import TrainingRun
from killick.training.validation import validate


def run_steps(
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
            _report_before_training(run, display, loggers)
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
                    save_if_possible(run, folder, display)
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


def _report_before_training(run: TrainingRun, display: Display, loggers: RunLoggers) -> None:
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


def save_if_possible(run: TrainingRun, folder: Path, display: Display) -> None:
    """Save a checkpoint; if it cannot be written, say so and go on."""
    _check_finite(run)
    try:
        save_checkpoint(folder, run.state())
    except CheckpointError as problem:
        display.message(f"{problem} Training continues, and will try again at the next checkpoint.")
